"""A request of images is checked before any image is decoded."""

from typing import Any

import pytest

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_proto.rules.errors import InvalidInput
from headwaiter_proto.rules.images import check_images, takes_images
from headwaiter_proto.rules.limits import RequestLimits

LIMITS = RequestLimits(sequences=5, tokens=40, message_bytes=1 << 20, attend_bytes=1 << 20)
PREPARATION = pb.ImagePreparation(resize_height=12, resize_width=12, resample="box", image_std=[1, 1, 1])


def manifest(**changes: Any) -> Manifest:
    """Return the manifest of a model of images of 9 patches and a row of zeros."""
    image = {"channels": 3, "height": 12, "width": 12, "patch_size": 4, "preparation": PREPARATION, **changes}
    return Manifest(feature_width=48, max_tokens=10, class_row=True, image=pb.ImageFormat(**image))


def test_images_have_the_tokens_of_their_patches() -> None:
    assert check_images(pb.Images(values=[b"", b"image"]), manifest(), LIMITS) == 20


@pytest.mark.parametrize("changes", [{"preparation": None}, {"channels": 1}])
def test_images_are_prepared_only_in_rgb(changes: dict[str, Any]) -> None:
    assert takes_images(manifest())
    assert not takes_images(manifest(**changes))
    with pytest.raises(InvalidInput, match="send features"):
        check_images(pb.Images(values=[b"image"]), manifest(**changes), LIMITS)


def test_a_model_of_features_takes_no_images() -> None:
    with pytest.raises(InvalidInput, match="no images"):
        check_images(pb.Images(values=[b"image"]), Manifest(feature_width=8), LIMITS)


@pytest.mark.parametrize(
    ("count", "limits", "limit", "actual"),
    [
        (6, LIMITS, 5, 6),
        (5, LIMITS, 40, 50),
        (3, RequestLimits(sequences=5, tokens=40, message_bytes=5000, attend_bytes=1), 5000, 30 * 48 * 4),
    ],
)
def test_the_limits_of_a_request_hold_for_prepared_images(
    count: int, limits: RequestLimits, limit: int, actual: int
) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_images(pb.Images(values=[b"image"] * count), manifest(), limits)
    assert (refused.value.limit, refused.value.actual) == (limit, actual)
