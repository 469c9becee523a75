"""Throughput in this process, planned and packed as in a server, beside PyTorch on the same GPU."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec

import numpy as np

from bench.findings import Findings
from bench.gpu.models import bert_bundle, bert_trace
from bench.gpu.pytorch import PADDED_SEQUENCES, Padded, Runner, VariableLength, sentence_transformer
from bench.gpu.settings import FASTEST, Settings
from bench.gpu.timing import rounds_of
from bench.loads.traces import Ids, Trace, in_batches, in_groups
from bench.studies.scheduler_alone import QUEUE_LIMITS, BatchCounter
from headwaiter_export.encoder.encoder import Encoder
from headwaiter_server.models.calibration import measure_cost
from headwaiter_server.runtime.graph import EncoderGraph
from headwaiter_server.runtime.model import open_model
from headwaiter_server.runtime.packing import pack
from headwaiter_server.scheduling.cost import BatchLimits, CostModel
from headwaiter_server.scheduling.job import Job
from headwaiter_server.scheduling.scheduler import Scheduler
from headwaiter_server.scheduling.worker import Session, Worker

IN_PROCESS, _VARIABLE = "Headwaiter, in process", "PyTorch, variable-length flash attention"
_PADDED, _SENTENCE_TRANSFORMERS = "PyTorch, padded, in arrival order", "sentence-transformers"
# What pads takes longer, so it encodes the trace only once in a round.
_ONE_TRACE = (_PADDED, _SENTENCE_TRANSFORMERS)
SEQUENCES_PER_REQUEST = 64
_DRAIN_S = 10.0

Run = Callable[[], object]


def in_process(settings: Settings, findings: Findings) -> None:
    """Encode one trace several times over in all ways, in alternating rounds."""
    encoder, trace = bert_trace(settings)
    findings.record("sequences", f"{trace.name}: {len(trace.sequences):,} of {trace.tokens:,} tokens")
    runs = dict(_runs(encoder, trace, settings, findings))
    taken = rounds_of(runs, settings, findings, settings.effort.rounds)
    rates = {}
    for name, seconds in taken.items():
        traces = 1 if name in _ONE_TRACE else settings.effort.traces
        rates[name] = traces * trace.tokens / float(seconds)
        findings.record(f"{name}, {FASTEST}: tokens/s", rates[name])
    for name, bound in ((_VARIABLE, 1.0), (_PADDED, 2.0), (_SENTENCE_TRANSFORMERS, 1.0)):
        if {IN_PROCESS, name} <= rates.keys():
            speedup = rates[IN_PROCESS] / rates[name]
            findings.require(f"throughput in process / {name}", speedup, "≥", bound, is_aim=name == _VARIABLE)


def _runs(encoder: Encoder, trace: Trace, settings: Settings, findings: Findings) -> Iterator[tuple[str, Run]]:
    """Yield the ways to encode the sequences; a way that raises an error becomes a finding instead."""
    sequences = [*trace.sequences] * settings.effort.traces
    model = open_model(bert_bundle(settings), "cuda", FASTEST, None)
    calibration = measure_cost(model)
    findings.record("token budget, in process", calibration.limits.tokens)
    yield IN_PROCESS, partial(run_as_served, model.graph, calibration.cost, calibration.limits, sequences)
    with findings.attempt(_VARIABLE):
        runner = compared_runner(encoder, VariableLength, model.graph, trace, settings, findings)
        yield _VARIABLE, partial(runner.run, in_batches(sequences, settings.effort.full_batch_tokens))
    with findings.attempt(_PADDED):
        runner = compared_runner(encoder, Padded, model.graph, trace, settings, findings)
        yield _PADDED, partial(runner.run, in_groups(trace.sequences, PADDED_SEQUENCES))
    with findings.attempt(_SENTENCE_TRANSFORMERS):
        if find_spec("sentence_transformers") is None:
            findings.skip(_SENTENCE_TRANSFORMERS, "it is not installed")
        else:
            run = sentence_transformer(encoder, trace.sequences, settings.folder / "sentence-transformers", settings)
            yield _SENTENCE_TRANSFORMERS, run


def run_as_served(graph: EncoderGraph, cost: CostModel, limits: BatchLimits, sequences: Sequence[Ids]) -> None:
    """Encode sequences that wait together: this thread plans, a second one packs, and a third one runs the batches."""

    async def run() -> None:
        worker = Worker()
        scheduler = Scheduler([worker], QUEUE_LIMITS)
        session = Session(graph, pack([np.zeros(1, np.int64)]))
        queue = scheduler.add_model({worker: session}, cost, limits, BatchCounter())
        groups = in_groups(sequences, SEQUENCES_PER_REQUEST)
        await asyncio.gather(*(scheduler.submit(queue, Job(list(group))) for group in groups))
        await scheduler.drain(_DRAIN_S)

    asyncio.run(run())


def compared_runner(
    encoder: Encoder,
    layout: type[Padded | VariableLength],
    graph: EncoderGraph,
    trace: Trace,
    settings: Settings,
    findings: Findings,
) -> Runner:
    """Return a runner of the encoder in PyTorch, and record its smallest cosine to Headwaiter's vectors."""
    runner = Runner(encoder, layout, settings)
    batch = trace.sequences[:PADDED_SEQUENCES]
    ours, theirs = graph.run(pack(batch), hidden=False).pooled, runner.run([batch])
    assert ours is not None
    cosines = (ours * theirs).sum(1) / np.linalg.norm(ours, axis=1) / np.linalg.norm(theirs, axis=1)
    findings.record(f"PyTorch, {layout.__name__}: smallest cosine to Headwaiter", float(cosines.min()))
    return runner
