"""Image files become the rows that transformers' image processors make; files that cannot be decoded are named."""

import struct
import zlib
from contextlib import suppress
from io import BytesIO
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.deit.image_processing_pil_deit import DeiTImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from headwaiter_client import patches
from headwaiter_export.checkpoints.image_format import read_image_format
from headwaiter_export.checkpoints.json_files import CheckpointJson
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_proto.rules.errors import Failures, InvalidInput
from headwaiter_server.inputs import image_files
from headwaiter_server.inputs.image_files import MAX_PIXELS, read_image, read_images
from headwaiter_server.inputs.image_parts import decisive_parts
from headwaiter_server.requests.threads import finish
from tests.support.export.helpers import assert_close
from tests.support.oracle import Array

PROCESSORS: dict[str, Any] = {
    "vit": ViTImageProcessorPil(size={"height": 12, "width": 12}),
    "deit": DeiTImageProcessorPil(size={"height": 16, "width": 15}, crop_size={"height": 12, "width": 12}),
    "clip": CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size={"height": 12, "width": 12}),
    "clip-odd": CLIPImageProcessorPil(size={"shortest_edge": 13}, crop_size={"height": 12, "width": 12}),
}
MODES = ["RGB", "L", "RGBA", "P", "1", "LA", "I;16"]


def manifest_of(name: str, folder: Any) -> Manifest:
    """Return the manifest of a model whose images a processor prepares."""
    PROCESSORS[name].save_pretrained(folder)
    sizes = {"image_size": 12, "num_channels": 3, "patch_size": 4}
    image = read_image_format(folder, CheckpointJson(folder / "config.json", sizes))
    return Manifest(feature_width=48, max_tokens=10, fixed_length=True, class_row=True, image=image)


@pytest.fixture(scope="module")
def manifests(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Manifest]:
    return {name: manifest_of(name, tmp_path_factory.mktemp(name)) for name in PROCESSORS}


def random_image(width: int, height: int, mode: str = "RGB") -> Image.Image:
    rng = np.random.default_rng(width * 1000 + height)
    if mode == "I;16":
        return Image.fromarray(rng.integers(0, 1 << 16, (height, width), np.uint16))
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8)).convert(mode)


def saved(image: Image.Image, file_format: str = "PNG", **options: Any) -> bytes:
    file = BytesIO()
    image.save(file, file_format, **options)
    return file.getvalue()


def expected_rows(name: str, file: bytes) -> Array:
    """Return the rows that transformers makes of a file; some processors take only images in RGB."""
    image = ImageOps.exif_transpose(Image.open(BytesIO(file)))
    processor = PROCESSORS[name]
    if not getattr(processor, "do_convert_rgb", None):
        image = image.convert("RGB")
    pixels = processor(image, return_tensors="np")["pixel_values"][0]
    return patches(np.asarray(pixels, np.float32), 4)


def rows_of(file: bytes, manifest: Manifest) -> Array:
    return read_image(0, file, manifest)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([*PROCESSORS]), st.integers(1, 60), st.integers(1, 60), st.sampled_from(["PNG", "JPEG"]))
def test_rows_equal_those_of_transformers(
    manifests: dict[str, Manifest], name: str, width: int, height: int, file_format: str
) -> None:
    file = saved(random_image(width, height), file_format)
    assert_close(rows_of(file, manifests[name]), expected_rows(name, file))


@pytest.mark.parametrize("mode", MODES)
def test_images_of_other_modes_are_converted_to_rgb(mode: str, manifests: dict[str, Manifest]) -> None:
    file = saved(random_image(20, 14, mode))
    assert_close(rows_of(file, manifests["clip"]), expected_rows("clip", file))


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "1"])
def test_what_is_transparent_becomes_white(mode: str, manifests: dict[str, Manifest]) -> None:
    image = random_image(20, 14, mode)
    # One color, or the number of one, is transparent.
    transparent: Any = image.getpixel((9, 6))
    image.paste(transparent, (3, 3, 12, 9))
    file = saved(image, transparency=0 if mode == "1" else transparent)
    rows = rows_of(file, manifests["clip"])
    assert_close(rows, expected_rows("clip", file))
    assert (rows != rows_of(saved(image), manifests["clip"])).any()


