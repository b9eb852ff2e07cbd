"""Constraints in ``Annotated``: bounds, lengths, patterns and predicates on the values of a type.

They are recognised by their attributes, as `annotated-types` and pydantic's `Field` have them, so neither is imported.
A constraint that a type cannot have, or that is not known here, is a `TypeError`: what an author has written is checked
or refused, never ignored. Metadata that is no constraint is not ours.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from kernai.inputs.containers import DictType, ListType, UnionType
from kernai.inputs.faults import Validation
from kernai.inputs.references import ReferenceType
from kernai.inputs.schema import Definitions, Schema
from kernai.inputs.types import PLAIN, InputType, TextType
from kernai.values.skill_result import plain

_NUMBERS = (PLAIN[int], PLAIN[float])
_TEXT = PLAIN[str]
#: of pydantic's `Field`: what says something about a value, and is none of its constraints
_SAYS_ONLY = {"description", "title", "examples", "annotation"}
#: of annotated-types: what refuses no value
_HINTS = {"unit", "documentation"}
_LONGEST_PATTERN = 100
_TEXTS = ("text", "TEXT", "1", "12345", "2024-01-31", "name@example.com")  # to try where the usual example does not fit
_LENGTHS = {"string": "Length", "array": "Items", "object": "Properties"}


def _is_multiple(value: Any, of: Any) -> bool:
    if isinstance(value, float) or isinstance(of, float):
        quotient = float(value) / of
        return math.isfinite(quotient) and quotient == int(quotient)
    return bool(value % of == 0)


#: of each bound: whether a value holds it, how a model reads it, and the keyword of JSON Schema
_BOUNDS: dict[str, tuple[Callable[[Any, Any], bool], str, str]] = {
    "ge": (lambda value, bound: value >= bound, "at least", "minimum"),
    "gt": (lambda value, bound: value > bound, "more than", "exclusiveMinimum"),
    "le": (lambda value, bound: value <= bound, "at most", "maximum"),
    "lt": (lambda value, bound: value < bound, "less than", "exclusiveMaximum"),
    "multiple_of": (_is_multiple, "a multiple of", "multipleOf"),
}


@dataclass(frozen=True)
class Constraint:
    """One condition: `name` is the attribute that says it, ``func`` for a predicate."""

    name: str
    value: Any

    def told(self, unit: str) -> str:
        """How a model reads it; `unit` is what a length counts."""
        if self.name == "func":
            return f"that passes {getattr(self.value, '__name__', 'a check')}".replace("<lambda>", "a check")
        if self.name == "pattern":
            return f"that matches {json.dumps(_source(self.value), ensure_ascii=False)}".replace("<", "\\u003c")
        if self.name in _BOUNDS:
            return f"{_BOUNDS[self.name][1]} {plain(self.value)}"
        return f"of {'at least' if self.name == 'min_length' else 'at most'} {self.value} {unit}"

    def holds(self, value: Any) -> bool:
        """Whether a converted value satisfies it. What a predicate raises is its no."""
        try:
            if self.name in _BOUNDS:
                return _BOUNDS[self.name][0](value, self.value)
            if self.name == "min_length":
                return bool(len(value) >= self.value)
            if self.name == "max_length":
                return bool(len(value) <= self.value)
            if self.name == "pattern":
                return re.search(self.value, value) is not None
            return bool(self.value(value))
        except Exception:  # noqa: BLE001 - the author's own function, on a value that it may not have thought of
            return False

    def fits(self, kind: InputType) -> bool:
        """Whether values of a type can be asked for it."""
        kind = behind(kind)
        if self.name == "func":
            return True
        if self.name == "pattern":
            return kind is _TEXT
        if self.name in ("min_length", "max_length"):
            return kind is _TEXT or isinstance(kind, (ListType, DictType))
        if kind in _NUMBERS:
            return isinstance(self.value, (int, float)) and not isinstance(self.value, bool)
        if not isinstance(kind, TextType):
            return False
        sample = kind.convert(kind.example, Validation())
        try:
            _BOUNDS[self.name][0](sample, self.value)
        except Exception:  # noqa: BLE001 - a date beside a number, say
            return False
        return True


class ConstrainedType(InputType):
    """A type whose values satisfy constraints besides."""

    def __init__(self, inner: InputType, constraints: Iterable[Constraint]) -> None:
        self.inner = inner
        self.constraints = tuple(constraints)
        self.natural = inner.natural
        if isinstance(inner, TextType) and not any(one.name == "func" for one in self.constraints):
            self.inner = inner.shown_by(str(self.sample()))  # what the bounds forbid is no example
        unit = "characters" if behind(inner) is _TEXT else "items"
        self.label = ", ".join([self.inner.label, *(one.told(unit) for one in self.constraints)])

    def convert(self, value: object, validation: Validation) -> Any:
        before = len(validation.faults)
        made = self.inner.convert(value, validation)
        if len(validation.faults) == before and not all(one.holds(made) for one in self.constraints):
            validation.refuse(self.label, value)
        return made

    def from_text(self, text: str) -> Any:
        return self.inner.from_text(text)

    def tags(self) -> frozenset[str]:
        return self.inner.tags()

    def sample(self, inside: tuple[InputType, ...] = ()) -> Any:
        """One that fits, where it is easily found; else one of the right shape."""
        first = self.inner.sample(inside)
        for candidate in self._candidates(first):
            if self.takes(candidate):
                return candidate
        return first

    def _candidates(self, first: Any) -> Iterator[Any]:
        yield first
        bounds = {one.name: one.value for one in self.constraints}
        if isinstance(first, (int, float)):
            step = bounds.get("multiple_of", 1)
            for low in (bounds.get("ge"), bounds.get("gt")):
                if low is not None:
                    yield from (low, low + 1, math.ceil(low / step) * step, (math.floor(low / step) + 1) * step)
            for high in (bounds.get("le"), bounds.get("lt")):
                if high is not None:
                    yield from (high, high - 1, math.floor(high / step) * step, (math.ceil(high / step) - 1) * step)
            yield from (step, (bounds.get("gt", 0) + bounds.get("lt", 0)) / 2, 0, 2, 10)
        elif isinstance(behind(self.inner), (DictType, ListType, type(_TEXT))):
            yield from self._of_length(first, bounds.get("min_length", 0), bounds.get("max_length"))
        else:
            yield from (plain(bound) for bound in bounds.values() if not callable(bound))
            edges = [bounds[name] for name in ("lt", "gt") if name in bounds]
            for edge in edges:
                yield from _beside(edge)
            if len(edges) > 1 and hasattr(edges[0], "as_tuple"):
                yield str(sum(edges) / 2)

    def _of_length(self, first: Any, least: int, most: int | None) -> Iterator[Any]:
        kind = behind(self.inner)
        if isinstance(first, dict):
            yield from ({f"{key}{at}": value for at in range(least)} for key, value in first.items())
        elif isinstance(kind, ListType) and kind.is_set:
            choices: list[Any] = kind.item.schema(Definitions()).get("enum", [])
            yield from ([*range(least)], [str(at) for at in range(least)], choices[:least])
        elif first:
            most = len(first) if most is None else most
            yield (first * math.ceil(max(least, 1) / len(first)))[:max(least, min(most, len(first)))]
            yield from (first[:0], *(_TEXTS if isinstance(first, str) else ()))

    def outline(self, path: str, seen: set[InputType]) -> Iterator[str]:
        return self.inner.outline(path, seen)

    def schema(self, definitions: Definitions) -> Schema:
        made = dict(self.inner.schema(definitions))
        kind = behind(self.inner)
        for one in self.constraints:
            if one.name in _BOUNDS and kind in _NUMBERS:
                _tighten(made, _BOUNDS[one.name][2], one.value)
            elif one.name in ("min_length", "max_length"):
                of = "string" if kind is _TEXT else "array" if isinstance(kind, ListType) else "object"
                _tighten(made, one.name[:3] + _LENGTHS[of], one.value)
            elif one.name == "pattern":
                _tighten(made, "pattern", _source(one.value))
        return made


def _beside(edge: Any) -> Iterator[Any]:
    """The values next to a bound that is a decimal, a date or a time, whose modules are not loaded for this."""
    if hasattr(edge, "as_tuple"):
        yield from (str(edge - 1), str(edge + 1))
    elif hasattr(edge, "toordinal"):
        day = type(edge - edge)(1)
        for step in (-day, day):
            with suppress(OverflowError):
                yield plain(edge + step)
    elif hasattr(edge, "hour"):
        yield from (plain(edge.min), plain(edge.max.replace(microsecond=0)))


def told_by(schema: Schema) -> list[str]:
    """The bounds in somebody's JSON Schema, as a model reads those of a `Constraint`; longer patterns are left out."""
    kind = str(schema.get("type"))
    keywords = {name: keyword for name, (_, _, keyword) in _BOUNDS.items()}
    if kind in _LENGTHS:
        keywords |= {"min_length": f"min{_LENGTHS[kind]}", "max_length": f"max{_LENGTHS[kind]}"}
    found = [Constraint(name, schema[keyword]) for name, keyword in keywords.items()
             if isinstance(schema.get(keyword), (int, float)) and not isinstance(schema[keyword], bool)]
    pattern = schema.get("pattern")
    if isinstance(pattern, str) and len(pattern) <= _LONGEST_PATTERN:
        found.append(Constraint("pattern", pattern))
    return [one.told("characters" if kind == "string" else "items") for one in found]


