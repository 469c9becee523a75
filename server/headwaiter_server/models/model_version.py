"""A version of a model in the repository, and what the version is doing."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from headwaiter_proto.rules.errors import ModelNotFound
from headwaiter_server.models.folders import BundleFolder
from headwaiter_server.models.served_model import ServedModel


class ModelState(StrEnum):
    """What a version of a model is doing."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


@dataclass(eq=False)
class ModelVersion:
    """A version of a model.

    Attributes:
        reason: why the version failed; otherwise empty.
        retried: whether a failed version is loaded again although its files are unchanged.
        served: the loaded model; None before the version is ready and after the model is unloaded.
    """

    bundle: BundleFolder
    state: ModelState = ModelState.LOADING
    reason: str = ""
    retried: bool = False
    served: ServedModel | None = None

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.bundle.name

    @property
    def version(self) -> str:
        """Version of the model."""
        return str(self.bundle.version)

    def fail(self, reason: str, *, retried: bool) -> None:
        """Record that the version cannot be served, and why."""
        self.state, self.reason, self.retried = ModelState.FAILED, reason, retried


def raise_failure(versions: Iterable[ModelVersion]) -> None:
    """If one of these versions of a model failed, raise the reason of the highest failed version.

    Raises:
        ModelNotFound: a version failed.
    """
    failed = [each for each in versions if each.state is ModelState.FAILED]
    if failed:
        latest = max(failed, key=lambda each: each.bundle.version)
        problem = f"version {latest.version} of the model {latest.name!r} cannot be served"
        raise ModelNotFound(f"{problem}: {latest.reason}", field="model")
