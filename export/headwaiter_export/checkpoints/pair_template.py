"""Read the text that a language model reads for a pair of texts, from the chat template of its tokenizer.

sentence-transformers renders a pair as a chat of two messages, whose roles are "query" and "document".
"""

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from headwaiter_export.checkpoints.json_files import CheckpointError, is_present, refuse_errors
from headwaiter_export.checkpoints.tokenizers.auto_tokenizer import CheckpointTokenizer
from headwaiter_export.checkpoints.tokenizers.comparison import check_texts, shortened
from headwaiter_proto.manifest_pb2 import PairTemplate
from headwaiter_proto.rules.pairs import text_of_pair

# Texts that are unlikely in a template.
_QUERY, _DOCUMENT = "query-5e0c1f", "document-8a3b7d"
# Functions and filters of templates whose result is another one at each time.
_UNSTEADY = re.compile(r"\b(strftime_now|random|lipsum)\b")
# Templates have hundreds of characters.
_MOST_CHARACTERS = 50_000
# A text longer than models take, and one of the lengths between.
_LONG_TEXTS = ("word " * 200, "word " * 40_000)
_COMPARED_ADDED_TOKENS = 50


def read_pair_template(saved: CheckpointTokenizer, prompt: str) -> PairTemplate:
    """Return the chat template of a checkpoint as the text around two texts.

    Args:
        saved: the tokenizer of the checkpoint.
        prompt: the message with the role "system"; empty for none.

    Raises:
        CheckpointError: transformers cannot use the template, the text around two texts depends on the
            texts or on the time, or the ids of a pair differ.
    """
    folder, tokenizer, reference = saved.folder, saved.tokenizer, saved.reference
    further = folder / "additional_chat_templates" / "default.jinja"
    if is_present(further):
        raise CheckpointError(f"{further} is a second chat template of the same name: remove one of the two")
    if "attention_mask" not in reference.model_input_names:
        # sentence-transformers then does not put the end of the template back after it shortened a pair.
        raise CheckpointError(
            f"{folder} has model_input_names {reference.model_input_names!r:.99}: a model with a chat template needs "
            "attention_mask there"
        )

    def render(first: str, second: str, **options: Any) -> Any:
        system = [{"role": "system", "content": prompt}] if prompt else []
        pair = [{"role": "query", "content": first}, {"role": "document", "content": second}]
        # Without `verbose`, transformers warns of texts that are longer than the model takes.
        return reference.apply_chat_template([*system, *pair], tokenizer_kwargs={"verbose": False}, **options)

    with refuse_errors(lambda reason: f"{folder}: transformers cannot render the chat template: {shortened(reason)}"):
        source = reference.get_chat_template()
        if len(source) > _MOST_CHARACTERS:
            raise CheckpointError(f"{folder}: the chat template has {len(source):,} characters: shorten it")
        if unsteady := _UNSTEADY.search(source):
            raise CheckpointError(f"{folder}: the chat template uses {unsteady[0]}, so it is never the same: remove it")
        template = _render_and_split(lambda first, second: render(first, second, tokenize=False), folder)
        for first, second in _check_pairs(tokenizer):
            expected = render(first, second, tokenize=True, return_dict=False)
            if tokenizer.encode(text_of_pair(template, (first, second)), add_special_tokens=False).ids != expected:
                raise CheckpointError(
                    f"{folder}: the pair {first[:40]!r}, {second[:40]!r} has other token ids in the bundle than with "
                    "the chat template in transformers: the text around the two texts must be the same for every pair"
                )
    return template


def template_of_question(question: str, tokenizer: Tokenizer) -> PairTemplate:
    """Return the text around two texts for a question with "{query}" and "{document}", special tokens included.

    Raises:
        CheckpointError: the question lacks one of the two, or special tokens have other ids as text.
    """
    before, *rest = question.split("{query}")
    between, *after = rest[0].split("{document}") if len(rest) == 1 else ("",)
    if len(after) != 1:
        raise CheckpointError(f"the question {question!r} must have {{query}} once, and then {{document}} once")
    encoded = tokenizer.encode("a")
    ordinary = [place for place, special in enumerate(encoded.special_tokens_mask) if not special]
    first, last = "".join(encoded.tokens[: ordinary[0]]), "".join(encoded.tokens[ordinary[-1] + 1 :])
    plain = PairTemplate(before=before, between=between, after=after[0])
    template = PairTemplate(before=first + before, between=between, after=after[0] + last)
    for pair in _check_pairs(tokenizer):
        expected = tokenizer.encode(text_of_pair(plain, pair)).ids
        if tokenizer.encode(text_of_pair(template, pair), add_special_tokens=False).ids != expected:
            raise CheckpointError(
                f"the question {question!r} has other token ids with the special tokens {first!r} and {last!r} in its "
                "text: begin and end it with other characters"
            )
    return template


def _check_pairs(tokenizer: Tokenizer) -> list[tuple[str, str]]:
    """Return pairs of the usual texts for checks, of empty, equal and long texts, and of added tokens."""
    added = [token.content for _, token in sorted(tokenizer.get_added_tokens_decoder().items())]
    texts = check_texts(added[:_COMPARED_ADDED_TOKENS])
    odd = [("", ""), ("", "a"), ("a", ""), ("a", "a")]
    return [*odd, *((text, "a") for text in _LONG_TEXTS), *(("a", text) for text in _LONG_TEXTS), *pairwise(texts)]


def _render_and_split(render: Callable[[str, str], str], folder: Path) -> PairTemplate:
    """Return the text around the two texts of a chat."""
    rendered = render(_QUERY, _DOCUMENT)
    if len(rendered) > _MOST_CHARACTERS:
        raise CheckpointError(f"{folder}: the chat template gives {len(rendered):,} characters, which no model takes")
    before, *rest = rendered.split(_QUERY)
    between, *after = rest[0].split(_DOCUMENT) if len(rest) == 1 else ("",)
    if len(after) != 1:
        raise CheckpointError(
            f"{folder}: the chat template must have the message of the role query once, and then that of the role "
            "document once"
        )
    return PairTemplate(before=before, between=between, after=after[0])
