"""The types that an input may have. Each checks and converts a JSON value, and provides its JSON Schema.

A type is a node; types that contain others are trees of nodes, or graphs, since a record may contain itself. A
validation visits the value once. A fault is noted where it is found, with a path relative to that node; each container
adds its own key on the way up, so a call without faults pays nothing for paths.

This module has `Validation`, which collects the faults of a value, and the types that contain no others; those that do
are in `containers`. The texts of faults are for models: short, and without `<`, so that no value can forge markup.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from functools import lru_cache
from itertools import islice
from typing import Any, Final, NamedTuple

from kernai._util.api import Once
from kernai.blocks.grammar import ASCII_SPACE
from kernai.errors import SkillInputError
from kernai.inputs.schema import NO_VALUE, WORDS, Schema, label_of, sample_of
from kernai.jsonio.json_data import LONGEST_QUOTED, copy_of, is_scalar, quoted, value_in
from kernai.values.media import Media, MediaStore

_SHOWN_KEYS = 8
_MOST_LINES = 100  # of faults in one message; `SkillInputError.faults` has them all
_LONG_INTEGER = 200  # bits; longer ones are described, not shown


class Fault(NamedTuple):
    """What is wrong with one value; `path` leads to it from the node that reports it, `read_as` is a union's member."""

    path: tuple[str | int, ...]
    message: str
    read_as: InputType | None = None


class Validation:
    """The validation of one value: the available media, and the faults found so far.

    With `repair`, numbers and booleans may be given as strings. `memo` has the results of unions: without these, nested
    unions would be tried exponentially often.
    """

    __slots__ = ("faults", "media_store", "memo", "repair")

    def __init__(self, media_store: MediaStore | None = None, *, repair: bool = False) -> None:
        self.media_store = media_store
        self.repair = repair
        self.memo: dict[tuple[int, int, bool], tuple[Any, list[Fault]]] = {}
        self.faults: list[Fault] = []

    def refuse(self, expected: str, received: object, path: tuple[str | int, ...] = ()) -> Any:
        """Notes a fault, and returns None in place of a value."""
        self.faults.append(Fault(path, f"expected {expected}, received {shown(received)}"))

    def inside(self, key: str | int, kind: InputType, value: object) -> Any:
        """Converts the value under `key`, and prepends `key` to the paths of faults in it."""
        before = len(self.faults)
        made = kind.convert(value, self)
        if len(self.faults) > before:
            self.faults[before:] = [Fault((key, *one.path), one.message) for one in self.faults[before:]]
        return made

    def tried(self, kind: InputType, value: object, *, repair: bool) -> tuple[Any, list[Fault]]:
        """The converted value and its faults, which are not noted here."""
        trial = Validation(self.media_store, repair=repair)
        trial.memo = self.memo
        return kind.convert(value, trial), trial.faults


