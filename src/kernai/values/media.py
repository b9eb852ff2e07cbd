"""`Media`: an image, audio, video or document in a message; `MediaStore`: the media of a run and its sub-runs, by id.

A `Media` refers to a file, to a URL, or to bytes. A file is read only when needed, a URL never. Neither `repr` nor
`to_dict` shows a payload or the query of a URL (signed URLs carry secrets there).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, cast, get_args

from kernai._util.api import Value, check_type
from kernai._util.redaction import shown_url
from kernai.errors import KernaiError
from kernai.jsonio.json_data import jsonable

Kind = Literal["image", "audio", "video", "document"]
KINDS: tuple[Kind, ...] = get_args(Kind)

FALLBACK_MIME = "application/octet-stream"
MIME_TYPES = {
    "png": "image/png", "jpg": "image/jpeg", "jpeg": "image/jpeg", "gif": "image/gif", "webp": "image/webp",
    "bmp": "image/bmp", "svg": "image/svg+xml", "tif": "image/tiff", "tiff": "image/tiff", "heic": "image/heic",
    "heif": "image/heif", "avif": "image/avif", "jfif": "image/jpeg",
    "mp3": "audio/mpeg", "wav": "audio/wav", "ogg": "audio/ogg", "opus": "audio/ogg", "flac": "audio/flac",
    "m4a": "audio/mp4", "aac": "audio/aac",
    "mp4": "video/mp4", "webm": "video/webm", "mov": "video/quicktime", "mkv": "video/x-matroska",
    "avi": "video/x-msvideo",
    "pdf": "application/pdf", "txt": "text/plain", "md": "text/markdown", "csv": "text/csv", "html": "text/html",
    "json": "application/json", "xml": "application/xml",
}

# a token of RFC 9110, section 5.6.2
_WORD = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_MIME = rf"{_WORD}/{_WORD}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Media(Value):
    """One piece of media. Build it with `from_file`, `from_url` or `from_bytes`.

    `kind` is ``image audio video document``, `source` ``path url bytes``, `data` the path, the URL or the bytes. Media
    with equal `data` have an equal `id`; for a file or a URL the contents do not matter. `payload` is the contents of a
    ``path`` at the time when a store read the file: `read_bytes` returns these, even if the file has changed since. It
    affects neither the id nor equality.
    """

    kind: Kind
    mime_type: str
    source: Literal["path", "url", "bytes"]
    data: str | bytes
    metadata: Mapping[str, object] = field(default_factory=dict)
    id: str = field(init=False)
    payload: bytes | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {self.kind!r}")
        if not isinstance(self.mime_type, str) or not re.fullmatch(_MIME, self.mime_type):
            raise ValueError(f"mime_type must look like 'image/png', got {self.mime_type!r}")
        check_type(self.metadata, Mapping, "metadata must be a mapping")
        check_type(self.data, (str, bytes), "data must be text or bytes", ": use Media.from_bytes")
        if self.source not in ("path", "url", "bytes") or (self.source == "bytes") is isinstance(self.data, str):
            raise ValueError(f"source must be 'bytes' for bytes, 'path' or 'url' for text, got {self.source!r}")
        if self.payload is not None and (self.source != "path" or not isinstance(self.payload, bytes)):
            raise ValueError("payload must be the bytes of a file, beside source 'path'")
        object.__setattr__(self, "metadata", MappingProxyType(dict(self.metadata)))
        from hashlib import sha1

        raw = self.data if isinstance(self.data, bytes) else self.data.encode("utf-8", "surrogatepass")
        # an identity of content, not a signature
        object.__setattr__(self, "id", "media_" + sha1(raw, usedforsecurity=False).hexdigest()[:12])

    @classmethod
    def from_file(
        cls, path: str | os.PathLike[str], *, kind: str | None = None, mime_type: str | None = None,
        metadata: Mapping[str, object] | None = None,
    ) -> Media:
        """Media in a regular file, which is read when needed. The MIME type comes from the file's extension.

        Raises `ValueError` for a directory, a device or a pipe. A missing file is reported by `read_bytes`.
        """
        given = os.fspath(path) if isinstance(path, os.PathLike) else path
        text: str = check_type(given, str, "path must be text or a Path")
        if os.path.exists(text) and not os.path.isfile(text):  # noqa: PTH110, PTH113 - pathlib is slow to import
            raise ValueError(f"path must be a regular file: {text!r} is not one")
        return cls(*_typed(text, kind, mime_type), "path", text, metadata or {})

    @classmethod
    def from_url(
        cls, url: str, *, kind: str | None = None, mime_type: str | None = None,
        metadata: Mapping[str, object] | None = None,
    ) -> Media:
        """Media at a URL, which kernai never fetches, or in a data URL. The MIME type ignores query and fragment."""
        if not isinstance(url, str) or not re.match(r"[A-Za-z][A-Za-z0-9+.-]+:", url):
            shown = shown_url(url) if isinstance(url, str) else url
            raise ValueError(f"url must have a scheme such as https:, got {shown!r}; for a file use Media.from_file")
        head, comma, payload = url.partition(",")
        if comma and head[:5].lower() == "data:":
            from urllib.parse import unquote_to_bytes

            data, (given, *parameters) = unquote_to_bytes(payload), head[5:].lower().split(";")
            data = _from_base64(data, "the data URL") if "base64" in parameters[-1:] else data
            return cls.from_bytes(data, mime_type=mime_type or given or "text/plain", kind=kind, metadata=metadata)
        return cls(*_typed(shown_url(url), kind, mime_type), "url", url, metadata or {})

    @classmethod
    def from_bytes(
        cls, data: bytes | bytearray | memoryview, *, mime_type: str, kind: str | None = None,
        metadata: Mapping[str, object] | None = None,
    ) -> Media:
        """Media in memory; `mime_type` cannot be guessed and is required."""
        check_type(data, (bytes, bytearray, memoryview), "data must be bytes", "; for a file use Media.from_file")
        return cls(*_typed("", kind, mime_type or ""), "bytes", bytes(data), metadata or {})

    @property
    def is_path(self) -> bool:
        return self.source == "path"

    @property
    def is_url(self) -> bool:
        return self.source == "url"

    @property
    def is_bytes(self) -> bool:
        return self.source == "bytes"

    def read_bytes(self) -> bytes:
        """The payload. Raises `KernaiError` for a URL (fetch it yourself) and for a file that cannot be read."""
        if isinstance(self.data, bytes):
            return self.data
        if self.source == "url":
            raise KernaiError("kernai does not fetch URLs: download it and use Media.from_bytes")
        if self.payload is not None:
            return self.payload
        try:
            with open(self.data, "rb") as file:  # noqa: PTH123 - pathlib is slow to import
                return file.read()
        except (OSError, ValueError) as error:  # ValueError: a null character in the path
            why = getattr(error, "strerror", None) or error
            raise KernaiError(f"cannot read media file {self.data!r}: {why}") from error

    def to_base64(self) -> str:
        """The payload as base64 text. Raises what `read_bytes` raises."""
        from base64 import b64encode

        return b64encode(self.read_bytes()).decode("ascii")

    def to_dict(self, *, inline: bool = False) -> dict[str, object]:
        """A reference as JSON data, without the payload or a URL's query.

        With `inline`, it contains the media itself: ``"base64"`` for bytes and files, ``"url"`` for the whole URL.
        """
        reference: dict[str, object] = {
            "id": self.id, "kind": self.kind, "mime_type": self.mime_type, "source": self.source,
        }
        if isinstance(self.data, bytes):
            reference["size"] = len(self.data)
        else:
            reference["data"] = self._shown
        if self.metadata:
            reference["metadata"] = jsonable(self.metadata)
        if inline and self.source == "url":
            reference["url"] = self.data
        elif inline:
            reference["base64"] = self.to_base64()
        return reference

    @classmethod
    def from_inline(cls, reference: Mapping[str, Any]) -> Media | None:
        """The media in an inline reference; None for any other reference.

        A path in it is never opened: a conversation may come from anybody. Raises `ValueError` for invalid base64.
        """
        held, url = reference.get("base64"), reference.get("url")
        kind = reference["kind"], reference.get("mime_type", FALLBACK_MIME)
        metadata = reference.get("metadata") or {}
        if isinstance(held, str):
            return cls(*kind, "bytes", _from_base64(held, reference.get("id")), metadata)
        return cls(*kind, "url", url, metadata) if isinstance(url, str) else None

    @property
    def _shown(self) -> str:
        data = self.data if isinstance(self.data, str) else f"{len(self.data)} bytes"
        return shown_url(data) if self.source == "url" else data

    def __hash__(self) -> int:
        return hash((self.id, self.source, self.mime_type))

    def __repr__(self) -> str:
        return f"Media({self.kind} {self.mime_type} {self.source}={self._shown!r} id={self.id})"

    def __reduce__(self) -> tuple[object, ...]:
        # a mapping proxy cannot be copied or pickled; the plain fields can
        return (Media, (self.kind, self.mime_type, self.source, self.data, dict(self.metadata), self.payload))


class MediaReference(Media):
    """Media of a recording whose payload is missing. It has the id and the fields of the media."""

    __slots__ = ("_reference",)
    _reference: dict[str, Any]

    def __init__(self, reference: Mapping[str, Any]) -> None:
        data, metadata = reference.get("data", b""), reference.get("metadata") or {}
        super().__init__(reference["kind"], reference["mime_type"], reference["source"], data, metadata)
        object.__setattr__(self, "id", reference["id"])
        object.__setattr__(self, "_reference", dict(reference))

    def read_bytes(self) -> bytes:
        """Raises `KernaiError`: only the run's store, or the source of the media, has the payload."""
        raise KernaiError(f"the recording has a reference to {self.id}, but not its data")

    def to_dict(self, *, inline: bool = False) -> dict[str, object]:
        """The reference; there is no payload to inline."""
        del inline
        return dict(self._reference)

    def __reduce__(self) -> tuple[object, ...]:
        return (MediaReference, (self._reference,))


