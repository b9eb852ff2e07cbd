"""Constraints in ``Annotated``: bounds, lengths, patterns and predicates on the values of a type.

They are recognised by the attributes that the constraints of `annotated-types` and pydantic's `Field` have, so neither
package is imported. An unknown constraint, or one that does not apply to its type, raises a `TypeError`, so that no
constraint is silently ignored. Other metadata are ignored.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import product
from typing import Any, NamedTuple

from kernai._util.api import Once, check_function
from kernai.inputs.containers import DictType, ListType, UnionType
from kernai.inputs.schema import WORDS, Schema, condition, label_of, sample_of, satisfies
from kernai.inputs.types import PLAIN, InputType, TextType, Validation, WrapperType, underlying
from kernai.values.skill_result import plain

_NUMBERS = (PLAIN[int], PLAIN[float])
_TEXT = PLAIN[str]
_WITH_ZONE = "2024-01-31T12:00:00Z"
#: attributes of pydantic's `Field` that describe a value without constraining it; a union looks for a tag in any case
_DESCRIPTIVE = {"description", "title", "examples", "annotation", "discriminator"}
#: constraints of annotated-types and pydantic that refuse no value
_HINTS = {"unit", "documentation", "discriminator"}
#: values to try if the sample of a schema does not satisfy the constraints
_SAMPLES: tuple[Any, ...] = (
    "text", "TEXT", "1", "12345", "2024-01-31", "00:00:00", "23:59:59", "name@example.com", "", 0, 2, 10, [], {},
)
_LENGTHS = ("min_length", "max_length")
#: the keywords of JSON Schema for bounds
_BOUNDS = {
    "ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum", "multiple_of": "multipleOf",
}
#: classes of predicates, each with the result that a value must have
_PREDICATES = {"Predicate": True, "Not": False}


class Constraint(NamedTuple):
    """One constraint: a keyword of JSON Schema and its bound, or a class in `_PREDICATES` and its function."""

    keyword: str
    value: Any

    @property
    def words(self) -> str:
        """The condition in words, for the model."""
        if self.keyword not in _PREDICATES:
            return condition(self.keyword, _source(self.value) if self.keyword == "pattern" else plain(self.value))
        check = getattr(self.value, "__name__", "a check").replace("<lambda>", "a check")
        return f"that {'does not pass' if self.keyword == 'Not' else 'passes'} {check}"

    def accepts(self, value: Any) -> bool:
        """Whether a converted value satisfies it. A predicate that raises refuses the value."""
        try:
            if self.keyword in _PREDICATES:
                return bool(self.value(value)) is _PREDICATES[self.keyword]
            return satisfies(value, self.keyword, self.value)
        except (Exception, SystemExit):  # noqa: BLE001 - the author's own function may not expect this value
            return False


def _applied(name: str, value: Any, kind: InputType) -> Constraint | None:
    """A constraint such as `ge` 1 on the values of a type; None if it does not apply to them."""
    kind, keyword = underlying(kind), _BOUNDS.get(name, name)
    applies = name in _PREDICATES or (name == "pattern" and kind is _TEXT)
    if name in _LENGTHS:
        of = "Items" if isinstance(kind, ListType) else "Properties" if isinstance(kind, DictType) else "Length"
        keyword = name[:3] + of
        applies = (of != "Length" or kind is _TEXT) and isinstance(value, int) and value >= 0
    elif name in _BOUNDS and kind in _NUMBERS:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        applies = is_number and (name != "multiple_of" or value > 0)
    elif name in _BOUNDS and isinstance(kind, TextType):
        for sample in (kind.schema["examples"][0], _WITH_ZONE):
            with suppress(Exception):  # such as a date compared to a number
                satisfies(kind.convert(sample, Validation()), keyword, value)
                applies = True
    return Constraint(keyword, value) if applies else None


class ConstrainedType(WrapperType):
    """A type whose values must also satisfy constraints."""

    def __init__(self, inner: InputType, constraints: Sequence[Constraint], examples: Sequence[Any]) -> None:
        super().__init__(inner)
        self.constraints = constraints
        self._examples = examples
        self._is_text_type = isinstance(underlying(inner), TextType)

    def convert(self, value: object, validation: Validation) -> Any:
        faults, before = validation.faults, len(validation.faults)
        made = self.inner.convert(value, validation)
        is_refused = len(faults) > before
        if (is_refused and self._is_text_type) or (not is_refused and not self._accepts(made)):
            faults[before:] = []  # the example in the fault of a date, say, may violate the bounds
            validation.refuse(self.label, value)
        return made

    @Once
    def schema(self) -> Schema:
        made = dict(self.inner.schema)
        for keyword, value in self.constraints:
            is_endless = isinstance(value, float) and not math.isfinite(value)
            # JSON Schema has no predicates, no infinity and no bounds on dates
            if keyword not in _PREDICATES and not is_endless and not self._is_text_type:
                _tighten(made, keyword, _source(value) if keyword == "pattern" else value)
        made[WORDS] = ", ".join([label_of(self.inner.schema), *(one.words for one in self.constraints)])
        self.schema = made  # set first, since an alias may contain itself, and faults of a sample name its type
        sample = sample_of(made)
        for better in self._candidates(sample):
            converted, faults = self.inner.checked(better)
            if not faults and self._accepts(converted):
                break
        if self._is_text_type:
            better = str(better)  # near an int as the bound of a Decimal, it is an int
            made[WORDS] = made[WORDS].replace(f'"{sample}"', f'"{better}"', 1)
        if better is not sample:
            made["examples"] = [better]
        return made

    def _accepts(self, made: Any) -> bool:
        return all(one.accepts(made) for one in self.constraints)

    def _candidates(self, sample: Any) -> Iterator[Any]:
        """The author's examples, the schema's sample, values to try, and the sample again. Some have a wrong type."""
        yield from (*self._examples, sample)
        bounds = {keyword: value for keyword, value in self.constraints if keyword in _BOUNDS.values()}
        edges = [bounds[keyword] for keyword in ("exclusiveMaximum", "exclusiveMinimum") if keyword in bounds]
        yield from map(plain, bounds.values())
        for edge, by in product(edges, (-1, 1)):
            with suppress(TypeError, OverflowError):  # nothing can be added to a time
                yield plain(edge + by * type(edge - edge)(1))  # a day, for dates
        with suppress(TypeError):  # dates, or a float and a Decimal
            yield str(sum(edges) / 2)
        yield from (*_SAMPLES, sample)


def _tighten(schema: Schema, keyword: str, value: Any) -> None:
    """Adds a keyword. If the schema already has it, the narrower of two bounds applies, or the later pattern."""
    stricter = {"min": max, "max": min}.get(keyword.removeprefix("exclusive").lower()[:3])
    schema[keyword] = stricter(schema[keyword], value) if keyword in schema and stricter is not None else value


def constrained(kind: InputType, metadata: Sequence[Any]) -> InputType:
    """The type with the constraints in an `Annotated`'s metadata. Raises `TypeError` for one that does not apply."""
    found = [one for given in metadata for one in constraints_of(given)]
    members = kind.members if isinstance(kind, UnionType) else (kind,)
    for name, value in found:
        if all(_applied(name, value, member) is None for member in members):
            label = " or ".join(member.label for member in members)
            raise TypeError(f"the constraint {name}={value!r} does not apply to {label}")
    examples = [plain(one) for given in metadata if is_field(given) for one in given.examples or ()]
    if isinstance(kind, UnionType):
        # each member gets the constraints that apply to it: ``int | None`` with ``ge=1`` still accepts None
        own = [one for one in found if one[0] not in _PREDICATES]
        kind = UnionType([_with(member, own, examples) for member in members])
    return _with(kind, found, examples)


