"""What a skill declares: inputs and context in its function's signature, and its `Credential`s and `Setting`s."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from kernai._util.api import Value, signature_of
from kernai.errors import KernaiError
from kernai.inputs.annotations import Namespace, TypeBuilder, defaulted, undescribed
from kernai.inputs.schema import NO_VALUE
from kernai.inputs.table import REQUIRED, Input, InputTable
from kernai.inputs.types import Validation, dotted
from kernai.jsonio.json_data import loads
from kernai.registry.skill_context import SkillContext

if TYPE_CHECKING:
    from inspect import Parameter, Signature

    from kernai.inputs.types import InputType

# An annotation with names that are imported under TYPE_CHECKING cannot be resolved, but a SkillContext is recognised.
_CONTEXT_TEXT = re.compile(r"(?:(?:[\w.]+\.)?Optional\[\s*)?(?:[\w.]+\.)?SkillContext\b.*", re.DOTALL)


class CallShape(NamedTuple):
    """How to call a function: the names of its context parameter and of its positional-only parameters."""

    context: str | None = None
    positional: tuple[str, ...] = ()


def read_signature(skill_name: str, function: Callable[..., Any]) -> tuple[InputTable, CallShape]:
    """The inputs, from each parameter's annotation, default and description in ``Annotated``, and how to call it.

    Raises `TypeError` for a parameter that cannot be an input: ``*args``, an unknown type, an unknown name in one.
    """
    namespace = Namespace(function)
    inputs: dict[str, Input] = {}
    context: str | None = None
    signature = _signature(function)
    if signature is None:
        raise TypeError(f"skill {skill_name!r}: the signature of {function!r} cannot be read; pass inputs={{...}}")
    for parameter in _parameters(skill_name, function, signature):
        annotation = _resolved(skill_name, parameter, namespace)
        if _is_context(annotation):
            if context is not None:
                raise TypeError(f"skill {skill_name!r}: {context!r} and {parameter.name!r} are both a SkillContext")
            context = parameter.name
            continue
        default = REQUIRED if parameter.default is parameter.empty else parameter.default
        inputs[parameter.name] = Input(defaulted(annotation, default), default)
    names = {*inputs, context}
    return InputTable(skill_name, inputs, TypeBuilder(namespace)), CallShape(context, _positional(signature, names))


def check_signature(skill_name: str, function: Callable[..., Any], inputs: Collection[str]) -> CallShape:
    """How to call a function whose inputs were declared separately. Raises `TypeError` if it does not accept them."""
    signature = _signature(function)
    if signature is None:
        return CallShape()
    namespace = Namespace(function)
    context: str | None = None
    taken: set[str] = set()
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            taken.update(inputs)
        elif parameter.name in inputs:
            taken.add(parameter.name)
        elif parameter.kind is not parameter.VAR_POSITIONAL:
            if _is_context(_resolved(skill_name, parameter, namespace, strict=False)):
                context = parameter.name
            elif parameter.default is parameter.empty:
                raise TypeError(f"skill {skill_name!r}: its function needs {parameter.name!r}, which is not in inputs")
    for name in inputs:
        if name not in taken:
            raise TypeError(f"skill {skill_name!r}: its function takes no parameter {name!r}, which is in inputs")
    return CallShape(context, _positional(signature, {*inputs, context}))


def _signature(function: Callable[..., Any]) -> Signature | None:
    try:
        return signature_of(function)
    except ValueError:  # some functions written in C
        return None


def _parameters(skill_name: str, function: Callable[..., Any], signature: Signature) -> Iterator[Parameter]:
    preset = getattr(function, "keywords", {})  # already bound by a functools.partial
    for at, parameter in enumerate(signature.parameters.values()):
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
            raise TypeError(
                f"skill {skill_name!r}: parameter '{stars}{parameter.name}' cannot be an input, for a model gives "
                f"inputs by name; write each one out, or take a dict"
            )
        if at == 0 and parameter.name in ("self", "cls") and parameter.annotation is parameter.empty:
            raise TypeError(
                f"skill {skill_name!r}: {parameter.name!r} would be an input; make a skill of the bound method: "
                f"skill(instance.{getattr(function, '__name__', 'method')})"
            )
        if parameter.name not in preset:
            yield parameter


def _positional(signature: Signature, names: Collection[str | None]) -> tuple[str, ...]:
    every = signature.parameters.values()
    return tuple(one.name for one in every if one.kind is one.POSITIONAL_ONLY and one.name in names)


def _resolved(skill_name: str, parameter: Parameter, namespace: Namespace, *, strict: bool = True) -> Any:
    annotation = parameter.annotation
    if annotation is parameter.empty:
        return Any
    try:
        return namespace.resolve(annotation)
    except Exception as error:
        named = getattr(annotation, "__forward_arg__", annotation)
        if _is_context(annotation) or (isinstance(named, str) and _CONTEXT_TEXT.fullmatch(named.strip())):
            return SkillContext
        if not strict:
            return Any
        raise TypeError(
            f"skill {skill_name!r}: parameter {parameter.name!r}: the annotation {named!r} cannot be resolved "
            f"({error}); define or import its names where the skill is defined"
        ) from error


def _is_context(annotation: Any) -> bool:
    annotation = undescribed(annotation)
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        return any(_is_context(one) for one in typing.get_args(annotation))
    kind = origin or annotation
    return isinstance(kind, type) and issubclass(kind, SkillContext)


@dataclass(frozen=True, eq=False, repr=False)
class Credential(Value):
    """A secret that a skill reads with ``ctx.credential(key)``.

    If no value is found, the `default` is used. If that is None too, reading a required credential raises
    `CredentialMissingError`. The value never appears in a listing, an event, a log line or an error.
    """

    required: bool = True
    description: str = ""
    default: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.required, bool):
            raise TypeError(f"required must be True or False, got {type(self.required).__name__}")
        if self.default is not None and not isinstance(self.default, str):
            raise TypeError(f"the default of a Credential must be text or None, got {type(self.default).__name__}")


@dataclass(frozen=True, eq=False, repr=False)
class Setting(Value):
    """A value that a skill reads with ``ctx.setting(key)``, converted to `type`.

    `type` is any type that an input may have. A value that is text is read as this type requires: as a number or
    boolean if it is exactly that, as JSON for lists and objects. The default is used unchanged. Raises `TypeError` for
    an unknown type.
    """

    type: Any = str
    default: Any = None
    description: str = ""
    _kind: InputType = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_kind", TypeBuilder().build(self.type)[0])

    def convert(self, value: object, where: str) -> Any:
        """Converts `value` to `type`. Raises `KernaiError` with `where` it is, what was expected, what was received."""
        kind = self._kind
        if isinstance(value, str):
            literal = kind.from_text(value)
            if literal is not NO_VALUE:
                return literal
            if str not in kind.natural:
                with suppress(ValueError):
                    value = loads(value, unique_keys=True)
        made, faults = Validation().tried(kind, value)
        if faults:
            said = "; ".join(f"{dotted(path)} {message}".strip() for path, message in faults)
            raise KernaiError(f"{where}: {said}")
        return made
