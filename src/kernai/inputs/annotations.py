"""Builds the type of an input from its annotation.

Annotations may be text, entirely under ``from __future__ import annotations``, or in part as in ``list["Ticket"]``.
A name in such text is looked up where the author wrote it: in the functions and classes around it, which are still
running when a decorator is applied, in the function's closure, and in its module.
"""

from __future__ import annotations

import dataclasses
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any

from kernai._util.api import Once, signature_of
from kernai.inputs.constraints import ConstrainedType, constrained, description_of
from kernai.inputs.containers import (
    SETS,
    DictType,
    Field,
    ListType,
    ModelType,
    RecordType,
    ReferenceType,
    TupleType,
    UnionType,
)
from kernai.inputs.schema import NO_VALUE
from kernai.inputs.types import ANY, MEDIA, NULL, PLAIN, ChoiceType, InputType, text_types
from kernai.values.media import Media

SUPPORTED = (
    "str, int, float, bool, None, date, datetime, time, Decimal, UUID, list[T], tuple[T, ...], set[T], frozenset[T], "
    "Sequence[T], dict[str, T], Mapping[str, T], X | Y, Optional, Literal, Enum, NewType, type aliases, TypedDict, "
    "NamedTuple, dataclasses, pydantic models, Annotated[T, 'description', constraints], Media, Any"
)
_MOST_NESTED = 30  # instances of one generic class inside each other: it may contain itself with ever new arguments
_BARE = (list, tuple, dict, set, frozenset, Sequence, Mapping)


class Namespace:
    """Looks up the names in textual annotations."""

    def __init__(self, function: Callable[..., Any] | None = None) -> None:
        plain = _innermost(function)
        self.globals: dict[str, Any] = getattr(plain, "__globals__", {})
        self._function = plain

    @Once
    def locals(self) -> dict[str, Any]:
        """The local names of the scopes around the function; those of inner scopes take precedence."""
        around = _enclosing_locals(getattr(self._function, "__qualname__", ""), self.globals)
        return {**around, **_closure(self._function)}

    def resolve(self, annotation: object, module: str = "") -> Any:
        """Evaluates every text in an annotation, written in `module`. Raises what the evaluation raises."""
        return self._evaluated({"it": annotation}, _names_in(module), {})["it"]

    def fields(self, record: type) -> dict[str, Any]:
        """The annotations of a class's fields. Names are looked up where each was written, then in this namespace."""
        found: dict[str, Any] = {}
        for owner in reversed(record.__mro__):
            written = getattr(owner, "__annotations__", None)  # without those of its bases
            if not written:
                continue
            module = _names_in(owner.__module__)
            around = _enclosing_locals(owner.__qualname__, module) if "<locals>" in owner.__qualname__ else {}
            variables = {one.__name__: one for one in getattr(owner, "__type_params__", ())}  # ignored by Python 3.12
            found |= self._evaluated(written, {**vars(owner), **module}, {**around, owner.__name__: owner, **variables})
        return found

    def _evaluated(self, annotations: Mapping[str, object], module: dict[str, Any], names: dict[str, Any]) -> Any:
        names = {**self.globals, **self.locals, **module, **names}
        return typing.get_type_hints(type("", (), {"__annotations__": annotations}), {}, names, include_extras=True)