def _with(kind: InputType, found: Iterable[tuple[str, Any]], examples: Sequence[Any]) -> InputType:
    own = [one for name, value in found if (one := _applied(name, value, kind)) is not None]
    return ConstrainedType(kind, own, examples) if own else kind


def constraints_of(given: Any) -> Iterator[tuple[str, Any]]:
    """The constraints in one piece of metadata, if any, as they are written: `ge` and 1."""
    if isinstance(given, type) and given.__module__.startswith("annotated_types"):
        raise TypeError(f"the constraint {given.__name__} is a class; write {given.__name__}(...)")
    if isinstance(given, (str, bytes, type)):
        return
    is_group = getattr(given, "__is_annotated_types_grouped_metadata__", False)
    several = given if is_group else getattr(given, "__metadata__", None)  # as in Annotated[str, LowerCase]
    if is_field(given):
        for name in getattr(given, "_attributes_set", {}):
            if name not in _DESCRIPTIVE:
                raise TypeError(f"Field({name}=...) in Annotated is not supported here")
        several = given.metadata
    if several is not None:
        for one in several:
            yield from constraints_of(one)
        return
    module = type(given).__module__.partition(".")[0]
    for name, value in _attributes(given).items():
        if value is None and module != "annotated_types":  # not set; a `Timezone(None)` has a meaning
            continue
        if name in _BOUNDS or name in _LENGTHS or (name == "pattern" and module == "pydantic"):
            yield name, value
        elif name == "func" and callable(value) and type(given).__name__ in _PREDICATES:
            yield type(given).__name__, check_function(type(given).__name__, value, "the value", None)
        elif module in ("annotated_types", "pydantic") and name not in _HINTS:
            raise TypeError(f"the constraint {name}={value!r} is not supported")


def is_field(given: object) -> bool:
    """Whether this is pydantic's `Field(...)`."""
    return hasattr(given, "is_required") and isinstance(getattr(given, "metadata", None), list)


def _attributes(given: object) -> Mapping[str, Any]:
    slots = [name for kind in type(given).__mro__ for name in getattr(kind, "__slots__", ())]
    named = {name: getattr(given, name) for name in slots if not name.startswith("__") and hasattr(given, name)}
    return {**named, **getattr(given, "__dict__", {})}


def description_of(metadata: object) -> str:
    """The description in a `Field(description=...)` or a `Doc(...)`."""
    texts = (getattr(metadata, name, None) for name in ("description", "documentation"))
    return next((one for one in texts if isinstance(one, str)), "")


def _source(pattern: Any) -> str:
    return pattern if isinstance(pattern, str) else str(pattern.pattern)
