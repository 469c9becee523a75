"""An Encoder service whose answers tests can compute, and requests for the service."""

from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.manifest_pb2 import Graph
from headwaiter_proto.rules.errors import Failures
from headwaiter_server.engine.local import LocalEngine
from headwaiter_server.inputs.tokenizer import BundleTokenizer, TokenizedText, TokenizeOptions
from headwaiter_server.metrics.recorder import Recorder
from headwaiter_server.models.running_model import RunningModel
from headwaiter_server.models.served_model import ModelFacts
from headwaiter_server.requests.call import Call, clock
from headwaiter_server.requests.request_path import RequestPath
from headwaiter_server.rpc.endpoint import UnaryCalls
from headwaiter_server.rpc.incoming import IncomingMessages
from headwaiter_server.rpc.open_streams import OpenStreams
from headwaiter_server.rpc.service import EncoderService
from headwaiter_server.runtime.attention_weights import AttentionSelection, AttentionWeights
from headwaiter_server.scheduling.attention_queue import AttentionWeightsQueue
from headwaiter_server.scheduling.worker import Session
from headwaiter_server.settings.flags import Settings
from tests.support.server.stand_ins import CALIBRATION, model


class WordLengths:
    """A tokenizer: the id of a word is its length."""

    def tokenize(
        self, texts: Sequence[str], options: TokenizeOptions, failures: Failures, max_total_tokens: int
    ) -> Generator[None, None, list[TokenizedText]]:
        yield
        encoded = [np.array([len(word) for word in (options.prompt.text + text).split()]) for text in texts]
        return [TokenizedText(ids, len(ids), np.zeros((len(ids), 2), np.int64), special=ids < 0) for ids in encoded]

    def decode(self, sequences: Sequence[NDArray[np.generic]], *, skip_special_tokens: bool) -> list[str]:
        return [" ".join(self.token_strings(ids)) for ids in sequences]

    def token_strings(self, ids: NDArray[np.generic]) -> list[str]:
        return [f"<{token_id}>" for token_id in ids]


class NumberedAttention:
    """An attention graph: each weight is the index of its layer, and each context value is the index of its head."""

    def run(self, sequence: NDArray[np.generic], selection: AttentionSelection) -> AttentionWeights:
        layers, heads = np.meshgrid(selection.layers, selection.heads, indexing="ij")
        n = len(sequence)
        weights = np.tile(layers[..., None, None], (1, 1, n, n)).astype(np.float32)
        context = None if selection.query is None else heads[..., None].astype(np.float32)
        return AttentionWeights(weights, context)


class Service:
    """A service that is ready, and its metrics.

    A request may have 3 sequences, 8 tokens and 383 bytes of attention weights, and texts if there is a tokenizer.
    """

    def __init__(self, folder: Path, tokenizer: WordLengths | None, **manifest: Any) -> None:
        self.recorder = Recorder()
        described = {"layers": 2, "heads": 3, "max_text_tokens": 4 if tokenizer else 0, "attend": Graph(file="a.onnx")}
        self.model = model(folder, **described, **manifest)
        settings = Settings(
            bundle=folder,
            max_request_sequences=3,
            max_request_tokens=8,
            max_attend_bytes=383,
            max_queue_tokens=100,
            max_queue_s=10.0,
        )
        name = self.model.bundle.manifest.name
        recorder = self.recorder.model(name, "1")
        engine = LocalEngine(settings, self.recorder)
        self.scheduler = engine.scheduler
        sessions = {worker: Session(self.model.graph, self.model.probe) for worker in self.scheduler.workers}
        self.queue = self.scheduler.add_model(sessions, CALIBRATION.cost, CALIBRATION.limits, recorder)
        self.path = RequestPath(settings, self.recorder, engine)
        self.rpc = EncoderService(self.path, calls_of(self.path), OpenStreams(self.path))
        attention_queue = AttentionWeightsQueue(lambda: NumberedAttention().run, recorder.expired)
        tokenizes = cast(BundleTokenizer | None, tokenizer)
        facts = ModelFacts.of(self.model, name, "1", (0,))
        self.served = RunningModel(facts, tokenizes, recorder, self.model, self.queue, attention_queue, CALIBRATION)
        engine.versions._running[facts.number] = self.served
        engine.directory.started = True
        engine.directory.update([], {name: self.served})

    async def encode(self, request: pb.EncodeRequest) -> pb.EncodeResponse:
        return pb.EncodeResponse.FromString(
            await self.rpc.answer("Encode", request.SerializeToString(), endless_call())
        )

    async def attend(self, request: pb.AttendRequest) -> pb.AttendResponse:
        return pb.AttendResponse.FromString(
            await self.rpc.answer("Attend", request.SerializeToString(), endless_call())
        )


def calls_of(path: RequestPath) -> UnaryCalls:
    """Return what answers the calls of a path that are no streams."""
    return UnaryCalls(path.recorder, path.call_limit, IncomingMessages(path.settings.max_request_bytes))


def endless_call() -> Call:
    """Return a call without a deadline."""
    return Call("Encode", clock(), float("inf"))


def token_request(*sequences: list[int], **fields: Any) -> pb.EncodeRequest:
    """Return a request with sequences of token ids."""
    ids = np.concatenate([*map(np.array, sequences)]).astype("<i4")
    tokens = pb.TokenSequences(dtype=pb.DATA_TYPE_INT32, data=ids.tobytes(), lengths=map(len, sequences))
    return pb.EncodeRequest(tokens=tokens, **fields)


def pooled_rows(reply: pb.EncodeResponse) -> list[list[float]]:
    """Return the pooled vectors of a reply."""
    rows: list[list[float]] = np.frombuffer(reply.pooled.data, "<f4").reshape(tuple(reply.pooled.shape)).tolist()
    return rows
