"""Turns any value into JSON data, and JSON text into data.

Writing traverses a value once. There are two policies for values that JSON does not have. The policy for recordings is
here and never fails: such values are written as text, never left out, and the result is valid ASCII JSON, even with
lone surrogates and non-finite numbers in it. The strict policy, for return values of skills, is `skill_result.plain`.

Reading accepts only strict JSON within bounds, so a model's text can neither crash a run nor silently lose a part.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from json.encoder import c_make_encoder, encode_basestring_ascii  # type: ignore[attr-defined]  # typeshed lacks the first
from math import isfinite
from typing import Any, NoReturn

MAX_DEPTH = 200
"""How many levels data may nest, when they are read and when they are written."""

# -------------------------------------------------------------------------------------------------------- writing

_PLAIN = frozenset({str, bool, type(None)})
#: larger integers are written in hexadecimal, since Python limits decimal digits
_LONG = 10**4000


class Conversion:
    """Converts a value to JSON data that shares nothing with it, by the policy for recordings.

    A stricter policy overrides the methods for keys and values that JSON does not have, and for faults.
    """

    # An event adds levels of its own around its data.
    deepest = MAX_DEPTH + 50
    #: methods that return an object's contents, and their arguments; the first that exists is called
    exporters: tuple[tuple[str, dict[str, Any]], ...] = (("to_dict", {}),)

    def __init__(self) -> None:
        self._above: set[int] = set()  # the ids of the containers around the current value

    def of(self, value: object) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return value
        try:
            if kind is dict or kind is list or kind is tuple:
                return self._enter(value, value)
            if isinstance(value, Enum):
                return self.of(value.value)
            if isinstance(value, str):
                return str.__str__(value)
            if isinstance(value, int) and -_LONG < value < _LONG:
                return int(value)
            if isinstance(value, float) and isfinite(value):
                return float(value)
            held = self.held(value)
            return self.leaf(value) if held is None else self._enter(value, held)
        except Exception as error:  # noqa: BLE001 - methods of a foreign class may raise anything
            return self.failed(value, error)

    def _enter(self, value: object, held: Any) -> Any:
        above = self._above
        if id(value) in above:
            return self.refuse(f"a {type(value).__name__} that contains itself cannot be written as JSON")
        if len(above) >= self.deepest:
            return self.refuse(f"data nested deeper than {self.deepest} levels cannot be written as JSON")
        above.add(id(value))
        try:
            if type(held) is dict or isinstance(held, Mapping):
                return self._object(value, held)
            if isinstance(held, (list, tuple)):
                return list(map(self.of, held))
            if isinstance(held, (set, frozenset)):  # their order depends on Python's hash seed
                return sorted(map(self.of, held), key=lambda one: json.dumps(one, sort_keys=True))
            return self.leaf(held) if type(held) is type(value) else self.of(held)
        finally:
            above.discard(id(value))

    def _object(self, value: object, held: Mapping[Any, Any]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for key, one in held.items():
            name = key if type(key) is str else self.key(key.value if isinstance(key, Enum) else key)
            if name in made:
                self.refuse(f"two keys of a {type(value).__name__} are both {name!r} when written as JSON")
            made[name] = one if type(one) in _PLAIN else self.of(one)
        return made

    def held(self, value: object) -> Any:
        """The contents of a container, a dataclass or an object that exports them; None for any other value."""
        if isinstance(value, (Mapping, list, tuple, set, frozenset)):
            return value
        if isinstance(value, type):
            return None
        for name, arguments in self.exporters:
            method = getattr(value, name, None)
            if callable(method):
                return method(**arguments)
        return {one.name: getattr(value, one.name, None) for one in fields(value)} if is_dataclass(value) else None

    def key(self, key: object) -> str:
        return json.dumps(self.of(key)) if isinstance(key, frozenset) else _text(key)

    def leaf(self, value: Any) -> Any:
        """The replacement for a value that has no contents and no form in JSON."""
        if isinstance(value, float):
            return repr(float(value))
        return hex(value) if isinstance(value, int) else _text(value)

    def refuse(self, why: str) -> Any:  # noqa: ARG002 - for a policy that raises it
        """The replacement for data that contain themselves or nest too deeply.

        Also called if two keys become equal; the last of them counts.
        """
        return "…"

    def failed(self, value: object, error: Exception) -> Any:  # noqa: ARG002 - for a policy that raises it
        """The replacement for a value whose own methods failed, so that the rest of a recording is not lost."""
        return _text(value)


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - a broken __str__ must not lose the rest of a recording
        return f"<{type(value).__name__}>"


def is_scalar(value: object) -> bool:
    """Whether JSON has this value, and it contains no others."""
    return value is None or type(value) in (str, int, bool) or (type(value) is float and isfinite(value))


def jsonable(value: object) -> Any:
    """Any `value` as JSON data: objects through their `to_dict`, dataclasses as objects, the rest as text."""
    if type(value) in _PLAIN:
        return value
    if type(value) is dict:
        for key, one in value.items():
            if type(one) not in _PLAIN or type(key) is not str:
                break
        else:
            return value.copy()  # most parameters are flat
    return Conversion().of(value)


def copied(value: Any) -> Any:
    """A copy of data: its containers and mappings are new, everything else is shared."""
    try:
        return copy_of(value)
    except Exception:  # noqa: BLE001 - it contains itself, nests too deeply, or a foreign class fails
        return jsonable(value)


def copy_of(value: Any) -> Any:
    """Like `copied`, for data that are known to be finite. Raises `RecursionError` for others."""
    kind = type(value)
    if kind is dict:
        return {key: one if type(one) in _PLAIN else copy_of(one) for key, one in value.items()}
    if kind is list or kind is tuple or kind is set or kind is frozenset:
        return kind(one if type(one) in _PLAIN else copy_of(one) for one in value)
    if isinstance(value, Mapping):
        return {key: copy_of(one) for key, one in value.items()}
    return [copy_of(one) for one in value] if isinstance(value, list) else value


_ENCODER = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":"))
#: gives the pieces of JSON text as `_ENCODER` writes it, without a new C encoder for each call. The number is the
#: indentation, which these options do not use
_PIECES: Callable[[object, int], Sequence[str]] = (
    (lambda data, _: (_ENCODER.encode(data),)) if c_make_encoder is None  # not CPython
    else c_make_encoder(None, _ENCODER.default, encode_basestring_ascii, None, ":", ",", False, False, False)
)


def dumps(value: object) -> str:
    """`value` as one line of ASCII JSON."""
    return "".join(_PIECES(jsonable(value), 0))


def dumps_data(data: object) -> str:
    """Like `dumps`, but takes a third of the time for JSON data. Other values are accepted too."""
    try:
        return "".join(_PIECES(data, 0))
    except (TypeError, ValueError, RecursionError):
        return dumps(data)


# patterns of this module are compiled only when a text is refused, which is rare
_UNSAFE = "[<\ud800-\udfff]"
LONGEST_QUOTED = 80


def quoted(text: str) -> str:
    """A text as a JSON string: shortened, with `<` and lone surrogates escaped."""
    short = json.dumps(text[:LONGEST_QUOTED], ensure_ascii=False)
    short = re.sub(_UNSAFE, lambda found: f"\\u{ord(found[0]):04x}", short)
    return short if len(text) <= LONGEST_QUOTED else f'{short[:-1]}…" ({len(text)} characters)'


# -------------------------------------------------------------------------------------------------------- reading

JSON_SPACE = " \t\r\n"
# A string without an end runs to the end of the text: retrying at each quote in it would make the search quadratic.
_STRING = r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)'
_NESTING = _STRING + r"|([\[{])|[\]}]"
_CONSTANT = _STRING + "|(-?Infinity|NaN)"
TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels"
_CONTAINERS = frozenset({dict, list})
_STACK = 5_000  # levels for which every stack has room


class JsonSyntaxError(ValueError):
    """The text is not JSON. Says what is wrong, with line and column; `reached` is how far the text was read."""

    def __init__(self, what: str, text: str, at: int, reached: int = 0) -> None:
        line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
        super().__init__(f"{what} at line {line}, column {column} (character {at})")
        self.reached = reached


class JsonRefusedError(ValueError):
    """The text may be JSON but cannot be used: it is out of bounds, or a part of it would be lost."""


def loads(text: str, *, unique_keys: bool = False) -> Any:
    """Reads strict JSON. Raises `JsonSyntaxError` for anything else, such as NaN or trailing text.

    Raises `JsonRefusedError` for data nested deeper than `MAX_DEPTH` levels and for numbers that Python cannot
    represent; with `unique_keys`, also for a key that an object has twice. By default, the last of such keys counts.
    """
    if sys.getrecursionlimit() > _STACK and _brackets(text) > _STACK:  # before the decoder exhausts the stack
        _check_depth(text)
    try:
        found = (_UNIQUE if unique_keys else _STRICT).decode(text)
    except (ValueError, RecursionError) as error:
        _check_depth(text)
        _check_syntax(text)
        if not isinstance(error, JsonRefusedError):
            raise JsonRefusedError(f"it holds an integer with too many digits ({error})") from error
        raise
    # each level takes two characters
    if len(text) > 2 * MAX_DEPTH and type(found) in _CONTAINERS and _brackets(text) > MAX_DEPTH and _is_too_deep(found):
        raise JsonRefusedError(TOO_DEEP)
    return found


def value_in(text: str) -> Any:
    """The JSON value that a text is; if it is none, or has a key twice, the text itself."""
    try:
        return loads(text, unique_keys=True)
    except ValueError:
        return text


def loads_flat(text: str) -> dict[str, Any] | None:
    """Like `loads`, for an object whose only colons follow its keys, as in most calls; None for other texts."""
    if (size := len(text)) > _STACK:  # each character may be a level
        return None
    try:
        found, end = _STRICT.scan_once(text, 0)  # type: ignore[attr-defined]  # faster than `decode`
    except (StopIteration, ValueError, RecursionError):
        return None
    return found if end == size and type(found) is dict and len(found) == text.count(":") else None


def _brackets(text: str) -> int:
    return text.count("{") + text.count("[")


def _is_too_deep(data: Any) -> bool:
    """Whether an object or a list nests deeper than `MAX_DEPTH`. Goes level by level, without recursion."""
    level, depth = [data], 0
    while level and depth < MAX_DEPTH:
        items = (one.values() if type(one) is dict else one for one in level)
        level = [inner for each in items for inner in each if type(inner) in _CONTAINERS]
        depth += 1
    return bool(level)


def _check_depth(text: str) -> None:
    """Raises `JsonRefusedError` if the text nests deeper than `MAX_DEPTH`. Takes linear time."""
    if _brackets(text) <= MAX_DEPTH:
        return
    depth = 0
    for found in re.finditer(_NESTING, text, re.DOTALL):
        if found[1] is not None:
            depth += 1
            if depth > MAX_DEPTH:
                raise JsonRefusedError(TOO_DEEP)
        elif found[0] in "]}":
            depth -= 1


def _check_syntax(text: str) -> None:
    """Raises `JsonSyntaxError` for a text that is not JSON. Does not check numbers and keys."""
    try:
        _ANY_NUMBER.decode(text)
    except json.JSONDecodeError as error:
        raise JsonSyntaxError(error.msg, text, error.pos) from None
    except ValueError as error:  # a constant, whose place the decoder does not report
        place = next(found.start() for found in re.finditer(_CONSTANT, text, re.DOTALL) if found[1])
        raise JsonSyntaxError(str(error), text, place) from None


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a JSON value")


def _finite(text: str) -> float:
    number = float(text)
    if isfinite(number):
        return number
    raise JsonRefusedError(f"the number {text[:40]} is out of range")


def duplicate_key(key: str) -> JsonRefusedError:
    """The error for an object that has a key twice."""
    return JsonRefusedError(f"the key {quoted(key)} is given twice in one object; give each key once")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise duplicate_key(key)
            seen.add(key)
    return made


_STRICT = json.JSONDecoder(parse_float=_finite, parse_constant=_no_constant)
_UNIQUE = json.JSONDecoder(parse_float=_finite, parse_constant=_no_constant, object_pairs_hook=_unique)
_ANY_NUMBER = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=_no_constant)


def digest(data: object) -> str:
    """A hash of a text or of plain data, as twelve hex digits. It is the same in every process."""
    from hashlib import sha256  # loads OpenSSL

    text = data if isinstance(data, str) else json.dumps(data, sort_keys=True, default=lambda one: type(one).__name__)
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
