"""With late chunking, each token belongs to the text with its characters, whatever tokenizer counts its offsets."""

import json
from typing import Any

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import InvalidInput
from tests.support.oracle import Array
from tests.support.server.questions import ask, operations

WORDS = ("fresh", "bread", "rain", "falls")


def word_piece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece({word: i for i, word in enumerate(("[UNK]", *WORDS))}))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def metaspace() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), *((f"▁{word}", -1.0) for word in WORDS)], unk_id=0))
    tokenizer.normalizer = normalizers.Replace(Regex(r"\s"), " ")
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return tokenizer


def byte_level(*, trim_offsets: bool) -> Tokenizer:
    vocabulary = {token: i for i, token in enumerate(pre_tokenizers.ByteLevel.alphabet())}
    merges = []
    for word in ("Ġrain", ".Ċ"):
        for end in range(2, len(word) + 1):
            vocabulary[word[:end]] = len(vocabulary)
            merges.append((word[: end - 1], word[end - 1]))
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    split = pre_tokenizers.Split(Regex(" ?[a-z]+|[^a-z]+"), "isolated")
    levels = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, levels])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=trim_offsets)
    return tokenizer


TOKENIZERS = {
    "WordPiece": word_piece(),
    "Metaspace": metaspace(),
    "ByteLevel": byte_level(trim_offsets=False),
    "trimmed ByteLevel": byte_level(trim_offsets=True),
}


def late_vectors(tokenizer: Tokenizer, texts: list[str]) -> tuple[Array, list[str]]:
    """Return the vectors of texts if the row of the n-th token is the n-th unit vector, and the tokens."""
    asked = ask("/v1/embeddings", {"input": texts, "late_chunking": True, "normalize": False})
    encoding = tokenizer.encode(asked.question.encode.texts.values[0])
    begin, end = zip(*encoding.offsets, strict=True)
    rows = np.eye(len(encoding.ids), dtype="<f4")
    reply: Any = pb.EncodeResponse(
        lengths=[len(rows)],
        hidden=pb.Tensor(dtype=pb.DATA_TYPE_FLOAT32, shape=rows.shape, data=rows.tobytes()),
        offsets=[pb.Offsets(begin=begin, end=end)],
    )
    operation = operations("/v1/embeddings")[0]
    operation.check(asked.question, reply)
    data = json.loads(operation.write(asked.question, reply))["data"]
    return np.array([each["embedding"] for each in data]), encoding.tokens


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("space", ["", " ", "\t", "\u00a0"])
def test_the_first_word_of_each_text_counts(name: str, space: str) -> None:
    vectors, tokens = late_vectors(TOKENIZERS[name], [f"fresh{space}", "rain", f"{space}bread falls"])
    assert "".join(tokens[i] for i in np.flatnonzero(vectors[1])).strip("▁Ġ") == "rain"
    # No token belongs to two texts.
    assert ((vectors > 0).sum(axis=0) <= 1).all()
    for vector in vectors:
        np.testing.assert_allclose(vector[vector > 0], 1 / np.count_nonzero(vector), rtol=1e-6)


def test_a_token_that_ends_with_the_white_space_of_the_next_text_belongs_to_the_first() -> None:
    vectors, tokens = late_vectors(TOKENIZERS["ByteLevel"], ["ab.", "\ncd"])
    assert tokens == ["a", "b", ".Ċ", "c", "d"]
    assert (vectors > 0).tolist() == [[True, True, True, False, False], [False, False, False, True, True]]


@pytest.mark.parametrize("dropped", ["\x0b", "\x1c", "\x85", "\u200b", "\u2028"])
def test_a_character_that_the_tokenizer_drops_parts_no_words(dropped: str) -> None:
    vectors, tokens = late_vectors(TOKENIZERS["WordPiece"], [f"fresh{dropped}", "bread", f"{dropped}rain"])
    assert tokens == ["fresh", "bread", "rain"]
    assert vectors.tolist() == np.eye(3).tolist()


@pytest.mark.parametrize(("texts", "index"), [(["", "rain"], 0), (["rain", "", ""], 1), (["rain", " ", "bread"], 1)])
def test_the_first_text_without_tokens_is_named(texts: list[str], index: int) -> None:
    with pytest.raises(InvalidInput) as refused:
        late_vectors(TOKENIZERS["WordPiece"], texts)
    assert (refused.value.field, refused.value.sequence) == ("input", index)
