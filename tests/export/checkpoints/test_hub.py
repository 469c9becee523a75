"""A checkpoint is fetched from a hub: the files that are needed, once, never code; what fails says what to do."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headwaiter_export import checkpoints
from headwaiter_export.checkpoints.hub import errors_of_fetched
from headwaiter_export.checkpoints.json_files import CheckpointError
from headwaiter_export.checkpoints.needed_files import needed_files
from headwaiter_export.checkpoints.weights import read_tensors
from headwaiter_export.cli import main
from tests.support.checkpoints import write_json
from tests.support.loopback_hub import TOKEN, LoopbackHub, loopback_hub
from tests.support.server.bundles import read_manifest

pytestmark = pytest.mark.usefixtures("starts_processes")

# Prints the result of each name as a line of JSON: the folder and the commit, or the error. Imports no torch.
FETCH = """
import json, sys
from headwaiter_export.checkpoints.hub import fetch
from headwaiter_export.checkpoints.json_files import CheckpointError
from headwaiter_proto.model_source import HubName
for name in sys.argv[1:]:
    try:
        print(json.dumps([*map(str, fetch(HubName.parse(name)))]))
    except CheckpointError as error:
        print(json.dumps(str(error)))
assert "torch" not in sys.modules
"""
SHARD = "model-00001-of-00001"
INDEX = {"weight_map": {"a": f"{SHARD}.safetensors"}}
BIN_INDEX = {"weight_map": {"a": "pytorch_model-00001-of-00001.bin"}}
# What repositories have besides, and an export never needs.
OTHERS = (
    *("modeling_own.py", "README.md", ".gitattributes", "model.gguf", "tf_model.h5", "flax_model.msgpack"),
    *("onnx/config.json", "onnx/model.onnx", "checkpoint-500/model.safetensors", "consolidated.safetensors"),
    *("model.fp16.safetensors", "adapter_model.safetensors", "spiece.model", "training_args.bin"),
)


@pytest.fixture
def hub() -> Iterator[LoopbackHub]:
    with loopback_hub() as running:
        yield running


@pytest.fixture
def environment(hub: LoopbackHub, tmp_path: Path) -> dict[str, str]:
    """The variables of a process that calls the hub, with a cache of its own."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    return {**inherited, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "cache")}


def fetched(environment: dict[str, str], *names: str) -> list[Any]:
    """Fetch names in a process, and return a folder and a commit for each, or the sentence of an error."""
    command = [sys.executable, "-c", FETCH, *names]
    lines = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    return [json.loads(line) for line in lines.splitlines()]


def write_files(folder: Path, *files: str, **contents: Any) -> Path:
    """Write files whose content does not matter, and JSON files, whose names in `contents` have no suffix."""
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(f"content of {file}")
    for name, value in contents.items():
        write_json(folder / f"{name}.json", value)
    return folder


def modules(**paths: str) -> list[dict[str, str]]:
    return [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in paths.items()]


@pytest.mark.usefixtures("runs_graphs", "packed_cpu_alone")
def test_a_bundle_by_name_equals_the_one_of_the_folder_but_for_its_source(
    text_checkpoint: Path, hub: LoopbackHub, environment: dict[str, str], tmp_path: Path
) -> None:
    commit = hub.add("somebody/tiny-text", text_checkpoint)
    by_name, by_folder = tmp_path / "by-name", tmp_path / "by-folder"
    graphs = ["--graphs", "packed-cpu", "--precision", "fp32"]
    program = "import sys; from headwaiter_export.cli import main; sys.exit(main(sys.argv[1:]))"
    export = ["checkpoint", "somebody/tiny-text", "-o", str(by_name), *graphs]
    ran = subprocess.run(
        [sys.executable, "-c", program, *export], env=environment, capture_output=True, text=True, check=True
    )
    assert f"somebody/tiny-text at commit {commit}" in ran.stdout
    assert main(["checkpoint", str(text_checkpoint), "-o", str(by_folder), "--name", "tiny-text", *graphs]) == 0
    manifest, expected = read_manifest(by_name), read_manifest(by_folder)
    assert (manifest.source.name, manifest.source.revision) == ("somebody/tiny-text", commit)
    assert not expected.HasField("source")
    manifest.ClearField("source")
    assert manifest == expected


