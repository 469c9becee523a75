"""Decide what to load and to unload: a pure function of what is on disk, what is served and what was asked for."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from headwaiter_server.models.folders import FoundModel, FoundVersion


@dataclass(frozen=True)
class Changes:
    """What to do with the models.

    Attributes:
        load: for each model, the bundles to try, in order; the first one that can be served takes over. If no bundle
            can be served, the version that is served stays.
        unload: names of the models to unload.
        missing: names and versions of the served models that the folder seems to lack now.
        offer: the bundle of each model that a request for the model loads.
    """

    load: Mapping[str, tuple[FoundVersion, ...]]
    unload: frozenset[str]
    missing: frozenset[tuple[str, int]]
    offer: Mapping[str, FoundVersion] = field(default_factory=dict)


def changes(
    found: Mapping[str, FoundModel],
    served: Mapping[str, FoundVersion],
    *,
    failed: Collection[FoundVersion] = (),
    on_demand: Collection[FoundVersion] = (),
    wanted: str = "",
    unwanted: Collection[str] = (),
    missing_before: Collection[tuple[str, int]] = (),
) -> Changes:
    """Return what to load and to unload.

    A served version gives way only to a higher version, or to other files of its own version. It gives way to a lower
    version, or to none, only if two scans in a row lack it: a folder that is being replaced, and a file that disappears
    beside a scan, look like an absence too. If the folder of models is empty, nothing changes, because an empty folder
    is what remains of a file system that is not mounted.

    Args:
        found: what the scan found.
        served: the version of each model that answers requests.
        failed: bundles that could not be served; they are not tried again while their files are unchanged.
        on_demand: bundles that wait for a request for their model.
        wanted: name of a model that a caller needs now; may be empty.
        unwanted: names of models that an operator has unloaded.
        missing_before: `missing` of the changes after the previous scan.
    """
    unload = {name for name in served if name in unwanted}
    if not found and served:
        return Changes({}, frozenset(unload), frozenset())
    load: dict[str, tuple[FoundVersion, ...]] = {}
    offer: dict[str, FoundVersion] = {}
    missing: set[tuple[str, int]] = set()
    for name in sorted({*found, *served} - {*unwanted}):
        folder, current = found.get(name, FoundModel()), served.get(name)
        candidates = sorted(folder.bundles.values(), key=lambda bundle: bundle.version, reverse=True)
        if current is not None:
            absent = not folder.may_hold(current.version)
            if absent:
                missing.add((name, current.version))
            if absent and (name, current.version) in missing_before:
                if not candidates and not folder.unreadable:
                    unload.add(name)
            else:
                candidates = [bundle for bundle in candidates if _supersedes(bundle, current)]
        candidates = [bundle for bundle in candidates if bundle not in failed]
        if candidates and current is None and candidates[0] in on_demand:
            offer[name] = candidates[0]
        if candidates and (name not in offer or name == wanted):
            load[name] = tuple(candidates)
    return Changes(load, frozenset(unload), frozenset(missing), offer)


def _supersedes(bundle: FoundVersion, current: FoundVersion) -> bool:
    if bundle.version == current.version:
        return bundle.identity != current.identity
    return bundle.version > current.version
