"""PNG files that are the same to the byte on every machine.

A media's id is a hash of its bytes, and tapes name ids. Compressed data depends on which zlib a program was built with
and on its version, so the data here is stored, not compressed (RFC 1951, section 3.2.4). Any reader takes it.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

SIGNATURE = b"\x89PNG\r\n\x1a\n"
STORED_LIMIT = 0xFFFF  # bytes a stored block holds at most
PALETTE = 3  # colour type of PNG: each byte is an index


def stored_png(image: Image) -> bytes:
    """The file of an image of mode "P"; `ValueError` for one of another mode."""
    palette = image.getpalette()
    if image.mode != "P" or palette is None:
        raise ValueError(f'image must have the mode "P", got {image.mode!r}: image.convert("P")')
    width, height = image.size
    pixels = image.tobytes()
    rows = b"".join(b"\0" + pixels[start : start + width] for start in range(0, len(pixels), width))
    header = struct.pack(">IIBBBBB", width, height, 8, PALETTE, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"PLTE", bytes(palette)), (b"IDAT", _stored(rows)), (b"IEND", b""))
    return SIGNATURE + b"".join(_chunk(name, data) for name, data in chunks)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def _stored(data: bytes) -> bytes:
    """A zlib stream without compression (RFC 1950)."""
    stream = [b"\x78\x01"]
    for start in range(0, len(data), STORED_LIMIT):
        block = data[start : start + STORED_LIMIT]
        last = start + STORED_LIMIT >= len(data)
        stream += [struct.pack("<BHH", last, len(block), len(block) ^ STORED_LIMIT), block]
    return b"".join([*stream, struct.pack(">I", zlib.adler32(data))])
