"""Late chunking: the texts of a request are encoded as one text, and each gets the mean of the rows of its own tokens.

So each vector knows the context of the other texts: Günther et al., "Late Chunking: Contextual Chunk Embeddings Using
Long-Context Embedding Models", 2024. The field is that of Jina's interface. Pure functions.
"""

import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_proto.rules.errors import HeadwaiterError, InvalidInput, SequenceTooLong
from headwaiter_proto.rules.pooling import normalize_pooled, pool
from headwaiter_proto.rules.tasks import ROWS
from headwaiter_server.http.api.errors import OPENAI_ERRORS
from headwaiter_server.http.api.openai import EMBEDDINGS, WHETHER_LATE_CHUNKING, write_embeddings
from headwaiter_server.http.api.operations import Reply, float_rows
from headwaiter_server.http.api.sequences import ONE_TEXT_OR_SEVERAL
from headwaiter_server.http.api.vector_forms import adapt_vectors
from headwaiter_server.requests.fields import Field, Kind, Question, one_of

# Stands between two texts unless one of them has white space there: no word may belong to two texts.
_SEPARATOR = " "


def _join_texts(question: Question) -> None:
    """Put one text in place of the texts, and note where each of them begins and ends."""
    texts, joined, spans = question.encode.texts, "", []
    for text in texts.values:
        if joined and text and not (_parts_words(joined[-1]) or _parts_words(text[0])):
            joined += _SEPARATOR
        spans.append((len(joined), len(joined) + len(text)))
        joined += text
    texts.values[:] = [joined]
    question.options["spans"] = spans


def _parts_words(character: str) -> bool:
    # Python counts more control characters among the white space; tokenizers drop these.
    return character in "\t\n\r" or unicodedata.category(character).startswith("Z")


def _adapt(question: Question, manifest: Manifest) -> None:
    adapt_vectors(question, manifest)
    if manifest.pooling != pb.POOLING_MEAN or manifest.fixed_pooling:
        raise InvalidInput(
            "late_chunking takes means of rows, and the vectors of the model are none: leave late_chunking out, or "
            "choose another model",
            field="late_chunking",
        )
    output = question.encode.output
    if not output.HasField("normalize"):
        output.normalize = manifest.normalized


def _check_texts_have_rows(question: Question, reply: Reply) -> None:
    """Check that each text has tokens, and note to which text each row belongs.

    Raises:
        InvalidInput: a text has none, because it is empty or the tokenizer drops all its characters.
    """
    assert isinstance(reply, pb.EncodeResponse)
    question.options["texts_of_rows"] = texts = _texts_of_rows(question, reply)
    counts = np.bincount(texts + 1, minlength=len(question.options["spans"]) + 1)
    if without := np.flatnonzero(counts[1:] == 0).tolist():
        raise InvalidInput("of input has no tokens: leave the text out", field="input", sequence=without[0])


def _texts_of_rows(question: Question, reply: pb.EncodeResponse) -> NDArray[np.int64]:
    """Return the index of the text to which the token of each row belongs; -1 for tokens of none."""
    (joined,), tokens = question.encode.texts.values, reply.offsets[0]
    # The token of a word may begin with the white space before the word, which belongs to no text or to another one.
    words = [joined[begin:end] for begin, end in zip(tokens.begin, tokens.end, strict=True)]
    begin = np.array([end - len(word.lstrip() or word) for word, end in zip(words, tokens.end, strict=True)])
    end = np.array([begin + len(word.rstrip() or word) for word, begin in zip(words, tokens.begin, strict=True)])
    first, last = np.array(question.options["spans"]).T
    # Of texts that begin at the same place, all but the last are empty.
    texts = np.searchsorted(first, begin, side="right") - 1
    return np.where((begin < end) & (end <= last[texts]), texts, -1)


def _write(question: Question, reply: pb.EncodeResponse) -> bytes:
    rows, output = float_rows(reply.hidden), question.encode.output
    texts = question.options["texts_of_rows"]
    means = np.array([pool(rows[texts == i], pb.POOLING_MEAN) for i in range(len(question.options["spans"]))])
    kept = means[:, : output.dimensions or None]
    return write_embeddings(question, reply, normalize_pooled(kept, normalized=output.normalize))


def _write_error(error: HeadwaiterError, status: int, fields: Iterable[Field], names: Mapping[str, str]) -> bytes:
    if isinstance(error, SequenceTooLong):
        problem = f"the texts together have {error.actual} tokens; the model accepts {error.limit} of them"
        advice = "send fewer or shorter texts, or leave late_chunking out"
        error = SequenceTooLong(f"{problem}: {advice}", field="input", limit=error.limit, actual=error.actual)
    return OPENAI_ERRORS.write(error, status, fields, names)


_LATE_CHUNKING = Field(
    "late_chunking",
    Kind(WHETHER_LATE_CHUNKING.read, {"enum": [True]}),
    about="true: each vector is the mean of the rows of its text's tokens, in the context of all texts.",
    required=True,
)
_OTHER_FIELDS = ("input", "late_chunking", "truncation", "truncate", "truncate_prompt_tokens", "truncation_side")
LATE_CHUNKED_EMBEDDINGS = replace(
    EMBEDDINGS,
    about="Encode texts in the context of each other.",
    fields=(
        Field("input", ONE_TEXT_OR_SEVERAL, "input", "The texts, in their order.", required=True),
        _LATE_CHUNKING,
        *(each for each in EMBEDDINGS.fields if each.name not in _OTHER_FIELDS),
        Field("truncate", one_of({False: None, "NONE": None}), about="Only false or NONE: no text loses tokens."),
        Field("truncation", one_of({"error": None}), about="Only error: no text loses tokens."),
    ),
    output=pb.OutputOptions(hidden=True, offsets=True),
    wanted=ROWS,
    write=_write,
    errors=replace(OPENAI_ERRORS, write=_write_error),
    finish=_join_texts,
    adapt=_adapt,
    check=_check_texts_have_rows,
)
