"""The life of a version of a model: its states, and the events that lead from one state to the next.

`models/versions.py` does what each state needs, and tells a version which event has happened.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import NamedTuple

from headwaiter_proto.rules.errors import ModelNotFound
from headwaiter_server.models.served_model import ModelFacts


class ModelState(StrEnum):
    """What a version of a model is doing."""

    ON_DISK = "on_disk"  # it is known, and loaded at the first request for it
    LOADING = "loading"  # it is opened, checked, measured and warmed up, and all processes open its tokenizer
    READY = "ready"  # it answers new requests
    DRAINING = "draining"  # it answers only the requests that it has begun; then its memory is freed
    FAILED = "failed"  # it cannot be served; callers learn why


class Event(StrEnum):
    """What happens to a version of a model."""

    WANTED = "wanted"  # a request needs it
    LOADED = "loaded"  # everything that its requests need is ready
    REFUSED = "refused"  # it must not be served, or its load has failed
    UNWANTED = "unwanted"  # when its load had ended, it was no longer the version that should answer
    RETIRED = "retired"  # another version takes over, or the model is unloaded
    FREED = "freed"  # its requests are answered, and its memory is free
    FORGOTTEN = "forgotten"  # its files are gone or have changed, or a caller asks for another attempt
    DUE = "due"  # the next request may try to load it again


# The state that follows an event; None if nothing of the version is left. Events without a row cannot happen.
NEXT_STATE: Mapping[tuple[ModelState, Event], ModelState | None] = {
    (ModelState.ON_DISK, Event.WANTED): ModelState.LOADING,
    (ModelState.ON_DISK, Event.FORGOTTEN): None,
    (ModelState.LOADING, Event.LOADED): ModelState.READY,
    (ModelState.LOADING, Event.REFUSED): ModelState.FAILED,
    (ModelState.LOADING, Event.UNWANTED): ModelState.DRAINING,
    (ModelState.READY, Event.RETIRED): ModelState.DRAINING,
    (ModelState.DRAINING, Event.FREED): None,
    (ModelState.FAILED, Event.FORGOTTEN): None,
    (ModelState.FAILED, Event.DUE): ModelState.ON_DISK,
}


class History(NamedTuple):
    """How often a model was loaded and unloaded.

    Attributes:
        loads: number of loads of all versions.
        evictions: how often the model was unloaded to make room for another one.
        loading_s: seconds that the loads took together.
    """

    loads: int = 0
    evictions: int = 0
    loading_s: float = 0.0


@dataclass(eq=False)
class VersionStatus:
    """What a version of a model is doing.

    Attributes:
        name: name of the model.
        number: the version, a whole number.
        reason: why the version failed, now or at its latest load; otherwise empty.
        sizes: if the version does not fit, the bytes that it may have, and those that it needs.
        facts: what is known of a version that is loaded on demand; None for other versions.
        history: how often the model was loaded and unloaded.
    """

    name: str
    number: int
    state: ModelState = ModelState.LOADING
    reason: str = ""
    sizes: tuple[int, int] | None = None
    facts: ModelFacts | None = None
    history: History = field(default_factory=History)

    @property
    def version(self) -> str:
        """The version as callers name it."""
        return str(self.number)

    def note(self, event: Event) -> bool:
        """Go to the state that follows an event, and return whether anything of the version is left.

        Raises:
            KeyError: the event cannot happen in the present state.
        """
        state = NEXT_STATE[self.state, event]
        self.state = state or self.state
        return state is not None

    def status(self) -> "VersionStatus":
        """Return a copy without what only the process of the models knows."""
        return VersionStatus(**{each.name: getattr(self, each.name) for each in fields(VersionStatus)})


def raise_failure(versions: Iterable[VersionStatus]) -> None:
    """If one of these versions of a model failed, raise the reason of the highest failed version.

    Raises:
        ModelNotFound: a version failed.
    """
    failed = [each for each in versions if each.state is ModelState.FAILED]
    if failed:
        latest = max(failed, key=lambda each: each.number)
        problem = f"version {latest.version} of the model {latest.name!r} cannot be served"
        limit, actual = latest.sizes or (None, None)
        raise ModelNotFound(f"{problem}: {latest.reason}", field="model", limit=limit, actual=actual)
