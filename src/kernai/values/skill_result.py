"""`SkillResult`: what a call returned, in the same form for all return values of a skill's function."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from enum import Enum
from typing import Any, Final, NoReturn, Self, TypeGuard

from kernai._util.api import Replaceable, check_type, read_only
from kernai.errors import Control, KernaiError
from kernai.jsonio.json_data import MAX_DEPTH, Conversion, is_scalar
from kernai.values.media import Media
from kernai.values.message import Part

_BYTES = (bytes, bytearray, memoryview)


class SkillResult(Replaceable):
    """Text, media and metadata of one call. Read-only.

    A skill may return one to send media besides text, or metadata that are recorded but not shown to the model. `parts`
    has the texts and the media in the order in which the model reads them.
    """

    # One is made for every call, nearly always of a plain text, so it has slots and properties, as `Message` has.
    __slots__ = ("_metadata", "_parts")
    _FIELDS = ("text", "media", "metadata")
    parts: Final[tuple[Part, ...]] = read_only("_parts")

    _parts: tuple[Part, ...]
    _metadata: dict[str, object] | None

    def __init__(
        self, text: object = "", media: Media | Iterable[Media] | None = None,
        metadata: Mapping[str, object] | None = None,
    ) -> None:
        given = ((text,) if text else ()) if isinstance(text, str) else SkillResult.of(text).parts
        found = tuple(media or ()) if media is None or isinstance(media, Iterable) else (media,)
        for one in found:
            check_type(one, Media, "media may hold Media only", "; build it with Media.from_...")
        check_type(metadata, Mapping | None, "metadata must be a mapping")
        self._parts = (*given, *found)
        self._metadata = dict(metadata) if metadata else None

    @property
    def text(self) -> str:
        """The texts among the parts, joined."""
        return "".join([part for part in self._parts if isinstance(part, str)])

    @property
    def media(self) -> tuple[Media, ...]:
        return tuple(part for part in self._parts if isinstance(part, Media))

    @property
    def metadata(self) -> dict[str, object]:
        """A copy of the metadata."""
        return dict(self._metadata or {})

    @classmethod
    def of(cls, value: object) -> SkillResult:
        """A skill's return value as a `SkillResult`.

        Text is unchanged. `Media`, and a list of texts and media that has media, become the parts. None is empty. Any
        other list, a dict, set, dataclass or pydantic model becomes JSON, followed by the media in it. Anything else
        becomes `str()`.

        Raises `KernaiError` for values without a text: bytes, a generator, an awaitable, data that contain themselves
        or nest deeper than 200 levels, an object without a `__str__` of its own.
        """
        if isinstance(value, SkillResult):
            return value
        made = object.__new__(SkillResult)
        made._parts = _parts_of(value)
        made._metadata = None
        return made

    def replaced(self, parts: Iterable[Part], metadata: Mapping[str, object]) -> Self:
        """The same kind of result with other parts and metadata."""
        made = object.__new__(type(self))
        made._parts = tuple(parts)
        made._metadata = dict(metadata) or None
        return made

    def __replace__(self, /, **changes: Any) -> Self:
        if changes.keys() <= {"metadata"}:
            return self.replaced(self._parts, changes.get("metadata", self._metadata) or {})  # keeps the parts' order
        return super().__replace__(**changes)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SkillResult):
            return NotImplemented
        return self._parts == other._parts and self._metadata == other._metadata

    def __hash__(self) -> int:
        return hash(self._parts)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"SkillResult(parts={self._parts!r}, metadata={self.metadata!r})"


def _parts_of(value: Any) -> tuple[Part, ...]:
    if type(value) is str:
        return (value,) if value else ()
    if value is None:
        return ()
    if isinstance(value, Media):
        return (value,)
    if _are_parts(value):
        return tuple(value)
    if is_data(value):
        media: list[Media] = []
        return (json.dumps(plain(value, media), ensure_ascii=False), *media)
    return _parts_of(_text_of(value))


def _are_parts(value: Any) -> TypeGuard[Sequence[Part]]:
    """Whether a value is a list of texts and media with media in it. A list of texts alone is data, and not joined."""
    if type(value) not in (list, tuple) or not all(isinstance(one, (str, Media)) for one in value):
        return False
    return any(isinstance(one, Media) for one in value)


def plain(value: object, media: list[Media] | None = None) -> Any:
    """`value` as JSON data that shares nothing with it.

    Dates, times, UUIDs, decimals and paths become their usual text, an enum its value, a set a sorted list, and keys
    become text. Arrays become lists. NaN and the infinities, which JSON does not have, become ``"NaN"`` and
    ``"Infinity"``. Media become their id and are added to `media`. Anything else becomes `str()`. Raises `KernaiError`
    as `SkillResult.of` does, and for two keys that become the same text.
    """
    return _Strict([] if media is None else media).of(value)


class _Strict(Conversion):
    """The policy for return values of skills: anything that would be lost raises an error."""

    deepest = MAX_DEPTH
    exporters = (("model_dump", {"mode": "json"}), *Conversion.exporters, ("tolist", {}))  # the last of arrays

    def __init__(self, media: list[Media]) -> None:
        super().__init__()
        self._media = media

    def held(self, value: Any) -> Any:
        if isinstance(value, SkillResult):
            return {"text": value.text, "media": value.media, "metadata": value.metadata}
        if type(value).__module__ == "numpy" and value.dtype.str[1:] in ("M8[ns]", "m8[ns]"):
            value = value.astype(f"{value.dtype.kind}8[us]")  # `tolist` turns nanoseconds into integers
        return None if isinstance(value, (Media, *_BYTES)) else super().held(value)

    def key(self, key: object) -> str:
        return json.dumps(self.of(key)) if key is None or isinstance(key, (bool, frozenset)) else _usual_text(key)

    def leaf(self, value: Any) -> Any:
        if isinstance(value, Media):
            if value not in self._media:
                self._media.append(value)
            return value.id
        if isinstance(value, float):
            return json.dumps(value)  # NaN, Infinity, -Infinity
        return int(value) if hasattr(value, "__index__") and not isinstance(value, type) else _usual_text(value)

    def refuse(self, why: str) -> NoReturn:
        raise KernaiError(why)

    def failed(self, value: object, error: Exception) -> NoReturn:  # noqa: ARG002 - the error describes the value
        raise error


def typed(value: object) -> Any:
    """The JSON data from which a typed input or answer is read: a named tuple becomes an object."""
    return _Typed([]).of(value)


class _Typed(_Strict):
    def of(self, value: object) -> Any:
        return value.name if isinstance(value, Enum) and not is_scalar(value.value) else super().of(value)

    def held(self, value: object) -> Any:
        return value._asdict() if isinstance(value, tuple) and hasattr(value, "_asdict") else super().held(value)


def is_data(value: object) -> bool:
    """Whether a returned value becomes JSON: neither text nor media nor a list of parts."""
    if isinstance(value, (Mapping, list, tuple, set, frozenset)):  # a set's text depends on Python's hash seed
        return not _are_parts(value)
    if isinstance(value, (Media, type)):
        return False
    return is_dataclass(value) or (hasattr(value, "model_dump") and hasattr(value, "model_dump_json"))


def _usual_text(value: object) -> str:
    """The usual text of a value inside data; for dates and times the ISO form."""
    if hasattr(value, "isoformat") and not isinstance(value, type):
        return str(value.isoformat())
    return _text_of(value)


def _text_of(value: object) -> str:
    kind = type(value).__name__
    if isinstance(value, _BYTES):
        raise KernaiError(f"{kind} have no text: return Media.from_bytes(data, mime_type=...) or decode them to str")
    if (hasattr(value, "__next__") or hasattr(value, "__anext__")) and type(value).__str__ is object.__str__:
        raise KernaiError(f"a {kind} has no text: a skill returns its result, it does not yield; return a list")
    if hasattr(value, "__await__") and not isinstance(value, type):
        raise KernaiError(f"a {kind} was not awaited: write the skill as 'async def' and await in it")
    if isinstance(value, str):
        return str.__str__(value)  # an enum's own text, not "Colour.RED"
    if isinstance(value, Control):
        raise KernaiError(f"a {kind} was returned, which has no effect: raise it")
    bare = type(value).__str__ is object.__str__ and type(value).__repr__ is object.__repr__
    # its address says nothing, nor does what a function that was not called or a pool's future shows
    if bare or (not isinstance(value, type) and any(hasattr(value, n) for n in ("__qualname__", "add_done_callback"))):
        raise KernaiError(
            f"a value of type {kind} has no text of its own: return text, a dict, a list or a dataclass, such as "
            "dict(row) for a row of a database"
        )
    return str(value)
