"""The types an input may have. Each one checks a value as JSON gives it, and converts it.

A type is a node; types that hold others are trees of nodes (or graphs: a record may hold itself). A validation goes
over the value once. Faults are put down where they are found, with the path relative to that node; each container adds
its own key on the way up. So a call without faults pays nothing for paths.

The types without others inside stand here, lists and their like in `containers`, records in `records`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from enum import Enum
from functools import lru_cache
from typing import Any, Final, cast

from kernai.blocks.grammar import ASCII_SPACE
from kernai.errors import KernaiError
from kernai.inputs.faults import NO_VALUE, Validation
from kernai.inputs.schema import Definitions, Schema
from kernai.jsonio.json_data import quoted
from kernai.values.media import Media
from kernai.values.skill_result import plain

_SHOWN_CHOICES = 50
_LONGEST_DEFAULT = 60  # characters of a default in a listing

MEDIA_PATTERN = "^media_[0-9a-f]{12}$"
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")


class InputType:
    """A node.

    `exact` is the class whose values need no conversion; `natural` are the classes of the JSON values that the type is
    written in, by which a union chooses; `label` is how a model reads it, `example` a JSON value that fits,
    `json_schema` the schema of a type that holds no others.
    """

    label: str = ""
    exact: type | None = None
    natural: frozenset[type] = frozenset()
    example: Any = NO_VALUE
    json_schema: Schema = {}  # noqa: RUF012 - never changed

    def convert(self, value: object, validation: Validation) -> Any:
        """The converted value; faults go to `validation`, and then what is returned means nothing."""
        raise NotImplementedError

    def takes(self, value: object) -> bool:
        """Whether a JSON value fits as it is, with no media at hand."""
        validation = Validation()
        self.convert(value, validation)
        return not validation.faults

    def from_text(self, text: str) -> Any:  # noqa: ARG002 - for those that are written as a bare literal
        """What plain text means where it is the only input: a number or boolean, else NO_VALUE."""
        return NO_VALUE

    def _from_string(self, value: object, validation: Validation) -> Any:
        """A literal that was given as a string, where strings are nothing else here; any other value is a fault."""
        if validation.repair and isinstance(value, str) and str not in self.natural:
            made = self.from_text(value)
            if made is not NO_VALUE:
                return made
        validation.refuse(self.label, value)
        return None

    def takes_whole(self, value: dict[str, Any] | list[Any]) -> bool:  # noqa: ARG002 - for those of free shape
        """Whether an object or a list may be the only input itself, without its name around it."""
        return False

    def tags(self) -> frozenset[str]:
        """Of a record the fields that hold one of some values, by which a union's members may be told apart."""
        return frozenset()

    def sample(self, inside: tuple[InputType, ...] = ()) -> Any:  # noqa: ARG002 - for those that can hold themselves
        """A JSON value that fits, or NO_VALUE where none is finite; `inside` are the records around it."""
        return self.example

    def outline(self, path: str, seen: set[InputType]) -> Iterator[str]:  # noqa: ARG002 - for those that have fields
        """A line for each nested field; records in `seen` have been described before."""
        return iter(())

    def schema(self, definitions: Definitions) -> Schema:  # noqa: ARG002 - for those that hold records
        """The type as JSON Schema; records stand in `definitions`."""
        return cast("Schema", copied(self.json_schema))


class AnyType(InputType):
    """`Any`, and a parameter without an annotation."""

    label = "any value"
    natural = frozenset({str, int, float, bool, type(None), list, dict})
    example = "..."

    def convert(self, value: object, validation: Validation) -> Any:  # noqa: ARG002 - whatever it is, it fits
        return copied(value)

    def takes_whole(self, value: dict[str, Any] | list[Any]) -> bool:  # noqa: ARG002 - whatever it is, it fits
        return True


class PlainType(InputType):
    """`str`, `int`, `bool`, `None`: what JSON has itself. A bool is no int, though Python says so."""

    def __init__(self, label: str, exact: type, example: object) -> None:
        self.label = label
        self.exact = exact
        self.natural = frozenset({exact})
        self.example = example
        self.json_schema = {"type": label}

    def convert(self, value: object, validation: Validation) -> Any:
        if isinstance(value, self.exact or ()) and (self.exact is bool or not isinstance(value, bool)):
            return value
        return self._from_string(value, validation)

    def from_text(self, text: str) -> Any:
        bare = text.strip(ASCII_SPACE)
        if self.exact is bool:
            return {"true": True, "false": False}.get(bare, NO_VALUE)
        if self.exact is int and _INTEGER.fullmatch(bare):
            return _parsed(int, bare)
        return NO_VALUE