@pytest.mark.parametrize("mode", ["L", "CMYK"])
@pytest.mark.parametrize("options", [{}, {"progressive": True}])
def test_jpegs_of_other_modes_are_converted_to_rgb(
    mode: str, options: dict[str, Any], manifests: dict[str, Manifest]
) -> None:
    file = saved(random_image(20, 14, mode), "JPEG", **options)
    assert_close(rows_of(file, manifests["vit"]), expected_rows("vit", file))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_turned_upright(orientation: int, manifests: dict[str, Manifest]) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = saved(random_image(30, 16), "JPEG", exif=exif)
    rows = rows_of(file, manifests["clip"])
    assert_close(rows, expected_rows("clip", file))
    upright = rows_of(saved(random_image(30, 16), "JPEG"), manifests["clip"])
    assert np.array_equal(rows, upright) is (orientation == 1)


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def exif_of(orientation: int) -> bytes:
    exif = Image.Exif()
    if orientation:
        exif[0x0112] = orientation
    return exif.tobytes()


def exif_text(orientation: int) -> bytes:
    """Return the text in which ImageMagick writes Exif."""
    digits = exif_of(orientation).hex()
    lines = "".join(f"{digits[begin : begin + 72]}\n" for begin in range(0, len(digits), 72))
    return f"\nexif\n{len(digits) // 2:8}\n{lines}".encode()


def xmp_of(orientation: int, *, as_element: bool = False) -> bytes:
    field = f"<tiff:Orientation>{orientation}</tiff:Orientation>" if as_element else f'tiff:Orientation="{orientation}"'
    return f"<x:xmpmeta>ä {field}</x:xmpmeta>".encode()


RAW, XMP = b"Raw profile type exif\0", b"XML:com.adobe.xmp\0"
TURNED = {
    "text": [chunk(b"tEXt", RAW + exif_text(6))],
    "compressed text": [chunk(b"zTXt", RAW + b"\0" + zlib.compress(exif_text(6)))],
    "international text": [chunk(b"iTXt", RAW + bytes(4) + exif_text(6))],
    "xmp": [chunk(b"iTXt", XMP + bytes(4) + xmp_of(6))],
    "xmp as an element": [chunk(b"iTXt", XMP + b"\0\0en\0name\0" + xmp_of(6, as_element=True))],
    "compressed xmp": [chunk(b"iTXt", XMP + b"\1\0\0\0" + zlib.compress(xmp_of(6)))],
    "xmp as plain text": [chunk(b"tEXt", XMP + xmp_of(6))],
    "xmp beside exif": [chunk(b"eXIf", exif_of(6)[6:]), chunk(b"iTXt", XMP + bytes(4) + xmp_of(3))],
    "xmp beside exif without orientation": [
        chunk(b"eXIf", exif_of(0)[6:]),
        chunk(b"iTXt", XMP + bytes(4) + xmp_of(6)),
    ],
    "text beside exif": [chunk(b"tEXt", RAW + exif_text(3)), chunk(b"eXIf", exif_of(6)[6:])],
    "two exif": [chunk(b"eXIf", exif_of(number)[6:]) for number in (3, 6)],
    "two xmp": [chunk(b"iTXt", XMP + bytes(4) + xmp_of(number)) for number in (3, 6)],
}


@pytest.mark.parametrize("name", TURNED)
@pytest.mark.parametrize("before_pixels", [True, False])
def test_pngs_are_turned_upright_by_all_metadata(
    name: str, before_pixels: bool, manifests: dict[str, Manifest]
) -> None:
    png = saved(random_image(30, 16))
    place = 33 if before_pixels else len(png) - 12
    file = png[:place] + b"".join(TURNED[name]) + png[place:]
    rows = rows_of(file, manifests["clip"])
    assert_close(rows, expected_rows("clip", file))
    assert not np.array_equal(rows, rows_of(png, manifests["clip"]))


@pytest.mark.parametrize("with_exif", [None, 0, 3])
def test_jpegs_are_turned_upright_by_xmp(with_exif: int | None, manifests: dict[str, Manifest]) -> None:
    options = {} if with_exif is None else {"exif": exif_of(with_exif)}
    file = saved(random_image(30, 16), "JPEG", xmp=xmp_of(6), **options)
    rows = rows_of(file, manifests["clip"])
    assert_close(rows, expected_rows("clip", file))
    assert not np.array_equal(rows, rows_of(saved(random_image(30, 16), "JPEG"), manifests["clip"]))


