"""The directory of models: which model answers a request, and what each version is doing."""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from headwaiter_proto.rules.errors import (
    MAX_QUOTED_CHARACTERS,
    HeadwaiterError,
    InvalidInput,
    ModelNotFound,
    Starting,
    Unavailable,
)
from headwaiter_proto.rules.tasks import Ability, wrong_model
from headwaiter_server.models.model_version import ModelState, VersionStatus, raise_failure
from headwaiter_server.models.served_model import ModelFacts, ServedModel

# Seconds after which callers ask again for a model that is being loaded: loads take from one second to minutes.
_RETRY_AFTER_S = 1.0
_Model = TypeVar("_Model", ModelFacts, ServedModel)


class NotLoaded(Exception):
    """The model answers once it is loaded on demand.

    Attributes:
        facts: what is known of the model.
    """

    def __init__(self, facts: ModelFacts) -> None:
        super().__init__(f"the model {facts.name!r} is not loaded")
        self.facts = facts


class ModelDirectory:
    """The models of a server, as its callers see them.

    Args:
        default_model: the model of requests that name none; may be empty.
        single: whether the server has one model, which requests that name none mean whatever they need.

    Attributes:
        started: whether the models of the start are loaded.
        reachable: whether what runs the models answers.
        leaving: whether load balancers must send requests elsewhere, although the server still answers requests.
            Call `notify` after a change of an attribute.
    """

    def __init__(self, default_model: str, *, single: bool = False) -> None:
        self._default_model, self._single = default_model, single
        self._versions: list[VersionStatus] = []
        self._current: dict[str, ServedModel] = {}
        # The models that answer requests, and those that do once they are loaded on demand.
        self._known: dict[str, ModelFacts] = {}
        self.started, self.reachable, self.leaving = False, True, False
        self._subscribers: list[Callable[[], None]] = []

    def subscribe(self, on_change: Callable[[], None]) -> None:
        """Call a function whenever the directory has changed."""
        self._subscribers.append(on_change)

    def notify(self) -> None:
        """Tell the subscribers that the directory has changed."""
        for on_change in self._subscribers:
            on_change()

    def update(self, versions: Iterable[VersionStatus], current: Mapping[str, ServedModel]) -> None:
        """Replace the versions that the directory knows, and notify the subscribers.

        Args:
            versions: all versions: loaded, being loaded, being unloaded, or failed.
            current: the version of each model that answers requests.
        """
        self._versions = sorted(versions, key=lambda each: (each.name, each.number))
        self._current = dict(sorted(current.items()))
        answers = (ModelState.ON_DISK, ModelState.LOADING)
        on_demand = {each.name: each.facts for each in self._versions if each.facts and each.state in answers}
        known = {**on_demand, **{name: served.facts for name, served in current.items()}}
        self._known = dict(sorted(known.items()))
        self.notify()

    @property
    def known_versions(self) -> list[VersionStatus]:
        """All versions, sorted by name and version; none before the server knows its models."""
        return self._versions

    @property
    def current(self) -> list[ServedModel]:
        """The models that answer requests, by name; none before the first is loaded."""
        return list(self._current.values())

    @property
    def versions(self) -> list[VersionStatus]:
        """All versions, sorted by name and version.

        Raises:
            Starting: the server is starting, and does not know its models yet.
        """
        if not self.started and not self._versions:
            raise starting()
        return self._versions

    @property
    def known(self) -> list[ModelFacts]:
        """The models that answer requests, loaded or on disk, by name, but the default model first.

        Raises:
            Starting: the server is starting.
        """
        return self._default_first(self._known.values())

    @property
    def served(self) -> list[ServedModel]:
        """The models that are loaded and answer requests, by name, but the default model first.

        Raises:
            Starting: the server is starting.
        """
        return self._default_first(self._current.values())

    def _default_first(self, models: Iterable[_Model]) -> list[_Model]:
        if not self.started and not self._known:
            raise starting()
        return sorted(models, key=lambda each: each.name != self._default_model)

    @property
    def served_names(self) -> list[str]:
        """The names of the models that answer requests, loaded or on disk."""
        return list(self._known)

    @property
    def ready(self) -> bool:
        """Whether load balancers may send requests for the models: they are loaded, they answer, and they stay."""
        return self.started and self.reachable and not self.leaving

    @property
    def available(self) -> bool:
        """Whether load balancers may send requests, also those that name no model."""
        # A server without its default model must get no calls.
        return self.ready and bool(self._known) and self._default_model in ("", *self._known)

    def find(self, name: str, version: str = "", wanted: Ability | None = None) -> ServedModel:
        """Return the model that answers requests for a name and a version; either may be empty.

        Args:
            name: the name; if empty, the default model answers, or else the only model that was made for what the
                request needs.
            version: the version; if empty, the current one.
            wanted: what the model must be able to do.

        Raises:
            ModelNotFound: the server has no such model or version, or could not load it.
            InvalidInput: the model lacks the ability, or the name is empty and several models suit the request.
            Starting: the server is starting, or it is loading the model.
            Unavailable: the server has no model.
            NotLoaded: the model has to be loaded first.
        """
        facts = self.facts(name, version, wanted)
        served = self._current.get(facts.name)
        if served is None:
            raise NotLoaded(facts)
        return served

    def facts(self, name: str, version: str = "", wanted: Ability | None = None) -> ModelFacts:
        """Return what is known of the model that `find` returns, or that has to be loaded first."""
        found = self._find(name or self._meant_name(wanted), version)
        if wanted is not None and not wanted.has(found.manifest):
            raise wrong_model(found.name, found.manifest, wanted, self._suited(wanted) or self._able(wanted))
        return found

    def _find(self, name: str, version: str) -> ModelFacts:
        current = self._known.get(name)
        if current is not None and version in ("", current.version):
            return current
        if not self.started and current is None:
            raise starting()
        of_name = [each for each in self._versions if each.name == name and version in ("", each.version)]
        if any(each.state is ModelState.LOADING for each in of_name):
            raise Starting(
                f"the model {name!r} is being loaded: try again in a few seconds",
                field="model",
                retry_after_s=_RETRY_AFTER_S,
            )
        raise_failure(of_name)
        if current is not None:
            raise ModelNotFound(
                f"the server has no version {version[:MAX_QUOTED_CHARACTERS]!r} of the model {name!r}: send "
                f"{current.version!r}, or leave the field empty",
                field="model_version",
            )
        remedy = f"send one of {self._names()}" if self._known else "load a model"
        raise ModelNotFound(f"the server has no model {name[:MAX_QUOTED_CHARACTERS]!r}: {remedy}", field="model")

    def _meant_name(self, wanted: Ability | None) -> str:
        """Return the name of the model that a request without a name means."""
        default, current = self._default_model, self._known.get(self._default_model)
        if default and (wanted is None or current is None or wanted.has(current.manifest)):
            return default
        if not self._single and (not self.started or self._loads_a_model):
            # The request may mean the model that is being loaded.
            loading = "the request names no model, and the server is loading one: try again in a few seconds"
            raise Starting(loading, field="model", retry_after_s=_RETRY_AFTER_S) if self.started else starting()
        if wanted is None or self._single:
            names = self.served_names or sorted({each.name for each in self._versions})
            if not names:
                raise starting() if not self.started else Unavailable("the server has no model: load one")
        else:
            names = self._suited(wanted)
            if not names and default:
                return default
            if not names:
                raise self._none_suits(wanted)
        if len(names) > 1:
            listed = ", ".join(map(repr, names))
            raise InvalidInput(
                f"the request names no model, and the server has several: send one of {listed}", field="model"
            )
        return names[0]

    @property
    def _loads_a_model(self) -> bool:
        """Whether the first version of a model is being loaded."""
        return any(each.state is ModelState.LOADING and each.name not in self._known for each in self._versions)

    def _suited(self, wanted: Ability) -> list[str]:
        """Return the names of the models that were made for what a request needs."""
        return [name for name, facts in self._known.items() if wanted.suits(facts.manifest)]

    def _able(self, wanted: Ability) -> list[str]:
        """Return the names of the models that can do what a request needs."""
        return [name for name, facts in self._known.items() if wanted.has(facts.manifest)]

    def _none_suits(self, wanted: Ability) -> HeadwaiterError:
        """Return the error of a request without a name that no model suits."""
        able = self._able(wanted)
        remedy = f"send one of {', '.join(map(repr, able))}" if able else f"load a model that {wanted.words}"
        needed = f"it needs a model that {wanted.words}, and none of the server's models was made for it"
        return InvalidInput(f"the request names no model; {needed}: {remedy}", field="model")

    def _names(self) -> str:
        return ", ".join(map(repr, self._known))


def starting() -> Starting:
    """Return the error of a request that comes before the server has its models."""
    return Starting("the server is starting: wait until its health check reports SERVING", retry_after_s=_RETRY_AFTER_S)
