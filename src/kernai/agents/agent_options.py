"""`AgentOptions`: what `Agent` takes beside `output`, for type checkers alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Required, TypedDict

if TYPE_CHECKING:
    from kernai.agents.agent import Instructions, OnDialects, OnProse, OnQuotedCalls, OnTruncated
    from kernai.middleware.chain import Middleware
    from kernai.registry.protocol_registry import Protocol
    from kernai.registry.provider import Provider
    from kernai.registry.skill_definition import Skill
    from kernai.values.generation_options import GenerationOptions
    from kernai.values.model import Model
    from kernai.values.pending_call import PendingCall


class AgentOptions(TypedDict, total=False):
    """See `Agent`; a test holds the two together."""

    instructions: Required[Instructions]
    provider: Provider | None
    model: Model
    max_steps: int
    skills: Literal["all"] | Iterable[str | Skill] | None
    protocols: Iterable[str | Protocol] | None
    generation: GenerationOptions | Mapping[str, Any] | None
    on_prose: OnProse
    on_truncated: OnTruncated
    quoted_calls: OnQuotedCalls
    dialects: OnDialects
    parallel_skills: bool
    list_skills: bool
    workflows: bool
    middleware: Iterable[Middleware] | None
    approve: Callable[[PendingCall], Any] | None
    constrain: bool
    name: str | None
    output_retries: int