def png_of(width: int, height: int) -> bytes:
    """Return a PNG that states these sides, and has no pixels."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize("sides", [(1 << 13, (1 << 12) + 1), (65_535, 65_535), (1, 600), (600, 1)])
def test_an_image_that_would_take_much_memory_is_refused_before_it_is_decoded(
    sides: tuple[int, int], manifests: dict[str, Manifest]
) -> None:
    manifest = Manifest()
    manifest.CopyFrom(manifests["clip"])
    manifest.image.preparation.resize_shortest_edge = 336
    with pytest.raises(InvalidInput) as refused:
        rows_of(png_of(*sides), manifest)
    assert (refused.value.sequence, refused.value.field, refused.value.limit) == (0, "images.values", MAX_PIXELS)
    assert refused.value.actual is not None
    assert refused.value.actual > MAX_PIXELS


@pytest.mark.parametrize("sides", [(1, 65_536), (65_536, 1), (1 << 31, 1)])
def test_an_image_with_a_long_side_is_refused(sides: tuple[int, int], manifests: dict[str, Manifest]) -> None:
    with pytest.raises(InvalidInput) as refused:
        rows_of(png_of(*sides), manifests["vit"])
    assert refused.value.field == "images.values"


def test_a_progressive_jpeg_is_refused_if_its_scans_together_visit_too_many_pixels(
    manifests: dict[str, Manifest],
) -> None:
    file = saved(random_image(20, 14), "JPEG", progressive=True)
    scans = decisive_parts(file)[2]
    assert scans > 4
    with patch.object(image_files, "MAX_VISITED_PIXELS", scans * 20 * 14):
        rows_of(file, manifests["vit"])
    with patch.object(image_files, "MAX_VISITED_PIXELS", scans * 20 * 14 - 1):
        with pytest.raises(InvalidInput) as refused:
            rows_of(file, manifests["vit"])
        rows_of(saved(random_image(20, 14), "JPEG"), manifests["vit"])
    error = refused.value
    assert (error.sequence, error.field) == (0, "images.values")
    assert (error.limit, error.actual) == (scans * 20 * 14 - 1, scans * 20 * 14)


WHOLE = saved(random_image(30, 30), "JPEG")
PNG = saved(random_image(30, 30))


@pytest.mark.parametrize(
    ("file", "fact"),
    [
        (b"", "JPEG or PNG file"),
        (b"GIF89a" + bytes(100), "JPEG or PNG"),
        (saved(random_image(9, 9), "GIF"), "JPEG or PNG"),
        (saved(random_image(9, 9), "TIFF"), "JPEG or PNG"),
        (WHOLE[: len(WHOLE) // 2], "JPEG or PNG"),
        (PNG[: len(PNG) // 2], "JPEG or PNG"),
        (PNG.replace(b"IDAT", b"IDAX"), "JPEG or PNG"),
        (png_of(0, 5), "JPEG or PNG"),
        (png_of(8, 8), "JPEG or PNG"),
        (WHOLE[:-2], "ends too early"),
        (WHOLE[:20] + b"no marker" + WHOLE[20:], "segment"),
    ],
)
def test_a_file_that_cannot_be_decoded_is_named(file: bytes, fact: str, manifests: dict[str, Manifest]) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_image(3, file, manifests["vit"])
    assert (refused.value.sequence, refused.value.field) == (3, "images.values")
    assert fact in str(refused.value)
    assert len(str(refused.value)) < 400


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([WHOLE, PNG]), st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_any_change_of_a_file_gives_rows_or_a_typed_error(
    manifests: dict[str, Manifest], file: bytes, changes: list[tuple[float, int]]
) -> None:
    damaged = bytearray(file)
    for place, value in changes:
        damaged[int(place * (len(file) - 1))] = value
    with suppress(InvalidInput):
        assert rows_of(bytes(damaged), manifests["clip"]).shape == (10, 48)


def test_a_damaged_image_fails_alone_in_a_partial_request(manifests: dict[str, Manifest]) -> None:
    failures = Failures(keep=True)
    first, second = finish(read_images([PNG, PNG[:99]], manifests["vit"], failures))
    assert (len(first), len(second)) == (10, 0)
    assert [*failures.by_sequence] == [1]
    with pytest.raises(InvalidInput):
        finish(read_images([PNG[:99]], manifests["vit"], Failures(keep=False)))
