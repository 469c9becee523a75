"""Texts become the ids that the checkpoint's own tokenizer gives, whole or not at all."""

from pathlib import Path

import pytest
import transformers

from headwaiter_server.errors import InvalidInput, SequenceTooLong
from headwaiter_server.runtime.bundle import TOKENIZER
from headwaiter_server.text import TextEncoder

TEXTS = ["The bread is fresh.", "table for two, please", "a", "Rain falls on stones — ΑΒΓ 雨", "two\ntables\t"]


@pytest.fixture(scope="session")
def encoder(text_bundle: Path) -> TextEncoder:
    return TextEncoder(text_bundle / TOKENIZER, 32)


def test_ids_are_those_of_transformers_without_truncation(encoder: TextEncoder, text_checkpoint: Path) -> None:
    reference = transformers.PreTrainedTokenizerFast(tokenizer_file=str(text_checkpoint / "tokenizer.json"))
    texts = [*TEXTS, "fresh bread " * 15]
    encoded = encoder.encode(texts, 999)
    assert [ids.tolist() for ids in encoded] == reference(texts, truncation=False, padding=False)["input_ids"]
    assert max(len(ids) for ids in encoded) == 32


def test_tokens_are_spelled_as_in_the_vocabulary(encoder: TextEncoder) -> None:
    (ids,) = encoder.encode(["Tables 雨"], 999)
    assert encoder.strings(ids) == ["[CLS]", "table", "##s", "[UNK]", "[SEP]"]


def test_a_text_has_the_same_ids_in_any_company(encoder: TextEncoder) -> None:
    alone = [encoder.encode([text], 999)[0].tolist() for text in TEXTS]
    assert [ids.tolist() for ids in encoder.encode(TEXTS, 999)] == alone


@pytest.mark.parametrize("text", ["", " ", "\n\t", "\u3000"])
def test_an_empty_text_is_refused_by_its_index(encoder: TextEncoder, text: str) -> None:
    with pytest.raises(InvalidInput, match=r"texts\.values\[1\] is empty: a text needs at least one word") as refusal:
        encoder.encode(["bread", text], 999)
    assert (refusal.value.sequence, refusal.value.field) == (1, "texts")


def test_a_text_over_the_maximum_is_refused_with_its_length_and_the_limit(encoder: TextEncoder) -> None:
    with pytest.raises(SequenceTooLong, match=r"texts\.values\[2\] has 33 tokens, .* at most 32") as refusal:
        encoder.encode(["bread", "bread " * 30, "bread " * 31], 999)
    found = refusal.value
    assert (found.sequence, found.field, found.limit, found.actual) == (2, "texts", 32, 33)


def test_a_text_that_cannot_be_within_the_maximum_is_refused_before_it_is_tokenised(encoder: TextEncoder) -> None:
    with pytest.raises(
        SequenceTooLong, match=r"texts\.values\[1\] has 2049 characters, .* at most 32 tokens"
    ) as refusal:
        encoder.encode(["bread", "." * 2049], 999)
    assert (refusal.value.sequence, refusal.value.limit, refusal.value.actual) == (1, 32, None)


def test_texts_are_tokenised_in_slices_until_there_are_too_many_tokens(
    encoder: TextEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwaiter_server.text._SLICE_CHARACTERS", 10)
    texts = [text for text in TEXTS for _ in range(3)]
    whole = [ids.tolist() for ids in encoder.encode(texts, 999)]
    assert whole == [encoder.encode([text], 999)[0].tolist() for text in texts]
    some = encoder.encode(texts, 12)
    assert 12 < sum(map(len, some)) < sum(map(len, whole))
