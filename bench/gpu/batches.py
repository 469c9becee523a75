"""Times single batches of BERT-base's shape of many sizes, and compares them with the device's matrix rate."""

from functools import partial

from bench.findings import Findings
from bench.gpu.correctness import check_answers
from bench.gpu.decisions import compare, decide
from bench.gpu.models import bert_bundle, bert_trace, served_plan
from bench.gpu.pytorch import DTYPES, PADDED_SEQUENCES
from bench.gpu.settings import FASTEST, Settings
from bench.gpu.timing import encoder_flops, matrix_rate, median_seconds
from headwaiter_server.runtime.graph import EncoderGraph
from headwaiter_server.runtime.packing import pack


def batches(settings: Settings, findings: Findings) -> None:
    """Check the answers of the graph first; then time batches without packing them."""
    effort = settings.effort
    encoder, trace = bert_trace(settings)
    graph = EncoderGraph.open(bert_bundle(settings) / served_plan(FASTEST).file, "cuda")
    check_answers(graph, encoder, trace.sequences[:PADDED_SEQUENCES], FASTEST)
    rate = matrix_rate(settings, DTYPES[FASTEST])
    findings.record(f"matrix products of PyTorch, {FASTEST}: TFLOP/s", rate / 1e12)
    rates: dict[int, float] = {}
    for tokens in effort.batch_tokens:
        with findings.attempt(f"{tokens:,} tokens"):
            first = trace.first(tokens)
            run = partial(graph.run, graph.prepare(pack(first.sequences)), hidden=False)
            label = f"{tokens:,} tokens: ms"
            seconds = median_seconds(label, run, settings, effort.batch_rounds)
            findings.record(label, seconds * 1e3)
            rates[tokens] = first.tokens / seconds
            findings.record(f"{tokens:,} tokens: tokens/s", rates[tokens])
            flops = encoder_flops(encoder.config, map(len, first.sequences))
            share, rated = f"{tokens:,} tokens: share of the matrix rate", flops / seconds / rate
            if 2 * tokens >= effort.full_batch_tokens:
                findings.require(share, rated, "≥", 0.35)
                findings.require(share, rated, "≥", 0.45, is_aim=True)
            else:
                findings.record(share, rated)
    largest, full = max(effort.batch_tokens), effort.full_batch_tokens
    if {largest, full} <= rates.keys():
        budget = largest if rates[largest] > rates[full] else full
        figures = f"{compare(rates[largest], rates[full])} tokens/s with {largest:,} and {full:,} tokens"
        decide(findings, "largest token budget", f"{budget:,}, {figures}")
