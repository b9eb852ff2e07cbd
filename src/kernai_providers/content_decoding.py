"""`ContentDecoder`: undoes `Content-Encoding` while the bytes arrive.

What it gives comes in bounded pieces, however much a few compressed bytes unfold to, so that whoever counts bytes can
stop in time; and of what comes in, which may unfold to nothing at all, no more than a bound is taken. RFC 9110 section
8.4.1 (codings), RFC 1950 to 1952 (formats).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from itertools import chain
from typing import Final

from kernai_providers.transport import TransportError

#: bytes of one decoded piece, at most
PIECE: Final = 64 * 1024
#: codings on top of each other; more than one is rare already
MAX_CODINGS: Final = 4
GZIP_START: Final = 0x1F


class ContentDecoder:
    """For one body. `codings` is the header's value, `peer` the host that errors name, `max_bytes` what may come in.

    Raises `TransportError` of kind ``protocol`` for a coding that is not known and for bytes that are not what the
    header says, of kind ``closed`` where the compressed body ends early, and of kind ``too_large``.
    """

    def __init__(self, codings: str, peer: str, max_bytes: int | None = None) -> None:
        self._left = max_bytes
        names = [name for name in (part.strip().lower() for part in codings.split(",")) if name not in ("", "identity")]
        if len(names) > MAX_CODINGS or not set(names) <= {"gzip", "x-gzip", "deflate"}:
            # the name is not shown: it is the other side's text
            raise TransportError(f"{peer} answered in a Content-Encoding other than gzip and deflate", "protocol")
        # the last one named was applied last
        self._layers = [_Layer(gzip=name != "deflate") for name in reversed(names)]
        self._peer = peer

    def decode(self, data: bytes) -> Iterator[bytes]:
        """What can be read with these bytes, in order; take all of it before the next call."""
        if self._left is not None:
            self._left -= len(data)
            if self._left < 0:
                raise TransportError(f"the answer of {self._peer} is too large", "too_large")
        pieces: Iterator[bytes] = iter((data,))
        for layer in self._layers:
            pieces = chain.from_iterable(map(layer.decode, pieces))
        try:
            yield from pieces
        except zlib.error as error:
            raise TransportError(f"{self._peer} sent a body that cannot be decompressed", "protocol") from error

    def end(self) -> None:
        """The body has ended: raises when its compressed form has not."""
        if any(layer.unfinished for layer in self._layers):
            raise TransportError(f"{self._peer} sent a compressed body that breaks off", "closed")


class _Layer:
    """One coding."""

    def __init__(self, *, gzip: bool) -> None:
        self._gzip = gzip
        self._start = b""
        self._member: zlib._Decompress | None = None
        self._members = 0

    @property
    def unfinished(self) -> bool:
        return self._member is not None or bool(self._start)

    def decode(self, data: bytes) -> Iterator[bytes]:
        data = self._start + data
        self._start = b""
        more = bool(data)
        while more:
            if self._member is None and not self._begin(data):
                return
            assert self._member is not None
            piece = self._member.decompress(data, PIECE)
            if piece:
                yield piece
            if self._member.eof:
                data, self._member = self._member.unused_data, None
                more = bool(data)
            else:
                data = self._member.unconsumed_tail
                # a full piece may have a rest that zlib holds back although it has read all there was
                more = bool(data) or len(piece) == PIECE

    def _begin(self, data: bytes) -> bool:
        """Whether a new compressed stream starts here."""
        if self._members and not (self._gzip and data[0] == GZIP_START):
            return False  # padding behind the end
        if self._gzip:
            self._member = zlib.decompressobj(wbits=31)
        elif len(data) < 2:  # noqa: PLR2004 - a zlib header is two bytes
            self._start = data
            return False
        else:
            # "deflate" means zlib's format, but some servers send the bare stream
            wrapped = data[0] & 0x0F == zlib.DEFLATED and int.from_bytes(data[:2], "big") % 31 == 0
            self._member = zlib.decompressobj(wbits=15 if wrapped else -15)
        self._members += 1
        return True
