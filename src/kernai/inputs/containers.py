"""Types that hold other types: lists, tuples, objects with free keys, unions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from kernai.inputs.faults import NO_VALUE, Fault, Validation, shown
from kernai.inputs.schema import Definitions, Schema
from kernai.inputs.types import NULL, AnyType, FloatType, InputType

_READ_AS = "read as"
SETS = (set, frozenset)


class ListType(InputType):
    """`list[T]`, `tuple[T, ...]` and `Sequence[T]`; with `build` a set, whose items may not come twice."""

    natural = frozenset({list})

    def __init__(self, item: InputType, build: Callable[[list[Any]], Any] = list) -> None:
        self.item = item
        self._build = build
        if build in SETS:
            self.label = f"list of distinct items, each {_grouped(item)}"
        else:
            self.label = "list" if isinstance(item, AnyType) else f"list of {_grouped(item)}"

    def convert(self, value: object, validation: Validation) -> Any:
        if not isinstance(value, (list, tuple)):
            if self._build in SETS and isinstance(value, SETS):
                value = list(value)
            else:
                validation.refuse(self.label, value)
                return None
        item, exact = self.item, self.item.exact
        made = [one if type(one) is exact else validation.inside(at, item, one) for at, one in enumerate(value)]
        if self._build is list:
            return made
        if self._build in SETS:
            return self._as_set(made, value, validation)
        return self._build(made)

    @property
    def is_set(self) -> bool:
        return self._build in SETS

    def _as_set(self, made: list[Any], value: Sequence[Any], validation: Validation) -> Any:
        """Twice the same is a fault, for one of them would be lost."""
        if validation.faults:
            return None
        found: set[Any] = set()
        for at, one in enumerate(made):
            try:
                if one in found:
                    told = f"expected distinct items, received {shown(value[at])} twice"
                    validation.faults.append(Fault((at,), told))
                found.add(one)
            except TypeError:  # the author's class has no hash after all
                validation.refuse("a value that a set can hold", one, (str(at),))
        return self._build(made)

    def takes_whole(self, value: dict[str, Any] | list[Any]) -> bool:
        return isinstance(value, list)

    def sample(self, inside: tuple[InputType, ...] = ()) -> Any:
        item = self.item.sample(inside)
        return [] if item is NO_VALUE else [item]

    def outline(self, path: str, seen: set[InputType]) -> Iterator[str]:
        return self.item.outline(path + "[]", seen)

    def schema(self, definitions: Definitions) -> Schema:
        item = self.item.schema(definitions)
        made = {"type": "array", "items": item} if item else {"type": "array"}
        return {**made, "uniqueItems": True} if self._build in SETS else made


class TupleType(InputType):
    """`tuple[A, B]`: a list of just so many."""

    natural = frozenset({list})

    def __init__(self, items: Sequence[InputType]) -> None:
        self.items = tuple(items)
        self.label = f"list of {len(self.items)}: ({', '.join(item.label for item in self.items)})"

    def convert(self, value: object, validation: Validation) -> Any:
        if not isinstance(value, (list, tuple)) or len(value) != len(self.items):
            validation.refuse(self.label, value)
            return None
        pairs = zip(self.items, value, strict=True)
        return tuple(validation.inside(at, item, one) for at, (item, one) in enumerate(pairs))

    def takes_whole(self, value: dict[str, Any] | list[Any]) -> bool:
        return isinstance(value, list)

    def sample(self, inside: tuple[InputType, ...] = ()) -> Any:
        samples = [item.sample(inside) for item in self.items]
        return NO_VALUE if NO_VALUE in samples else samples

    def outline(self, path: str, seen: set[InputType]) -> Iterator[str]:
        for at, item in enumerate(self.items):
            yield from item.outline(f"{path}[{at}]", seen)

    def schema(self, definitions: Definitions) -> Schema:
        size, items = len(self.items), [item.schema(definitions) for item in self.items]
        return {"type": "array", "minItems": size, "maxItems": size, **({"prefixItems": items} if items else {})}


class DictType(InputType):
    """`dict[str, T]`."""

    natural = frozenset({dict})

    def __init__(self, item: InputType) -> None:
        self.item = item
        self.label = "object" if isinstance(item, AnyType) else f"object with values of type {_grouped(item)}"

    def convert(self, value: object, validation: Validation) -> Any:
        if not isinstance(value, Mapping):
            validation.refuse(self.label, value)
            return None
        for key in value:
            if not isinstance(key, str):  # which only a caller in Python can give
                validation.refuse("text as a key", key, (str(key),))
        return {key: validation.inside(str(key), self.item, one) for key, one in value.items()}

    def takes_whole(self, value: dict[str, Any] | list[Any]) -> bool:
        return isinstance(value, dict)

    def sample(self, inside: tuple[InputType, ...] = ()) -> Any:
        item = self.item.sample(inside)
        return {} if item is NO_VALUE else {"key": item}

    def outline(self, path: str, seen: set[InputType]) -> Iterator[str]:
        return self.item.outline(path + ".*", seen)

    def schema(self, definitions: Definitions) -> Schema:
        item = self.item.schema(definitions)
        return {"type": "object", "additionalProperties": item} if item else {"type": "object"}


class UnionType(InputType):
    """`X | Y`: of the members written in the value's own kind of JSON the first that fits, else of all the others.

    So 1 is an int for ``float | int``, and a text is a date for ``date | str`` if it is one.
    """

    def __init__(self, members: Sequence[InputType]) -> None:
        self.members = tuple(members)
        self.natural = frozenset().union(*(member.natural for member in members))
        self.label = " or ".join(dict.fromkeys(member.label for member in members))
        self._natural = {kind: tuple(m for m in members if kind in m.natural) for kind in self.natural}

    def convert(self, value: object, validation: Validation) -> Any:
        kind = type(value)
        natural = self._natural.get(kind, ())
        if kind is not list and kind is not dict:
            if natural and kind is natural[0].exact:
                return value
            return self._try(value, natural, validation)
        if len(natural) == 1:  # nothing else takes such a value, so its own faults are the right ones
            return natural[0].convert(value, validation)
        place = (id(value), id(self), validation.repair)
        if place not in validation.memo:
            trial = Validation(validation.media_store, validation.memo, repair=validation.repair)
            validation.memo[place] = (self._try(value, natural, trial), trial.faults)
        made, faults = validation.memo[place]
        validation.faults.extend(faults)
        return made

    def _try(self, value: object, natural: tuple[InputType, ...], validation: Validation) -> Any:
        members = (*natural, *(one for one in self.members if one not in natural))
        # first as it is: a string is made a number only where no member takes it, and none is written as a string
        faults: list[Fault] = []
        repairable = validation.repair and not (isinstance(value, str) and str in self.natural)
        for repair in (False, True) if repairable else (False,):
            trials: list[tuple[InputType, list[Fault]]] = []
            for member in sorted(members, key=_is_float) if repair else members:  # "5" is an int first
                trial = Validation(validation.media_store, validation.memo, repair=repair)
                made = member.convert(value, trial)
                if not trial.faults:
                    return made
                trials.append((member, trial.faults))
            if not repair:
                faults = self._faults(value, trials[: len(natural)])
        validation.faults.extend(faults)
        return None

    def _faults(self, value: object, trials: list[tuple[InputType, list[Fault]]]) -> list[Fault]:
        """What to say when no member fits, given the faults of those written in the value's own kind of JSON."""
        if len(trials) == 1:
            return trials[0][1]
        inside = [(member, faults) for member, faults in trials if all(fault.path for fault in faults)]
        if not inside:
            return [Fault((), f"expected {self.label}, received {shown(value)}")]
        # the one it was most likely meant to be: none with a tag that is another's
        tags = {member: member.tags() for member, _ in inside}
        right = {tag for member, found in inside for tag in tags[member] - {fault.path[0] for fault in found}}
        strays = {member: any(one.path[0] in right & tags[member] for one in found) for member, found in inside}
        member, faults = min(inside, key=lambda trial: (strays[trial[0]], len(trial[1])))
        return [
            fault if _READ_AS in fault.message else Fault(fault.path, f"{fault.message} ({_READ_AS} {member.label})")
            for fault in faults
        ]

    def from_text(self, text: str) -> Any:
        if str in self.natural:
            return NO_VALUE
        whole = sorted(self.members, key=_is_float)  # "5" is an int first
        found = (member.from_text(text) for member in whole)
        return next((value for value in found if value is not NO_VALUE), NO_VALUE)

    def takes_whole(self, value: dict[str, Any] | list[Any]) -> bool:
        return any(member.takes_whole(value) for member in self.members)

    def sample(self, inside: tuple[InputType, ...] = ()) -> Any:
        found = (member.sample(inside) for member in sorted(self.members, key=lambda m: m is NULL))
        return next((value for value in found if value is not NO_VALUE), NO_VALUE)

    def outline(self, path: str, seen: set[InputType]) -> Iterator[str]:
        for member in self.members:
            yield from member.outline(path, seen)

    def schema(self, definitions: Definitions) -> Schema:
        every = [member.schema(definitions) for member in self.members]
        members = [one for at, one in enumerate(every) if one not in every[:at]]
        if {} in members:  # `Any` among them
            return {}
        return members[0] if len(members) == 1 else {"anyOf": members}


def _is_float(member: InputType) -> bool:
    return isinstance(member, FloatType)


def _grouped(item: InputType) -> str:
    return f"({item.label})" if isinstance(item, UnionType) and len(item.members) > 1 else item.label