@pytest.mark.parametrize(
    ("files", "contents", "never"),
    [
        (("model.safetensors", "tokenizer.json"), {"config": {}}, ("pytorch_model.bin",)),
        (("pytorch_model.bin", "vocab.txt", "sparse_linear.pt", "colbert_linear.pt"), {"config": {}}, ()),
        (
            (f"{SHARD}.safetensors",),
            {"config": {}, "model.safetensors.index": INDEX},
            ("pytorch_model-00001-of-00001.bin", "model-00002-of-00002.safetensors"),
        ),
        (("pytorch_model-00001-of-00001.bin",), {"config": {}, "pytorch_model.bin.index": BIN_INDEX}, ()),
        (
            ("model.safetensors", "1_Pooling/config.json", "2_Dense/config.json", "2_Dense/pytorch_model.bin"),
            {"config": {}, "modules": modules(Transformer="", Pooling="1_Pooling", Dense="2_Dense")},
            ("pytorch_model.bin", "1_Pooling/model.safetensors", "3_Dense/config.json"),
        ),
        (
            ("0_Transformer/config.json", "0_Transformer/model.safetensors", "0_Transformer/tokenizer.json"),
            {"modules": modules(Transformer="0_Transformer", Pooling="1_Pooling")},
            ("model.safetensors", "pytorch_model.bin"),
        ),
        (
            ("query_0_Transformer/config.json", "query_0_Transformer/model.safetensors"),
            {
                "modules": modules(Router=""),
                "router_config": {"types": {"query_0_Transformer": "sentence_transformers.models.Transformer"}},
            },
            ("model.safetensors",),
        ),
    ],
    ids=["safetensors", "pickled", "shards", "pickled shards", "modules", "a folder for the transformer", "router"],
)
def test_only_the_files_that_are_needed_are_fetched(
    files: tuple[str, ...],
    contents: dict[str, Any],
    never: tuple[str, ...],
    hub: LoopbackHub,
    environment: dict[str, str],
    tmp_path: Path,
) -> None:
    hub.add("a/model", write_files(tmp_path / "model", *files, *never, *OTHERS, **contents))
    ((folder, _),) = fetched(environment, "a/model")
    needed = {*files, *(f"{name}.json" for name in contents)}
    assert sorted(hub.sent) == sorted(needed)
    assert {path.relative_to(folder).as_posix() for path in Path(folder).rglob("*") if path.is_file()} == needed


def test_what_is_in_the_cache_is_not_fetched_again_and_serves_without_a_hub(
    hub: LoopbackHub, environment: dict[str, str], tmp_path: Path
) -> None:
    model = write_files(tmp_path / "model", "model.safetensors", "README.md", config={})
    commit = hub.add("a/model", model)
    (first,) = fetched(environment, "a/model")
    assert first[1] == commit
    assert len(hub.sent) == 2
    assert fetched(environment, "a/model", f"a/model@{commit}") == [first, first]
    hub.status = 503
    assert fetched(environment, "a/model") == [first]
    requests = hub.requests
    assert fetched({**environment, "HF_HUB_OFFLINE": "1"}, "a/model", f"a/model@{commit}") == [first, first]
    assert (hub.requests, len(hub.sent)) == (requests, 2)


def test_a_revision_is_a_branch_or_a_commit(hub: LoopbackHub, environment: dict[str, str], tmp_path: Path) -> None:
    old = hub.add("a/model", write_files(tmp_path / "old", "model.safetensors", config={"layers": 1}))
    new = hub.add("a/model", write_files(tmp_path / "new", "model.safetensors", config={"layers": 2}))
    pull = hub.add("a/model", write_files(tmp_path / "pull", "model.safetensors", config={"layers": 3}), "refs/pr/7")
    names = ["a/model", f"a/model@{old}", "a/model@refs/pr/7"]
    results = fetched(environment, *names)
    assert [commit for _, commit in results] == [new, old, pull]
    assert [json.loads((Path(folder) / "config.json").read_text())["layers"] for folder, _ in results] == [2, 1, 3]


