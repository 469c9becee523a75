"""Texts become the ids that the checkpoint's own tokenizer gives, whole, or cut where that was asked for."""

from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers
from tokenizers import processors

from headwaiter_server.errors import Failures, InvalidInput, SequenceTooLong
from headwaiter_server.models.tokenizer import TextEncoder, TextForm, Tokens, Truncation
from headwaiter_server.runtime.bundle import TOKENIZER

TEXTS = ["The bread is fresh.", "table for two, please", "a", "Rain falls on stones — ΑΒΓ 雨", "two\ntables\t"]
LONG = "The bread is fresh, please. " * 20
SIDES = {Truncation.LEFT: "left", Truncation.RIGHT: "right"}


@pytest.fixture(scope="session")
def encoder(text_bundle: Path) -> TextEncoder:
    return TextEncoder(text_bundle / TOKENIZER, 32)


def _encode(encoder: TextEncoder, texts: list[str], *, most: int = 9999, **form: Any) -> list[Tokens]:
    return encoder.encode(texts, TextForm(**form), Failures(), most)


def _ids(encoder: TextEncoder, texts: list[str], **form: Any) -> list[list[int]]:
    return [tokens.ids.tolist() for tokens in _encode(encoder, texts, **form)]


def _reference(folder: Path, **settings: Any) -> Any:
    return transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), **settings)


def test_ids_are_those_of_transformers_without_truncation(encoder: TextEncoder, text_checkpoint: Path) -> None:
    texts = [*TEXTS, "fresh bread " * 15]
    encoded = _ids(encoder, texts)
    assert encoded == _reference(text_checkpoint)(texts, truncation=False, padding=False)["input_ids"]
    assert max(map(len, encoded)) == 32


@pytest.mark.parametrize("truncation", SIDES)
@pytest.mark.parametrize("prompt", ["", "the table: "])
def test_a_text_that_is_too_long_is_cut_as_transformers_cuts_it(
    truncation: Truncation, prompt: str, encoder: TextEncoder, text_checkpoint: Path
) -> None:
    reference = _reference(text_checkpoint, truncation_side=SIDES[truncation])
    texts = [*TEXTS, LONG]
    prompted = [prompt + text for text in texts]
    expected = reference(prompted, truncation=True, max_length=32, padding=False)["input_ids"]
    found = _encode(encoder, texts, truncation=truncation, prompt=prompt)
    assert [tokens.ids.tolist() for tokens in found] == expected
    whole = reference(prompted, truncation=False, padding=False)["input_ids"]
    assert [tokens.original_tokens for tokens in found] == [*map(len, whole)]


@pytest.mark.parametrize("truncation", SIDES)
@pytest.mark.parametrize(
    "processor",
    [
        processors.TemplateProcessing("[CLS] [MASK] $A [SEP]", None, [("[CLS]", 2), ("[SEP]", 3), ("[MASK]", 4)]),
        processors.RobertaProcessing(("[SEP]", 3), ("[CLS]", 2)),
        processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2)),
        processors.TemplateProcessing("$A", None, []),
    ],
    ids=["two before", "RoBERTa", "BERT", "none"],
)
def test_special_tokens_survive_a_cut_wherever_they_stand_and_those_in_the_text_do_not(
    truncation: Truncation, processor: Any, text_checkpoint: Path, tmp_path: Path
) -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(text_checkpoint / "tokenizer.json"))
    tokenizer.add_special_tokens(["[CLS]", "[SEP]"])
    tokenizer.post_processor = processor
    tokenizer.no_padding()
    tokenizer.enable_truncation(7, direction=SIDES[truncation])
    expected = tokenizer.encode("[SEP] a b c d e f [CLS]")
    tokenizer.no_truncation()
    tokenizer.save(str(tmp_path / TOKENIZER))
    encoder = TextEncoder(tmp_path / TOKENIZER, 7)
    (found,) = _encode(encoder, ["[SEP] a b c d e f [CLS]"], truncation=truncation, offsets=True)
    assert found.offsets is not None
    assert (found.ids.tolist(), [*map(tuple, found.offsets.tolist())]) == (expected.ids, expected.offsets)


