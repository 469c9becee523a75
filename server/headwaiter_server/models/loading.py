"""Load a bundle for serving: open, check, time and warm up its graph on every device."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from headwaiter_proto.rules.images import takes_images
from headwaiter_server.inputs.image_files import check_preparation
from headwaiter_server.inputs.tokenizer import BundleTokenizer
from headwaiter_server.models.calibration import (
    KnownCost,
    calibrate,
    capture_cuda_graphs,
    check_longest_sequence,
    largest_budget,
    warm_up,
)
from headwaiter_server.runtime.errors import ModelRefused, ProviderUnavailable, one_line
from headwaiter_server.runtime.graph import at_once
from headwaiter_server.runtime.model import Model, ModelDescription, open_model
from headwaiter_server.scheduling.cost import BatchLimits, Calibration
from headwaiter_server.scheduling.worker import Session, Worker
from headwaiter_server.settings.flags import Settings

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model that is ready to serve on every device.

    Attributes:
        model: the model as it runs on its first device.
        sessions: the session of each worker that runs the model; each instance on each device is one worker.
        tokenizer: the bundle's tokenizer; None for a model that takes no texts.
        calibration: the cost of batches, and the batch limits that hold on every device.
    """

    model: ModelDescription
    sessions: Mapping[Worker, Session]
    tokenizer: BundleTokenizer | None
    calibration: Calibration

    def describe(self) -> str:
        """Describe the model, where it runs, its batches and its accuracy, in one line for the log."""
        model = self.model
        fallback = " (CUDA was preferred; a line above says why it does not work)" if model.fallback_reason else ""
        calibration = self.calibration
        source = "learnt by the version before" if calibration.remembered else "measured"
        longest = ""
        if model.longest_sequence_bytes:
            longest = (
                f"about {model.longest_sequence_bytes / 2**20:,.0f} MiB for one sequence of "
                f"{model.bundle.manifest.max_tokens:,} tokens, "
            )
        reference = "the ONNX file" if model.bundle.manifest.reference_source else "PyTorch"
        return (
            f"{model.bundle.manifest.name} {model.bundle.digest[:12]} with {model.graph_file} on {model.provider}"
            f"{fallback}, at most {calibration.limits.tokens:,} tokens per batch, "
            f"{calibration.service_tokens_per_s:,.0f} tokens per second ({source}, median error "
            f"{calibration.error_ratio:.1%}), {longest}smallest cosine to {reference} "
            f"{model.self_check.min_cosine:.7f}"
        )


def load_model(
    folder: Path,
    settings: Settings,
    workers: Sequence[Worker],
    loop: asyncio.AbstractEventLoop,
    before: KnownCost | None = None,
) -> LoadedModel:
    """Open a bundle, check it and measure the cost of its batches; takes seconds, so call it outside the event loop.

    Args:
        folder: the bundle.
        settings: the settings of the model.
        workers: the workers of all devices; the model gets a session on each one that its provider and settings allow.
        loop: the event loop of the scheduler; it lets the batches of this load alternate with those of other models.
        before: the cost of the version that answers requests now, which holds if the graph is the same.

    Raises:
        ModelRefused: the model must not be served.
        BundleChanged: the bundle was replaced or written to during the load.
        ProviderUnavailable: the provider cannot run the model's batches.
    """
    model = open_model(
        folder,
        settings.provider,
        settings.precision,
        settings.threads_per_instance,
        settings.devices[0],
        settings.max_gpu_bytes,
        partial(workers[0].turn, loop),
        settings.max_sequence_tokens,
        settings.instances,
    )
    tokenizer = None
    if model.bundle.manifest.max_text_tokens:
        tokenizer = BundleTokenizer.open_in(model.bundle)
    if takes_images(model.bundle.manifest):
        check_preparation(model.bundle)
    log.info("measuring how long batches of %s take", model.bundle.manifest.name)
    try:
        token_cap = settings.token_budget
        known = before.calibration if before is not None and before.conditions == model.cost_conditions else None
        calibration = calibrate(model, token_cap, known, warms_up=settings.warm_up == "on")
        sessions, limits = _open_sessions(model, settings, workers, calibration.limits, loop)
    except ModelRefused:
        raise
    except Exception as error:
        raise ProviderUnavailable(
            f"{model.provider} cannot run the batches that the server times at start-up ({one_line(error)}): free "
            "memory, or set a smaller --token-budget"
        ) from error
    budget = largest_budget(model, limits, token_cap)
    calibration = replace(calibration, limits=limits, largest_budget_tokens=budget)
    return LoadedModel(model.description(), sessions, tokenizer, calibration)


def _open_sessions(
    model: Model,
    settings: Settings,
    workers: Sequence[Worker],
    limits: BatchLimits,
    loop: asyncio.AbstractEventLoop,
) -> tuple[dict[Worker, Session], BatchLimits]:
    """Return a session for each worker that runs the model, and the batch limits that hold on all devices.

    The first worker takes over the model's own graph, which is already warm.
    """
    first, *others = (
        worker
        for worker in workers
        if worker.instance < settings.instances and (model.provider == "cuda" or worker.device == settings.devices[0])
    )
    graphs = {first: model.graph}
    for worker in others:
        other = model.open_on(worker.device, partial(worker.turn, loop))
        check_longest_sequence(other)
        if settings.warm_up == "on":
            capture_cuda_graphs(other)
            limits = warm_up(other, limits)
        graphs[worker] = other.graph
    for graph in graphs.values():
        graph.turn = at_once
    return {worker: Session(graph, model.probe) for worker, graph in graphs.items()}, limits
