"""The image part of CLIP and SigLIP is exported from checkpoints that also hold a text part or a projection."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from headwaiter_client import patches
from headwaiter_export.checkpoints import read_checkpoint
from headwaiter_export.choices import Pooling
from tests.checkpoints import randomize
from tests.export.feature_checkpoints import (
    FEED_FORWARD,
    IMAGES,
    LAYERS,
    draw_input,
    expected_hidden,
    exported_hidden,
    save_feature_model,
)
from tests.export.helpers import assert_checkpoint_refused, assert_close_to_scale, edit_json

VISION = {**LAYERS, **FEED_FORWARD, **IMAGES}
TEXT = {
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "intermediate_size": 20,
    "vocab_size": 30,
    "max_position_embeddings": 8,
}


def save_both_parts(folder: Path, name: str) -> transformers.PreTrainedModel:
    """Save a model of images and texts, and return its image part."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(
        vision_config=VISION, text_config={**TEXT, "bos_token_id": 0, "eos_token_id": 1}
    )
    config.vision_config._attn_implementation = "eager"
    model = getattr(transformers, f"{name}Model")(config).eval()
    randomize(model)
    model.save_pretrained(folder)
    part: transformers.PreTrainedModel = model.vision_model
    return part


def assert_equal_hidden(folder: Path, model: transformers.PreTrainedModel) -> None:
    image = draw_input(model)
    assert_close_to_scale(exported_hidden(folder, model, image), expected_hidden(model, image))


@pytest.mark.parametrize("name", ["CLIP", "Siglip"])
def test_the_image_part_of_a_model_of_images_and_texts_is_exported(name: str, tmp_path: Path) -> None:
    assert_equal_hidden(tmp_path, save_both_parts(tmp_path, name))


def test_a_projection_of_clip_leaves_the_hidden_rows_as_they_are(tmp_path: Path) -> None:
    model = save_feature_model(tmp_path, "CLIPVision", "ModelWithProjection", projection_dim=8)
    assert_equal_hidden(tmp_path, model.vision_model)


@pytest.mark.parametrize(
    "changes",
    [
        # transformers writes short configurations of parts; the missing fields have the values of the class.
        {"vision_config": {name: VISION[name] for name in VISION}},
        {"vision_config_dict": VISION, "vision_config": {**VISION, "num_attention_heads": 2, "hidden_act": "relu"}},
    ],
)
def test_the_configuration_of_the_image_part_is_read_as_transformers_reads_it(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    save_both_parts(tmp_path, "CLIP")
    edit_json(tmp_path / "config.json", **changes)
    model = transformers.CLIPModel.from_pretrained(tmp_path).vision_model.eval()
    assert model.config.hidden_act == "quick_gelu"
    assert_equal_hidden(tmp_path, model)


def test_a_configuration_of_the_image_part_that_is_no_object_is_refused(tmp_path: Path) -> None:
    save_both_parts(tmp_path, "Siglip")
    edit_json(tmp_path / "config.json", vision_config="base")
    assert_checkpoint_refused(tmp_path, "vision_config 'base'", "object")


@pytest.mark.parametrize("name", ["CLIPVision", "SiglipVision"])
def test_a_part_whose_own_pooling_is_not_exported_has_no_pooling_by_default(name: str, tmp_path: Path) -> None:
    save_feature_model(tmp_path, name)
    assert read_checkpoint(tmp_path).encoder.config.pooling is Pooling.NONE
    assert read_checkpoint(tmp_path, Pooling.MEAN).encoder.config.pooling is Pooling.MEAN


def test_siglip_has_no_row_of_zeros(tmp_path: Path) -> None:
    model = save_feature_model(tmp_path, "SiglipVision")
    config = read_checkpoint(tmp_path).encoder.config
    assert (config.prefix_rows, config.max_tokens) == (0, 9)
    assert patches(draw_input(model), 4, prefix_rows=config.prefix_rows).shape == (9, 48)
