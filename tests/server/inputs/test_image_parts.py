"""A decoder gets only the parts of an image file that decide its pixels, and few of them."""

import struct
import time
import zlib
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from headwaiter_server.inputs.image_parts import MAX_PARTS, MAX_SCANS, decisive_parts
from tests.support.oracle import Array

PIXELS = np.random.default_rng(0).integers(0, 256, (24, 40, 3), np.uint8)


def saved(file_format: str, mode: str = "RGB", **options: Any) -> bytes:
    file = BytesIO()
    Image.fromarray(PIXELS).convert(mode).save(file, file_format, **options)
    return file.getvalue()


def decoded(file: bytes) -> Array:
    return np.asarray(Image.open(BytesIO(file)))


def segment(marker: int, data: bytes) -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", len(data) + 2) + data


def chunk(kind: bytes, data: bytes = b"") -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


JPEGS = {
    "plain": saved("JPEG"),
    "progressive": saved("JPEG", progressive=True, quality=95),
    "gray": saved("JPEG", "L"),
    "cmyk": saved("JPEG", "CMYK"),
    "restarts": saved("JPEG", restart_marker_blocks=1),
    "4:4:4": saved("JPEG", subsampling=0),
}
PNGS = {mode: saved("PNG", mode) for mode in ("RGB", "RGBA", "L", "LA", "P", "1")}


@pytest.mark.parametrize("file", [*JPEGS.values(), *PNGS.values()], ids=[*JPEGS, *PNGS])
def test_the_parts_decide_the_pixels(file: bytes) -> None:
    _, parts, _ = decisive_parts(file)
    np.testing.assert_array_equal(decoded(parts), decoded(file))
    # A film after a photograph, for example.
    assert decisive_parts(file + np.random.default_rng(0).bytes(1 << 20))[1] == parts


METADATA = [
    segment(0xE1, b"http://ns.adobe.com/xmp/extension/\0" + bytes(99)),
    segment(0xE2, b"MPF\0" + bytes(99)),
    segment(0xFE, b"text"),
]
CHUNKS = [chunk(b"iCCP", bytes(99)), chunk(b"zTXt", bytes(99)), chunk(b"acTL", bytes(8)), chunk(b"tEXt", b"a\0b")]


@given(st.lists(st.sampled_from(METADATA), max_size=5))
def test_other_segments_are_left_out(metadata: list[bytes]) -> None:
    file = JPEGS["plain"]
    assert decisive_parts(file[:2] + b"".join(metadata) + file[2:]) == decisive_parts(file)


@given(st.lists(st.sampled_from(CHUNKS), max_size=5))
def test_other_chunks_are_left_out(metadata: list[bytes]) -> None:
    file = PNGS["RGB"]
    # Behind the signature and IHDR.
    assert decisive_parts(file[:33] + b"".join(metadata) + file[33:]) == decisive_parts(file)


def test_only_the_first_exif_of_a_jpeg_is_kept_and_that_of_a_png_only_if_it_is_small() -> None:
    one, two = (segment(0xE1, b"Exif\0\0" + bytes([number])) for number in (1, 2))
    file = JPEGS["plain"]
    assert two not in decisive_parts(file[:2] + one + two + file[2:])[1]
    large = chunk(b"eXIf", bytes(1 << 16))
    png = PNGS["RGB"]
    assert decisive_parts(png[:33] + large + png[33:]) == decisive_parts(png)


def test_digits_of_exif_are_kept_only_if_they_are_few() -> None:
    png = PNGS["RGB"]
    for digits, kept in ((1 << 17, True), (1 << 18, False)):
        text = b"Raw profile type exif\0\0" + zlib.compress(b"\nexif\n1\n" + b"00" * (digits // 2))
        parts = decisive_parts(png[:33] + chunk(b"zTXt", text) + png[33:])[1]
        assert (parts != decisive_parts(png)[1]) is kept


def scans_of(file: bytes) -> int:
    return decisive_parts(file)[1].count(b"\xff\xda")


def with_scans(scans: int) -> bytes:
    """Return a progressive JPEG with this many more scans, each a copy of its last one."""
    file = JPEGS["progressive"]
    last = file[file.rindex(b"\xff\xda") : -2]
    return file[:-2] + last * scans + b"\xff\xd9"


def test_scans_are_counted_up_to_the_end_of_the_image() -> None:
    allowed = with_scans(MAX_SCANS - scans_of(JPEGS["progressive"]))
    assert scans_of(allowed) == MAX_SCANS
    assert decisive_parts(allowed + b"\xff\xda" * 1000) == decisive_parts(allowed)
    with pytest.raises(ValueError, match=f"more than {MAX_SCANS} scans"):
        decisive_parts(with_scans(MAX_SCANS))
    # Pillow gives such a file another format than JPEG.
    with pytest.raises(ValueError, match="scans"):
        decisive_parts(allowed[:2] + METADATA[1] + with_scans(MAX_SCANS)[2:])


@pytest.mark.parametrize(
    "file",
    [
        PNGS["RGB"][:33] + chunk(b"tEXt", b"a\0") * MAX_PARTS + PNGS["RGB"][33:],
        JPEGS["plain"][:2] + segment(0xE5, b"") * MAX_PARTS + JPEGS["plain"][2:],
    ],
    ids=["PNG", "JPEG"],
)
def test_a_file_of_many_parts_is_refused(file: bytes) -> None:
    with pytest.raises(ValueError, match=f"more than {MAX_PARTS}"):
        decisive_parts(file)


COMPRESSED_XMP = b"XML:com.adobe.xmp\0\0" + zlib.compress(bytes(1 << 20))


@pytest.mark.parametrize(
    "file",
    [
        JPEGS["plain"][:2] + b"\xff" * (16 << 20) + JPEGS["plain"][3:],
        JPEGS["plain"][:2] + segment(0xE1, b"Exif\0\0" + bytes(30)) * (MAX_PARTS - 100) + JPEGS["plain"][2:],
        PNGS["RGB"][:33] + chunk(b"iCCP", bytes(1000)) * (MAX_PARTS - 100) + PNGS["RGB"][33:],
        JPEGS["plain"][:-2] + b"\xff\x00" * (8 << 20) + b"\xff\xd9",
        PNGS["RGB"][:33] + chunk(b"zTXt", COMPRESSED_XMP) * (MAX_PARTS - 100) + PNGS["RGB"][33:],
    ],
    ids=["padding", "exif", "profiles", "data", "texts"],
)
def test_large_files_take_little_time(file: bytes) -> None:
    begin_s = time.process_time()
    decisive_parts(file)
    assert time.process_time() - begin_s < 5


@settings(max_examples=300)
@given(
    st.sampled_from([*JPEGS.values(), *PNGS.values()]),
    st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=4), st.integers(0, 40)), min_size=1, max_size=4),
)
def test_any_bytes_give_parts_or_a_typed_error(file: bytes, changes: list[tuple[float, bytes, int]]) -> None:
    for place, inserted, removed in changes:
        position = int(place * len(file))
        file = file[:position] + inserted + file[position + removed :]
    try:
        kind, parts, scans = decisive_parts(file)
    except ValueError:
        return
    assert kind in ("JPEG", "PNG")
    assert decisive_parts(parts) == (kind, parts, scans)