@pytest.mark.parametrize("truncation", SIDES)
def test_offsets_are_those_of_transformers(truncation: Truncation, encoder: TextEncoder, text_checkpoint: Path) -> None:
    reference = _reference(text_checkpoint, truncation_side=SIDES[truncation])
    texts = [*TEXTS, LONG, "é a👩‍👧 雨e\u0301"]
    expected = reference(texts, truncation=True, max_length=32, return_offsets_mapping=True)["offset_mapping"]
    for tokens, pairs in zip(_encode(encoder, texts, truncation=truncation, offsets=True), expected, strict=True):
        assert tokens.offsets is not None
        assert tokens.offsets.tolist() == [[*pair] for pair in pairs]


def test_offsets_are_those_in_the_text_and_not_in_its_prompt(encoder: TextEncoder) -> None:
    (tokens,) = _encode(encoder, ["fresh bread"], prompt="rain on a ", offsets=True)
    assert tokens.offsets is not None
    # [CLS], the three words of the prompt, the text, [SEP].
    assert tokens.offsets.tolist() == [[0, 0]] * 4 + [[0, 5], [6, 11], [0, 0]]


def test_tokens_are_spelled_as_in_the_vocabulary(encoder: TextEncoder) -> None:
    (tokens,) = _encode(encoder, ["Tables 雨"])
    assert encoder.strings(tokens.ids) == ["[CLS]", "table", "##s", "[UNK]", "[SEP]"]


def test_a_text_has_the_same_ids_in_any_company(encoder: TextEncoder) -> None:
    assert _ids(encoder, TEXTS) == [_ids(encoder, [text])[0] for text in TEXTS]


@pytest.mark.parametrize("text", ["", " ", "\n\t", "\u3000"])
def test_an_empty_text_is_refused_by_its_index(encoder: TextEncoder, text: str) -> None:
    with pytest.raises(InvalidInput, match=r"sequence 1 is empty") as refusal:
        _encode(encoder, ["bread", text], truncation=Truncation.RIGHT, prompt="please ")
    assert (refusal.value.sequence, refusal.value.field) == (1, "texts")


def test_a_text_over_the_maximum_is_refused_with_its_length_and_the_limit(encoder: TextEncoder) -> None:
    with pytest.raises(SequenceTooLong, match=r"sequence 2 has 33 tokens.* at most 32") as refusal:
        _encode(encoder, ["bread", "bread " * 30, "bread " * 31])
    found = refusal.value
    assert (found.sequence, found.field, found.limit, found.actual) == (2, "texts", 32, 33)


def test_a_text_that_cannot_be_within_the_maximum_is_refused_before_it_is_tokenised(encoder: TextEncoder) -> None:
    with pytest.raises(SequenceTooLong, match=r"sequence 1 has 2049 characters.* at most 32 tokens") as refusal:
        _encode(encoder, ["bread", "." * 2049])
    assert (refusal.value.sequence, refusal.value.limit, refusal.value.actual) == (1, 32, None)


def test_texts_are_tokenised_in_slices_until_there_are_too_many_tokens(
    encoder: TextEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwaiter_server.models.tokenizer._SLICE_CHARACTERS", 10)
    texts = [text for text in TEXTS for _ in range(3)]
    whole = _ids(encoder, texts)
    assert whole == [_ids(encoder, [text])[0] for text in texts]
    some = _ids(encoder, texts, most=12)
    assert 12 < sum(map(len, some)) < sum(map(len, whole))


def test_texts_that_fail_leave_the_others_as_they_are_where_failures_are_kept(encoder: TextEncoder) -> None:
    failures = Failures(keep=True)
    texts = ["", "bread", "bread " * 31, "." * 2049, "a"]
    found = encoder.encode(texts, TextForm(offsets=True), failures, 999)
    assert [tokens.ids.tolist() for tokens in found] == [[], *_ids(encoder, ["bread"]), [], [], *_ids(encoder, ["a"])]
    kinds = {0: InvalidInput, 2: SequenceTooLong, 3: SequenceTooLong}
    assert {index: type(error) for index, error in failures.by_sequence.items()} == kinds
    assert all(error.sequence == index for index, error in failures.by_sequence.items())
