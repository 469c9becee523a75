"""Read the text that a language model reads for a pair of texts, from the chat template of its tokenizer.

sentence-transformers renders a pair as a chat of two messages, whose roles are "query" and "document".
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from headwaiter_export.checkpoints.json_files import CheckpointError, CheckpointJson
from headwaiter_export.checkpoints.tokenizers.comparison import check_texts, reference_tokenizer

# Texts that no template has.
_QUERY, _DOCUMENT = "query-5e0c1f", "document-8a3b7d"


@dataclass(frozen=True)
class PairTemplate:
    """The text around the two texts of a pair."""

    before: str
    between: str
    after: str

    def text(self, first: str, second: str) -> str:
        """Return the text of a pair."""
        return f"{self.before}{first}{self.between}{second}{self.after}"


def read_pair_template(folder: Path, config_json: CheckpointJson, tokenizer: Tokenizer, prompt: str) -> PairTemplate:
    """Return the chat template of a checkpoint as the text around two texts.

    Args:
        folder: folder of the tokenizer.
        config_json: content of config.json.
        tokenizer: the tokenizer of the bundle, whose ids are compared with those of transformers.
        prompt: the message with the role "system"; empty for none.

    Raises:
        CheckpointError: transformers is missing or cannot use the template, the template changes the texts or repeats
            them, or the ids of a pair differ.
    """
    reference = reference_tokenizer(folder, config_json)
    if reference is None:
        raise CheckpointError(f"{folder} has a chat template, which transformers renders: pip install transformers")

    def render(first: str, second: str, **options: Any) -> Any:
        system = [{"role": "system", "content": prompt}] if prompt else []
        pair = [{"role": "query", "content": first}, {"role": "document", "content": second}]
        # Without `verbose`, transformers warns of texts that are longer than the model takes.
        return reference.apply_chat_template([*system, *pair], tokenizer_kwargs={"verbose": False}, **options)

    template = _split(lambda first, second: render(first, second, tokenize=False), folder)
    for first, second in pairwise(check_texts(())):
        expected = render(first, second, tokenize=True, return_dict=False)
        found = tokenizer.encode(template.text(first, second), add_special_tokens=False).ids
        if found != expected:
            raise CheckpointError(
                f"{folder}: the pair {first[:40]!r}, {second[:40]!r} has other token ids in the bundle than with the "
                "chat template in transformers: the template changes texts, and must put them as they are"
            )
    return template


def _split(render: Callable[[str, str], str], folder: Path) -> PairTemplate:
    """Return the text around the two texts of a chat."""
    try:
        rendered = render(_QUERY, _DOCUMENT)
    except Exception as error:  # noqa: BLE001 - a template may raise any error
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise CheckpointError(f"{folder}: transformers cannot render the chat template of a pair: {reason}") from None
    before, *rest = rendered.split(_QUERY)
    between, *after = rest[0].split(_DOCUMENT) if len(rest) == 1 else ("",)
    if len(after) != 1:
        raise CheckpointError(
            f"{folder}: the chat template must have the message of the role query once, and then that of the role "
            "document once"
        )
    return PairTemplate(before, between, after[0])