class FloatType(InputType):
    """`float`: any finite number; an integer becomes one."""

    label = "number"
    natural = frozenset({float})
    example = 1.5
    json_schema: Schema = {"type": "number"}  # noqa: RUF012 - never changed

    def convert(self, value: object, validation: Validation) -> Any:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            number = _parsed(float, value)
            if number is not NO_VALUE and math.isfinite(number):
                return number
            validation.refuse("finite number", value)
            return None
        return self._from_string(value, validation)

    def from_text(self, text: str) -> Any:
        bare = text.strip(ASCII_SPACE)
        number = _parsed(float, bare) if _NUMBER.fullmatch(bare) else math.inf
        return number if math.isfinite(number) else NO_VALUE


class TextType(InputType):
    """A class with a usual text: dates, times, decimals, UUIDs. An instance of the class is taken as it is."""

    natural = frozenset({str})

    def __init__(self, kind: type, name: str, example: str, parse: Callable[[Any], object], schema: Schema,
                 sources: tuple[type, ...] = (str,), but: tuple[type, ...] = ()) -> None:
        self.label = f'{name} such as "{example}"'
        self.example = example
        self.kind = kind
        self._parse = parse
        self.json_schema = {**schema, "examples": [example]}
        self._sources = sources
        self._but = but

    def shown_by(self, example: str) -> TextType:
        """The same type with another example."""
        other = copy(self)
        other.label = self.label.replace(self.example, example)
        other.example = example
        other.json_schema = {**self.json_schema, "examples": [example]}
        return other

    def convert(self, value: object, validation: Validation) -> Any:
        if isinstance(value, self.kind) and not isinstance(value, self._but):
            return value
        if isinstance(value, self._sources) and not isinstance(value, bool):
            try:
                return self._parse(value.strip(ASCII_SPACE) if isinstance(value, str) else value)
            except (ValueError, ArithmeticError):
                pass
        validation.refuse(self.label, value)
        return None


class MediaType(InputType):
    """`Media`: the id of a media in the run's store, and nothing else; text is never read as a path or a URL."""

    label = 'media id such as "media_0a1b2c3d4e5f"'
    natural = frozenset({str})
    example = "media_0a1b2c3d4e5f"
    json_schema: Schema = {  # noqa: RUF012 - never changed
        "type": "string", "pattern": MEDIA_PATTERN, "description": "the id of a media in this conversation",
    }

    def convert(self, value: object, validation: Validation) -> Any:
        if isinstance(value, Media):
            return value
        if isinstance(value, str) and validation.media_store is not None:
            try:
                return validation.media_store.fetch(value.strip(ASCII_SPACE))
            except KernaiError:
                pass
        expected = "the id of a media in this conversation" if isinstance(value, str) else self.label
        validation.refuse(expected, value)
        return None


class ChoiceType(InputType):
    """`Literal` and `Enum`: one of some values, told apart by type too (`True` is not 1).

    An enum's member is found by its value, else by its name. The member itself is taken as well.
    """

    def __init__(self, choices: Sequence[object], aliases: Mapping[str, object] | None = None) -> None:
        self._results: dict[tuple[type, object], object] = {}
        samples: list[object] = []
        for choice in choices:
            value = choice.value if isinstance(choice, Enum) else choice
            if value is None or type(value) in (str, int, float, bool):
                self._add(value, choice)
                samples.append(value)
            elif isinstance(choice, Enum):
                samples.append(choice.name)
        self._members = tuple(choice for choice in choices if isinstance(choice, Enum))
        for name, choice in [*((one.name, one) for one in self._members), *(aliases or {}).items()]:
            self._add(name, choice)
        self.natural = frozenset(kind for kind, _ in self._results)
        named = [quoted(one) if isinstance(one, str) else json.dumps(one) for one in samples[:_SHOWN_CHOICES]]
        more = ["…"] if len(samples) > _SHOWN_CHOICES else []
        self.example = samples[0] if samples else NO_VALUE
        kinds = {PLAIN[type(one)].label for one in samples}
        self.json_schema = {"enum": list({(type(one), one): one for one in samples}.values())}
        self.json_schema |= {"type": kinds.pop()} if len(kinds) == 1 else {}
        self.label = ("one of " if len(samples) > 1 else "") + ", ".join([*named, *more])

    def _add(self, value: object, choice: object) -> None:
        self._results.setdefault((type(value), value), choice)
        if isinstance(value, float) and value.is_integer():
            self._results.setdefault((int, int(value)), choice)  # JSON writers drop the ".0"

    def convert(self, value: object, validation: Validation) -> Any:
        if type(value) in self.natural:
            found = self._results.get((type(value), value), NO_VALUE)
            if found is not NO_VALUE:
                return found
        if any(value is member for member in self._members):
            return value
        return self._from_string(value, validation)

    def from_text(self, text: str) -> Any:
        if (str, text) in self._results:
            return NO_VALUE
        for literal in (int, bool):
            value = PLAIN[literal].from_text(text)
            if (literal, value) in self._results:
                return value
        return NO_VALUE


