"""A caller can prepare images with the figures of a bundle as the checkpoint's image processor prepares them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from transformers.models.beit.image_processing_pil_beit import BeitImageProcessorPil
from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.deit.image_processing_pil_deit import DeiTImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from headwaiter_client import Client, FakeEncoder, patches
from headwaiter_export.checkpoints.reader import read_checkpoint
from headwaiter_proto.encoder_pb2 import GetModelResponse, ImageFormat
from tests.support.checkpoints import save_vit
from tests.support.documents import SEND_IMAGES_AND_SOUNDS, blocks
from tests.support.export.feature_checkpoints import expected_hidden, exported_hidden, save_feature_model
from tests.support.export.helpers import assert_checkpoint_refused, assert_close, assert_close_to_scale, edit_json
from tests.support.oracle import Array

SMALL = {"size": {"height": 12, "width": 12}}
CROPPED = {"size": {"shortest_edge": 16}, "crop_size": {"height": 12, "width": 12}}
PROCESSORS: dict[str, tuple[Any, dict[str, Any]]] = {
    "vit-one-number": (ViTImageProcessorPil, {"size": 12, "image_mean": 0.25}),
    "deit": (DeiTImageProcessorPil, {"size": {"height": 16, "width": 15}, "crop_size": {"height": 12, "width": 12}}),
    "beit": (BeitImageProcessorPil, {**SMALL, "resample": 2}),
    "beit-cropped": (BeitImageProcessorPil, {"size": 16, "do_center_crop": True, "crop_size": 12}),
    "dinov2": (BitImageProcessorPil, CROPPED),
    "clip": (CLIPImageProcessorPil, CROPPED),
    "siglip": (SiglipImageProcessorPil, SMALL),
    "box": (ViTImageProcessorPil, {**SMALL, "resample": 4}),
    "raw": (ViTImageProcessorPil, {**SMALL, "do_rescale": False, "do_normalize": False}),
}


def picture(width: int, height: int) -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(pixels)


def rows_of_the_page(image: Image.Image, model: GetModelResponse) -> Array:
    """Return the rows that the example of the page makes."""
    names: dict[str, Any] = {}
    (block,) = (block for block in blocks(SEND_IMAGES_AND_SOUNDS, "python") if "def image_rows" in block)
    exec(compile(block, SEND_IMAGES_AND_SOUNDS.name, "exec"), names)
    rows: Array = names["image_rows"](image, model)
    return rows


def description(folder: Path, prefix_rows: int = 1) -> GetModelResponse:
    return GetModelResponse(image=read_checkpoint(folder).image, prefix_rows=prefix_rows)


@pytest.mark.parametrize("name", PROCESSORS)
@pytest.mark.parametrize("sides", [(31, 20), (20, 31), (12, 12)])
def test_the_example_of_the_page_prepares_images_as_transformers_does(
    name: str, sides: tuple[int, int], tmp_path: Path
) -> None:
    kind, settings = PROCESSORS[name]
    save_vit(tmp_path, num_hidden_layers=1)
    processor = kind(**settings)
    processor.save_pretrained(tmp_path)
    prepared = np.asarray(processor(picture(*sides), return_tensors="np")["pixel_values"][0], np.float32)
    assert_close(rows_of_the_page(picture(*sides), description(tmp_path)), patches(prepared, 4))


@pytest.mark.parametrize("kind", dict.fromkeys(kind for kind, _ in PROCESSORS.values()))
@pytest.mark.parametrize(
    "settings",
    [
        {"size": 13},
        {"size": 13, "default_to_square": True},
        {"size": 13, "default_to_square": False},
        {"size": 13, "default_to_square": None},
        {"size": [13, 16], "default_to_square": False},
        {"size": {"height": 13, "width": 16}, "default_to_square": False},
        {"size": 13, "use_square_size": True},
    ],
)
def test_a_size_of_one_number_is_that_of_the_processor(kind: Any, settings: dict[str, Any], tmp_path: Path) -> None:
    save_vit(tmp_path, num_hidden_layers=1)
    values = {"do_center_crop": True, "crop_size": 12, **settings}
    name = kind.__name__.removesuffix("Pil")
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"image_processor_type": name, **values}))
    image = picture(31, 20)
    prepared = kind.from_pretrained(tmp_path)(image, return_tensors="np")["pixel_values"][0]
    assert_close(rows_of_the_page(image, description(tmp_path)), patches(np.asarray(prepared, np.float32), 4))


def test_the_figures_of_a_processor_are_named(tmp_path: Path) -> None:
    save_vit(tmp_path, num_hidden_layers=1)
    ViTImageProcessorPil(**SMALL).save_pretrained(tmp_path)
    image = read_checkpoint(tmp_path).image
    assert image is not None
    assert (image.channels, image.height, image.width, image.patch_size) == (3, 12, 12, 4)
    assert (image.preparation.resize_height, image.preparation.resample) == (12, "bilinear")
    assert (image.preparation.image_mean[:], image.preparation.rescale_factor) == ([0.5] * 3, 1 / 255)
    described = Client(transport=FakeEncoder(feature_width=48, max_tokens=10, prefix_rows=1, image=image)).model()
    assert described.image == image
    assert not Client(transport=FakeEncoder()).model().image.patch_size


def test_missing_fields_have_the_values_of_the_processor(tmp_path: Path) -> None:
    save_vit(tmp_path, num_hidden_layers=1)
    path = tmp_path / "preprocessor_config.json"
    path.write_text(json.dumps({"feature_extractor_type": "ViTFeatureExtractor", "size": 12}))
    old = read_checkpoint(tmp_path).image
    ViTImageProcessorPil(**SMALL).save_pretrained(tmp_path)
    assert old == read_checkpoint(tmp_path).image


def test_steps_with_null_are_left_out_as_in_transformers(tmp_path: Path) -> None:
    save_vit(tmp_path, num_hidden_layers=1)
    ViTImageProcessorPil(**SMALL).save_pretrained(tmp_path)
    complete = read_checkpoint(tmp_path).image
    path = tmp_path / "preprocessor_config.json"
    edit_json(path, **dict.fromkeys(("do_center_crop", "crop_size", "do_pad")))
    assert read_checkpoint(tmp_path).image == complete
    edit_json(path, do_rescale=None, do_normalize=None)
    pixels = np.random.default_rng(0).integers(0, 256, (12, 12, 3), np.uint8)
    loaded = ViTImageProcessorPil.from_pretrained(tmp_path)
    expected = loaded(Image.fromarray(pixels), return_tensors="np")["pixel_values"][0]
    np.testing.assert_array_equal(expected, pixels.transpose(2, 0, 1))
    image = read_checkpoint(tmp_path).image
    assert image is not None
    steps = image.preparation
    assert (steps.rescale_factor, [*steps.image_mean], [*steps.image_std]) == (1, [0, 0, 0], [1, 1, 1])


def test_the_processor_of_a_model_of_images_and_texts_is_found(tmp_path: Path) -> None:
    save_feature_model(tmp_path, "CLIPVision")
    CLIPImageProcessorPil(**CROPPED).save_pretrained(tmp_path)
    path = tmp_path / "preprocessor_config.json"
    alone = read_checkpoint(tmp_path).image
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": json.loads(path.read_text())}))
    # transformers reads the processor of all inputs first.
    edit_json(path, image_std=[0.25, 0.25, 0.25])
    assert read_checkpoint(tmp_path).image == alone
    path.unlink()
    assert read_checkpoint(tmp_path).image == alone
    assert alone is not None
    assert alone.preparation.crop_height == 12


@pytest.mark.parametrize(
    "settings",
    [
        None,
        {"image_processor_type": "GlpnImageProcessor"},
        {"do_pad": True},
        {"size": {"longest_edge": 12}},
        {"do_center_crop": True},
        {"do_resize": False},
        {"size": {"shortest_edge": 12}},
        {"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 12}, "do_center_crop": False},
    ],
)
def test_a_preparation_that_cannot_be_described_is_left_out(settings: dict[str, Any] | None, tmp_path: Path) -> None:
    save_vit(tmp_path, num_hidden_layers=1)
    if settings is not None:
        values = {"image_processor_type": "ViTImageProcessor", **SMALL, **settings}
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(values))
    image = read_checkpoint(tmp_path).image
    assert image == ImageFormat(channels=3, height=12, width=12, patch_size=4)


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("resample", 6, "from 0 to 5"),
        ("image_mean", [0.5], "3 numbers"),
        # A pixel is not divided by zero.
        ("image_std", [0.5, 0, 0.5], ""),
        *((field, None, "") for field in ("resample", "rescale_factor", "image_mean", "image_std")),
        ("rescale_factor", "1/255", "number"),
        ("do_resize", "yes", "true or false"),
    ],
)
def test_a_wrong_figure_is_refused_by_name(field: str, value: object, expected: str, tmp_path: Path) -> None:
    save_vit(tmp_path, num_hidden_layers=1)
    values = {"image_processor_type": "ViTImageProcessor", **SMALL, field: value}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(values))
    assert_checkpoint_refused(tmp_path, "preprocessor_config.json", field, str(value), expected)


@pytest.mark.parametrize("name", ["Dinov2", "Dinov2WithRegisters"])
@pytest.mark.parametrize("side", [8, 20, 12])
def test_dinov2_takes_images_of_the_size_that_its_processor_makes(name: str, side: int, tmp_path: Path) -> None:
    model = save_feature_model(tmp_path, name)
    BitImageProcessorPil(size=24, crop_size=side).save_pretrained(tmp_path)
    read = read_checkpoint(tmp_path)
    assert read.image is not None
    assert (read.image.height, read.image.width) == (side, side)
    values = np.random.default_rng(0).standard_normal((3, side, side), np.float32)
    assert_close_to_scale(exported_hidden(tmp_path, model, values), expected_hidden(model, values))


@pytest.mark.parametrize(
    ("name", "crop"), [("ViT", {"height": 16, "width": 16}), ("Dinov2", {"height": 12, "width": 16})]
)
def test_a_processor_that_makes_images_of_another_size_is_refused(
    name: str, crop: dict[str, int], tmp_path: Path
) -> None:
    save_feature_model(tmp_path, name)
    BitImageProcessorPil(size=24, crop_size=crop).save_pretrained(tmp_path)
    assert_checkpoint_refused(tmp_path, "image_size 12", f"{crop['height']} × {crop['width']}")
