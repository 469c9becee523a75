"""A version of a model that answers requests, as the services see it."""

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Self

from headwaiter_proto.encoder_pb2 import PRECISION_UNSPECIFIED, Precision
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_server.inputs.tokenizer import BundleTokenizer
from headwaiter_server.metrics.model_recorder import ModelRecorder
from headwaiter_server.runtime.bundle import Bundle
from headwaiter_server.runtime.graph import Provider
from headwaiter_server.runtime.model import ModelDescription


@dataclass(frozen=True)
class ModelFacts:
    """What the services know of a version of a model; of one that is not loaded, the fields after `digest` are empty.

    Attributes:
        name: name of the model on this server.
        version: version of the model, a whole number.
        manifest: the manifest of the bundle, with the name of the model on this server.
        number: number of the load in this server; a version that is loaded again gets another number.
        digest: digest of the bundle.
        results_digest: digest of what decides the results.
        graph_file: file name of the graph in the bundle.
        devices: the device of each session.
    """

    name: str
    version: str
    manifest: Manifest
    digest: str
    results_digest: str = ""
    precision: Precision = PRECISION_UNSPECIFIED
    provider: Provider = "cpu"
    graph_file: str = ""
    devices: tuple[int, ...] = ()
    number: int = -1

    @classmethod
    def on_disk(cls, bundle: Bundle, name: str, version: str) -> "ModelFacts":
        """Return the facts of a model that is not loaded."""
        manifest = Manifest()
        manifest.CopyFrom(bundle.manifest)
        # Errors name the model as callers do, and the bundle may have another name.
        manifest.name = name
        return cls(name, version, manifest, bundle.digest)

    @classmethod
    def of(
        cls, model: ModelDescription, name: str, version: str, devices: tuple[int, ...] = (0,), number: int = 0
    ) -> "ModelFacts":
        """Return the facts of a model that runs on these devices."""
        return replace(
            cls.on_disk(model.bundle, name, version),
            results_digest=model.results_digest,
            precision=model.precision,
            provider=model.provider,
            graph_file=model.graph_file,
            devices=devices,
            number=number,
        )


@dataclass(eq=False)
class ServedModel:
    """A version of a model that is ready.

    Attributes:
        tokenizer: the bundle's tokenizer; None for a model that takes no texts.
        recorder: counts and times the requests for the model.
        used_s: when a request began or ended last, on `time.monotonic`.
    """

    facts: ModelFacts
    tokenizer: BundleTokenizer | None
    recorder: ModelRecorder
    used_s: float = field(default_factory=time.monotonic, init=False)
    _users: int = field(default=0, init=False)
    _unused: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def __post_init__(self) -> None:
        self._unused.set()

    @property
    def name(self) -> str:
        """Name of the model on this server."""
        return self.facts.name

    @property
    def version(self) -> str:
        """Version of the model, a whole number."""
        return self.facts.version

    @property
    def manifest(self) -> Manifest:
        """The manifest of the bundle."""
        return self.facts.manifest

    @property
    def labels(self) -> tuple[str, str]:
        """The name and the version, for metrics."""
        return self.facts.name, self.facts.version

    @property
    def in_use(self) -> bool:
        """Whether a request of this process uses the model."""
        return self._users > 0

    def __enter__(self) -> Self:
        """Keep the model loaded while the block runs."""
        self.used_s = time.monotonic()
        self._users += 1
        self._unused.clear()
        return self

    def __exit__(self, *_: object) -> None:
        """Note the end of a block."""
        self.used_s = time.monotonic()
        self._users -= 1
        if not self._users:
            self._unused.set()

    async def wait_until_unused(self, timeout_s: float) -> None:
        """Wait until no request uses the model, or until the time-out."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._unused.wait()
