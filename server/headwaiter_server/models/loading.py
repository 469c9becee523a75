"""Opens what is served: the model, checked, timed and warm, on every device."""

from dataclasses import dataclass, replace
from functools import partial

from headwaiter_server.config import Settings
from headwaiter_server.models.tokenizer import BundleTokenizer
from headwaiter_server.runtime.bundle import TOKENIZER
from headwaiter_server.runtime.errors import ModelRefused, ProviderUnavailable
from headwaiter_server.runtime.graph import EncoderGraph
from headwaiter_server.runtime.model import Model, open_model
from headwaiter_server.scheduling.calibration import Calibration, warm_up
from headwaiter_server.scheduling.calibration_cache import calibrate
from headwaiter_server.scheduling.cost import BatchLimits
from headwaiter_server.scheduling.worker import Worker


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model that is ready to be served.

    Attributes:
        model: on the first device.
        workers: one for each instance of each device.
        text: its tokenizer, if it takes texts.
        calibration: what its batches cost, and how large they may be on all devices.
    """

    model: Model
    workers: list[Worker]
    text: BundleTokenizer | None
    calibration: Calibration

    def describe(self) -> str:
        """Return what is served, for a line of the log."""
        model = self.model
        fallback = f" (CUDA was preferred, but {model.fallback_reason})" if model.fallback_reason else ""
        calibration = self.calibration
        return (
            f"{model.bundle.manifest.name} {model.bundle.digest[:12]} with {model.graph_file} on "
            f"{model.provider}{fallback}, {calibration.limits.tokens:,} tokens a batch and {calibration.service_tokens_per_s:,.0f} a second "
            f"({'remembered' if calibration.remembered else 'measured'}, within {calibration.error_ratio:.1%} at the "
            f"median), cosine to PyTorch at least {model.self_check.min_cosine:.7f},"
        )


def load(settings: Settings) -> LoadedModel:
    """Open the model and measure its cost; takes seconds, so it runs beside the event loop.

    Raises:
        ModelRefused: the model must not be served.
        ProviderUnavailable: the provider cannot run it.
    """
    model = open_model(
        settings.bundle,
        settings.provider,
        settings.precision,
        settings.threads_per_instance,
        settings.devices[0],
        settings.max_gpu_bytes,
    )
    tokenizes = model.bundle.manifest.max_text_tokens
    text = BundleTokenizer(settings.bundle / TOKENIZER, tokenizes) if tokenizes else None
    try:
        calibration = calibrate(
            model, threads=settings.threads, token_cap=settings.token_budget, folder=settings.cache_dir
        )
        workers, limits = _open_workers(model, settings, calibration.limits)
    except ModelRefused:
        raise
    except Exception as error:
        raise ProviderUnavailable(
            f"{model.provider} cannot run the batches that are timed at start: {' '.join(str(error).split())}"
        ) from error
    return LoadedModel(model, workers, text, replace(calibration, limits=limits))


def _open_workers(model: Model, settings: Settings, limits: BatchLimits) -> tuple[list[Worker], BatchLimits]:
    """Return a worker for each instance of each device, and the limits of batches that ran on all of them.

    The first worker has the graph that is open, and warm, already.
    """

    def reopen(number: int) -> EncoderGraph:
        # It should find the memory that the dead one had; where it does not, batches are halved when they run.
        return _open_warm(model, number, limits)[0]

    numbers = settings.devices if model.provider == "cuda" else settings.devices[:1]
    places = [number for number in numbers for _ in range(settings.instances)]
    graphs = [model.graph]
    for number in places[1:]:
        graph, limits = _open_warm(model, number, limits)
        graphs.append(graph)
    workers = [
        Worker(graph, partial(reopen, number), model.probe) for graph, number in zip(graphs, places, strict=True)
    ]
    return workers, limits


def _open_warm(model: Model, number: int, limits: BatchLimits) -> tuple[EncoderGraph, BatchLimits]:
    """Open the graph once more, on a device, checked and warm, and return the limits of batches that ran there."""
    graph = model.open_on(number)
    return graph, warm_up(replace(model, graph=graph), limits)
