"""Calls of `classify` and `rerank`."""

from collections.abc import Hashable, Iterable
from typing import Any, SupportsIndex

from headwaiter_client.calls.arguments import check_is_list
from headwaiter_client.calls.classification_results import (
    Classification,
    Ranking,
    read_classification,
)
from headwaiter_client.calls.input_kinds import InputKind, PairInput, whole_number
from headwaiter_client.calls.list_call import CallSettings, ListCall
from headwaiter_client.calls.options import ClassifyOptions, classify_template, own_id, pair_truncation
from headwaiter_client.calls.progress import Progress
from headwaiter_client.calls.splitting import Chunk
from headwaiter_client.errors import InvalidInput
from headwaiter_proto import encoder_pb2 as pb


class ClassifyCall(ListCall[Classification]):
    """One call of `classify`; `options` are `ClassifyOptions`, other arguments those of `ListCall`.

    With `logits`, the result has logits, too.
    """

    METHOD, RESPONSE = "Classify", pb.ClassifyResponse

    def __init__(
        self,
        settings: CallSettings,
        kind: InputKind | None,
        sequences: Any,
        options: ClassifyOptions,
        timeout_s: float | None,
        progress: Progress | None = None,
        *,
        logits: bool = False,
    ) -> None:
        all_options = settings.defaults.for_classify(options)
        template = classify_template(all_options, logits=logits)
        super().__init__(settings, kind, sequences, template, own_id(all_options), timeout_s, progress)
        self._pair_truncation = pair_truncation(options)

    def sharing_key(self, chunk: Chunk) -> Hashable:
        """See `ListCall.sharing_key`."""
        return super().sharing_key(chunk), self._pair_truncation

    def _request(self, chunk: Chunk) -> pb.ClassifyRequest:
        request = super()._request(chunk)
        assert isinstance(request, pb.ClassifyRequest)
        if self._pair_truncation:
            if not isinstance(chunk.kind, PairInput):
                raise InvalidInput(
                    f"pair_truncation is set and the sequences are {chunk.kind.name}: use pair_truncation only with "
                    "pairs of texts",
                    field="pairs.pair_truncation",
                )
            request.pairs.pair_truncation = self._pair_truncation
        return request

    def _read(self, response: pb.ClassifyResponse, first: int, count: int, round_trip_s: float) -> Classification:
        return read_classification(response, first, count, round_trip_s)


class RerankCall:
    """One call of `rerank`: it classifies pairs of the query and each document.

    Attributes:
        classify: the call that gives the scores.

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
        options: ClassifyOptions,
        timeout_s: float | None,
        progress: Progress | None = None,
    ) -> None:
        check_is_list(documents, accepts_async=False)
        if options.get("offsets"):
            raise InvalidInput("offsets is set, and a ranking has no offsets: use classify", field="output.offsets")
        self._documents = list(documents)
        self._top_n = None if top_n is None else whole_number("top_n", top_n, minimum=1)
        pairs = [(query, document) for document in self._documents]
        self.classify = ClassifyCall(settings, PairInput(), pairs, options, timeout_s, progress, logits=True)

    def rank(self, classification: Classification) -> Ranking:
        """Return the documents by falling score; documents of equal scores keep their order.

        Raises:
            InvalidInput: the model gives more than one score for a document.
        """
        return Ranking.of(classification, self._documents, self._top_n)