NULL: Final = PlainType("null", type(None), None)
PLAIN: Final[dict[type, InputType]] = {
    str: PlainType("string", str, "..."),
    int: PlainType("integer", int, 1),
    bool: PlainType("boolean", bool, example=True),
    type(None): NULL,
    float: FloatType(),
}


ANY: Final = AnyType()
MEDIA: Final = MediaType()

_DECIMAL = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
DECIMAL_PATTERN = rf"^[ \t\n\r\f\v]*{_DECIMAL}[ \t\n\r\f\v]*$"
_DECIMAL_SCHEMA = {"anyOf": [{"type": "string", "pattern": DECIMAL_PATTERN}, {"type": "integer"}]}
_HALF_TIME = r"(?:^|[T ])[0-9]{2}(?::?[0-9]{2})?[.,]"
_UUID = r"[0-9a-fA-F]{8}(?:-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12}"


@lru_cache(maxsize=1)
def text_types() -> Mapping[type, TextType]:
    """Dates, times, decimals and UUIDs. Their modules are loaded by the first skill that may use them."""
    from datetime import date, datetime, time
    from decimal import Decimal
    from uuid import UUID

    def decimal(given: str | int) -> Decimal:
        if isinstance(given, str) and not re.fullmatch(_DECIMAL, given):  # Decimal itself takes "NaN", "1_0" and more
            raise ValueError("not a decimal")
        return Decimal(given)

    def uuid(given: str) -> UUID:
        if not re.fullmatch(_UUID, given):  # UUID itself drops hyphens and braces anywhere
            raise ValueError("not a UUID")
        return UUID(given)

    def timed(parse: Callable[[str], object]) -> Callable[[str], object]:
        def parsed(given: str) -> object:
            if re.search(_HALF_TIME, given):  # Python reads "19.99" as 19 hours and a fraction of a second
                raise ValueError("not a time")
            return parse(given)

        return parsed

    def written(form: str) -> Schema:
        return {"type": "string", "format": form}

    made = [
        # a datetime is a date, says Python
        TextType(date, "date", "2024-01-31", date.fromisoformat, written("date"), but=(datetime,)),
        TextType(datetime, "datetime", "2024-01-31T12:00:00", timed(datetime.fromisoformat), written("date-time")),
        TextType(time, "time", "12:00:00", timed(time.fromisoformat), written("time")),
        TextType(Decimal, "decimal number as text", "19.99", decimal, _DECIMAL_SCHEMA, (str, int)),
        TextType(UUID, "UUID", "123e4567-e89b-42d3-a456-426614174000", uuid, written("uuid")),
    ]
    return {one.kind: one for one in made}


def _parsed(make: Callable[[Any], Any], value: object) -> Any:
    """NO_VALUE where Python cannot hold the number: too many digits, out of a float's range."""
    try:
        return make(value)
    except (ValueError, OverflowError):
        return NO_VALUE


def copied(value: Any) -> Any:
    """`value` with its lists and dicts copied at every depth: what a skill changes must not change the recording."""
    if type(value) is dict:
        return {key: copied(one) for key, one in value.items()}
    if type(value) is list:
        return [copied(one) for one in value]
    return value


def described(path: str, label: str, description: str, *, required: bool, default: object = NO_VALUE) -> str:
    """One line of a listing: ``limit (integer, default 10): how many``."""
    need = "required" if required else "optional"
    if not required and default is not NO_VALUE:
        need = f"default {default_text(default)}" if default_text(default) else "optional"
    about = f": {' '.join(description.split())}" if description.strip() else ""
    return f"{path} ({label}, {need}){about}"


def default_text(default: object) -> str:
    """A default as JSON; empty where it has none, or a long one."""
    try:
        text = json.dumps(plain(default), ensure_ascii=False)
    except (KernaiError, ValueError):
        return ""
    return text if len(text) <= _LONGEST_DEFAULT else ""
