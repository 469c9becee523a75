"""A manifest whose preparation of images cannot give images of the model's size is refused."""

from pathlib import Path
from typing import Any

import pytest

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_server.inputs.image_files import check_preparation
from headwaiter_server.runtime.bundle import Bundle
from headwaiter_server.runtime.errors import BundleRefused

SHARED = {"resample": "box", "image_mean": [0, 0, 0], "image_std": [1, 1, 1]}
RESIZED = {"resize_height": 12, "resize_width": 8}
CROPPED = {"crop_height": 12, "crop_width": 8}


def check(steps: dict[str, Any], **fields: Any) -> None:
    image = pb.ImageFormat(
        channels=3, height=12, width=8, patch_size=4, preparation=pb.ImagePreparation(**{**SHARED, **steps})
    )
    manifest = Manifest(**{"feature_width": 48, "max_tokens": 7, "class_row": True, "image": image, **fields})
    check_preparation(Bundle(Path("bundle"), manifest, ""))


@pytest.mark.parametrize("steps", [RESIZED, CROPPED, {**RESIZED, **CROPPED}, {"resize_shortest_edge": 9, **CROPPED}])
@pytest.mark.parametrize("fields", [{}, {"fixed_length": True}, {"max_tokens": 8}])
def test_preparations_of_the_models_size_are_accepted(steps: dict[str, Any], fields: dict[str, Any]) -> None:
    check(steps, **fields)


@pytest.mark.parametrize(
    ("steps", "fields"),
    [
        ({}, {}),
        ({"resize_shortest_edge": 12}, {}),
        ({"resize_height": 12}, {}),
        ({"resize_height": 8, "resize_width": 12}, {}),
        ({**RESIZED, "crop_height": 12, "crop_width": 12}, {}),
        ({**RESIZED, "resize_shortest_edge": 12}, {}),
        ({**RESIZED, "resample": "foo"}, {}),
        ({**RESIZED, "resample": ""}, {}),
        ({**RESIZED, "image_mean": [0.0, 0.0]}, {}),
        ({**RESIZED, "image_std": [1, 1, 0]}, {}),
        ({"resize_height": 2**32 - 1, "resize_width": 2**32 - 1}, {}),
        (RESIZED, {"class_row": False, "prefix_rows": 2}),
        (RESIZED, {"feature_width": 47}),
        (RESIZED, {"max_tokens": 6}),
        (RESIZED, {"max_tokens": 8, "fixed_length": True}),
    ],
)
def test_other_preparations_are_refused(steps: dict[str, Any], fields: dict[str, Any]) -> None:
    with pytest.raises(BundleRefused, match=r"image\.preparation") as refused:
        check(steps, **fields)
    assert "\n" not in str(refused.value)
