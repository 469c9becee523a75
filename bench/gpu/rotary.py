"""Rotary models: the operator that rotates queries and keys, and PyTorch on the same GPU."""

import sys
from collections.abc import Callable
from functools import partial

from bench.findings import Findings, format_number
from bench.gpu.correctness import check_answers
from bench.gpu.decisions import MODERN_BERT, decide
from bench.gpu.in_process import compared_runner, run_as_served
from bench.gpu.models import ROTARY_SHAPES, SeparateRotations, random_model, served_plan, write
from bench.gpu.pytorch import PADDED_SEQUENCES, VariableLength
from bench.gpu.settings import FASTEST, Settings
from bench.gpu.timing import rounds_of
from bench.loads.traces import in_batches
from bench.studies.scheduler_alone import COST
from headwaiter_server.runtime.graph import EncoderGraph
from headwaiter_server.scheduling.cost import BatchLimits

_OPERATOR, _STANDARD, _PYTORCH = "RotaryEmbedding", "standard operators", "PyTorch"


def rotary(settings: Settings, findings: Findings) -> None:
    """Encode a trace with each shape in all ways, in alternating rounds."""
    effort = settings.effort
    limits = BatchLimits(effort.full_batch_tokens, sys.maxsize)
    speedups = []
    for number, (shape, config) in enumerate(ROTARY_SHAPES.items()):
        with findings.attempt(shape):
            encoder = random_model(config, settings)
            lengths = effort.lengths
            trace = lengths.trace(effort.trace_tokens // lengths.median_tokens, encoder.config.vocabulary_size)
            graphs = {}
            for name, layout in ((_OPERATOR, served_plan(FASTEST).layout), (_STANDARD, SeparateRotations)):
                path = settings.folder / f"rotary{number}{layout.__name__}.onnx"
                graphs[name] = EncoderGraph.open(write(encoder, layout, FASTEST, path), "cuda")
            check_answers(graphs[_OPERATOR], encoder, trace.sequences[:PADDED_SEQUENCES], FASTEST)
            runs: dict[str, Callable[[], object]] = {
                f"{shape}, {name}": partial(run_as_served, graph, COST, limits, trace.sequences)
                for name, graph in graphs.items()
            }
            with findings.attempt(f"{shape}: {_PYTORCH}"):
                runner = compared_runner(encoder, VariableLength, graphs[_OPERATOR], trace, settings, findings)
                runs[f"{shape}, {_PYTORCH}"] = partial(
                    runner.run, in_batches(trace.sequences, effort.full_batch_tokens)
                )
            taken = rounds_of(runs, settings, findings, effort.rounds)
            for name, seconds in taken.items():
                findings.record(f"{name}: tokens/s", trace.tokens / float(seconds))
            ours = taken[f"{shape}, {_OPERATOR}"]
            speedups.append(float(taken[f"{shape}, {_STANDARD}"] / ours))
            if (theirs := taken.get(f"{shape}, {_PYTORCH}")) is not None:
                name = f"{shape}: throughput in process / {_PYTORCH}"
                findings.require(name, float(theirs / ours), "≥", 1.2 if name == MODERN_BERT else 1.0, is_aim=True)
    if speedups:
        choice = _OPERATOR if min(speedups) >= 1 else _STANDARD
        figures = ", ".join(map(format_number, speedups))
        decide(findings, "rotary positions", f"{choice}, throughput of {_OPERATOR} / of {_STANDARD}: {figures}")
