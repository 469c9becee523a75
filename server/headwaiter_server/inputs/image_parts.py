"""Cut image files down to the parts that decide their pixels, so that a decoder reads nothing else.

A JPEG consists of segments (ITU-T T.81, annex B), a PNG of chunks (https://www.w3.org/TR/png-3/, section 5). Metadata
can take a decoder minutes and gigabytes, however small the image is. What stays is where Pillow looks for the
orientation: Exif, Exif as text in a PNG, and XMP.
"""

import re
import zlib

# Files have fewer parts: an encoder writes a chunk for each 8 KiB of a PNG, and a camera some twenty segments.
MAX_PARTS = 10_000
# A camera writes 10 scans into a progressive JPEG. Each scan takes as long as the whole image.
MAX_SCANS = 100

_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PNG_CHUNKS = (b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND")
_JPEG_START, _JPEG_END, _START_OF_SCAN = 0xD8, 0xD9, 0xDA
# JFIF and Adobe, which say what the channels are; frames, tables, restart intervals, scans.
_JPEG_SEGMENTS = {0xE0, 0xEE, *range(0xC0, 0xD0), 0xDA, 0xDB, 0xDD} - {0xC8}
_METADATA_SEGMENT, _EXIF, _XMP = 0xE1, b"Exif\0\0", b"http://ns.adobe.com/xap/1.0/\0"
_EXIF_CHUNK, _TEXT_CHUNKS = b"eXIf", (b"tEXt", b"zTXt", b"iTXt")
# The keywords of texts with an orientation: Exif in hexadecimal digits, which ImageMagick writes, and XMP.
_EXIF_TEXT, _XMP_TEXT = b"Raw profile type exif", b"XML:com.adobe.xmp"
# Orientation is among the first entries.
_MAX_EXIF_BYTES = 1 << 16
# Two digits for each byte, and line breaks.
_MAX_DIGITS = _MAX_EXIF_BYTES * 9 // 4
# Pillow decompresses as much.
_MAX_DECOMPRESSED_BYTES = 1 << 20
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
    kept, position = [_PNG_SIGNATURE], len(_PNG_SIGNATURE)
    # Of several chunks with one name, Pillow takes the last one.
    metadata: dict[bytes, bytes] = {}
    for _ in range(MAX_PARTS):
        kind = file[position + 4 : position + 8]
        end = position + 12 + int.from_bytes(file[position : position + 4])
        if len(kind) < 4 or end > len(file):
            raise ValueError("is a PNG file that ends too early")
        if kind == b"IEND":
            metadata |= {name: _plain_text(text) for name, text in metadata.items() if name != _EXIF_CHUNK}
            return b"".join([*kept, *metadata.values(), file[position:end]])
        if kind in _PNG_CHUNKS:
            kept.append(file[position:end])
        elif kind in _TEXT_CHUNKS:
            for keyword in (_EXIF_TEXT, _XMP_TEXT):
                if file.startswith(keyword + b"\0", position + 8, end):
                    metadata[keyword] = file[position:end]
        elif kind == _EXIF_CHUNK and end - position <= _MAX_EXIF_BYTES:
            metadata[kind] = file[position:end]
        position = end
    raise ValueError(f"is a PNG file of more than {MAX_PARTS} chunks")


def _plain_text(chunk: bytes) -> bytes:
    """Return a chunk of text as one that is not compressed; nothing if it is damaged, or has too much Exif."""
    kind, (keyword, _, text) = chunk[4:8], chunk[8:-4].partition(b"\0")
    is_compressed = kind == b"zTXt"
    if is_compressed:
        text = text[1:]  # the method, of which there is only one
    elif kind == b"iTXt":
        # Two flags, and two names that end with 0.
        is_compressed, text = text[:1] != b"\0", text[2:].split(b"\0", 2)[-1]
    if is_compressed:
        try:
            text = zlib.decompressobj().decompress(text, _MAX_DECOMPRESSED_BYTES)
        except zlib.error:
            return b""
    if keyword == _EXIF_TEXT and len(text) > _MAX_DIGITS:
        return b""
    plain = b"tEXt" + keyword + b"\0" + text
    return (len(plain) - 4).to_bytes(4) + plain + zlib.crc32(plain).to_bytes(4)


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
        is_exif = kind == _METADATA_SEGMENT and not has_exif and file.startswith(_EXIF, begin + 2)
        has_exif |= is_exif
        is_xmp = kind == _METADATA_SEGMENT and file.startswith(_XMP, begin + 2)
        if kind == _START_OF_SCAN:
            scans += 1
            if scans > MAX_SCANS:
                raise ValueError(f"is a JPEG file of more than {MAX_SCANS} scans")
            after = _NEXT_MARKER.search(file, end)
            end = after.start() if after else len(file)
        if kind in _JPEG_SEGMENTS or is_exif or is_xmp:
            kept.append(bytes([0xFF, kind]) + file[begin:end])
        position = end
    raise ValueError(f"is a JPEG file of more than {MAX_PARTS} segments")
