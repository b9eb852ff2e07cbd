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
from contextlib import suppress
from enum import Enum
from typing import Any

from kernai._util.api import Once, called_by, inside_partials, signature_of
from kernai.inputs import containers
from kernai.inputs.constraints import constrained, description_of, is_field
from kernai.inputs.schema import NO_VALUE, REQUIRED
from kernai.inputs.types import ANY, MEDIA, NULL, PLAIN, ChoiceType, InputType, text_types
from kernai.values.context import Context
from kernai.values.media import Media

SUPPORTED = (
    "str, int, float, bool, None, date, datetime, time, Decimal, UUID, list[T], tuple[T, ...], set[T], frozenset[T], "
    "Sequence[T], dict[str, T], Mapping[str, T], X | Y, Optional, Literal, Enum, NewType, type aliases, TypedDict, "
    "NamedTuple, dataclasses, pydantic models, Annotated[T, 'description', constraints], Media, Any"
)
_UNIONS = (typing.Union, types.UnionType)
_WRAPPERS = ("Required", "NotRequired", "ReadOnly")


class Namespace:
    """Looks up the names in the textual annotations of a function, and of the records that it takes."""

    def __init__(self, function: Callable[..., Any] | None = None) -> None:
        self._function: Any = _innermost(function)
        module = getattr(self._function, "__module__", "")  # for a class
        self.globals: dict[str, Any] = getattr(self._function, "__globals__", None) or _names_in(module)

    @Once
    def locals(self) -> dict[str, Any]:
        """The local names of the scopes around the function; those of inner scopes take precedence."""
        around = _enclosing_locals(getattr(self._function, "__qualname__", ""), self.globals)
        cells = getattr(self._function, "__closure__", None) or ()
        for name, cell in zip(self._function.__code__.co_freevars if cells else (), cells, strict=True):
            with suppress(ValueError):  # assigned later in the enclosing function
                around[name] = cell.cell_contents
        return around

    def resolve(self, annotation: object, module: str = "") -> Any:
        """Evaluates every text in an annotation, written in `module`. Raises what the evaluation raises."""
        return self._evaluated({"it": annotation}, _names_in(module), {})["it"]

    def fields(self, annotation: Any, record: type) -> dict[str, Any]:
        """The annotations of the fields of a `record`, written as ``Record[int]`` if it is generic.

        Names are looked up where each was written, then in this namespace. A type variable has the meaning that it has
        in the class that declares the field, which may be a base: a subclass may use the same one for something else.
        """
        bindings: dict[type, dict[Any, Any]] = {}
        _bind(annotation, {}, bindings)
        # a TypedDict has no bases at run time, but the annotations of those that it was written with
        is_flat = _is_typed_dict(record)
        inherited: dict[str, Any] = {}
        found: dict[str, Any] = dict.fromkeys(getattr(record, "__annotations__", ()))  # in this order
        for owner in reversed(bindings if is_flat else record.__mro__):
            every = getattr(owner, "__annotations__", {})
            written = {name: one for name, one in every.items() if (name, one) not in inherited.items()}
            if not written:
                continue
            if is_flat:
                inherited |= written
            module = _names_in(owner.__module__)
            around = _enclosing_locals(owner.__qualname__, module) if "<locals>" in owner.__qualname__ else {}
            variables = {one.__name__: one for one in getattr(owner, "__type_params__", ())}  # ignored by Python 3.12
            names = {**around, owner.__name__: owner, **variables}
            hints = self._evaluated(written, {**vars(owner), **module}, names)
            found |= {name: substituted(hint, bindings.get(owner, {})) for name, hint in hints.items()}
        return found

    def _evaluated(self, annotations: Mapping[str, object], module: dict[str, Any], names: dict[str, Any]) -> Any:
        names = {**self.globals, **self.locals, **module, **names}
        return typing.get_type_hints(type("", (), {"__annotations__": annotations}), {}, names, include_extras=True)


