"""`AgentChanges`: the options of `Agent`, as a type. Nothing imports it at run time: each field would be compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping

    from kernai.agents.agent import Calls, Instructions, OnDialects, OnProse, OnQuotedCalls, OnTruncated
    from kernai.middleware.chain import Middleware
    from kernai.registry.protocol_registry import Protocol
    from kernai.registry.provider import Provider
    from kernai.registry.skill_definition import Skill
    from kernai.values.model import GenerationOptions, Model
    from kernai.values.pending_calls import PendingCall


class AgentChanges(TypedDict, total=False):
    """What `Agent.replace` takes besides `output`, for type checkers and editors: the options of `Agent`."""

    instructions: Instructions
    provider: Provider | None
    model: Model
    max_steps: int
    skills: Literal["all"] | Iterable[str | Skill] | None
    protocols: Iterable[str | Protocol] | None
    generation: GenerationOptions | Mapping[str, Any] | None
    on_prose: OnProse
    on_truncated: OnTruncated
    parallel_skills: bool
    list_skills: bool | None
    workflows: bool
    max_tasks: int
    middleware: Iterable[Middleware] | None
    approve: Callable[[PendingCall], Any] | None
    constrain: bool
    calls: Calls
    quoted_calls: OnQuotedCalls
    dialects: OnDialects
    know_how: str | os.PathLike[str] | list[str | os.PathLike[str]] | None
    name: str | None
    output_check: Callable[[Any, Any], str | None] | None
    output_retries: int
