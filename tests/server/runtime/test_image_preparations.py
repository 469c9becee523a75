"""A manifest whose preparation of images cannot give images of the model's size is refused."""

from typing import Any

import pytest

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_server.runtime.manifest import _wrong_image

SHARED = {"resample": "box", "image_mean": [0, 0, 0], "image_std": [1, 1, 1]}
RESIZED = {"resize_height": 12, "resize_width": 8}
CROPPED = {"crop_height": 12, "crop_width": 8}


def problems(steps: dict[str, Any]) -> list[str]:
    image = pb.ImageFormat(
        channels=3, height=12, width=8, patch_size=4, preparation=pb.ImagePreparation(**{**SHARED, **steps})
    )
    return [*_wrong_image(Manifest(feature_width=48, max_tokens=7, class_row=True, image=image))]


@pytest.mark.parametrize("steps", [RESIZED, CROPPED, {**RESIZED, **CROPPED}, {"resize_shortest_edge": 9, **CROPPED}])
def test_preparations_of_the_models_size_are_accepted(steps: dict[str, Any]) -> None:
    assert problems(steps) == []


@pytest.mark.parametrize(
    "steps",
    [
        {},
        {"resize_shortest_edge": 12},
        {"resize_height": 12},
        {"resize_height": 8, "resize_width": 12},
        {**RESIZED, "crop_height": 12},
        {**RESIZED, "crop_height": 12, "crop_width": 12},
        {**RESIZED, "resize_shortest_edge": 12},
        {"resize_height": 12, **CROPPED},
        {**RESIZED, "resample": "foo"},
        {**RESIZED, "resample": ""},
        {**RESIZED, "image_mean": [0.0]},
        {**RESIZED, "image_std": [1, 1, 0]},
    ],
)
def test_other_preparations_are_refused(steps: dict[str, Any]) -> None:
    assert problems(steps)
