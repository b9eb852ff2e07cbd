"""Types that contain other types: lists, tuples, dicts, unions, references by name, records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from kernai._util.api import Once, close_matches
from kernai.errors import error_text
from kernai.inputs.schema import NO_VALUE, REQUIRED, WORDS, Definition, Schema, Sentinel, adopted, resolved, tags_of
from kernai.inputs.types import Fault, FloatType, InputType, Validation, WrapperType, shown, underlying
from kernai.jsonio.json_data import MAX_DEPTH, copy_of, dumps
from kernai.values.skill_result import typed

SETS = (set, frozenset)
_LONGEST_FOREIGN = 400  # characters of a validator's message


class ListType(InputType):
    """`list[T]`, `tuple[T, ...]`, `Sequence[T]`, and sets, which refuse duplicates. `build` makes the value."""

    natural = frozenset({list})

    def __init__(self, item: InputType, build: Callable[[list[Any]], Any] = list) -> None:
        self.item = item
        self._build = build
        self._is_set = build in SETS

    def convert(self, value: object, validation: Validation) -> Any:
        if self._is_set and isinstance(value, SETS):
            value = list(value)
        if not isinstance(value, (list, tuple)):
            return validation.refuse(self.label, value)
        item, exact, before = self.item, self.item.exact, len(validation.faults)
        made = [one if type(one) is exact else validation.inside(at, item, one) for at, one in enumerate(value)]
        if self._is_set and len(validation.faults) == before:
            self._refuse_duplicates(made, value, validation)
        return None if len(validation.faults) > before else self._build(made)

    @staticmethod
    def _refuse_duplicates(made: list[Any], value: Sequence[Any], validation: Validation) -> None:
        found: set[Any] = set()
        for n, one in enumerate(made):
            try:
                if one in found:
                    validation.faults.append(Fault((n,), f"expected distinct items, received {shown(value[n])} twice"))
                found.add(one)
            except TypeError:  # a list for `set[Any]`, which has no hash
                validation.refuse("a value that a set can hold", value[n], (n,))

    @Once
    def schema(self) -> Schema:
        item = self.item.schema
        return {"type": "array"} | ({"items": item} if item else {}) | ({"uniqueItems": True} if self._is_set else {})


class TupleType(InputType):
    """`tuple[A, B]`: a list of exactly that many items."""

    natural = frozenset({list})

    def __init__(self, items: Sequence[InputType]) -> None:
        self.items = tuple(items)

    def convert(self, value: object, validation: Validation) -> Any:
        if not isinstance(value, (list, tuple)) or len(value) != len(self.items):
            return validation.refuse(self.label, value)
        pairs = zip(self.items, value, strict=True)
        return tuple(validation.inside(at, item, one) for at, (item, one) in enumerate(pairs))

    @Once
    def schema(self) -> Schema:
        size, items = len(self.items), [item.schema for item in self.items]
        bounds = {"minItems": size, "maxItems": size, "prefixItems": items} if items else {"maxItems": 0}
        return {"type": "array", **bounds}


class DictType(InputType):
    """`dict[str, T]`."""

    natural = frozenset({dict})

    def __init__(self, item: InputType) -> None:
        self.item = item

    def convert(self, value: object, validation: Validation) -> Any:
        if not isinstance(value, Mapping):
            return validation.refuse(self.label, value)
        return {key: validation.inside(key, self.item, one) for key, one in value.items()}

    @Once
    def schema(self) -> Schema:
        item = self.item.schema
        return {"type": "object", "additionalProperties": item} if item else {"type": "object"}


class UnionType(InputType):
    """`X | Y`: the first member that fits the value. Members of the value's own JSON type are tried before the others.

    So 1 is an int for ``float | int``, and a text that is a date becomes a date for ``date | str``. Of the members that
    an object may be, those that drop the fewest of its fields are tried first.
    """

    def __init__(self, members: Iterable[InputType]) -> None:
        # a member may be a union too: `Annotated[int | None, ""] | None`
        flat = (inner for one in members for inner in (one.members if isinstance(one, UnionType) else (one,)))
        self.members: tuple[InputType, ...] = tuple(flat)

    @Once
    def natural(self) -> frozenset[type]:
        return frozenset().union(*(member.natural for member in self.members))

    def convert(self, value: object, validation: Validation) -> Any:
        kind = type(value)
        natural = [one for one in self.members if kind in one.natural]
        if natural and kind is natural[0].exact:
            return value
        if len(natural) == 1 and kind in (list, dict):  # no other member accepts such a value, so only its faults count
            before = len(validation.faults)
            made = natural[0].convert(value, validation)  # not `tried`: deep data needs the stack
            validation.faults[before:] = [one._replace(read_as=natural[0]) for one in validation.faults[before:]]
            return made
        place = (id(value), id(self), validation.repair)
        made, faults = validation.memo.get(place) or self._tried(value, natural, validation)
        if kind in (list, dict):
            validation.memo[place] = made, faults
        validation.faults.extend(faults)
        return made

    def _tried(self, value: object, natural: Sequence[InputType], validation: Validation) -> tuple[Any, list[Fault]]:
        if type(value) is dict and len(natural) > 1:
            natural = sorted(natural, key=lambda one: _count_dropped(one, value))
        members = [*natural, *(one for one in self.members if one not in natural)]
        tries = [(one, False) for one in members]
        if validation.repair:  # a string becomes a number only if no member accepts the string; "5" is an int first
            tries += [(one, True) for one in sorted(members, key=lambda one: isinstance(one, FloatType))]
        trials: list[tuple[InputType, list[Fault]]] = []
        for member, repair in tries:
            made, faults = validation.tried(member, value, repair=repair)
            if not faults:
                return made, []
            trials.append((member, faults))
        return None, self._faults(value, trials[: len(natural)])

    def _faults(self, value: object, trials: list[tuple[InputType, list[Fault]]]) -> list[Fault]:
        """The faults to report if no member fits, given the faults of the members of the value's own JSON type."""
        # a fault without a path: a value of a wrong type, or a record whose own check refuses it
        inside = {one: found for one, found in trials if one.natural == {dict} or all(fault.path for fault in found)}
        if not inside:
            return [Fault((), f"expected {self.label}, received {shown(value)}")]
        # the member that was most likely meant: not one whose tag has the value of another member's tag
        tags = {one: tags_of(one.schema) for one in inside}
        wrong = {one: {key for fault in found for key in fault.path[:1]} for one, found in inside.items()}
        right = {tag for one in inside for tag in tags[one] - wrong[one]}
        member = min(inside, key=lambda one: (bool(wrong[one] & tags[one] & right), len(inside[one])))
        return [Fault(one.path, f"{one.message} (read as {member.label})", member) for one in inside[member]]

    @Once
    def schema(self) -> Schema:
        every = [one.schema for one in self.members]
        members = [one for at, one in enumerate(every) if one not in every[:at]]
        if {} in members:  # one of them is `Any`
            return {}
        return members[0] if len(members) == 1 else {"anyOf": members}