def _tighten(schema: Schema, keyword: str, value: Any) -> None:
    """Adds a keyword; of two bounds the narrower one stays, of other keywords both do."""
    stricter = {"min": max, "max": min}.get(keyword.removeprefix("exclusive").lower()[:3])
    if keyword in schema and stricter is not None:
        schema[keyword] = stricter(schema[keyword], value)
    elif keyword in schema and schema[keyword] != value:
        schema.setdefault("allOf", []).append({keyword: value})
    else:
        schema[keyword] = value


def constrained(kind: InputType, metadata: Iterable[object]) -> InputType:
    """The type under the constraints in an `Annotated`'s metadata. `TypeError` for those that it cannot have."""
    found = [one for given in metadata for one in constraints_of(given)]
    if not found:
        return kind
    if not isinstance(kind, UnionType):
        _check(found, [kind])
        return ConstrainedType(kind, found)
    # of a union each member is asked what it can be asked: ``int | None`` at least 1 is None, or an int
    predicates = [one for one in found if one.name == "func"]
    others = [one for one in found if one.name != "func"]
    _check(others, kind.members)
    members = []
    for member in kind.members:
        own = [one for one in others if one.fits(member)]
        members.append(ConstrainedType(member, own) if own else member)
    union = UnionType(members)
    return ConstrainedType(union, predicates) if predicates else union


