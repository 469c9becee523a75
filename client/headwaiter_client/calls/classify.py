"""Calls of `classify` and `rerank`."""

from collections.abc import Iterable, Mapping
from typing import Any, SupportsIndex

from headwaiter_client.calls.arguments import check_is_list
from headwaiter_client.calls.classification_results import (
    Classification,
    Ranking,
    read_classification,
)
from headwaiter_client.calls.input_kinds import PairInput, whole_number
from headwaiter_client.calls.list_call import CallSettings, ListCall
from headwaiter_client.calls.options import ClassifyOptions, classify_template
from headwaiter_client.errors import InvalidInput
from headwaiter_proto import encoder_pb2 as pb


class ClassifyCall(ListCall[Classification]):
    """One call of `classify`."""

    METHOD, RESPONSE, OPTIONS = "Classify", pb.ClassifyResponse, ClassifyOptions

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

    def __init__(
        self,
        settings: CallSettings,
        query: str,
        documents: Iterable[str],
        top_n: SupportsIndex | None,
        options: Mapping[str, Any],
    ) -> None:
        check_is_list(documents, accepts_async=False)
        if options.get("offsets"):
            raise InvalidInput("offsets is set, and a ranking has no offsets: use classify", field="output.offsets")
        self._documents = list(documents)
        self._top_n = None if top_n is None else whole_number("top_n", top_n, minimum=1)
        pairs = [(query, document) for document in self._documents]
        super().__init__(settings, PairInput(), pairs, options)

    def _new_template(self) -> pb.ClassifyRequest:
        return classify_template(self._options, logits=True)

    def rank(self, classification: Classification) -> Ranking:
        """Return the documents by falling score; documents of equal scores keep their order.

        Raises:
            InvalidInput: the model gives more than one score for a document.
        """
        return Ranking.of(classification, self._documents, self._top_n)
