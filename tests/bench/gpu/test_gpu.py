"""The GPU check computes, judges and prints its measurements correctly."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from typing_extensions import override

from bench.findings import Finding, Findings, findings_table, summary, to_json
from bench.gpu import pytorch
from bench.gpu.correctness import batches_of_lengths, hidden_relative_error
from bench.gpu.forms import FORMS
from bench.gpu.memory import batch_of, random_shapes
from bench.gpu.models import BERT_BASE, ROTARY_SHAPES, random_model
from bench.gpu.routes import read_routes, routes_of_layers
from bench.gpu.settings import FULL, Precision, Settings
from bench.gpu.timing import encoder_flops, rounds_of
from bench.loads.traces import in_batches
from headwaiter_export.encoder.attention_layout import SingleSequence
from headwaiter_export.encoder.encoder import Encoder
from headwaiter_export.encoder.reference import concatenate, random_sequences, run_in_pytorch
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_server.scheduling.cost import BatchLimits
from tests.support.export.helpers import assert_close, random_encoder
from tests.support.gpu_check.rehearsal import EFFORT, Faults, RehearsalGpu, varlen_attn

SETTINGS = Settings(EFFORT, None, Path(), RehearsalGpu(Faults()))


@pytest.mark.parametrize(
    ("finding", "verdict", "fails"),
    [
        (Finding("speed", "ratio", 2.0, "≥", 2.0), "holds", False),
        (Finding("speed", "ratio", 1.9, "≥", 2.0), "does not hold", True),
        (Finding("speed", "ratio", float("nan"), "≥", 2.0), "does not hold", True),
        (Finding("speed", "share", 0.4, "≥", 0.45, is_aim=True), "does not hold", False),
        (Finding("memory", "growth", 1.06, "≤", 1.05), "does not hold", True),
        (Finding("speed", "rate", 7.0), "", False),
        (Finding("speed", "flash", reason="this version has none"), "not measured: this version has none", False),
        (
            Finding("speed", "flash", reason="Fail: out of memory", is_error=True),
            "not measured: Fail: out of memory",
            True,
        ),
    ],
)
def test_a_finding_has_a_verdict(finding: Finding, verdict: str, fails: bool) -> None:
    assert (finding.verdict, finding.fails) == (verdict, fails)


def test_an_error_becomes_a_finding_and_the_check_continues() -> None:
    findings = Findings("speed")
    with findings.attempt("first"):
        run_out_of_memory()
    findings.require("second", 0.99991, "≥", 0.9999)
    findings.require("third", 0.3, "≥", 0.45, is_aim=True)
    findings.record("fourth", "a | b")
    findings.record("fifth", 1234567.8)
    assert findings_table(findings.found).splitlines()[2:] == [
        "| speed | first |  |  | not measured: RuntimeError: out of memory |",
        "| speed | second | 0.99991 | ≥ 0.9999 | holds |",
        "| speed | third | 0.3 | aim ≥ 0.45 | does not hold |",
        "| speed | fourth | a / b |  |  |",
        "| speed | fifth | 1,234,568 |  |  |",
    ]
    assert [int(number) for number in re.findall(r"\d+", summary(findings.found))] == [1, 0, 1, 1]
    written = json.loads(to_json(findings.found, {"python": "3"}))
    assert [line["verdict"] for line in written["findings"][1:3]] == ["holds", "does not hold"]


def run_out_of_memory() -> None:
    raise RuntimeError("out\nof memory")


@pytest.mark.parametrize("choices", [{}, {"head_dim": 4, "value_dim": 6}, {"d_ff": 0}])
def test_the_arithmetic_of_a_model_is_that_of_pytorchs_counter(choices: dict[str, int]) -> None:
    encoder = random_encoder(vocabulary_size=10, **choices)
    lengths = (1, 7, 32)
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        for n in lengths:
            encoder(torch.zeros(n, dtype=torch.long), SingleSequence(n))
    assert encoder_flops(encoder.config, lengths) == counter.get_total_flops()


@pytest.mark.parametrize(
    ("printed", "route"),
    [
        ("", "gathered"),
        ("some warning\n\x1b[36mAttentionKernelOptions: FLASH_ATTENTION=1 MATH=1\x1b[0m\n", "gathered"),
        (
            "\x1b[36mOperator=PackedMultiHeadAttention Node=a DataType=fp16 SdpaKernel=FLASH_ATTENTION\x1b[0m\n" * 2,
            "flash",
        ),
        (
            "Operator=MultiHeadAttention SdpaKernel=MATH\nOperator=X SdpaKernel=EFFICIENT_ATTENTION",
            "memory-efficient, unfused",
        ),
        ("Operator=X SdpaKernel=NEW_KERNEL", "NEW_KERNEL"),
    ],
)
def test_the_attention_kernel_is_read_from_the_output_of_onnx_runtime(printed: str, route: str) -> None:
    assert read_routes(printed) == route


def test_every_length_and_batches_of_64k_tokens_are_checked() -> None:
    batches = batches_of_lengths(BERT_BASE, 65_536)
    assert {n for batch in batches for n in batch} == set(range(1, 513))
    assert sorted(map(sum, batches))[-2:] == [65_536, 65_792]
    few = batches_of_lengths(BERT_BASE, 1024)
    assert all(700 < tokens < 1300 for tokens in map(sum, few[-2:]))
    longer = batches_of_lengths(replace(BERT_BASE, max_tokens=4093), 65_536)
    assert [each for each in longer if each in ([200], [4093])] == [[200], [4093]]
    assert max(longer[-1]) == 4093
    assert 61_440 < sum(longer[-1]) <= 65_536


def test_the_relative_error_uses_the_frobenius_norm() -> None:
    expected = np.array([[3.0, 4.0], [0.0, 12.0]])
    assert hidden_relative_error(expected * 1.25, expected) == pytest.approx(0.25)
    assert hidden_relative_error(np.array([[3.0, 4.0], [5.0, 12.0]]), expected) == pytest.approx(5 / 13)


def test_padded_batches_in_pytorch_equal_single_sequences() -> None:
    encoder = random_encoder(vocabulary_size=10)
    assert_equals_single_sequences(encoder, pytorch.Padded)


def test_variable_length_attention_in_pytorch_gets_the_bounds_of_sequences(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def checked(*rows_and_bounds: torch.Tensor) -> torch.Tensor:
        starts, same, longest, same_longest = rows_and_bounds[3:]
        assert starts is same
        assert longest == same_longest == int(starts.diff().max())
        return varlen_attn(*rows_and_bounds)

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", checked)
    assert_equals_single_sequences(random_encoder(vocabulary_size=10), pytorch.VariableLength)


def assert_equals_single_sequences(encoder: Encoder, layout: type[pytorch.Padded | pytorch.VariableLength]) -> None:
    sequences = [ids.astype(np.int64) for ids in random_sequences(encoder.config, (5, 1, 48, 13))]
    runner = pytorch.Runner(encoder, layout, SETTINGS, torch.float32)
    expected = concatenate(run_in_pytorch(encoder, list(sequences))).pooled
    assert expected is not None
    assert_close(runner.run([sequences[:3], sequences[3:]]), expected)


class OtherDevice(RehearsalGpu):
    """A device of tensors without content, which PyTorch does not mix with those of a CPU."""

    device = torch.device("meta")

    @override
    def upload(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.device)


@pytest.mark.parametrize("shape", ROTARY_SHAPES)
def test_rotary_models_in_pytorch_run_on_another_device_than_the_cpu(
    shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", lambda query, key, value, *_, **__: value)
    settings = Settings(EFFORT, None, Path(), OtherDevice(Faults()))
    runner = pytorch.Runner(random_model(ROTARY_SHAPES[shape], settings), pytorch.VariableLength, settings)
    assert runner._pooled([np.arange(5), np.arange(3)]).device == OtherDevice.device


def test_batches_keep_their_token_limit_and_the_order() -> None:
    sequences = [np.arange(n) for n in (9, 3, 3, 2, 9, 1)]
    assert [[len(ids) for ids in batch] for batch in in_batches(sequences, 8)] == [[9], [3, 3, 2], [9], [1]]


def test_a_failing_run_does_not_stop_the_timing_of_other_runs() -> None:
    ran: list[str] = []

    def fail_later() -> None:
        ran.append("fails")
        if len(ran) > 2:
            run_out_of_memory()

    findings = Findings("speed")
    taken = rounds_of({"fails": fail_later, "runs": lambda: ran.append("runs")}, SETTINGS, findings, 3)
    assert ran == ["fails", "runs", "fails", "runs", "runs", "runs"]
    assert {name: len(seconds) for name, seconds in taken.items()} == {"runs": 3}
    assert [(line.name, line.is_error) for line in findings.found] == [("fails", True)]


def test_random_shapes_keep_the_limits_of_a_server() -> None:
    limits = BatchLimits(tokens=300, cells=4096, padded_tokens=250)
    manifest = Manifest(min_tokens=2, max_tokens=64, vocabulary_size=50)
    batches = list(random_shapes(manifest, limits, 200))
    assert all(batch_of(lengths, manifest).tokens == sum(lengths) for lengths in batches)
    shapes = [tuple(lengths) for lengths in batches]
    assert len(set(shapes)) > 100
    for lengths in shapes:
        assert min(lengths) >= 2
        assert max(lengths) <= 64
    assert 150 < max(map(sum, shapes)) <= 300
    assert 200 < max(len(lengths) * max(lengths) for lengths in shapes) <= 250
    assert 4000 < max(len(lengths) * max(lengths) ** 2 for lengths in shapes) <= 4096


TURING, HOPPER = (7, 5), (9, 0)
_FUSED = "memory-efficient"


@pytest.mark.parametrize(
    ("form", "precision", "capability", "routes"),
    [
        ("local and global layers, as ModernBERT", "fp16", HOPPER, "flash, memory-efficient"),
        ("local and global layers, as ModernBERT", "fp16", TURING, _FUSED),
        ("local and global layers, as ModernBERT", "fp32", HOPPER, _FUSED),
        ("local and global heads of 256, as EmbeddingGemma", "fp16", HOPPER, "flash, memory-efficient"),
        ("causal with 32 heads, as Qwen3", "fp16", HOPPER, _FUSED),
        ("ALiBi", "fp16", HOPPER, _FUSED),
        ("distance table, as T5", "fp16", HOPPER, _FUSED),
        ("distance products, as DeBERTa", "fp16", HOPPER, "gathered"),
        ("image patches with registers and heads of 80, as DINOv2", "fp16", HOPPER, "flash"),
        ("switch-head, random weights", "fp32", HOPPER, _FUSED),
        # Values are longer than keys.
        ("projected-heads, random weights", "fp16", HOPPER, _FUSED),
    ],
)
def test_each_layer_has_its_attention_kernel(
    form: str, precision: Precision, capability: tuple[int, int], routes: str
) -> None:
    assert routes_of_layers(FORMS[form], precision, capability) == routes


def test_forms_have_all_lengths_that_matter() -> None:
    for name, config in FORMS.items():
        lengths = {n for batch in batches_of_lengths(config, FULL.form_tokens) for n in batch}
        assert {n for n in (8, 200, 512, config.max_tokens) if n <= config.max_tokens} <= lengths
        assert config.max_tokens % 8 or name.endswith("random weights")
        # Padded to the longest sequence, the scores of gathered attention must fit in memory.
        assert max(len(batch) * max(batch) for batch in batches_of_lengths(config, FULL.form_tokens)) < 200_000
