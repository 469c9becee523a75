"""How a model turns texts into token ids."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Prompt:
    """A text that is put before texts of one kind, such as "query: ".

    Attributes:
        name: name of the prompt in requests.
        text: the prompt itself.
        tokens: tokens before those of the text, special tokens included; 0 for an empty prompt.
    """

    name: str
    text: str
    tokens: int


@dataclass(frozen=True)
class TextConfig:
    """A tokenizer, its limit and its prompts.

    Attributes:
        tokenizer: content of a `tokenizers` file (tokenizer.json) without truncation and padding.
        max_tokens: most tokens of a text, special tokens included.
        prompts: prompts that a request may choose from.
        default_prompt: name of the prompt of a request that chooses none; empty for no prompt.
        pooling_skips_prompt: whether pooling leaves out the rows of a prompt and of special tokens before it.
    """

    tokenizer: str
    max_tokens: int
    prompts: tuple[Prompt, ...] = ()
    default_prompt: str = ""
    pooling_skips_prompt: bool = False
