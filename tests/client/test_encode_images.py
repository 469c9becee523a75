"""Images are sent as files: bytes as they are, and paths after they have been read."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headwaiter_client import AsyncClient, Client, FakeEncoder
from headwaiter_client.testing import AsyncFakeEncoder
from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import InvalidInput

FORMAT = pb.ImageFormat(
    channels=3, height=12, width=12, patch_size=4, preparation=pb.ImagePreparation(image_std=[1, 1, 1])
)


def fake(**changes: Any) -> FakeEncoder:
    """Return a fake of a model of images of 9 patches and a row of zeros."""
    sizes = {"vocabulary_size": 0, "feature_width": 48, "max_tokens": 10, "prefix_rows": 1, "fixed_length": True}
    return FakeEncoder(**{**sizes, "image": FORMAT, "labels": ["cat", "dog"], **changes})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "image.png"
    file.write_bytes(b"the bytes of a PNG")
    return file


def test_bytes_and_paths_are_sent_as_files(path: Path) -> None:
    server = fake()
    with Client(transport=server) as client:
        assert client.model().takes_images
        encoding = client.encode_images([path, b"another image", path.read_bytes()])
        scores = client.classify([path, b"another image"]).scores
        streamed = [each.pooled for each in client.encode_stream([path, b"another image"])]
    first = server.requests[0]
    assert isinstance(first, pb.EncodeRequest)
    assert first.images.values[:] == [path.read_bytes(), b"another image", path.read_bytes()]
    assert encoding.lengths.tolist() == [10, 10, 10]
    np.testing.assert_array_equal(encoding.pooled[0], encoding.pooled[2])
    assert (encoding.pooled[0] != encoding.pooled[1]).any()
    np.testing.assert_array_equal(streamed, encoding.pooled[:2])
    assert scores.shape == (2, 2)


async def test_the_client_for_asyncio_sends_files(path: Path) -> None:
    server = fake(vectors=lambda image: np.arange(8.0) if image == path.read_bytes() else np.ones(8))
    async with AsyncClient(transport=AsyncFakeEncoder(server)) as client:
        encoding = await client.encode_images([path, b"another image"], normalize=False)
    np.testing.assert_array_equal(encoding.pooled, [np.arange(8.0), np.ones(8)])


WIDE = pb.ImageFormat()
WIDE.CopyFrom(FORMAT)
WIDE.patch_size, WIDE.height, WIDE.width = 256, 768, 768


@pytest.mark.parametrize(
    ("changes", "count", "most"),
    [
        ({"max_request_tokens": 40}, 10, 4),
        # Ten rows of 3 · 256² values, 4 bytes each, and a message of at most 16 MiB.
        ({"image": WIDE, "feature_width": 3 * 256**2}, 3, 2),
    ],
)
def test_a_list_is_split_within_the_servers_limits(changes: dict[str, Any], count: int, most: int) -> None:
    server = fake(**changes)
    with Client(transport=server) as client:
        images = [f"image {number}".encode() for number in range(count)]
        assert len(client.encode_images(images).pooled) == count
    sent = [[*request.images.values] for request in server.requests if isinstance(request, pb.EncodeRequest)]
    assert [image for images in sent for image in images] == images
    assert max(map(len, sent)) == most


@pytest.mark.parametrize("wrong", [3, None, "image.png", [b"image"], np.zeros((3, 12, 12))])
def test_what_is_no_file_is_named(wrong: Any) -> None:
    with Client(transport=fake()) as client, pytest.raises(InvalidInput) as refused:
        client.encode_images([b"image", wrong])
    assert (refused.value.sequence, refused.value.field) == (1, "images.values")


def test_a_path_that_cannot_be_read_fails_alone_in_a_partial_call(path: Path) -> None:
    missing = path.with_name("missing.png")
    with Client(transport=fake()) as client:
        with pytest.raises(InvalidInput, match=r"sequence 1 .*missing\.png"):
            client.encode_images([path, missing])
        encoding = client.encode_images([path, missing], partial=True)
    assert [*encoding.failures] == [1]


def test_other_bytes_than_bytes_are_images() -> None:
    with Client(transport=fake()) as client:
        expected = client.classify([b"image"]).scores
        for image in (bytearray(b"image"), memoryview(b"image")):
            np.testing.assert_array_equal(client.classify([image]).scores, expected)


def test_attention_takes_files(path: Path) -> None:
    with Client(transport=fake()) as client:
        tokens = client.encode_images([path]).lengths[0]
        for file in (path, path.read_bytes()):
            attention = client.attend(file, query=0)
            assert attention.weights.shape[2:] == (tokens, tokens)
            assert not hasattr(attention, "tokens")


def test_a_model_of_texts_takes_no_images() -> None:
    with Client(transport=FakeEncoder()) as client, pytest.raises(InvalidInput) as refused:
        client.encode_images([b"image"])
    assert refused.value.field == "images"
