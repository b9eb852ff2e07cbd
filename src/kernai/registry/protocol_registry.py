"""Protocols: block types beyond the core ones, each with a handler that answers it; and which ones an agent may use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from kernai._util.api import Value, check_function, check_type, first_paragraph
from kernai.blocks.block import Block, escape_attribute
from kernai.blocks.grammar import CORE_TYPES
from kernai.errors import KernaiError
from kernai.registry.registry import PROCESS_WIDE, Access, Registry
from kernai.registry.skill_context import SkillContext

Handler = Callable[[Block, SkillContext[Any]], Any]
AnyHandler = TypeVar("AnyHandler", bound=Handler)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Protocol(Value):
    """A block type and its handler.

    ``handler(block, ctx)``, sync or async, returns `str`, `Media`, a list of both, or a `Message`, which is used
    unchanged. An exception becomes an error block that the agent can read. `documentation` is what ``/protocols``
    shows. A registered protocol is available to every agent whose `protocols` is None; with `by_name`, only to agents
    that name it. Raises `ValueError` for a core block type and for a name that no block can have.
    """

    name: str
    handler: Handler
    documentation: str | None = None
    by_name: bool = False

    def __post_init__(self) -> None:
        name = check_type(self.name, str, "a protocol's name must be a string")
        if not name.strip() or "'" in name or escape_attribute(name) != name:
            wanted = "must not be blank, or hold quotes, angle brackets or control characters"
            raise ValueError(f"a protocol's name {wanted}, got {name!r}")
        if name in RESERVED_TYPES:
            raise ValueError(f"{name!r} is a core block type and cannot be claimed; take another name")
        check_function("handler", self.handler, "(block, ctx)", None, None, may_be_async=True)


#: only the runtime writes `media`, so no protocol may answer it either
RESERVED_TYPES = frozenset({*CORE_TYPES, "media"})


class ProtocolRegistry(Registry[Protocol]):
    """Protocols by name, in the order of registration. Thread-safe, see `Registry`."""

    def register(
        self, protocol: Protocol | str, handler: Handler | None = None, *, documentation: str | None = None
    ) -> Protocol:
        """Registers a `Protocol`, or a name with its handler; returns the `Protocol`."""
        if isinstance(protocol, str):
            protocol = Protocol(protocol, handler, documentation)  # type: ignore[arg-type]  # it checks the handler
        elif handler is not None or documentation is not None:
            raise TypeError("register takes a handler and documentation only with a name: a Protocol has its own")
        self._add(check_type(protocol, Protocol, "register takes a Protocol or a name"))
        return protocol

    def is_registered(self, name: str) -> bool:
        return self.find(name) is not None

    @property
    def names(self) -> list[str]:
        return list(self._state.entries)

    def __iter__(self) -> Iterator[Protocol]:
        return iter(self.all())

    def __len__(self) -> int:
        return len(self._state.entries)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.is_registered(name)

    def __bool__(self) -> bool:
        return True


#: the process-wide registry, `kernai.protocols`
REGISTRY = ProtocolRegistry()
PROCESS_WIDE.append(REGISTRY)


@overload
def protocol(name: AnyHandler) -> AnyHandler: ...
@overload
def protocol(
    name: str | None = None, *, documentation: str | None = None, register: bool = True
) -> Callable[[AnyHandler], AnyHandler]: ...
def protocol(name: Any = None, *, documentation: str | None = None, register: bool = True) -> Any:
    """Makes a function the handler of the block type `name` and registers it in `kernai.protocols`.

    By default `name` is the function's name, and `documentation` the first paragraph of its docstring. Returns the
    function itself. For a protocol outside the registry, pass `Protocol(name, handler)` to an agent.
    """

    def decorate(handler: AnyHandler) -> AnyHandler:
        block_type: Any = getattr(handler, "__name__", None) if name is None or name is handler else name
        documented = first_paragraph(handler) or None if documentation is None else documentation
        made = Protocol(block_type, handler, documented)
        if register:
            REGISTRY.register(made)
        return handler

    return decorate(name) if callable(name) else decorate


ProtocolSelection = Sequence[str | Protocol] | None
"""The protocols of an agent: None for all that are registered, or names and protocols."""


class ProtocolAccess(Access[Protocol]):
    """The protocols of one agent.

    `selection` is `Agent.protocols`: None for all that are registered, except those with `by_name`. ``name in access``
    says whether any protocol answers a block type, even if the agent may not use it.
    """

    __slots__ = ()

    def __init__(self, selection: ProtocolSelection, registry: ProtocolRegistry) -> None:
        super().__init__(selection, registry, selection is None)

    def held(self, name: str) -> Protocol:
        """The protocol of that name. Raises `KernaiError` if it has been unregistered in the meantime."""
        protocol = self.find(name)
        if protocol is None:
            raise KernaiError(f"Protocol {name!r} not found")
        return protocol

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.find(name) is not None

    def allows(self, protocol: Protocol) -> bool:
        return super().allows(protocol) and not (self._names is None and protocol.by_name)