def test_what_fails_is_one_sentence_that_says_what_to_do(
    hub: LoopbackHub, environment: dict[str, str], tmp_path: Path
) -> None:
    model = write_files(tmp_path / "model", "model.safetensors", config={})
    hub.add("a/model", model)
    hub.add("a/gated", model, gated=True)
    hub.add("a/gguf", write_files(tmp_path / "gguf", "model.gguf"))
    facts = {
        "a/nothing": ("a/nothing", hub.url, "folder", "HF_TOKEN"),
        "a/model@dev": ("a/model", "revision dev", hub.url),
        "a/gated": (f"{hub.url}/a/gated", "HF_TOKEN"),
        "a/gguf": ("config.json", "modules.json"),
        "a--b/c": ("a--b/c", "folder"),
    }
    sentences = fetched(environment, *facts)
    sentences += fetched({**environment, "HF_TOKEN": "hf_wrong"}, "a/model")
    stored = Path(environment["HF_HOME"]) / "token"
    stored.write_text("hf_wrong")
    sentences += fetched(environment, "a/model")
    stored.unlink()
    for hub.status in (503, 429, 403):
        sentences += fetched(environment, "a/other")
    sentences += fetched({**environment, "HF_HUB_OFFLINE": "1"}, "a/other")
    sentences += fetched({**environment, "HF_ENDPOINT": "http://127.0.0.1:9"}, "a/other")
    words = [
        *facts.values(),
        ("401", "in HF_TOKEN"),
        ("401", str(stored)),
        ("503", "HF_ENDPOINT"),
        ("too many", "wait"),
        ("403", "without a token", "HF_TOKEN"),
        ("HF_HUB_OFFLINE",),
        ("127.0.0.1:9", "refused"),
    ]
    for sentence, each in zip(sentences, words, strict=True):
        assert isinstance(sentence, str)
        assert "\n" not in sentence
        assert all(word in sentence for word in each), sentence


@pytest.mark.parametrize(
    ("file", "offline", "words"),
    [
        (None, False, ("model.safetensors", "hf download a/model --local-dir model")),
        (None, True, ("model.safetensors", "HF_HUB_OFFLINE")),
        ("model.safetensors", False, ("a/model/model.safetensors", "delete {cache}")),
    ],
    ids=["missing", "missing without a connection", "damaged"],
)
def test_what_is_wrong_with_fetched_files_names_the_model_and_what_its_user_can_do(
    file: str | None, offline: bool, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "snapshots" / "commit"
    folder.mkdir(parents=True)
    write_files(folder, *([file] if file else []), config={})
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", offline)
    with pytest.raises(CheckpointError) as raised, errors_of_fetched("a/model", folder):
        read_tensors(folder)
    sentence = str(raised.value)
    assert sentence.startswith("a/model")
    assert all(word.format(cache=tmp_path) in sentence for word in words)
    assert "save" not in sentence
    assert str(folder) not in sentence


def test_every_file_that_a_module_of_the_export_names_is_one_that_is_fetched() -> None:
    named = set[str]()
    for module in Path(checkpoints.__path__[0]).rglob("*.py"):
        # `model_path.py` reads nothing, and knows bundles.
        if module.name not in ("needed_files.py", "model_path.py"):
            named |= set(re.findall(r'"([\w.-]+\.(?:json|txt|jinja|pt|safetensors|bin))"', module.read_text()))
    assert len(named) >= 15
    assert named <= {Path(file).name for file in needed_files(lambda _: Path("nowhere"))}


def test_a_gated_model_is_fetched_with_its_token(hub: LoopbackHub, environment: dict[str, str], tmp_path: Path) -> None:
    commit = hub.add("a/gated", write_files(tmp_path / "model", "model.safetensors", config={}), gated=True)
    ((_, fetched_commit),) = fetched({**environment, "HF_TOKEN": TOKEN}, "a/gated")
    assert fetched_commit == commit
