"""The subcommands `models`, `load` and `unload`."""

import json
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict

from headwaiter_proto import encoder_pb2 as pb
from tests.client.cli.conftest import Command
from tests.support.client.fake_server import LOADED, MODEL, FakeServer


def shown(command: Command) -> str:
    """Run `models`, and return its table with single spaces instead of lines and columns."""
    assert command.run("models") == 0
    return " ".join(command.printed.replace("│", " ").split())


def test_models_shows_inputs_limits_speed_and_accuracy(server: FakeServer, command: Command) -> None:
    server.description = pb.GetModelResponse(
        model=pb.ModelRef(name=MODEL.name, version="12", digest=MODEL.digest, precision=pb.PRECISION_FP16),
        takes_tokens=True,
        takes_texts=True,
        vocabulary_size=30522,
        min_tokens=2,
        max_tokens=512,
        width=384,
        hidden_width=768,
        layers=6,
        heads=12,
        tasks=[pb.TASK_ENCODE, pb.TASK_CLASSIFY_TOKENS, pb.TASK_ATTEND],
        pooling=pb.POOLING_MEAN,
        poolings=[pb.POOLING_MEAN, pb.POOLING_CLS, pb.POOLING_LAST],
        normalized=True,
        attends=True,
        prompts=[pb.Prompt(name="query", text="query: ", tokens=3), pb.Prompt(name="passage", text="passage: ")],
        default_prompt="passage",
        max_text_tokens=256,
        limits=pb.RequestLimits(max_sequences=4096, max_tokens=65536, max_message_bytes=67108864),
        execution=pb.Execution(
            provider="cpu",
            fallback_reason="no CUDA [driver] here",
            precision=pb.PRECISION_FP16,
            graph="g.onnx",
            token_budget=1024,
            longest_sequence_bytes=528 << 20,
            cost=pb.BatchCost(
                launch_s=0.0025,
                token_s=1.1e-4,
                padded_row_s=4e-6,
                cell_s=5e-9,
                error_ratio=0.061,
                service_tokens_per_s=8123.4,
                remembered=True,
            ),
            self_check=pb.SelfCheck(
                sequences=32,
                pooled_max_abs=1.5e-7,
                hidden_max_abs=2e-6,
                pooled_max_relative=3e-7,
                hidden_max_relative=4e-7,
                min_cosine=0.999,
                mean_cosine=1,
            ),
        ),
        parity=[
            pb.GraphParity(graph="other.onnx", same_nearest_neighbour=0.5),
            pb.GraphParity(graph="g.onnx", same_nearest_neighbour=0.9625, same_order=0.9712),
        ],
    )
    text = shown(command)
    for fact in (
        MODEL.name,
        "version 12",
        MODEL.digest,
        "encode, classify_tokens, attend",
        "cpu (no CUDA [driver] here)",
        "fp16",
        "30,522",
        "256 tokens",
        "2 to 512 tokens",
        "width 384, pooling mean",
        "width 768",
        "unit length",
        "cls, last",
        "query 'query: '",
        "passage (default) 'passage: '",
        "6 attention layers",
        "12 heads",
        "available",
        "4,096 sequences, 65,536 tokens, 67,108,864 bytes",
        "1,024 tokens",
        "528 MiB",
        "8,123 tokens/s",
        "2.5 ms per batch",
        "110 µs per token",
        "5 ns per attention cell",
        "learnt by the version before",
        "±6.1%",
        "32 sequences",
        "pooled vectors within 1.5e-07",
        "3.0e-07",
        "hidden rows within 2.0e-06",
        "4.0e-07",
        "cosine at least 0.999000",
        "1.000000 on average",
        "96.2%",
        "97.1%",
    ):
        assert fact in text


_SOUND = pb.SoundFormat(sampling_rate_hz=16_000, hop=320)
_NORMALIZED_SOUND = pb.SoundFormat(sampling_rate_hz=16_000, hop=320, normalized=True)
_IMAGE = pb.ImageFormat(channels=3, height=224, width=192, patch_size=16)
_UNKNOWN: Any = 77  # Only newer servers know it.


def _padded(isolation: pb.Isolation) -> dict[str, Any]:
    cost = pb.BatchCost(launch_s=2e-3, padded_row_s=7e-5, service_tokens_per_s=9_000)
    return {
        "tasks": [pb.TASK_CLASSIFY],
        "pooling": pb.POOLING_NONE,
        "without_rows": True,
        "execution": pb.Execution(isolation=isolation, padding_reason="the mask is [odd]", cost=cost),
    }