def shown(value: object) -> str:
    """A received value in a few words, with JSON's names of types."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return f"boolean {json.dumps(value)}"
    if isinstance(value, str):
        return f"string {quoted(value)}"
    if isinstance(value, int):
        short = abs(value).bit_length() <= _LONG_INTEGER
        return f"integer {int(value)}" if short else f"an integer of {value.bit_length()} bits"
    if isinstance(value, float):
        return f"number {float(value)!r}"
    if isinstance(value, (list, tuple)):
        return f"list of {len(value)} item{'s' if len(value) != 1 else ''}" if value else "empty list"
    if isinstance(value, Mapping):
        keys = [quoted(str(key)) for key in islice(value, _SHOWN_KEYS)] + (["…"] if len(value) > _SHOWN_KEYS else [])
        return f"object with key{'s' if len(value) != 1 else ''} {', '.join(keys)}" if value else "empty object"
    return f"a Python {type(value).__name__}"


def dotted(path: Iterable[str | int]) -> str:
    """A path as text: ``tickets[1].priority``; a key that is not a name is quoted in brackets."""
    text = ""
    for key in path:
        if isinstance(key, int):
            text += f"[{key}]"
        elif re.fullmatch(r"[^\W\d][\w-]*", key) and len(key) <= LONGEST_QUOTED:
            text += f".{key}" if text else key
        else:
            text += f"[{quoted(key)}]"
    return text


def input_error(faults: Sequence[Fault], whole: str, notes: Iterable[str], usage: str) -> SkillInputError:
    """An error that lists all faults, those without a path as faults of the `whole`, and shows a correct call."""
    pairs = tuple((dotted(one.path), one.message) for one in faults)
    lines = [f"{path or whole}: {message}" for path, message in pairs[:_MOST_LINES]]
    if len(pairs) > _MOST_LINES:
        lines.append(f"… and {len(pairs) - _MOST_LINES} more faults")
    return SkillInputError("\n".join([*lines, *notes, *([f"Usage: {usage}"] if usage else [])]), pairs)


# --------------------------------------------------------------------------------------------------------------- types

MEDIA_PATTERN = "^media_[0-9a-f]{12}$"


class InputType:
    """A type; one node of the tree.

    `exact` is the class whose values need no conversion. `natural` are the Python classes of the JSON values that the
    type is written in: a union first tries the members whose `natural` has the value's class.
    """

    exact: type | None = None
    natural: frozenset[type] = frozenset()
    schema: Schema
    """The type as JSON Schema, in the form of `kernai.inputs.schema`. Do not change it."""

    def convert(self, value: object, validation: Validation) -> Any:
        """The converted value. Faults are added to `validation`; if there are any, the return value means nothing."""
        raise NotImplementedError

    @Once
    def label(self) -> str:
        """The type in words, for the model."""
        return label_of(self.schema)

    def sample(self) -> Any:
        """A JSON value of the type, as `sample_of` makes it."""
        return sample_of(self.schema)

    def checked(
        self, value: object, media_store: MediaStore | None = None, *, repair: bool = False
    ) -> tuple[Any, list[Fault]]:
        """The converted value and its faults."""
        validation = Validation(media_store, repair=repair)
        try:
            return self.convert(value, validation), validation.faults
        except RecursionError:  # many levels in a union that contains itself, or a caller's own data
            return None, [Fault((), "nested too deeply")]

    def takes(self, value: object) -> bool:
        """Whether a JSON value fits, in a run without media."""
        return not self.checked(value)[1]

    def from_text(self, text: str) -> Any:
        """The number or boolean that plain text means as the only input, else the text."""
        value = text if self.takes(text) else literal_of(text)
        if type(value) is int and int not in self.natural:
            with suppress(OverflowError):
                value = float(value)
        return value if type(value) in self.natural else text

    def _from_string(self, value: object, validation: Validation) -> Any:
        """The number or boolean in a string, if repair allows it; any other value is a fault."""
        if validation.repair and isinstance(value, str):
            made = self.from_text(value)
            if made is not value:
                return self.convert(made, validation)
        return validation.refuse(self.label, value)


class WrapperType(InputType):
    """A type whose values are those of another one, `inner`, or some of them."""

    def __init__(self, inner: InputType) -> None:
        self.inner = inner

    @Once
    def natural(self) -> frozenset[type]:
        return self.inner.natural

    def convert(self, value: object, validation: Validation) -> Any:
        return self.inner.convert(value, validation)


def underlying(kind: InputType) -> InputType:
    """The type inside all wrappers. An alias that is still being built has none."""
    while isinstance(kind, WrapperType) and hasattr(kind, "inner"):
        kind = kind.inner
    return kind


class AnyType(InputType):
    """`Any`, and a parameter without an annotation."""

    natural = frozenset({str, int, float, bool, type(None), list, dict})

    def __init__(self) -> None:
        self.schema = {}

    def convert(self, value: object, validation: Validation) -> Any:  # noqa: ARG002 - everything fits
        return copy_of(value)  # a skill must not be able to change the recording


class PlainType(InputType):
    """`str`, `int`, `bool`, `None`, which JSON has too. A bool is not accepted as an int, although it is a subclass."""

    exact: type

    def __init__(self, name: str, exact: type) -> None:
        self.exact = exact
        self.natural = frozenset({exact})
        self.schema = {"type": name}

    def convert(self, value: object, validation: Validation) -> Any:
        if isinstance(value, self.exact) and (self.exact is bool or not isinstance(value, bool)):
            return value
        return self._from_string(value, validation)


class FloatType(InputType):
    """`float`: any finite number. An integer becomes a float."""

    natural = frozenset({float})

    def __init__(self) -> None:
        self.schema = {"type": "number"}

    def convert(self, value: object, validation: Validation) -> Any:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            with suppress(OverflowError):
                if math.isfinite(number := float(value)):
                    return number
            return validation.refuse("finite number", value)
        return self._from_string(value, validation)


class TextType(InputType):
    """A class whose values are written as text: dates, times, decimals, UUIDs. Its instances are accepted too.

    `shape` is what the text must match, since Python's own parsers accept more.
    """

    natural = frozenset({str})

    def __init__(self, kind: type, name: str, example: str, parse: Callable[[Any], object], schema: Schema,
                 shape: str = ".*", sources: tuple[type, ...] = (str,)) -> None:
        self.kind = kind
        self.schema = {**schema, "examples": [example], WORDS: f'{name} such as "{example}"'}
        self._parse = parse
        self._shape = re.compile(shape, re.DOTALL)
        self._sources = sources

    def convert(self, value: object, validation: Validation) -> Any:
        if isinstance(value, self.kind):
            return value
        bare = value.strip(ASCII_SPACE) if isinstance(value, str) else value
        has_shape = not isinstance(bare, str) or self._shape.fullmatch(bare)
        if isinstance(value, self._sources) and not isinstance(value, bool) and has_shape:
            with suppress(ValueError, ArithmeticError):
                return self._parse(bare)
        return validation.refuse(self.label, value)


class MediaType(InputType):
    """`Media`: only the id of a media in the run's store is accepted; text is never read as a path or a URL."""

    natural = frozenset({str})

    def __init__(self) -> None:
        self.schema = {
            "type": "string", "pattern": MEDIA_PATTERN, "description": "the id of a media in this conversation",
            "examples": ["media_0a1b2c3d4e5f"], WORDS: 'media id such as "media_0a1b2c3d4e5f"',
        }

    def convert(self, value: object, validation: Validation) -> Any:
        if isinstance(value, Media):
            return value
        store = validation.media_store
        if isinstance(value, str) and store is not None and (found := store.get(value.strip(ASCII_SPACE))) is not None:
            return found
        return validation.refuse(self.schema["description"], value)