def _count_dropped(kind: InputType, value: dict[str, Any]) -> int:
    """How many fields of an object a type drops: those that its record does not have, unless it keeps others too."""
    schemas = (resolved(one.schema)[1] for one in ways_of(kind) if dict in one.natural)
    return min(
        0 if one.get("additionalProperties") else len(value.keys() - one.get("properties", value)) for one in schemas
    )


class ReferenceType(WrapperType):
    """An alias that may contain itself. `is_used`: the type refers to the alias, before `inner` was set."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_used = False
        self.schema = {"$ref": Definition(name, self._contents)}

    def wrap(self, inner: InputType) -> None:
        """Sets `inner`. Raises `TypeError` for an alias that is itself, or a union that it is a member of."""
        if self in ways_of(inner):
            raise TypeError(f"the type {self.name} is defined in terms of itself")
        self.inner = inner

    def _contents(self) -> Schema:
        return self.inner.schema


def ways_of(kind: InputType) -> Iterator[InputType]:
    """The types that a value may have: a union's members, without their constraints."""
    waiting, seen = [kind], set[InputType]()
    while waiting:
        one = underlying(waiting.pop())
        if one in seen:
            continue
        seen.add(one)
        if isinstance(one, UnionType):
            waiting += reversed(one.members)
        else:
            yield one