@pytest.mark.parametrize(
    ("description", "facts", "absent"),
    [
        (
            _padded(pb.ISOLATION_MIXED),
            [
                "all lengths, padded",
                "the mask is [odd]",
                "hidden vectors none",
                "2 ms per batch, 70 µs per token or padding (",
            ],
            ["attention layers", "width", "attention cell"],
        ),
        (_padded(pb.ISOLATION_ONE_LENGTH), ["one length"], []),
        (_padded(pb.ISOLATION_ONE_SEQUENCE), ["one sequence"], []),
        (_padded(_UNKNOWN), ["batches are padded"], []),
        (
            {"execution": pb.Execution(reference_source=pb.REFERENCE_SOURCE_ONNX_FILE)},
            ["not PyTorch"],
            ["compared with PyTorch too"],
        ),
        (
            {"execution": pb.Execution(reference_source=pb.REFERENCE_SOURCE_ONNX_FILE_AND_PYTORCH)},
            ["compared with PyTorch too"],
            ["not PyTorch"],
        ),
        (
            {"takes_features": True, "feature_width": 16, "execution": pb.Execution(provider="cuda")},
            ["cuda", "features of width 16", "not available"],
            [
                "texts",
                "prompts",
                "images",
                "sounds",
                "targets",
                "other pooling",
                "unit length",
                "tokens/s",
                "of memory",
            ],
        ),
        ({"sound": _SOUND}, ["16,000 samples", "320 samples"], ["variance"]),
        ({"sound": _NORMALIZED_SOUND}, ["variance 1"], []),
        ({"image": _IMAGE}, ["3 × 224 × 192", "16 × 16"], ["zeros"]),
        ({"image": _IMAGE, "prefix_rows": 5}, ["5 rows of zeros"], []),
        ({"takes_tokens": True, "target": pb.TargetFormat(start_id=30_521)}, ["token id 30,521"], []),
        ({"takes_features": True, "target": pb.TargetFormat()}, ["value 1"], ["token id"]),
        ({"execution": pb.Execution(longest_sequence_bytes=5_000)}, ["below 1 MiB of memory"], []),
        (
            {"width": 8, "tasks": [pb.TASK_ATTEND, _UNKNOWN, pb.TASK_ENCODE], "pooling": _UNKNOWN},
            ["encode, attend ", "pooling unknown"],
            ["77"],
        ),
    ],
)
def test_models_shows_what_a_model_has_and_no_other_rows(
    server: FakeServer, command: Command, description: dict[str, Any], facts: list[str], absent: list[str]
) -> None:
    server.description = pb.GetModelResponse(model=pb.ModelRef(name="tiny"), **description)
    text = shown(command)
    for fact in facts:
        assert fact in text
    for word in absent:
        assert word not in text


def test_models_as_json_are_get_model_responses(server: FakeServer, command: Command) -> None:
    assert command.run("models", "--json") == 0
    (described,) = json.loads(command.printed)
    assert ParseDict(described, pb.GetModelResponse()) == server.description
    assert described["takes_texts"] is False  # Fields with default values are printed too.


def test_models_shows_the_state_of_versions_that_do_not_answer(server: FakeServer, command: Command) -> None:
    server.versions = [
        pb.ModelStatus(name="tiny", version="1", state=pb.MODEL_STATE_DRAINING),
        pb.ModelStatus(name="other", version="3", state=pb.MODEL_STATE_FAILED, reason="no manifest.json"),
    ]
    lines = ["tiny, version 1, is draining", "other, version 3, is failed: no manifest.json"]
    assert command.run("models") == 0
    assert command.printed.splitlines() == lines
    assert command.run("models", "--json") == 0
    assert json.loads(command.printed) == []
    assert command.error.splitlines() == lines


def test_models_shows_how_often_models_were_loaded(server: FakeServer, command: Command) -> None:
    history: dict[str, Any] = {"loads": 3, "evictions": 2, "loading_s": 4.25}
    server.versions = [
        pb.ModelStatus(name="tiny", version="1", state=pb.MODEL_STATE_READY, **history),
        pb.ModelStatus(name="other", version="3", state=pb.MODEL_STATE_ON_DISK, **history),
        pb.ModelStatus(name="third", version="1", state=pb.MODEL_STATE_ON_DISK),
    ]
    assert command.run("models") == 0
    *table, evicted, never_loaded = command.printed.splitlines()
    assert any("3 loads in 4.2 s, 2 evictions" in line for line in table)
    assert evicted == "other, version 3, is on disk (3 loads in 4.2 s, 2 evictions)"
    assert never_loaded == "third, version 1, is on disk"


def test_load_prints_the_version_that_answers_and_unload_names_the_model(server: FakeServer, command: Command) -> None:
    assert command.run("load", "tiny") == 0
    assert LOADED.version in command.printed
    assert LOADED.digest[:12] in command.printed
    assert command.run("unload", "tiny") == 0
    assert server.requests == [pb.LoadModelRequest(name="tiny"), pb.UnloadModelRequest(name="tiny")]
