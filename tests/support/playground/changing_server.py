"""A fake server whose models, delays and errors a test changes while a page is open."""

import hashlib
import threading
import time
from collections import defaultdict
from typing import Any

from headwaiter_client import FakeEncoder, HeadwaiterError
from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import ModelNotFound


class ChangingServer:
    """A transport for `Client`: a server of several fake models.

    Attributes:
        models: the models by name, with their versions. Each is made by `FakeEncoder`, and may be replaced.
        delays_s: seconds until the answer, by the name of the method.
        errors: the refusals, by the name of the method.
        descriptions: what GetModel says besides, by the name of the model.
        batches: the reply of ListBatches.
        calls: the names of the methods, and the requests, in the order in which they came.
    """

    def __init__(self, **models: FakeEncoder) -> None:
        self.models = {name: (model, "1") for name, model in models.items()}
        self.delays_s: dict[str, float] = {}
        self.errors: dict[str, HeadwaiterError] = {}
        self.calls: list[tuple[str, bytes]] = []
        self.descriptions: defaultdict[str, pb.GetModelResponse] = defaultdict(pb.GetModelResponse)
        self.batches: list[pb.Batch] = []
        self._lock = threading.Lock()

    def unary(self, method: str, request: bytes, *others: Any) -> bytes:
        """Answer a call."""
        name = method.rpartition("/")[2]
        self.calls.append((name, request))
        time.sleep(self.delays_s.get(name, 0))
        if error := self.errors.get(name):
            raise error
        if name == "ListModels":
            return pb.ListModelsResponse(models=[self._reference(each) for each in self.models]).SerializeToString()
        if name == "ListBatches":
            return pb.ListBatchesResponse(batches=self.batches).SerializeToString()
        wanted = pb.GetModelRequest.FromString(request).name  # The first field of each request is the model's name.
        if wanted not in self.models:
            raise ModelNotFound(f"the server has no model {wanted!r}: send another name", field="model")
        fake, _ = self.models[wanted]
        reference = self._reference(wanted)
        with self._lock:
            answer = fake.unary(method, request, *others)
        if name == "GetModel":
            description = pb.GetModelResponse.FromString(answer)
            description.MergeFrom(self.descriptions[wanted])
            description.model.CopyFrom(reference)
            return description.SerializeToString()
        reply = pb.EncodeResponse() if name == "Encode" else pb.AttendResponse()
        reply.ParseFromString(answer)
        reply.model.CopyFrom(reference)
        reply.timings.total_s = 0.001
        return reply.SerializeToString()

    def count(self, method: str) -> int:
        """Return how many calls of a method have come."""
        return sum(name == method for name, _ in self.calls)

    def close(self) -> None:
        """Do nothing."""

    def _reference(self, name: str) -> pb.ModelRef:
        version = self.models[name][1]
        digest = hashlib.sha256(f"{name} {version}".encode()).hexdigest()
        return pb.ModelRef(name=name, version=version, digest=digest, precision=pb.PRECISION_FP32)
