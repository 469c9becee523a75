"""A version of a model in the repository, and what the version is doing."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from headwaiter_proto.rules.errors import ModelNotFound


class ModelState(StrEnum):
    """What a version of a model is doing."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


@dataclass(eq=False)
class VersionStatus:
    """What a version of a model is doing.

    Attributes:
        name: name of the model.
        number: the version, a whole number.
        reason: why the version failed; otherwise empty.
    """

    name: str
    number: int
    state: ModelState = ModelState.LOADING
    reason: str = ""

    @property
    def version(self) -> str:
        """The version as callers name it."""
        return str(self.number)

    def status(self) -> "VersionStatus":
        """Return a copy without what only the repository knows."""
        return VersionStatus(self.name, self.number, self.state, self.reason)


def raise_failure(versions: Iterable[VersionStatus]) -> None:
    """If one of these versions of a model failed, raise the reason of the highest failed version.

    Raises:
        ModelNotFound: a version failed.
    """
    failed = [each for each in versions if each.state is ModelState.FAILED]
    if failed:
        latest = max(failed, key=lambda each: each.number)
        problem = f"version {latest.version} of the model {latest.name!r} cannot be served"
        raise ModelNotFound(f"{problem}: {latest.reason}", field="model")
