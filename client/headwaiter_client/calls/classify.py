"""Calls of `classify` and `rerank`, and their results."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headwaiter_client.calls.arguments import check_is_list
from headwaiter_client.calls.input_kinds import PairInput, whole_number
from headwaiter_client.calls.list_call import CallSettings, ListCall
from headwaiter_client.calls.models import ModelRef, model_ref
from headwaiter_client.calls.options import ClassifyOptions, RerankOptions, classify_template
from headwaiter_client.calls.results import (
    NO_OFFSETS,
    ListResult,
    Timings,
    present,
    read_failures,
    read_lengths,
    read_offsets,
    read_timings,
    read_truncated,
    reading_reply,
)
from headwaiter_client.calls.tensors import check_shape, float_array, split_rows
from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import HeadwaiterError, InvalidInput


class LabelScore(NamedTuple):
    """A label and its score."""

    label: str
    score: float


_NO_LABEL = LabelScore("", math.nan)


@dataclass(eq=False)
class Classification(ListResult):
    """The scores of a list. Its arrays are writable. It also has the attributes of `ListResult`.

    Attributes:
        labels: the labels of the model, in the order of the scores.
        received_scores: `scores`; None if the model scores each token. Read this if your program does not know what the
            model scores.
        received_token_scores: `token_scores`; None unless the model scores each token.
        received_logits: the logits of `scores`; None unless the call is a `rerank`.
        received_offsets: `offsets`; None if the reply has no offsets.
        timings: the time that each stage took.
    """

    labels: tuple[str, ...]
    received_scores: NDArray[np.float32] | None = field(repr=False)
    received_token_scores: list[NDArray[np.float32]] | None = field(repr=False)
    received_logits: NDArray[np.float32] | None = field(repr=False)
    received_offsets: list[NDArray[np.uint32]] | None = field(repr=False)
    timings: Timings = field(repr=False)

    @property
    def scores(self) -> NDArray[np.float32]:
        """float32 [B, labels], zeros for a failed sequence.

        Raises:
            OutputMissing: the model scores each token; see `token_scores`.
        """
        advice = f"the model {self.model.name} scores each token: read token_best or token_scores"
        return present(self.received_scores, advice)

    @property
    def token_scores(self) -> list[NDArray[np.float32]]:
        """One float32 [length, labels] array per sequence.

        Raises:
            OutputMissing: the model scores each sequence; see `scores`.
        """
        advice = f"the model {self.model.name} scores each sequence: read best or scores"
        return present(self.received_token_scores, advice)

    @property
    def offsets(self) -> list[NDArray[np.uint32]]:
        """See `Encoding.offsets`; those of a pair are positions in its second text."""
        return present(self.received_offsets, NO_OFFSETS)

    @cached_property
    def best(self) -> list[LabelScore]:
        """The label of the highest score of each sequence; an empty label with the score nan for a failed sequence.

        Raises:
            OutputMissing: the model scores each token; see `token_best`.
        """
        best = self._best(self.scores)
        return [_NO_LABEL if index in self.failures else each for index, each in enumerate(best)]

    @cached_property
    def token_best(self) -> list[list[LabelScore]]:
        """The label of the highest score of each token of each sequence; an empty list for a failed sequence.

        Raises:
            OutputMissing: the model scores each sequence; see `best`.
        """
        return [self._best(scores) for scores in self.token_scores]

    def _best(self, scores: NDArray[np.float32]) -> list[LabelScore]:
        places = scores.argmax(axis=1)
        return [LabelScore(self.labels[place], float(row[place])) for place, row in zip(places, scores, strict=True)]


@dataclass(frozen=True)
class RankedDocument:
    """A document and its score.

    Attributes:
        index: position of the document in the caller's list.
        score: the score of the pair of the query and the document.
        document: the document.
    """

    index: int
    score: float
    document: str = field(repr=False)


@dataclass(frozen=True, eq=False)
class Ranking:
    """Documents by falling score, the best first.

    Attributes:
        documents: the documents; without those that failed, and at most `top_n`.
        truncated: number of tokens before truncation of each truncated pair, by the index of its document.
        failures: the error of each failed pair of a `partial` call, by the index of its document.
        timings: the time that each stage took.
        model: the model that answered.
        request_id: the request's name in the server's log.
    """

    documents: list[RankedDocument]
    truncated: dict[int, int]
    failures: dict[int, HeadwaiterError]
    timings: Timings = field(repr=False)
    model: ModelRef
    request_id: str


@reading_reply
def read_classification(response: pb.ClassifyResponse, first: int, count: int, round_trip_s: float) -> Classification:
    """Read the reply to one request; arguments and errors are those of `read_encoding`."""
    lengths = read_lengths(response, count)
    per_token, scores = response.head.per_token, float_array(response.scores)
    rows, labels = int(lengths.sum()) if per_token else count, len(response.head.labels)
    check_shape("scores", scores, rows, labels)
    logits = float_array(response.logits) if response.HasField("logits") else None
    if logits is not None:
        check_shape("logits", logits, rows, labels)
    return Classification(
        labels=tuple(response.head.labels),
        # The received bytes are read-only, so the caller gets a copy.
        received_scores=None if per_token else scores.copy(),
        received_token_scores=split_rows(scores, lengths) if per_token else None,
        received_logits=logits,
        received_offsets=read_offsets(response.offsets, lengths),
        lengths=lengths,
        truncated=read_truncated(response.truncated, first, count),
        failures=read_failures(response.failures, first, count, response.request_id),
        timings=read_timings(response.timings, round_trip_s),
        model=model_ref(response.model),
        request_id=response.request_id,
    )


class ClassifyCall(ListCall[Classification]):
    """One call of `classify`."""

    METHOD, RESPONSE = "Classify", pb.ClassifyResponse
    OPTIONS: ClassVar[type] = ClassifyOptions

    def _new_template(self) -> pb.ClassifyRequest:
        return classify_template(self._options, logits=False)

    def _read(self, response: pb.ClassifyResponse, first: int, count: int, round_trip_s: float) -> Classification:
        return read_classification(response, first, count, round_trip_s)


class RerankCall(ClassifyCall):
    """One call of `rerank`: it classifies pairs of the query and each document.

    Raises:
        TypeError: an argument has the wrong type, or an option does not exist.
        InvalidInput: `documents` is not a list, or another argument has a value that cannot be sent.
    """

    OPTIONS = RerankOptions

    def __init__(
        self, settings: CallSettings, query: str, documents: Iterable[str], options: Mapping[str, Any]
    ) -> None:
        check_is_list(documents, accepts_async=False)
        if options.get("offsets"):
            raise InvalidInput("offsets is set, and a ranking has no offsets: use classify", field="output.offsets")
        self._documents = list(documents)
        top_n = options.get("top_n")
        self._top_n = None if top_n is None else whole_number("top_n", top_n, minimum=1)
        pairs = [(query, document) for document in self._documents]
        super().__init__(settings, PairInput(), pairs, options)

    def _new_template(self) -> pb.ClassifyRequest:
        return classify_template(self._options, logits=True)

    def rank(self, result: Classification) -> Ranking:
        """Return the documents by falling score; documents of equal scores keep their order.

        Raises:
            InvalidInput: the model gives more than one score for a document.
        """
        if result.received_scores is None or len(result.labels) != 1:
            kind = "token" if result.received_scores is None else "sequence"
            raise InvalidInput(
                f"the model {result.model.name} does not rerank (it gives each {kind} scores for the labels "
                f"{', '.join(result.labels):.100}): name a model with one score for each pair",
                field="model",
                request_id=result.request_id,
            )
        scores = result.received_scores[:, 0]
        # Different logits may have equal scores. Older servers send no logits.
        keys = scores if result.received_logits is None else result.received_logits[:, 0]
        order = [index for index in np.argsort(-keys, kind="stable").tolist() if index not in result.failures]
        return Ranking(
            [RankedDocument(index, float(scores[index]), self._documents[index]) for index in order[: self._top_n]],
            result.truncated,
            result.failures,
            result.timings,
            result.model,
            result.request_id,
        )
