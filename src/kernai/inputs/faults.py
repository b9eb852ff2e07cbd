"""What is wrong with a value: faults, the `Validation` that collects them, and their texts.

The texts are for models. They are short and contain no `<`, so that no value can forge markup.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kernai.errors import SkillInputError
from kernai.jsonio.json_data import LONGEST_QUOTED, quoted

if TYPE_CHECKING:
    from kernai.inputs.types import InputType
    from kernai.values.media_store import MediaStore


class Sentinel:
    """A value that is compared by identity, even a copied or pickled one: `name` is its name in its module."""

    def __init__(self, name: str, module: str) -> None:
        self.name = name
        self.__module__ = module

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> str:
        return self.name


NO_VALUE: Final = Sentinel("NO_VALUE", __name__)
"""No value was given, or there can be none."""

_SHOWN_KEYS = 8
_MOST_LINES = 100  # of faults in one message; `SkillInputError.faults` has them all
_LONG_INTEGER = 200  # bits; longer ones are described, not shown


class Fault(NamedTuple):
    """What is wrong with one value; `path` leads to it from the node that reports it."""

    path: tuple[str | int, ...]
    message: str


class Validation:
    """The validation of one value: available media, faults so far. `repair`: literals may be given as strings."""

    __slots__ = ("faults", "media_store", "memo", "repair")

    def __init__(
        self, media_store: MediaStore | None = None, memo: dict[tuple[int, int, bool], Any] | None = None, *,
        repair: bool = False,
    ) -> None:
        self.media_store = media_store
        self.repair = repair
        self.faults: list[Fault] = []
        # results of unions for containers, without which nested unions would be tried exponentially often
        self.memo: dict[tuple[int, int, bool], Any] = {} if memo is None else memo

    def refuse(self, expected: str, received: object, path: tuple[str, ...] = ()) -> None:
        self.faults.append(Fault(path, f"expected {expected}, received {shown(received)}"))

    def missing(self, key: str, expected: str) -> None:
        self.faults.append(Fault((key,), f"required, but missing: expected {expected}, received nothing"))

    def inside(self, key: str | int, kind: InputType, value: object) -> Any:
        """Converts the value under `key`, which is put before the paths of the faults found there."""
        faults = self.faults
        before = len(faults)
        made = kind.convert(value, self)
        for at in range(before, len(faults)):
            path, message = faults[at]
            faults[at] = Fault((key, *path), message)
        return made


def shown(value: object) -> str:
    """A received value in a few words, as JSON calls it."""
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
        return _shown_object(value)
    return f"a Python {type(value).__name__}"


def _shown_object(value: Mapping[Any, Any]) -> str:
    if not value:
        return "empty object"
    keys = [quoted(str(key)) for key, _ in zip(value, range(_SHOWN_KEYS), strict=False)]
    more = ", …" if len(value) > _SHOWN_KEYS else ""
    return f"object with {'keys' if len(value) > 1 else 'key'} {', '.join(keys)}{more}"


def dotted(path: Iterable[str | int]) -> str:
    """A path as text: ``tickets[1].priority``; a key that is no name is quoted in brackets."""
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
    """An error that lists all faults, those without a path as faults of the `whole`, and shows a right call."""
    pairs = tuple((dotted(path), message) for path, message in faults)
    lines = [f"{path or whole}: {message}" for path, message in pairs[:_MOST_LINES]]
    if len(pairs) > _MOST_LINES:
        lines.append(f"… and {len(pairs) - _MOST_LINES} more faults")
    return SkillInputError("\n".join([*lines, *notes, *([f"Usage: {usage}"] if usage else [])]), pairs)