class TypeBuilder:
    """Builds the types of one skill's inputs: one node for each record, even if it is used twice or contains itself."""

    def __init__(self, namespace: Namespace | None = None, media: InputType = MEDIA) -> None:
        self.namespace = namespace or Namespace()
        self.has_media = False  # whether `Media` was built, as the type `media`
        self.has_records = False
        self.may_be_marked = False  # whether `Trusted`, or a class with its own schema, was built
        self._media = media
        self._records: dict[object, InputType] = {}
        self._open: list[Any] = []  # the records and aliases whose parts are being built

    def build(self, annotation: object) -> tuple[InputType, str]:
        """The type of a resolved annotation, and its description. Raises `TypeError` for an unsupported type."""
        plain, description = undescribed(annotation)
        return self._type(annotation), description or _description_inside(plain)

    def _type(self, annotation: Any) -> InputType:
        if typing.get_origin(annotation) is typing.Annotated:
            made = constrained(self._type(annotation.__origin__), annotation.__metadata__)
            if _is_trusted(annotation):
                from kernai.inputs.trusted import TrustedType  # few skills have such inputs

                self.may_be_marked = True
                return TrustedType(made)
            return made
        if isinstance(annotation, (str, typing.ForwardRef)):
            name = annotation if isinstance(annotation, str) else annotation.__forward_arg__
            return self._named_type(("reference", name), name, lambda: self.namespace.resolve(annotation))
        if annotation is None:
            return NULL
        if isinstance(annotation, type) and annotation in PLAIN:
            return PLAIN[annotation]
        if annotation is Any:
            return ANY
        if isinstance(annotation, InputType):  # built from a tool's schema
            return annotation
        if isinstance(annotation, typing.NewType):
            return self._type(annotation.__supertype__)
        origin = typing.get_origin(annotation)
        if type(origin or annotation).__name__ == "TypeAliasType":
            return self._alias(annotation, origin or annotation)
        if origin is not None or annotation in _BARE:
            return self._generic(annotation, origin or annotation, typing.get_args(annotation))
        return self._class(annotation)

    def _alias(self, annotation: Any, alias: Any) -> InputType:
        """The type of an alias ``type X = ...``, whose value is evaluated on access and may contain `X`."""
        bindings = dict(zip(parameters_of(alias), typing.get_args(annotation), strict=False))
        with self._inside(alias):
            return self._named_type(
                annotation, alias.__name__,
                lambda: substituted(self.namespace.resolve(alias.__value__, alias.__module__), bindings),
            )

    def _named_type(self, key: object, name: str, find: Callable[[], Any]) -> InputType:
        """The type that `find` returns for a name. Inside itself, it is a reference."""
        known = self._records.get(key)
        if known is not None:
            if isinstance(known, ReferenceType):
                known.is_used = True
            return known
        reference = self._records[key] = ReferenceType(name)
        try:
            found = find()
        except Exception as error:
            raise TypeError(f"the annotation {name!r} cannot be resolved: {error}") from error
        made = self._type(found)
        reference.wrap(made)
        if not reference.is_used:
            self._records[key] = made
        return self._records[key]

    @contextmanager
    def _inside(self, generic: Any) -> Iterator[None]:
        """Inside this ``with`` block, the parts of a record or an alias are built."""
        if self._open.count(generic) > _MOST_NESTED:
            raise TypeError(f"{_named(generic)} contains itself with ever different type arguments")
        self._open.append(generic)
        yield
        self._open.pop()

    def _generic(self, annotation: Any, origin: Any, arguments: tuple[Any, ...]) -> InputType:
        if origin in (typing.Union, types.UnionType):
            return UnionType([self._type(one) for one in arguments])
        if origin is typing.Literal:
            return _literal(arguments)
        if origin is list or origin is Sequence:
            return ListType(self._type(arguments[0] if arguments else Any))
        if origin in SETS:
            return self._set(annotation, origin, arguments[0] if arguments else Any)
        if origin is dict or origin is Mapping:
            key, item = arguments or (str, Any)
            if _is_trusted(key):
                raise TypeError(f"{_named(annotation)}: Trusted cannot mark a dict's keys; mark the whole dict")
            if (keys := self._type(key)) is not PLAIN[str]:
                if isinstance(keys, ConstrainedType):
                    raise TypeError(f"{_named(annotation)}: constraints on keys are not checked; check the whole dict")
                raise TypeError(f"{_named(annotation)} has keys that are not str: JSON objects have none")
            return DictType(self._type(item))
        if origin is tuple:
            return self._tuple(annotation, arguments)
        if isinstance(origin, type) and parameters_of(origin):
            return self._record_node(annotation, origin)
        raise _unsupported(annotation)

    def _tuple(self, annotation: Any, arguments: tuple[Any, ...]) -> InputType:
        if not arguments and annotation not in (tuple, typing.Tuple):  # noqa: UP006 - both may be written
            return TupleType(())
        if any(getattr(one, "__unpacked__", False) for one in arguments):
            raise TypeError(f"{_named(annotation)} unpacks a tuple, which is not supported; write list[T], say")
        if not arguments or arguments[1:] == (...,):
            return ListType(self._type(arguments[0] if arguments else Any), tuple)
        return TupleType([self._type(one) for one in arguments])

    def _set(self, annotation: Any, origin: Any, item: Any) -> InputType:
        made = ListType(self._type(item), origin)
        if not _is_hashable(item):
            raise TypeError(f"{_named(annotation)} is not possible: a {_named(item)} cannot be in a set")
        return made

    def _class(self, annotation: Any) -> InputType:
        if not isinstance(annotation, type):
            raise _unsupported(annotation)
        if annotation is Media:
            self.has_media = True
            return self._media
        if issubclass(annotation, Enum):
            if not annotation.__members__:
                raise TypeError(f"{annotation.__name__} has no members, so no value fits")
            return ChoiceType(list(annotation), annotation.__members__)
        if annotation in text_types():
            return text_types()[annotation]
        return self._record_node(annotation, annotation)

    def _record_node(self, annotation: Any, origin: type) -> InputType:
        """The node of a record, which is built only once."""
        if annotation not in self._records:
            with self._inside(origin):
                self._record(annotation, origin)
        return self._records[annotation]

    def _record(self, key: Any, annotation: Any) -> None:
        """Adds the node, then builds its fields, so that a field of the record's own type finds the node."""
        if callable(getattr(annotation, "model_validate", None)) and hasattr(annotation, "model_json_schema"):
            self.may_be_marked = True
            self._records[key] = ModelType(annotation)
            return
        is_typed_dict = _is_typed_dict(annotation)
        find_fields = (
            _typed_dict_fields if is_typed_dict
            else _dataclass_fields if dataclasses.is_dataclass(annotation)
            else _named_tuple_fields if issubclass(annotation, tuple) and hasattr(annotation, "_field_defaults")
            else None
        )
        if find_fields is None:
            raise _unsupported(annotation)
        if is_typed_dict:
            node = RecordType(annotation.__name__, dict)
        else:
            node = RecordType(annotation.__name__, lambda values: annotation(**values), annotation)
        self._records[key], self.has_records = node, True
        found = find_fields(annotation, self._hints(key, annotation))
        node.fields = tuple(self._field(annotation, *one) for one in found)

    def _hints(self, annotation: Any, record: type) -> Mapping[str, Any]:
        try:
            hints = self.namespace.fields(record)
            return {
                name: substituted(hint, bindings_of(annotation, record, name) or {}) if _has_variables(hint) else hint
                for name, hint in hints.items()
            }
        except Exception as error:
            raise TypeError(f"the fields of {record.__name__} cannot be resolved: {error}") from error

    def _field(
        self, record: type, name: str, annotation: object, required: bool, default: object = NO_VALUE,
        otherwise_described: str = "",
    ) -> Field:
        try:
            made, description = self.build(defaulted(annotation, default))
        except TypeError as error:
            raise TypeError(f"field {name!r} of {record.__name__}: {error}") from error
        return Field(name, made, required, description or otherwise_described, default)


