"""How a model turns texts into token ids: its tokenizer, its limit and its prompts.

A prompt is a prefix of texts, such as "query: ". Only `sentence-transformers` models have prompts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import tokenizers

from headwaiter_export.checkpoint_json import CheckpointError, CheckpointJson


@dataclass(frozen=True)
class Prompt:
    """A prefix of all texts of one kind, such as "query: ".

    Attributes:
        name: name of the prompt in requests.
        text: the prefix.
        tokens: number of the prompt's tokens and of special tokens before it; 0 for an empty prompt.
    """

    name: str
    text: str
    tokens: int


@dataclass(frozen=True)
class TextConfig:
    """A tokenizer, its limit and the model's prompts.

    Attributes:
        tokenizer: content of a `tokenizers` file (tokenizer.json) without truncation and padding.
        max_tokens: most tokens of a text, special tokens included.
        prompts: prompts that a request may choose from.
        default_prompt: name of the prompt for requests that name none; empty if there is no default.
        pooling_skips_prompt: whether pooling skips the rows of a prompt and of special tokens before it.
        pairs: whether the model takes pairs of texts.
    """

    tokenizer: str
    max_tokens: int
    prompts: tuple[Prompt, ...] = ()
    default_prompt: str = ""
    pooling_skips_prompt: bool = False
    pairs: bool = False


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
    prompts = tuple(_read_prompt(name, words, tokenizer, text.max_tokens) for name, words in texts.items())
    return replace(text, prompts=prompts, default_prompt=default, pooling_skips_prompt=bool(prompts) and not pooled)


def _prompt_texts(prompts_json: CheckpointJson) -> Mapping[str, str]:
    """Return the text of each prompt by name; null in the file stands for an empty prompt."""
    values = prompts_json.values.get("prompts") or {}
    if not isinstance(values, dict) or not all(isinstance(text, str | None) for text in values.values()):
        raise prompts_json.error("prompts", "it must be an object of strings")
    return {name: text or "" for name, text in values.items()}


def _read_prompt(name: str, text: str, tokenizer: tokenizers.Tokenizer, max_tokens: int) -> Prompt:
    special = np.array(tokenizer.encode(text).special_tokens_mask, bool)
    if len(special) >= max_tokens:
        raise CheckpointError(
            f"prompt {name!r} has {len(special)} tokens, special tokens included, but prompt and text together have at "
            f"most {max_tokens}: shorten the prompt"
        )
    ordinary = np.flatnonzero(~special)
    return Prompt(name, text, int(ordinary[-1]) + 1 if len(ordinary) else 0)