class TypeBuilder:
    """Builds the types of one skill's inputs: one node for each record, even if it is used twice or contains itself."""

    def __init__(self, namespace: Namespace | None = None, media: InputType = MEDIA, is_answer: bool = False) -> None:
        self.namespace, self._is_answer = namespace or Namespace(), is_answer
        self.has_media = False  # whether `Media` was built, as the type `media`
        self.has_records = False
        self._media = media
        self._named: dict[object, InputType] = {}  # records and aliases

    def build(self, annotation: object) -> tuple[InputType, str]:
        """The type of a resolved annotation, and its description. Raises `TypeError` for an unsupported type."""
        return self._type(annotation), _description(annotation)

    def _type(self, annotation: Any) -> InputType:
        origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
        plain = origin or annotation
        if origin is typing.Annotated:
            return self._annotated(annotation)
        if isinstance(annotation, (str, typing.ForwardRef)):
            name = annotation if isinstance(annotation, str) else annotation.__forward_arg__
            return self._alias(("reference", name), name, lambda: self.namespace.resolve(annotation))
        if annotation is None:
            return NULL
        if annotation is Any:
            return ANY
        if isinstance(annotation, InputType):  # built from a tool's schema
            return annotation
        if isinstance(annotation, typing.NewType):
            return self._type(annotation.__supertype__)
        if type(plain).__name__ == "TypeAliasType":
            bindings = dict(zip(plain.__parameters__, arguments, strict=False))
            return self._alias(
                annotation, plain.__name__,  # its value is evaluated on access, and may contain it
                lambda: substituted(self.namespace.resolve(plain.__value__, plain.__module__), bindings),
            )
        return self._generic(annotation, origin, arguments)

    def _generic(self, annotation: Any, origin: Any, arguments: tuple[Any, ...]) -> InputType:
        plain = origin or annotation
        if plain in _UNIONS and arguments:
            return containers.UnionType([self._type(one) for one in arguments])
        if plain is typing.Literal:
            return _literal(arguments)
        if plain is tuple and any(getattr(one, "__unpacked__", False) for one in arguments):
            raise TypeError(f"{_shown(annotation)} unpacks a tuple, which is not supported; write list[T], say")
        if plain is tuple and arguments[1:] != (...,) and annotation not in (tuple, typing.Tuple):  # noqa: UP006 - both exist
            return containers.TupleType([self._type(one) for one in arguments])
        if plain in (tuple, list, Sequence, *containers.SETS) and arguments[1:] in ((), (...,)):
            item = arguments[0] if arguments else Any
            if plain in containers.SETS and not _is_hashable(item):
                raise TypeError(f"{_shown(annotation)} is not possible: a {_shown(item)} cannot be in a set")
            return containers.ListType(self._type(item), list if plain is Sequence else plain)
        if plain in (dict, Mapping) and len(arguments) in (0, 2):
            key, item = arguments or (str, Any)
            if self._type(key) is not PLAIN[str]:
                what = "mark or constrain the whole dict, or write a TypedDict for known keys"
                raise TypeError(f"{_shown(annotation)}: keys must be plain str; {what}")
            return containers.DictType(self._type(item))
        if isinstance(plain, type) and (origin is None or hasattr(plain, "__parameters__")):
            return self._class(annotation, plain)
        raise _unsupported(annotation)

    def _annotated(self, annotation: Any) -> InputType:
        made = constrained(self._type(substituted(annotation.__origin__, {})), annotation.__metadata__)
        if not _is_trusted(annotation):
            return made
        from kernai.inputs.trusted import TrustedType  # few skills have such inputs

        return TrustedType(made)

    def _alias(self, key: object, name: str, find: Callable[[], Any]) -> InputType:
        """The type that `find` returns for a name. Inside itself, it is a reference."""
        known = self._named.get(key)
        if known is not None:
            if isinstance(known, containers.ReferenceType):
                known.is_used = True
            return known
        reference = self._named[key] = containers.ReferenceType(name)
        try:
            found = find()
        except Exception as error:
            raise TypeError(f"the annotation {name!r} cannot be resolved: {error}") from error
        made = self._type(found)
        reference.wrap(made)
        if not reference.is_used:
            self._named[key] = made
        return self._named[key]

    def _class(self, annotation: Any, plain: type) -> InputType:
        """The type of a class. A record is built only once, and known before its fields, which may contain it."""
        if plain is Media:
            self.has_media = True
            return self._media
        if issubclass(plain, Enum):
            if not plain.__members__:
                raise TypeError(f"{plain.__name__} has no members, so no value fits")
            return ChoiceType(plain.__members__.values(), plain.__members__)
        known = PLAIN.get(plain) or text_types().get(plain) or self._named.get(annotation)
        if known is not None:
            return known
        if callable(getattr(plain, "model_validate", None)) and hasattr(plain, "model_json_schema"):
            return self._named.setdefault(annotation, containers.ModelType(plain, is_answer=self._is_answer))
        if issubclass(plain, Context):  # as a dataclass, it would be an input, and the model would choose its values
            hint = f"a skill gets it as ctx.run_context, from ctx: SkillContext[{plain.__name__}]"
            raise TypeError(f"{_shown(annotation)} is a Context, which a model cannot send; {hint}")
        if _is_typed_dict(plain):
            node = containers.RecordType(plain.__name__, dict)
        elif dataclasses.is_dataclass(plain) or (issubclass(plain, tuple) and hasattr(plain, "_field_defaults")):
            node = containers.RecordType(plain.__name__, plain)
        else:
            raise _unsupported(annotation)
        self._named[annotation], self.has_records = node, True
        try:
            hints = self.namespace.fields(annotation, plain)
        except Exception as error:
            raise TypeError(f"the fields of {plain.__name__} cannot be resolved: {error}") from error
        node.set_fields([self._field(plain, *one) for one in _fields(plain, hints)])
        return node

    def _field(self, record: type, name: str, annotation: object, default: object, about: str = "") -> containers.Field:
        try:
            containers.check_default(default)
            made, description = self.build(defaulted(annotation, default))
        except TypeError as error:
            raise TypeError(f"field {name!r} of {record.__name__}: {error}") from error
        return containers.Field(name, made, default, description or about)