def _is_typed_dict(record: type) -> bool:
    return issubclass(record, dict) and hasattr(record, "__required_keys__")


def _typed_dict_fields(record: Any, hints: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    """The arguments of `TypeBuilder._field` for each field."""
    for name, annotation in hints.items():
        # under `from __future__ import annotations`, `__required_keys__` ignores NotRequired; the hint has it
        required = name in record.__required_keys__
        while getattr(typing.get_origin(annotation), "_name", "") in ("Required", "NotRequired", "ReadOnly"):
            wrapper = typing.get_origin(annotation)
            required = {typing.Required: True, typing.NotRequired: False}.get(wrapper, required)
            annotation = typing.get_args(annotation)[0]  # noqa: PLW2901 - unwrapped
        yield name, annotation, required


def _dataclass_fields(record: Any, hints: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    fields = [one for one in dataclasses.fields(record) if one.init]
    for one in fields:
        default: object = NO_VALUE if one.default is dataclasses.MISSING else one.default
        required = default is NO_VALUE and one.default_factory is dataclasses.MISSING
        if default is NO_VALUE and one.default_factory in (list, dict):
            default = one.default_factory()
        yield one.name, hints[one.name], required, default, str(one.metadata.get("description", ""))
    try:  # if it cannot be created from its fields alone: it has an `InitVar`, say
        signature_of(record).bind(**dict.fromkeys(one.name for one in fields))
    except TypeError as error:
        raise TypeError(f"{record.__name__} cannot be created from its fields: {error}") from error


def _named_tuple_fields(record: Any, hints: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    defaults = record._field_defaults
    return ((n, hints.get(n, Any), n not in defaults, defaults.get(n, NO_VALUE)) for n in record._fields)


def defaulted(annotation: Any, default: object) -> Any:
    """Makes the annotation of ``x: int = None`` ``int | None``."""
    if default is None and annotation is not None:
        return typing.Optional[annotation]  # noqa: UP045 - also for annotations that do not support `|`
    return annotation


def undescribed(annotation: Any) -> tuple[Any, str]:
    """The type and the description in ``Annotated[T, "description"]``; of several texts, the first one counts.

    For other metadata see `constraints`.
    """
    description = ""
    while typing.get_origin(annotation) is typing.Annotated:
        texts = (one if isinstance(one, str) else description_of(one) for one in annotation.__metadata__)
        description = description or next(filter(None, texts), "")
        annotation = annotation.__origin__
    return annotation, description


def _is_trusted(annotation: Any) -> bool:
    # by its name, so that the module of the mark is loaded only if a skill uses it
    return any(type(one).__name__ == "TrustedMark" for one in getattr(annotation, "__metadata__", ()))


def _description_inside(annotation: Any) -> str:
    """The description in ``Annotated[T, "description"] | None``."""
    if typing.get_origin(annotation) not in (typing.Union, types.UnionType):
        return ""
    members = [one for one in typing.get_args(annotation) if one is not type(None)]
    return undescribed(members[0])[1] if len(members) == 1 else ""


def _is_hashable(annotation: Any) -> bool:
    """Whether a set can hold the values of a type, as far as the type shows."""
    annotation, _ = undescribed(annotation)
    origin = typing.get_origin(annotation) or annotation
    if origin is Sequence or (isinstance(origin, type) and origin.__hash__ is None):
        return False
    return all(map(_is_hashable, typing.get_args(annotation)))


def _literal(values: tuple[object, ...]) -> InputType:
    if not values:
        raise TypeError("Literal[()] has no values, so none fits")
    for value in values:
        if not (value is None or isinstance(value, Enum) or type(value) in (str, int, bool)):
            raise TypeError(f"Literal[{value!r}] is not a JSON value; it may hold str, int, bool, None, enum members")
    return ChoiceType(values)


def _unsupported(annotation: Any) -> TypeError:
    return TypeError(f"the type {_named(annotation)} is not supported; supported are {SUPPORTED}")


def _named(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) and not typing.get_args(annotation) else str(annotation)


# ---------------------------------------------------------------------------------------------------- type variables


def parameters_of(generic: Any) -> tuple[Any, ...]:
    """The type variables of a generic class or alias."""
    return getattr(generic, "__type_params__", ()) or getattr(generic, "__parameters__", ())


def bindings_of(annotation: Any, record: Any, field: str) -> dict[Any, Any] | None:
    """The types of the type variables in a field of a record written as ``Record[int]``.

    A variable has the meaning that it has in the class that declares the field, which may be a base of `record`: a
    subclass may use the same variable for something else. None if no class declares the field.
    """
    found = dict(zip(parameters_of(record), typing.get_args(annotation), strict=False))
    declares = field in getattr(record, "__annotations__", ())
    if declares and not _is_typed_dict(record):  # a TypedDict's annotations include those of its bases
        return found
    for base in vars(record).get("__orig_bases__", record.__bases__):
        origin = typing.get_origin(base) or base
        inside = bindings_of(base, origin, field) if isinstance(origin, type) else None
        if inside is not None:
            return {name: substituted(one, found) for name, one in inside.items()}
    return found if declares else None


def substituted(annotation: Any, bindings: Mapping[Any, Any]) -> Any:
    """An annotation with its type variables replaced. Raises `TypeError` for an unbound type variable."""
    if not _has_variables(annotation):
        return annotation
    if isinstance(annotation, typing.TypeVar):
        if annotation not in bindings:
            raise TypeError(f"the type variable {annotation} is not bound to a type: write Record[int], say")
        return bindings[annotation]
    return annotation[tuple(substituted(one, bindings) for one in annotation.__parameters__)]


def _has_variables(annotation: Any) -> bool:
    """Whether type variables in an annotation must be replaced. A generic class alone has its own."""
    is_bare = isinstance(annotation, type) and not typing.get_args(annotation)
    return isinstance(annotation, typing.TypeVar) or bool(not is_bare and getattr(annotation, "__parameters__", ()))


# ------------------------------------------------------------------------------------------------------- local names


def _innermost(function: Any) -> Any:
    """The author's function, without decorators, partials and bound methods around it."""
    while True:
        inner = getattr(function, "__wrapped__", None) or getattr(function, "func", None)
        inner = inner or getattr(function, "__func__", None)
        if inner is None or inner is function:
            return function
        function = inner


def _names_in(module: str) -> dict[str, Any]:
    return getattr(sys.modules.get(module), "__dict__", {})


def _closure(function: Any) -> dict[str, Any]:
    cells = getattr(function, "__closure__", None) or ()
    names = function.__code__.co_freevars if cells else ()
    found = {}
    for name, cell in zip(names, cells, strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # assigned later in the enclosing function
            continue
    return found


def _enclosing_locals(inside: str, module: dict[str, Any]) -> dict[str, Any]:
    """The locals of the functions and class bodies around a qualified name, if they are running."""
    names: dict[str, Any] = {}
    frame: types.FrameType | None = sys._getframe(1)  # noqa: SLF001 - the way the standard library itself finds callers
    while frame is not None and "." in inside:
        code = frame.f_code
        around = f"{code.co_qualname}." if code.co_qualname != "<module>" else ""
        if around and inside.startswith(around) and frame.f_globals is module:
            names = {**frame.f_locals, **names}
        frame = frame.f_back
    return names
