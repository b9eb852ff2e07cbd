"""Type variables: what stands for them in a generic record, in its bases, and in an alias."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Any


def parameters_of(generic: Any) -> tuple[Any, ...]:
    """The type variables of a generic class or alias."""
    return getattr(generic, "__type_params__", ()) or getattr(generic, "__parameters__", ())


def bindings_of(annotation: Any, record: type) -> dict[Any, Any]:
    """What stands for each type variable in a record written as ``Record[int]``, those of its bases included."""
    found = dict(zip(parameters_of(record), typing.get_args(annotation), strict=False))
    for base in getattr(record, "__orig_bases__", ()):
        origin = typing.get_origin(base)
        if isinstance(origin, type) and origin is not typing.Generic:
            inside = bindings_of(base, origin)
            found = {**{name: substituted(one, found) for name, one in inside.items()}, **found}
    return found


def substituted(annotation: Any, bindings: Mapping[Any, Any]) -> Any:
    """An annotation with its type variables replaced. `TypeError` for one that nothing stands for."""
    if isinstance(annotation, typing.TypeVar):
        if annotation not in bindings:
            raise TypeError(f"nothing says what the type variable {annotation} stands for: write Record[int], say")
        return bindings[annotation]
    is_bare = isinstance(annotation, type) and not typing.get_args(annotation)
    parameters = getattr(annotation, "__parameters__", ())
    if is_bare or not parameters:
        return annotation
    return annotation[tuple(substituted(one, bindings) for one in parameters)]