class MediaStore:
    """The media of a run and its sub-runs, by id. Thread-safe. An empty store is true in a condition."""

    # No lock: each method does one operation on a dictionary with plain texts as keys, which is atomic.

    def __init__(self, media: Iterable[Media] = ()) -> None:
        self._media: dict[str, Media] = {}
        for one in media:
            self.put(one)

    def put(self, media: Media) -> Media:
        """Adds media and returns it. Raises `KernaiError` if the store has other data under the same id."""
        check_type(media, Media, "a MediaStore holds Media")
        known = self._media.setdefault(media.id, media)
        # a path may have the same characters as some bytes, and so the same id, although the media are different
        if (known.source, known.data) != (media.source, media.data):
            raise KernaiError(
                f"{media.id} is already in the store with other data ({known.source} there, {media.source} given)")
        return media

    def fetch(self, media_id: str) -> Media:
        """The media with that id. Raises `KernaiError` if there is none."""
        media = self.get(media_id)
        if media is None:
            raise KernaiError(f"no media with id {media_id!r} in the store")
        return media

    def get(self, media_id: str) -> Media | None:
        """The media with that id, or None."""
        return self._media.get(media_id)

    def __contains__(self, media_id: object) -> bool:
        return media_id in self._media

    def __iter__(self) -> Iterator[Media]:
        return iter(list(self._media.values()))

    def __len__(self) -> int:
        return len(self._media)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"MediaStore({len(self)} media)"


def kind_of(mime_type: str) -> str:
    """The media kind of a MIME type: ``document`` for all but image, audio and video."""
    first = mime_type.partition("/")[0].lower()
    return first if first in KINDS else "document"


def _typed(name: str, kind: str | None, mime_type: str | None) -> tuple[Kind, str]:
    if mime_type is None:
        ending = re.search(r"[^/]\.([A-Za-z0-9]+)\Z", name)
        mime_type = MIME_TYPES.get(ending[1].lower() if ending else "", FALLBACK_MIME)
    return cast("Kind", kind_of(str(mime_type)) if kind is None else kind), mime_type


def _from_base64(held: str | bytes, where: object) -> bytes:
    from binascii import a2b_base64

    try:
        return a2b_base64(held, strict_mode=True)
    except ValueError as error:
        raise ValueError(f"the payload of {where} is not base64: {error}") from error
