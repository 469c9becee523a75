"""Cut image files down to the parts that decide their pixels, so that a decoder reads nothing else.

A JPEG consists of segments (ITU-T T.81, annex B), a PNG of chunks (https://www.w3.org/TR/png-3/, section 5). Metadata
can take a decoder minutes and gigabytes, however small the image is.
"""

import re

# Files have fewer parts: an encoder writes a chunk for each 8 KiB of a PNG, and a camera some twenty segments.
MAX_PARTS = 10_000
# A camera writes 10 scans into a progressive JPEG. Each scan takes as long as the whole image.
MAX_SCANS = 100

_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PNG_CHUNKS = (b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND")
_JPEG_START, _JPEG_END, _START_OF_SCAN = 0xD8, 0xD9, 0xDA
# JFIF and Adobe, which say what the channels are; frames, tables, restart intervals, scans.
_JPEG_SEGMENTS = {0xE0, 0xEE, *range(0xC0, 0xD0), 0xDA, 0xDB, 0xDD} - {0xC8}
_EXIF_SEGMENT, _EXIF, _EXIF_CHUNK = 0xE1, b"Exif\0\0", b"eXIf"
# Orientation is among the first entries.
_MAX_EXIF_BYTES = 1 << 16
# In the data of a scan, 0xFF comes before 0, and before the numbers of restart markers.
_NEXT_MARKER = re.compile(rb"\xff+[\x01-\xcf\xd8-\xfe]")
_MARKER = re.compile(rb"\xff+([\x01-\xfe])")


def decisive_parts(file: bytes) -> tuple[str, bytes, int]:
    """Return the format of a file, "JPEG" or "PNG", the parts that decide its pixels, and its number of scans.

    Parts after the end of the image, such as a film, are left out too.

    Raises:
        ValueError: the file has neither format, ends within a part, or has too many parts or scans.
    """
    if file.startswith(_PNG_SIGNATURE):
        return "PNG", _decisive_chunks(file), 1
    if file.startswith(b"\xff\xd8\xff"):
        return "JPEG", *_decisive_segments(file)
    raise ValueError("is no JPEG or PNG file")


def _decisive_chunks(file: bytes) -> bytes:
    kept, position, has_exif = [_PNG_SIGNATURE], len(_PNG_SIGNATURE), False
    for _ in range(MAX_PARTS):
        kind = file[position + 4 : position + 8]
        end = position + 12 + int.from_bytes(file[position : position + 4])
        if len(kind) < 4 or end > len(file):
            raise ValueError("is a PNG file that ends too early")
        is_exif = kind == _EXIF_CHUNK and not has_exif and end - position <= _MAX_EXIF_BYTES
        has_exif |= is_exif
        if kind in _PNG_CHUNKS or is_exif:
            kept.append(file[position:end])
        if kind == b"IEND":
            return b"".join(kept)
        position = end
    raise ValueError(f"is a PNG file of more than {MAX_PARTS} chunks")


def _decisive_segments(file: bytes) -> tuple[bytes, int]:
    kept, position, scans, has_exif = [file[:2]], 2, 0, False
    for _ in range(MAX_PARTS):
        marker = _MARKER.match(file, position)
        if marker is None:
            raise ValueError("is a JPEG file that ends too early, or has no segment where one must begin")
        kind, begin = marker[1][0], marker.end()
        if kind == _JPEG_END:
            return b"".join([*kept, bytes([0xFF, kind])]), scans
        end = begin + int.from_bytes(file[begin : begin + 2])
        if end < begin + 2 or end > len(file):
            raise ValueError("is a JPEG file that ends too early")
        is_exif = kind == _EXIF_SEGMENT and not has_exif and file.startswith(_EXIF, begin + 2)
        has_exif |= is_exif
        if kind == _START_OF_SCAN:
            scans += 1
            if scans > MAX_SCANS:
                raise ValueError(f"is a JPEG file of more than {MAX_SCANS} scans")
            after = _NEXT_MARKER.search(file, end)
            end = after.start() if after else len(file)
        if kind in _JPEG_SEGMENTS or is_exif:
            kept.append(bytes([0xFF, kind]) + file[begin:end])
        position = end
    raise ValueError(f"is a JPEG file of more than {MAX_PARTS} segments")
