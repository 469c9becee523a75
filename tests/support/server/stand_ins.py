"""Stand-ins for a model, a gRPC context and a calibration."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import grpc
import numpy as np
from google.rpc.status_pb2 import Status

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.manifest_pb2 import File, Manifest, Parity
from headwaiter_proto.rules.status import DETAILS_KEY
from headwaiter_server.metrics.recorder import Recorder
from headwaiter_server.models.running_model import RunningModel
from headwaiter_server.models.served_model import ModelFacts
from headwaiter_server.runtime.bundle import Bundle
from headwaiter_server.runtime.graph import EncoderGraph, GraphOutputs, at_once
from headwaiter_server.runtime.model import Model, ModelDescription, Resources
from headwaiter_server.runtime.numeric_tolerances import Difference
from headwaiter_server.runtime.packing import PackedBatch, pack
from headwaiter_server.scheduling.adaptive_limits import AdaptiveLimits
from headwaiter_server.scheduling.cost import BatchLimits, Calibration, CostModel
from headwaiter_server.settings.credentials import Credentials, Tokens
from headwaiter_server.settings.tenants import UNNAMED

CALIBRATION = Calibration(
    CostModel(launch_s=1.0, token_s=0.5, padded_s=0.25, cell_s=0.125, hidden_row_s=0.0625),
    BatchLimits(tokens=4, cells=100),
    service_tokens_per_s=0.75,
    error_ratio=0.0625,
)


class Graph:
    """A graph: the hidden row of a token id is [id, 1], and the pooled vector of a sequence is the sum of its rows."""

    pools = True
    variable_length = False
    on_gpu = False
    turn = staticmethod(at_once)

    def prepare(self, batch: PackedBatch) -> PackedBatch:
        return batch

    def run(self, batch: PackedBatch, *, hidden: bool) -> GraphOutputs:
        rows = np.stack([batch.rows, np.ones(batch.tokens)], axis=1).astype(np.float32)
        pooled = np.stack([part.sum(axis=0) for part in batch.split(rows)])
        return GraphOutputs(pooled if self.pools else None, rows if hidden else None)


def model(folder: Path, **manifest: Any) -> Model:
    """Return a model without a bundle; unless `manifest` says otherwise, it takes ids 0 to 9 and at most 4 tokens."""
    fields = {
        "name": "tiny",
        "vocabulary_size": 10,
        "max_tokens": 4,
        "width": 2,
        "pooling": pb.POOLING_MEAN,
        "files": [File(name="g.onnx", sha256="ef" * 32)],
        **manifest,
    }
    graph = Graph()
    graph.pools = fields["pooling"] != pb.POOLING_NONE
    return Model(
        bundle=Bundle(folder, Manifest(**fields), "ab" * 32),
        graph=cast(EncoderGraph, graph),
        probe=pack([np.array([1])]),
        graph_file="g.onnx",
        structure="ef" * 32,
        results_digest="cd" * 32,
        precision=pb.PRECISION_FP32,
        provider="cpu",
        fallback_reason="no GPU",
        self_check=Difference(0.5, 0.125, 0.25, 0.0625, min_cosine=0.75, mean_cosine=0.875),
        self_check_sequences=32,
        parity=Parity(graphs=[pb.GraphParity(graph="g.onnx", pooled_max_abs=0.25)]),
        resources=Resources(threads=None),
        longest_sequence_bytes=4096,
    )


def served(described: ModelDescription) -> RunningModel:
    """Return a served version of a model, without a queue for batches or for attention weights."""
    unused: Any = None
    queue: Any = SimpleNamespace(limits=AdaptiveLimits(CALIBRATION.limits))
    facts = ModelFacts.of(described, described.bundle.manifest.name, "1", (0,))
    recorder = Recorder().model(facts.name, facts.version)
    return RunningModel(facts, None, recorder, described, queue, unused, CALIBRATION)


class Context:
    """The context of a gRPC call; `code`, `message` and `status` are those that the call was aborted with."""

    def __init__(self, remaining_s: float | None = None, raw: bytes = b"raw") -> None:
        self.remaining_s, self.raw = remaining_s, raw
        self.code: grpc.StatusCode | None = None
        self.message = ""
        self.metadata: tuple[tuple[str, str | bytes], ...] = ()
        self.status = Status()
        self.callbacks: list[Callable[[Context], None]] = []

    def peer(self) -> str:
        return "ipv4:127.0.0.1:5"

    def add_done_callback(self, callback: Callable[["Context"], None]) -> None:
        self.callbacks.append(callback)

    def end(self) -> None:
        """Tell the server that the caller has received the reply, or has gone."""
        for callback in self.callbacks:
            callback(self)

    async def read(self) -> bytes:
        return self.raw

    def time_remaining(self) -> float | None:
        return self.remaining_s

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        return self.metadata

    async def abort(self, code: grpc.StatusCode, message: str, metadata: tuple[tuple[str, bytes], ...]) -> NoReturn:
        assert self.code is None, "a call ends once"
        self.code, self.message = code, message
        self.status.ParseFromString(dict(metadata)[DETAILS_KEY])
        raise grpc.aio.AbortError


def tokens_of(*tokens: str | None) -> Callable[[], Tokens | None]:
    """Return a function that returns these tokens, which have no names; None stands for calls that need no token."""
    given = [(UNNAMED, token) for token in tokens if token is not None]
    return lambda: Tokens.of(*given) if given else None


def credentials_of(token: str | None, admin_token: str | None = None) -> Callable[[], Credentials]:
    """Return a function that returns the credentials of a server with these tokens; None stands for no token."""
    tokens, admin_tokens = tokens_of(token)(), tokens_of(admin_token)()
    return lambda: Credentials(tokens, admin_tokens or tokens)


def sample(recorder: Recorder, name: str, **labels: str) -> float | None:
    """Return one number of the metrics."""
    return recorder.registry.get_sample_value(f"headwaiter_{name}", labels)
