"""A version of a model that answers requests, as the services see it."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

from headwaiter_proto.encoder_pb2 import Precision
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_server.inputs.tokenizer import BundleTokenizer
from headwaiter_server.metrics.model_recorder import ModelRecorder
from headwaiter_server.runtime.graph import Provider
from headwaiter_server.runtime.model import ModelDescription


@dataclass(frozen=True)
class ModelFacts:
    """What the services know of a version of a model.

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
    results_digest: str
    precision: Precision
    provider: Provider
    graph_file: str
    devices: tuple[int, ...]
    number: int

    @classmethod
    def of(
        cls, model: ModelDescription, name: str, version: str, devices: tuple[int, ...] = (0,), number: int = 0
    ) -> "ModelFacts":
        """Return the facts of a model that runs on these devices."""
        bundle, manifest = model.bundle, Manifest()
        manifest.CopyFrom(bundle.manifest)
        # Errors name the model as callers do, and the bundle may have another name.
        manifest.name = name
        return cls(
            name=name,
            version=version,
            manifest=manifest,
            digest=bundle.digest,
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
    """

    facts: ModelFacts
    tokenizer: BundleTokenizer | None
    recorder: ModelRecorder
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

    def __enter__(self) -> Self:
        """Keep the model loaded while the block runs."""
        self._users += 1
        self._unused.clear()
        return self

    def __exit__(self, *_: object) -> None:
        """Note the end of a block."""
        self._users -= 1
        if not self._users:
            self._unused.set()

    async def wait_until_unused(self, timeout_s: float) -> None:
        """Wait until no request uses the model, or until the time-out."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._unused.wait()
