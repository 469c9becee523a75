"""What is known of a version of a model from its manifest and its settings alone, before the version is loaded."""

from dataclasses import dataclass
from functools import lru_cache

from headwaiter_server.models.calibration import candidate_budgets
from headwaiter_server.models.folders import FoundVersion
from headwaiter_server.models.model_settings import read_model_settings
from headwaiter_server.models.served_model import ModelFacts
from headwaiter_server.runtime.bundle import Bundle
from headwaiter_server.runtime.errors import GraphMissing
from headwaiter_server.runtime.graph import Provider
from headwaiter_server.runtime.hardware import compute_capability
from headwaiter_server.runtime.memory import rows_bytes
from headwaiter_server.runtime.model import find_graph, predicted_bytes
from headwaiter_server.settings.flags import Settings

# A session takes this many times the bytes of its weights.
_WEIGHTS_FACTOR = 1.2


@dataclass(frozen=True)
class OnDisk:
    """A version of a model on disk.

    Attributes:
        facts: what callers may know of the version.
        pinned: whether the version is loaded at the start, and stays loaded.
        size_bytes: about the most memory that the version takes on each device.
    """

    facts: ModelFacts
    pinned: bool
    size_bytes: int


# A folder that does not change is read once.
@lru_cache(4096)
def describe(found: FoundVersion, settings: Settings) -> OnDisk:
    """Read the manifest and the settings of a version.

    Raises:
        ModelRefused: the version cannot be served.
        SettingsError: its settings are wrong.
    """
    own = read_model_settings(settings, found.settings)
    bundle = Bundle.described(found.folder)
    if own.max_sequence_tokens:
        bundle.limit_tokens(own.max_sequence_tokens)
    provider: Provider = "cpu"
    if own.provider != "cpu" and (own.provider == "cuda" or compute_capability(own.devices[0]) is not None):
        provider = "cuda"
    try:
        graph = find_graph(bundle, provider, own.precision)
    except GraphMissing:
        if own.provider != "auto" or provider == "cpu":
            raise
        graph = find_graph(bundle, "cpu", own.precision)
    facts = ModelFacts.on_disk(bundle, found.name, str(found.version))
    weights, longest = predicted_bytes(bundle, graph, own.instances)
    # ONNX Runtime keeps the memory of the largest batch that was measured.
    batch = rows_bytes(bundle.manifest, candidate_budgets(provider, own.token_budget)[-1]) * own.instances
    return OnDisk(facts, own.load == "at-start", int(_WEIGHTS_FACTOR * weights) + longest + batch)
