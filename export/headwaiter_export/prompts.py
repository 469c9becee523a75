"""Read the prompts of a `sentence-transformers` model: prefixes of texts, such as "query: "."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import tokenizers

from headwaiter_export.checkpoint_json import CheckpointError, CheckpointJson
from headwaiter_export.text_config import Prompt, TextConfig


def with_prompts(text: TextConfig, prompts_json: CheckpointJson, *, pooled: bool) -> TextConfig:
    """Return a text configuration with the checkpoint's prompts.

    Args:
        text: the configuration without prompts.
        prompts_json: content of config_sentence_transformers.json.
        pooled: whether pooling includes the rows of prompts.

    Raises:
        CheckpointError: a prompt is not a string or too long, or the default prompt is unknown.
    """
    texts = _prompt_texts(prompts_json)
    default = ""
    if prompts_json.values.get("default_prompt_name") is not None:
        default = prompts_json.choice("default_prompt_name", {name: name for name in texts})
    tokenizer = tokenizers.Tokenizer.from_str(text.tokenizer)
    prompts = tuple(_prompt(name, words, tokenizer, text.max_tokens) for name, words in texts.items())
    return replace(text, prompts=prompts, default_prompt=default, pooling_skips_prompt=bool(prompts) and not pooled)


def _prompt_texts(prompts_json: CheckpointJson) -> Mapping[str, str]:
    """Return the text of each prompt by name; null in the file stands for an empty prompt."""
    values = prompts_json.values.get("prompts") or {}
    if not isinstance(values, dict) or not all(isinstance(text, str | None) for text in values.values()):
        raise prompts_json.error("prompts", "it must be an object of strings")
    return {name: text or "" for name, text in values.items()}


def _prompt(name: str, text: str, tokenizer: tokenizers.Tokenizer, max_tokens: int) -> Prompt:
    special = np.array(tokenizer.encode(text).special_tokens_mask, bool)
    if len(special) >= max_tokens:
        raise CheckpointError(
            f"prompt {name!r} has {len(special)} tokens, special tokens included, but prompt and text together have at "
            f"most {max_tokens}: shorten the prompt"
        )
    ordinary = np.flatnonzero(~special)
    return Prompt(name, text, int(ordinary[-1]) + 1 if len(ordinary) else 0)
