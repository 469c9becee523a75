"""Times single batches of BERT-base's shape of many sizes: one product for queries, keys and values, or three."""

from functools import partial

from bench.findings import Findings
from bench.gpu.correctness import check_answers
from bench.gpu.decisions import GAIN, compare, decide
from bench.gpu.models import SeparateProjections, bert_trace, fold_biases, served_plan, write
from bench.gpu.pytorch import DTYPES, PADDED_SEQUENCES
from bench.gpu.settings import FASTEST, Settings
from bench.gpu.timing import encoder_flops, matrix_rate, rounds_of
from headwaiter_export.encoder.encoder import Encoder
from headwaiter_export.graphs.graph_layout import GraphLayout
from headwaiter_server.runtime.graph import EncoderGraph
from headwaiter_server.runtime.packing import pack

_MERGED, _FOLDED = "merged", "separate with folded biases"


def batches(settings: Settings, findings: Findings) -> None:
    """Compare the forms of a graph in turns, and a full batch with the device's matrix rate."""
    effort = settings.effort
    encoder, trace = bert_trace(settings)
    forms: dict[str, tuple[type[GraphLayout], Encoder]] = {
        _MERGED: (served_plan(FASTEST).layout, encoder),
        "separate": (SeparateProjections, encoder),
        _FOLDED: (SeparateProjections, fold_biases(encoder)),
    }
    graphs = {}
    for number, (name, (layout, written)) in enumerate(forms.items()):
        with findings.attempt(name):
            graph = EncoderGraph.open(write(written, layout, FASTEST, settings.folder / f"form{number}.onnx"), "cuda")
            check_answers(graph, encoder, trace.sequences[:PADDED_SEQUENCES], FASTEST)
            graphs[name] = graph
    rate = matrix_rate(settings, DTYPES[FASTEST])
    findings.record(f"matrix products of PyTorch, {FASTEST}: TFLOP/s", rate / 1e12)
    rates: dict[int, float] = {}
    ratios: dict[int, float] = {}
    for tokens in effort.batch_tokens:
        with findings.attempt(f"{tokens:,} tokens"):
            first = trace.first(tokens)
            batch = pack(first.sequences)
            runs = {
                f"{tokens:,} tokens, {name}": partial(graph.run, graph.prepare(batch), hidden=False)
                for name, graph in graphs.items()
            }
            taken = rounds_of(runs, settings, findings, effort.batch_rounds)
            for name, seconds in taken.items():
                findings.record(f"{name}: ms", float(seconds) * 1e3)
            merged, folded = (taken.get(f"{tokens:,} tokens, {name}") for name in (_MERGED, _FOLDED))
            if merged is None:
                continue
            rates[tokens] = first.tokens / float(merged)
            findings.record(f"{tokens:,} tokens: tokens/s", rates[tokens])
            if folded is not None:
                ratios[tokens] = float(folded / merged)
            flops = encoder_flops(encoder.config, map(len, first.sequences))
            share, rated = f"{tokens:,} tokens: share of the matrix rate", flops / float(merged) / rate
            if 2 * tokens >= effort.full_batch_tokens:
                findings.require(share, rated, "≥", 0.35)
                findings.require(share, rated, "≥", 0.45, is_aim=True)
            else:
                findings.record(share, rated)
    largest, full, small = max(effort.batch_tokens), effort.full_batch_tokens, effort.small_batch_tokens
    if {largest, full} <= rates.keys():
        budget = largest if rates[largest] > rates[full] else full
        figures = f"{compare(rates[largest], rates[full])} tokens/s with {largest:,} and {full:,} tokens"
        decide(findings, "largest token budget", f"{budget:,}, {figures}")
    if {full, small} <= ratios.keys():
        choice = _FOLDED if ratios[full] * GAIN < 1 and ratios[small] < GAIN else _MERGED
        figures = f"{_FOLDED} / {_MERGED}: {ratios[full]:.3f} with {full:,} tokens, {ratios[small]:.3f} with {small:,}"
        decide(findings, "queries, keys and values", f"{choice}, {figures}")