class ChoiceType(InputType):
    """`Literal` and `Enum`: one of several values, which are distinguished by type too (`True` is not 1).

    A member of an enum is found by its value, else by its name, one of `members`. The member itself is accepted too.
    """

    def __init__(self, choices: Iterable[Any], members: Mapping[str, Enum]) -> None:
        pairs = [(one.value if isinstance(one, Enum) else one, one) for one in choices]
        accepted: list[tuple[Any, Any]] = [*(pair for pair in pairs if is_scalar(pair[0])), *members.items()]
        # JSON writers drop the ".0"
        accepted += [(int(one), choice) for one, choice in accepted if isinstance(one, float) and one.is_integer()]
        # by type and value, since True equals 1; the first of several counts
        self._results = {(type(value), value): choice for value, choice in reversed(accepted)}
        self._members = tuple(members.values())
        self.natural = frozenset(kind for kind, _ in self._results)
        written = (value if is_scalar(value) else choice.name for value, choice in pairs)
        offered = {(type(one), one): one for one in written}.values()
        kinds = {PLAIN[type(one)].label for one in offered}
        self.schema = {"enum": [*offered], **({"type": kinds.pop()} if len(kinds) == 1 else {})}

    def convert(self, value: object, validation: Validation) -> Any:
        if type(value) in self.natural:
            found = self._results.get((type(value), value), NO_VALUE)
            if found is not NO_VALUE:
                return found
        if any(value is member for member in self._members):
            return value
        return self._from_string(value, validation)

    def from_text(self, text: str) -> Any:
        value = literal_of(text)
        return value if (str, text) not in self._results and (type(value), value) in self._results else text


NULL: Final = PlainType("null", type(None))
PLAIN: Final[dict[type, InputType]] = {
    str: PlainType("string", str),
    int: PlainType("integer", int),
    bool: PlainType("boolean", bool),
    type(None): NULL,
    float: FloatType(),
}
ANY: Final = AnyType()
MEDIA: Final = MediaType()

_DECIMAL = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"  # Decimal accepts "NaN", "1_0" and more
DECIMAL_PATTERN = rf"^[ \t\n\r\f\v]*{_DECIMAL}[ \t\n\r\f\v]*$"
_DECIMAL_SCHEMA = {"anyOf": [{"type": "string", "pattern": DECIMAL_PATTERN}, {"type": "integer"}]}
_TIME = r"(?!(?:.*[T ])?[0-9]{2}(?::?[0-9]{2})?[.,]).*"  # Python reads "19.99" as 19 hours and a fraction of a second
_UUID = r"[0-9a-fA-F]{8}(?:-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12}"  # UUID drops hyphens and braces anywhere


@lru_cache(maxsize=1)
def text_types() -> Mapping[type, TextType]:
    """Dates, times, decimals and UUIDs. Their modules are loaded by the first skill that may use them."""
    from datetime import date, datetime, time
    from decimal import Decimal
    from uuid import UUID

    def written(form: str) -> Schema:
        return {"type": "string", "format": form}

    made = [
        TextType(date, "date", "2024-01-31", date.fromisoformat, written("date")),
        TextType(datetime, "datetime", "2024-01-31T12:00:00", datetime.fromisoformat, written("date-time"), _TIME),
        TextType(time, "time", "12:00:00", time.fromisoformat, written("time"), _TIME),
        TextType(Decimal, "decimal number as text", "19.99", Decimal, _DECIMAL_SCHEMA, _DECIMAL, (str, int)),
        TextType(UUID, "UUID", "123e4567-e89b-42d3-a456-426614174000", UUID, written("uuid"), _UUID),
    ]
    return {one.kind: one for one in made}


def literal_of(text: str) -> Any:
    """The number or boolean that a text is in JSON, ignoring white space around it, else the text."""
    value = value_in(text.strip(ASCII_SPACE))
    return value if type(value) in (int, float, bool) else text