# ----------------------------------------------------------------------------------------------------------- records


class Field(NamedTuple):
    """An input, or a field of a record. `default` is REQUIRED, what a listing shows, or NO_VALUE if it shows none."""

    name: str
    type: InputType
    default: object
    description: str

    @property
    def required(self) -> bool:
        return self.default is REQUIRED

    def json_default(self) -> Any:
        """The default as JSON, or NO_VALUE if the type does not accept it, as in ``x: str = None``."""
        with suppress(Exception):  # a default is whatever the author put there
            made = typed(self.default)
            if not isinstance(self.default, Sentinel) and self.type.takes(made):
                return made
        return NO_VALUE

    def schema(self) -> Schema:
        """The type's schema with the description and the default of this field."""
        made = dict(self.type.schema)
        if self.description.strip():
            made["description"] = " ".join(self.description.split())
        default = self.json_default()
        return made if default is NO_VALUE else {**made, "default": default}


def check_default(default: Any) -> None:
    """Raises `TypeError` for a pydantic `Field`, a dataclass `field` or an `Input`: it would be passed as the value."""
    if hasattr(default, "default") and (hasattr(default, "default_factory") or hasattr(default, "required")):
        kind = type(default).__name__
        raise TypeError(f"its default, a {kind}, is not a value; put it into Annotated[int, Field(ge=1)], say")


def object_schema(fields: Sequence[Field]) -> Schema:
    """The schema of an object with these fields. Other keys are allowed: a call with unknown parameters drops them."""
    made: Schema = {"type": "object", "properties": {one.name: one.schema() for one in fields}}
    required = [one.name for one in fields if one.required]
    return {**made, "required": required} if required else made


class RecordType(InputType):
    """A dataclass, TypedDict or NamedTuple, or all inputs of a skill. Its fields are set later: it may contain itself.

    `build` makes the value from the converted fields. If it is a class, its instances are accepted as they are.
    """

    natural = frozenset({dict})

    def __init__(self, name: str, build: Callable[..., Any]) -> None:
        self.set_fields(())
        self._build = build
        self.schema = {"$ref": Definition(name, self._contents)}

    def set_fields(self, fields: Iterable[Field]) -> None:
        self.fields = tuple(fields)
        #: what a conversion needs, since plain tuples are read faster than `Field`
        self._plan = [(one.name, one.type.exact, one.type, one.required) for one in self.fields]
        self.types = {one.name: one.type for one in self.fields}

    def convert(self, value: object, validation: Validation) -> Any:
        if not isinstance(value, Mapping):
            if isinstance(self._build, type) and isinstance(value, self._build):
                return value
            names = ", ".join(one.name for one in self.fields if one.required)
            return validation.refuse(f"{self.label} with {names}" if names else self.label, value)
        faults = validation.faults
        before = len(faults)
        made: dict[str, Any] = {}
        for name, exact, kind, required in self._plan:
            given = value.get(name, NO_VALUE)
            if type(given) is exact:
                made[name] = given
            elif given is not NO_VALUE:
                made[name] = validation.inside(name, kind, given)
            elif required:
                faults.append(Fault((name,), f"required, but missing: expected {kind.label}, received nothing"))
        if len(faults) != before:
            return None
        return _built(self._build, value, validation, **made)

    def _contents(self) -> Schema:
        return object_schema(self.fields)


_Path = tuple[str | int, ...]