def _is_typed_dict(record: type) -> bool:
    return issubclass(record, dict) and hasattr(record, "__required_keys__")


def _fields(record: Any, hints: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    """The arguments of `TypeBuilder._field` for each field of a record."""
    if _is_typed_dict(record):
        for name, annotation in hints.items():
            # under `from __future__ import annotations`, `__required_keys__` ignores NotRequired; the hint has it
            required = name in record.__required_keys__
            while getattr(wrapper := typing.get_origin(annotation), "_name", "") in _WRAPPERS:
                required = {typing.Required: True, typing.NotRequired: False}.get(wrapper, required)
                annotation = typing.get_args(annotation)[0]  # noqa: PLW2901 - unwrapped
            yield name, annotation, REQUIRED if required else NO_VALUE
    elif not dataclasses.is_dataclass(record):
        defaults = record._field_defaults
        for name in record._fields:
            yield name, hints.get(name, Any), defaults.get(name, REQUIRED)
    else:
        kind: Any = record
        fields: list[Any] = [one for one in dataclasses.fields(kind) if one.init]
        for one in fields:
            default, make = one.default, one.default_factory
            if default is dataclasses.MISSING:
                default = REQUIRED if make is dataclasses.MISSING else make() if make in (list, dict) else NO_VALUE
            about = str(one.metadata.get("description", ""))
            if is_field(default) and hasattr(kind, "__pydantic_validator__"):  # pydantic checks its constraints
                about, own = default.description or about, default
                default = REQUIRED if own.is_required() else NO_VALUE if own.default_factory else own.default
            yield one.name, hints[one.name], default, about
        try:
            signature_of(kind).bind(**dict.fromkeys(one.name for one in fields))
        except TypeError as error:  # its fields alone are not enough: it has an `InitVar`, say
            raise TypeError(f"{kind.__name__} cannot be created from its fields: {error}") from error


def defaulted(annotation: Any, default: object) -> Any:
    """Makes the annotation of ``x: int = None`` ``int | None``."""
    if default is None and annotation is not None:
        return typing.Optional[annotation]  # noqa: UP045 - also for annotations that do not support `|`
    return annotation


def undescribed(annotation: Any) -> Any:
    """The type in ``Annotated[T, ...]``."""
    return annotation.__origin__ if typing.get_origin(annotation) is typing.Annotated else annotation


def _description(annotation: Any) -> str:
    """The last text in ``Annotated[T, "description"]``, or in an optional one: the outermost, if T is annotated too."""
    if typing.get_origin(annotation) in _UNIONS:
        members = [one for one in typing.get_args(annotation) if one is not type(None)]
        return _description(members[0]) if len(members) == 1 else ""
    if typing.get_origin(annotation) is not typing.Annotated:
        return ""
    texts = (one if isinstance(one, str) else description_of(one) for one in reversed(annotation.__metadata__))
    return next(filter(None, texts), "") or _description(annotation.__origin__)


def _is_trusted(annotation: Any) -> bool:
    # by its name, so that the module of the mark is loaded only if a skill uses it; also in `Annotated[str, Trusted]`
    metadata = getattr(annotation, "__metadata__", ())
    return any(type(one).__name__ == "TrustedMark" or _is_trusted(one) for one in metadata)


def _is_hashable(annotation: Any) -> bool:
    """Whether a set can hold the values of a type, as far as the type shows."""
    annotation = undescribed(annotation)
    origin = typing.get_origin(annotation) or annotation
    if origin is Sequence or (isinstance(origin, type) and origin.__hash__ is None):
        return False
    return all(map(_is_hashable, typing.get_args(annotation)))


def _literal(values: tuple[object, ...]) -> InputType:
    for value in values:
        if not (value is None or isinstance(value, Enum) or type(value) in (str, int, bool)):
            raise TypeError(f"Literal[{value!r}] is not a JSON value; it may hold str, int, bool, None, enum members")
    return ChoiceType(values, {one.name: one for one in values if isinstance(one, Enum)})


def _unsupported(annotation: Any) -> TypeError:
    return TypeError(f"the type {_shown(annotation)} is not supported; supported are {SUPPORTED}")


def _shown(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) and not typing.get_args(annotation) else str(annotation)


# ---------------------------------------------------------------------------------------------------- type variables


def _bind(generic: Any, outer: Mapping[Any, Any], found: dict[type, dict[Any, Any]]) -> None:
    """Adds the types of the type variables of a class written as ``Record[int]``, and of each of its bases."""
    origin = typing.get_origin(generic) or generic
    if isinstance(origin, type) and origin not in found:
        arguments = [substituted(one, outer) for one in typing.get_args(generic)]
        found[origin] = own = dict(zip(getattr(origin, "__parameters__", ()), arguments, strict=False))
        for base in vars(origin).get("__orig_bases__", origin.__bases__):
            _bind(base, own, found)


def substituted(annotation: Any, bindings: Mapping[Any, Any]) -> Any:
    """An annotation with its type variables replaced. Raises `TypeError` for an unbound type variable."""
    if isinstance(annotation, typing.TypeVar):
        if annotation in bindings:
            return bindings[annotation]
        raise TypeError(f"the type variable {annotation} has no type: write Record[int] or Trusted[str], say")
    is_class = isinstance(annotation, type) and not typing.get_args(annotation)  # a generic class has its own variables
    variables = () if is_class else getattr(annotation, "__parameters__", ())
    return annotation[tuple(substituted(one, bindings) for one in variables)] if variables else annotation


# ------------------------------------------------------------------------------------------------------- local names


def _innermost(function: Any) -> Any:
    """The author's function, without decorators, partials and bound methods around it; of an object, its `__call__`."""
    while True:
        inner = inside_partials(function)
        inner = called_by(getattr(inner, "__wrapped__", None) or getattr(inner, "__func__", inner))
        if inner is function:
            return function
        function = inner


def _names_in(module: str) -> dict[str, Any]:
    return getattr(sys.modules.get(module), "__dict__", {})


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
