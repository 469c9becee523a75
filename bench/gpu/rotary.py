"""Rotary models beside PyTorch on the same GPU."""

import sys
from collections.abc import Callable
from functools import partial

from bench.findings import Findings
from bench.gpu.correctness import check_answers
from bench.gpu.decisions import MODERN_BERT
from bench.gpu.in_process import compared_runner, run_as_served
from bench.gpu.models import ROTARY_SHAPES, random_model, served_plan, write
from bench.gpu.pytorch import PADDED_SEQUENCES, VariableLength
from bench.gpu.settings import FASTEST, Settings
from bench.gpu.timing import rounds_of
from bench.loads.traces import in_batches
from bench.studies.scheduler_alone import COST
from headwaiter_server.runtime.graph import EncoderGraph
from headwaiter_server.scheduling.cost import BatchLimits


def rotary(settings: Settings, findings: Findings) -> None:
    """Encode a trace with each shape in both ways, in alternating rounds."""
    effort = settings.effort
    limits = BatchLimits(effort.full_batch_tokens, sys.maxsize)
    for number, (shape, config) in enumerate(ROTARY_SHAPES.items()):
        with findings.attempt(shape):
            encoder = random_model(config, settings)
            lengths = effort.lengths
            trace = lengths.trace(effort.trace_tokens // lengths.median_tokens, encoder.config.vocabulary_size)
            path = write(encoder, served_plan(FASTEST).layout, FASTEST, settings.folder / f"rotary{number}.onnx")
            graph = EncoderGraph.open(path, "cuda")
            check_answers(graph, encoder, trace.sequences[:PADDED_SEQUENCES], FASTEST)
            ours, theirs = f"{shape}, Headwaiter", f"{shape}, PyTorch"
            runs: dict[str, Callable[[], object]] = {ours: partial(run_as_served, graph, COST, limits, trace.sequences)}
            with findings.attempt(theirs):
                runner = compared_runner(encoder, VariableLength, graph, trace, settings, findings)
                runs[theirs] = partial(runner.run, in_batches(trace.sequences, effort.full_batch_tokens))
            taken = rounds_of(runs, settings, findings, effort.rounds)
            for name, seconds in taken.items():
                findings.record(f"{name}: tokens/s", trace.tokens / float(seconds))
            if {ours, theirs} <= taken.keys():
                name = f"{shape}: throughput in process / PyTorch"
                speedup = float(taken[theirs] / taken[ours])
                findings.require(name, speedup, "≥", 1.2 if name == MODERN_BERT else 1.0, is_aim=True)