def unknown_fields(kind: InputType, value: object) -> Iterator[tuple[_Path, str]]:
    """The path of each field in a JSON value that its record does not have, and the missing one that was meant, if any.

    If several records fit, a field must be in none of them. A class with its own schema decides for itself.
    """
    waiting: list[tuple[_Path, InputType, Any]] = [((), kind, value)]
    while waiting:
        path, kind, given = waiting.pop()
        ways = [one for one in ways_of(kind) if type(given) in one.natural]
        records = [one for one in ways if isinstance(one, RecordType)]
        inside: Iterable[tuple[str | int, InputType, Any]] = ()
        if records and records == ways:
            every = [one.types for one in records]
            types = {name: UnionType(one[name] for one in every if name in one) for names in every for name in names}
            left_out = [name for name in types if name not in given]
            unknown = [key for key in given if key not in types]
            yield from (((*path, key), next(iter(close_matches(str(key), left_out)), "")) for key in unknown)
            inside = [(key, types[key], part) for key, part in given.items() if key in types]
        elif len(ways) == 1 and isinstance(ways[0], TupleType):
            inside = zip(range(len(given)), ways[0].items, given, strict=False)
        elif len(ways) == 1 and isinstance(item := getattr(ways[0], "item", None), InputType):
            inside = [(key, item, part) for key, part in (enumerate(given) if type(given) is list else given.items())]
        if len(path) < MAX_DEPTH:
            waiting += reversed([((*path, key), *one) for key, *one in inside if type(one[1]) in (dict, list)])


class ModelType(InputType):
    """A class with `model_validate` and `model_json_schema`, as pydantic's models have. The class decides what fits."""

    def __init__(self, model: Any, *, is_answer: bool) -> None:
        self.model, self._is_answer = model, is_answer
        is_root = getattr(model, "__pydantic_root_model__", False)
        self.natural = frozenset({dict, list, str, int, float, bool} if is_root else {dict})

    def convert(self, value: object, validation: Validation) -> Any:
        if isinstance(value, self.model):
            return value
        return _built(self._validated, value, validation, value)

    def _validated(self, value: object) -> Any:
        try:
            return self.model.model_validate(copy_of(value))
        except Exception:
            # a strict model takes the text of a date, or a list for a set, only from JSON
            if "'strict': True" in repr(getattr(self.model, "__pydantic_core_schema__", None)):
                return self.model.model_validate_json(dumps(value))
            raise

    @Once
    def schema(self) -> Schema:
        try:
            if schema := self.model.model_json_schema():
                return adopted(schema, self.model.__name__)
        # a model may have types that JSON Schema cannot express; it still validates
        except Exception as error:  # noqa: BLE001 - and there is no list of what else such a model raises
            # pydantic's code for unknown names. A skill may be defined before them, or get along without this input
            if self._is_answer and getattr(error, "code", None) == "class-not-fully-defined":
                raise TypeError(str(error).split("\n", 1)[0]) from None
        return {WORDS: f"{self.model.__name__} object"}


def _built(build: Callable[..., Any], value: object, validation: Validation, /, *given: object, **named: object) -> Any:
    """The object that `build` makes. Its own check may refuse what is given, which is a fault of the `value`."""
    try:
        return build(*given, **named)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the author's own code may raise anything
        validation.faults.extend(_faults_of(error, value))
        return None


def _faults_of(error: Any, value: object) -> list[Fault]:
    """The faults that a validation error lists, or one with the exception's own text. None can contain a tag."""
    listed: list[tuple[_Path, str, str]] = []
    with suppress(Exception):  # an exception without `errors`, or with some of another kind
        for entry in error.errors():
            lacks = entry.get("type") == "missing"
            path = _path_in(value, entry.get("loc", ()), lacks)
            listed.append((path, str(entry.get("msg", "invalid")), "nothing" if lacks else shown(entry.get("input"))))
    return [
        Fault(path, f"{text[:_LONGEST_FOREIGN].replace('<', '&lt;')}, received {received}")
        for path, text, received in listed or [((), error_text(error), shown(value))]
    ]


def _path_in(value: Any, given: Sequence[Any], is_missing: bool) -> _Path:
    """A path in a value, without the tags of union members that pydantic puts into it: ``pets[0].cat.name``."""
    path: list[str | int] = []
    for at, key in enumerate(given, 1):
        may_be_tag = isinstance(value, Mapping) and not (is_missing and at == len(given))
        if may_be_tag and key not in value and key in value.values():
            continue
        path.append(key if isinstance(key, int) else str(key))
        with suppress(LookupError, TypeError):
            value = value[key]
    return tuple(path)
