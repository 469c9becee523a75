"""The configuration of a model that accepts texts: tokenizer, limit and prompts."""

from dataclasses import dataclass


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
        default_prompt: name of the prompt of a request without one; empty for no prompt.
        pooling_skips_prompt: whether pooling skips the rows of a prompt and of special tokens before it.
    """

    tokenizer: str
    max_tokens: int
    prompts: tuple[Prompt, ...] = ()
    default_prompt: str = ""
    pooling_skips_prompt: bool = False
