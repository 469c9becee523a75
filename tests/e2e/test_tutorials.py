"""The tutorials run from top to bottom, with their own commands and a server in a process of its own."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from headwaiter_export.cli import main
from testbed.server_process import running_server
from tests.support.checkpoints import randomize, write_json
from tests.support.documents import IMAGES, OWN_ENCODER, blocks, commands
from tests.support.export.feature_checkpoints import FEED_FORWARD, LAYERS
from tests.support.export.tokenizer_folders import clip
from tests.support.loopback_hub import loopback_hub

CPU = ["--provider", "cpu"]


def run(folder: Path, *arguments: str) -> str:
    """Run Python in a folder, and return what it prints."""
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, timeout=300, check=True).stdout


def arguments_of(command: list[str]) -> list[str]:
    """Return the arguments of a command that exports, with only the graph that the server runs: others take longer."""
    program, *arguments = command
    assert program == "headwaiter-export"
    return [*arguments, "--graphs", "packed-cpu", "--precision", "fp32"]


def test_an_encoder_of_ones_own_gives_the_vectors_of_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    encoder, first_vector = blocks(OWN_ENCODER, "python")
    (tmp_path / "encoder.py").write_text(encoder)
    exporting, (_, bundle) = commands(OWN_ENCODER, tmp_path)
    assert main(arguments_of(exporting)) == 0
    printed = capsys.readouterr().out
    assert f"{bundle} is ready" in printed
    assert "padding" not in printed
    with running_server(tmp_path / bundle, CPU) as server:
        (tmp_path / "first_vector.py").write_text(first_vector.replace("localhost:50051", server.address))
        assert run(tmp_path, "first_vector.py") == "(2, 64)\nTrue\n"


def save_clip(folder: Path) -> None:
    """Save a tiny CLIP with random weights, and the settings of the checkpoint that the page names."""
    tokenizer = clip()
    torch.manual_seed(0)
    sizes = {**LAYERS, **FEED_FORWARD, "projection_dim": 8}
    text = {"vocab_size": tokenizer.get_vocab_size(), "bos_token_id": 0, "eos_token_id": 1}
    config = transformers.CLIPConfig(
        vision_config={**sizes, "image_size": 12, "patch_size": 4},
        text_config={**sizes, "max_position_embeddings": 24, **text},
        projection_dim=8,
    )
    model = transformers.CLIPModel(config).eval()
    randomize(model)
    model.save_pretrained(folder)
    CLIPImageProcessorPil(size={"shortest_edge": 12}, crop_size={"height": 12, "width": 12}).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "CLIPTokenizer"})


def similarities_of_transformers(checkpoint: Path, images: list[Path], texts: list[str]) -> list[list[float]]:
    model = transformers.CLIPModel.from_pretrained(checkpoint).eval()
    pixels = CLIPImageProcessorPil.from_pretrained(checkpoint)([Image.open(each) for each in images])
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    with torch.inference_mode():
        pictures = model.get_image_features(torch.from_numpy(np.stack(pixels["pixel_values"]))).pooler_output
        words = [model.get_text_features(**tokenizer(each, return_tensors="pt")).pooler_output[0] for each in texts]
    cosines = torch.nn.functional.cosine_similarity(pictures[:, None], torch.stack(words)[None], dim=-1)
    return [[float(value) for value in row] for row in cosines]


@pytest.mark.filterwarnings("ignore")
def test_pictures_and_texts_have_the_similarities_of_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    draw, save_texts, compare = blocks(IMAGES, "python")
    exec(compile(draw, IMAGES.name, "exec"), {})
    first, second, (_, *served), listing = commands(IMAGES, tmp_path)
    checkpoint = tmp_path / "checkpoint"
    save_clip(checkpoint)
    with loopback_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "huggingface"))
        hub.add(first[2], checkpoint)
        # The library of the hub reads the variables when it is imported.
        run(tmp_path, "-c", save_texts)
        assert "is ready" in run(tmp_path, "-m", "headwaiter_export", *arguments_of(first))
    assert main(arguments_of(second)) == 0
    with running_server(None, [*served, *CPU]) as server:
        assert listing == ["headwaiter-client", "models"]
        printed = run(tmp_path, "-c", compare.replace("localhost:50051", server.address)).splitlines()
    expected = similarities_of_transformers(
        checkpoint, [tmp_path / "red.png", tmp_path / "blue.png"], ["a red circle", "a blue circle"]
    )
    assert [line.split()[0] for line in printed] == ["red.png", "blue.png"]
    found = [[float(number) for number in line.partition("[")[2].partition("]")[0].split()] for line in printed]
    np.testing.assert_allclose(found, expected, rtol=0, atol=6e-4)
    for line, row in zip(printed, expected, strict=True):
        assert line.endswith(("a red circle", "a blue circle")[int(np.argmax(row))])
