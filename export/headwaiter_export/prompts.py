"""Reads the prompts of a `sentence-transformers` model: texts that go before others, as "query: "."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import tokenizers

from headwaiter_export.checkpoint_json import CheckpointError, Settings
from headwaiter_export.config import Prompt, TextConfig


def with_prompts(text: TextConfig, settings: Settings, *, pooled: bool) -> TextConfig:
    """Add a checkpoint's prompts to how it takes texts.

    Args:
        text: without prompts.
        settings: of config_sentence_transformers.json.
        pooled: whether the rows of a prompt's tokens take part in pooling.

    Raises:
        CheckpointError: prompts are no texts, the default is none of them, or one leaves no room for a text.
    """
    texts = _texts(settings)
    default = ""
    if settings.values.get("default_prompt_name") is not None:
        default = settings.choice("default_prompt_name", {name: name for name in texts})
    tokenizer = tokenizers.Tokenizer.from_str(text.tokenizer)
    prompts = tuple(_prompt(name, words, tokenizer, text.max_tokens) for name, words in texts.items())
    return replace(text, prompts=prompts, default_prompt=default, pooling_skips_prompt=bool(prompts) and not pooled)


def _texts(settings: Settings) -> Mapping[str, str]:
    """Return the prompts by name; null stands for an empty one."""
    values = settings.values.get("prompts") or {}
    if not isinstance(values, dict) or not all(isinstance(text, str | None) for text in values.values()):
        raise settings.refusal("prompts", "it must be an object of texts")
    return {name: text or "" for name, text in values.items()}


def _prompt(name: str, text: str, tokenizer: tokenizers.Tokenizer, max_tokens: int) -> Prompt:
    special = np.array(tokenizer.encode(text).special_tokens_mask, bool)
    if len(special) >= max_tokens:
        raise CheckpointError(
            f"the prompt {name!r} has {len(special)} tokens, special tokens included, and the model takes texts of at "
            f"most {max_tokens}: nothing is left for the text"
        )
    own = np.flatnonzero(~special)
    return Prompt(name, text, int(own[-1]) + 1 if len(own) else 0)