def _check(constraints: Iterable[Constraint], kinds: Iterable[InputType]) -> None:
    kinds = list(kinds)
    for one in constraints:
        if not any(one.fits(kind) for kind in kinds):
            label = " or ".join(kind.label for kind in kinds)
            raise TypeError(f"the constraint {one.name}={one.value!r} does not apply to {label}")


def constraints_of(given: Any) -> Iterator[Constraint]:
    """What one piece of metadata asks for; nothing, where it is no constraint."""
    if isinstance(given, (str, bytes, type)) or given is None:
        return
    if hasattr(given, "is_required") and isinstance(getattr(given, "metadata", None), list):
        yield from _of_field(given)
        return
    if getattr(given, "__is_annotated_types_grouped_metadata__", False):
        for one in given:
            yield from constraints_of(one)
        return
    held = _attributes(given)
    module = type(given).__module__.partition(".")[0]
    for name, value in held.items():
        if value is None and module not in ("annotated_types", "pydantic"):
            continue
        if name in _BOUNDS or name in ("min_length", "max_length") or (name == "pattern" and module == "pydantic"):
            yield Constraint(name, value)
        elif name == "func" and callable(value) and type(given).__name__ in ("Predicate", "Not"):
            wanted = value if type(given).__name__ == "Predicate" else _negated(value)
            yield Constraint("func", wanted)
        elif module in ("annotated_types", "pydantic") and name not in _HINTS:
            raise TypeError(f"the constraint {name}={value!r} is not supported")


def _of_field(field: Any) -> Iterator[Constraint]:
    """Of pydantic's `Field(...)`: its constraints stand in `metadata`."""
    for name in getattr(field, "_attributes_set", {}):
        if name not in _SAYS_ONLY:
            raise TypeError(f"Field({name}=...) in Annotated is not supported here")
    for one in field.metadata:
        yield from constraints_of(one)


def _attributes(given: object) -> Mapping[str, Any]:
    slots = [name for kind in type(given).__mro__ for name in getattr(kind, "__slots__", ())]
    named = {name: getattr(given, name) for name in slots if not name.startswith("__") and hasattr(given, name)}
    return {**named, **getattr(given, "__dict__", {})}


def _negated(function: Callable[[Any], Any]) -> Callable[[Any], bool]:
    def refused(value: Any) -> bool:
        return not function(value)

    refused.__name__ = f"not {getattr(function, '__name__', 'a check')}"
    return refused


def description_of(metadata: object) -> str:
    """The description that a `Field(description=...)` or a `Doc(...)` holds."""
    for name in ("description", "documentation"):
        said = getattr(metadata, name, None)
        if isinstance(said, str):
            return said
    return ""


def without_constraints(kind: InputType) -> InputType:
    """The type alone."""
    while isinstance(kind, ConstrainedType):
        kind = kind.inner
    return kind


def behind(kind: InputType) -> InputType:
    """The type that decides which constraints make sense."""
    kind = without_constraints(kind)
    while isinstance(kind, ReferenceType) and kind.target is not None:
        kind = without_constraints(kind.target)
    return kind


def _source(pattern: Any) -> str:
    return pattern if isinstance(pattern, str) else str(pattern.pattern)


