"""A served model of images takes JPEG and PNG files, and gives the vectors and scores of transformers."""

import base64
import urllib.error
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from headwaiter_client import InvalidInput
from headwaiter_export.config.choices import Pooling
from tests.support.checkpoints import save_vit
from tests.support.e2e.exported import export_checkpoint
from tests.support.e2e.in_process_server import connect, post, serving
from tests.support.oracle import Array
from tests.support.shared_folders import SharedFolders
from tests.support.tiers import exhaustive

pytestmark = [pytest.mark.filterwarnings("ignore")]
SIDES = [(40, 30), (12, 12), (7, 90)]


def _file(width: int, height: int, file_format: str = "PNG") -> bytes:
    pixels = np.random.default_rng(width).integers(0, 256, (height, width, 3), np.uint8)
    file = BytesIO()
    Image.fromarray(pixels).save(file, file_format)
    return file.getvalue()


FILES = [_file(*sides, file_format) for sides, file_format in zip(SIDES, ("PNG", "JPEG", "JPEG"), strict=True)]


@pytest.fixture(scope="module")
def checkpoint(shared_folders: SharedFolders) -> Path:
    """A folder with a classifier of images and its bundle."""

    def write(folder: Path) -> None:
        (folder / "checkpoint").mkdir(parents=True)
        save_vit(folder / "checkpoint", "ViTForImageClassification", num_labels=3)
        ViTImageProcessorPil(size={"height": 12, "width": 12}).save_pretrained(folder / "checkpoint")
        export_checkpoint(folder / "checkpoint", folder / "bundle", "vit", attends=True, pooling=Pooling.CLS)

    return shared_folders.get("images", write)


@pytest.fixture
def expected(checkpoint: Path) -> tuple[Array, Array, Array]:
    """The class rows and the logits of `FILES` in transformers, and the attention weights of the first file."""
    folder = checkpoint / "checkpoint"
    model = transformers.ViTForImageClassification.from_pretrained(folder, attn_implementation="eager").eval()
    processor = ViTImageProcessorPil.from_pretrained(folder)
    images = [Image.open(BytesIO(file)).convert("RGB") for file in FILES]
    with torch.inference_mode():
        output = model(**processor(images, return_tensors="pt"), output_hidden_states=True, output_attentions=True)
        rows = model.vit.layernorm(output.hidden_states[-1])[:, 0]
    return rows.numpy(), output.logits.numpy(), np.stack([layer[0].numpy() for layer in output.attentions])


@pytest.mark.parametrize("front_ends", [0, *exhaustive(1)])
async def test_vectors_scores_and_attention_equal_those_of_transformers(
    front_ends: int, checkpoint: Path, expected: tuple[Array, Array, Array], tmp_path: Path
) -> None:
    rows, logits, attention = expected
    path = tmp_path / "image.png"
    path.write_bytes(FILES[0])
    async with serving(checkpoint / "bundle", front_ends=front_ends) as server, connect(server) as client:
        assert (await client.model()).takes_images
        encoded = await client.encode_images([path, *FILES[1:]])
        np.testing.assert_allclose(encoded.pooled, rows, rtol=0, atol=2e-5)
        assert encoded.lengths.tolist() == [10] * 3
        classified = await client.classify([path, *FILES[1:]], raw_scores=True)
        np.testing.assert_allclose(classified.scores, logits, rtol=0, atol=2e-5)
        streamed = [each.pooled async for each in client.encode_stream(FILES)]
        np.testing.assert_array_equal(streamed, encoded.pooled)
        many = await client.encode_images(FILES * 200)
        np.testing.assert_allclose(many.pooled, np.tile(encoded.pooled, (200, 1)), atol=1e-6)
        damaged = await client.encode_images([FILES[0], FILES[1][:50], FILES[2]], partial=True)
        assert [*damaged.failures] == [1]
        np.testing.assert_allclose(damaged.pooled[[0, 2]], encoded.pooled[[0, 2]], atol=1e-6)
        np.testing.assert_allclose((await client.attend(FILES[0])).weights, attention, rtol=0, atol=2e-5)
        for call, sequence in ((client.encode_images([FILES[0], b"no image"]), 1), (client.attend(b"no image"), 0)):
            with pytest.raises(InvalidInput) as refused:
                await call
            assert (refused.value.sequence, refused.value.field) == (sequence, "images.values")


async def test_http_takes_data_urls(checkpoint: Path, expected: tuple[Array, Array, Array]) -> None:
    kinds = ["png", "jpeg", "jpg"]
    urls = [
        f"data:image/{kind};base64,{base64.b64encode(file).decode()}" for kind, file in zip(kinds, FILES, strict=True)
    ]
    async with serving(checkpoint / "bundle", http_api="on") as server:
        found = await post(server, "/v1/embeddings", model="vit", input=urls)
        vectors = np.array([each["embedding"] for each in found["data"]])
        rows = expected[0] / np.linalg.norm(expected[0], axis=1, keepdims=True)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        np.testing.assert_allclose(vectors, rows, rtol=0, atol=2e-5)
        scored = await post(server, "/predict", inputs=urls[0], raw_scores=True)
        best = max(scored, key=lambda each: each["score"])
        assert best["label"] == f"LABEL_{expected[1][0].argmax()}"
        forms: dict[str, Any] = {"input_type": "search_document", "embedding_types": ["float"]}
        (row,) = (await post(server, "/v2/embed", texts=urls[:1], **forms))["embeddings"]["float"]
        np.testing.assert_allclose(row, expected[0][0], rtol=0, atol=2e-5)
        for wrong in ("a text", "data:image/gif;base64,AAAA", "data:image/png;base64,A", "data:image/png;base64,é"):
            with pytest.raises(urllib.error.HTTPError) as refused:
                await post(server, "/v1/embeddings", model="vit", input=[urls[0], wrong])
            assert refused.value.code == 400
            assert "sequence 1" in refused.value.read().decode()
