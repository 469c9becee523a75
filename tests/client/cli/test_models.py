"""The subcommand `models`."""

import json
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict

from headwaiter_client.cli import main
from headwaiter_proto import encoder_pb2 as pb
from tests.support.client.fake_server import LOADED, MODEL, FakeServer


def test_models_shows_inputs_limits_speed_and_accuracy(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.description = pb.GetModelResponse(
        model=pb.ModelRef(name=MODEL.name, digest=MODEL.digest, precision=pb.PRECISION_FP16),
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
    assert main(["models", "--address", server.address]) == 0
    shown = capsys.readouterr().out
    for fact in (
        MODEL.name,
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
        assert fact in shown


@pytest.mark.parametrize(
    ("isolation", "batches"),
    [
        (pb.ISOLATION_MIXED, "all lengths, padded"),
        (pb.ISOLATION_ONE_LENGTH, "one length"),
        (pb.ISOLATION_ONE_SEQUENCE, "one sequence"),
        (99, "batches are padded"),
    ],
)
def test_models_shows_why_a_model_is_padded_and_what_it_does_not_have(
    isolation: pb.Isolation, batches: str, server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.description = pb.GetModelResponse(
        model=MODEL,
        tasks=[pb.TASK_CLASSIFY],
        pooling=pb.POOLING_NONE,
        without_rows=True,
        execution=pb.Execution(
            graph="padded.fp32.onnx",
            isolation=isolation,
            padding_reason="the mask is [odd]",
            cost=pb.BatchCost(launch_s=2e-3, padded_row_s=7e-5, service_tokens_per_s=9_000),
        ),
    )
    assert main(["models", "--address", server.address]) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert batches in shown
    assert "the mask is [odd]" in shown
    assert "hidden vectors none" in shown
    assert "2 ms per batch, 70 µs per token or padding (" in shown
    for absent in ("attention layers", "width", "attention cell"):
        assert absent not in shown


@pytest.mark.parametrize(
    ("source", "fact"),
    [
        (pb.REFERENCE_SOURCE_ONNX_FILE, "not PyTorch"),
        (pb.REFERENCE_SOURCE_ONNX_FILE_AND_PYTORCH, "compared with PyTorch too"),
    ],
)
def test_models_shows_that_a_model_was_compared_with_an_onnx_file(
    source: pb.ReferenceSource, fact: str, server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.description = pb.GetModelResponse(model=MODEL, execution=pb.Execution(reference_source=source))
    assert main(["models", "--address", server.address]) == 0
    assert fact in " ".join(capsys.readouterr().out.replace("│", " ").split())


def test_models_omits_rows_that_do_not_apply(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.description = pb.GetModelResponse(
        model=MODEL, takes_features=True, feature_width=16, execution=pb.Execution(provider="cuda")
    )
    assert main(["models", "--address", server.address]) == 0
    shown = capsys.readouterr().out
    assert "cuda" in shown
    assert "features of width 16" in shown
    assert "not available" in shown
    for absent in ("texts", "prompts", "images", "other pooling", "unit length", "tokens/s"):
        assert absent not in shown


def test_models_shows_the_sounds_that_a_model_takes(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    sound = pb.SoundFormat(sampling_rate_hz=16_000, hop=320, normalized=True)
    server.description = pb.GetModelResponse(model=MODEL, takes_features=True, sound=sound)
    assert main(["models", "--address", server.address]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for fact in ("16,000 samples", "320 samples", "variance 1"):
        assert fact in shown
    server.description.sound.normalized = False
    assert main(["models", "--address", server.address]) == 0
    assert "variance" not in capsys.readouterr().out


def test_models_shows_the_images_that_a_model_takes(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    image = pb.ImageFormat(channels=3, height=224, width=192, patch_size=16)
    server.description = pb.GetModelResponse(model=MODEL, takes_features=True, prefix_rows=5, image=image)
    assert main(["models", "--address", server.address]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for fact in ("3 × 224 × 192", "16 × 16", "5 rows of zeros"):
        assert fact in shown
    server.description.prefix_rows = 0
    assert main(["models", "--address", server.address]) == 0
    assert "zeros" not in capsys.readouterr().out


def test_models_shows_how_targets_begin(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.description = pb.GetModelResponse(model=MODEL, takes_tokens=True, target=pb.TargetFormat(start_id=30_521))
    assert main(["models", "--address", server.address]) == 0
    assert "token id 30,521" in " ".join(capsys.readouterr().out.split())
    server.description = pb.GetModelResponse(model=MODEL, takes_features=True, target=pb.TargetFormat())
    assert main(["models", "--address", server.address]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "value 1" in shown
    assert "token id" not in shown
    server.description = pb.GetModelResponse(model=MODEL, takes_features=True)
    assert main(["models", "--address", server.address]) == 0
    assert "targets" not in capsys.readouterr().out


def test_models_as_json_are_get_model_responses(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--json", "--address", server.address]) == 0
    (described,) = json.loads(capsys.readouterr().out)
    assert ParseDict(described, pb.GetModelResponse()) == server.description
    assert described["takes_texts"] is False  # Fields with default values are printed too.


def test_models_shows_the_state_of_versions_that_do_not_answer(
    server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.versions = [
        pb.ModelStatus(name="tiny", version="1", state=pb.MODEL_STATE_DRAINING),
        pb.ModelStatus(name="other", version="3", state=pb.MODEL_STATE_FAILED, reason="no manifest.json"),
    ]
    assert main(["models", "--address", server.address]) == 0
    draining, failed = capsys.readouterr().out.splitlines()
    assert {"tiny,", "1,", "draining"} <= set(draining.split())
    assert {"other,", "3,", "failed:"} <= set(failed.split())
    assert failed.endswith("no manifest.json")
    assert main(["models", "--json", "--address", server.address]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out) == []
    assert shown.err.splitlines() == [draining, failed]


def test_models_shows_how_often_models_were_loaded(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    history: dict[str, Any] = {"loads": 3, "evictions": 2, "loading_s": 4.25}
    server.versions = [
        pb.ModelStatus(name="tiny", version="1", state=pb.MODEL_STATE_READY, **history),
        pb.ModelStatus(name="other", version="3", state=pb.MODEL_STATE_ON_DISK, **history),
        pb.ModelStatus(name="third", version="1", state=pb.MODEL_STATE_ON_DISK),
    ]
    assert main(["models", "--address", server.address]) == 0
    *table, evicted, never_loaded = capsys.readouterr().out.splitlines()
    assert any("3 loads in 4.2 s, 2 evictions" in line for line in table)
    assert evicted == "other, version 3, is on disk (3 loads in 4.2 s, 2 evictions)"
    assert never_loaded == "third, version 1, is on disk"


def test_models_omits_what_only_newer_servers_know(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.description.tasks.extend([pb.TASK_ATTEND, 77, pb.TASK_ENCODE])  # type: ignore[list-item]
    server.description.pooling = 77  # type: ignore[assignment]
    assert main(["models", "--address", server.address]) == 0
    shown = capsys.readouterr().out
    assert "encode, attend " in shown
    assert "pooling unknown" in shown
    assert "77" not in shown


def test_the_memory_of_a_tiny_model_is_not_rounded_to_nothing(
    server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.description.execution.longest_sequence_bytes = 5_000
    assert main(["models", "--address", server.address]) == 0
    assert "below 1 MiB of memory" in capsys.readouterr().out


def test_load_prints_the_version_that_answers(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["load", "tiny", "--address", server.address]) == 0
    assert server.requests == [pb.LoadModelRequest(name="tiny")]
    shown = capsys.readouterr().out
    assert LOADED.version in shown
    assert LOADED.digest[:12] in shown


def test_unload_names_the_model(server: FakeServer) -> None:
    assert main(["unload", "tiny", "--address", server.address]) == 0
    assert server.requests == [pb.UnloadModelRequest(name="tiny")]
