"""kernai: an agent kernel. One deterministic loop lets any language model act through a plain-text block protocol.

Start with `Agent`, `run` and `skill`; the guide is in docs/.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernai.agent import Agent
from kernai.block import Block
from kernai.configuration import config, configure
from kernai.context import Context
from kernai.credential_resolver import MappingResolver
from kernai.errors import (
    CredentialMissingError,
    DeadlockError,
    KernaiError,
    LimitReachedError,
    MaxStepsReachedError,
    ProviderError,
    RunCancelledError,
    RunStoppedError,
    SkillInputError,
    SkillNotAllowedError,
    SkillNotFoundError,
)
from kernai.event import Event
from kernai.generation_options import GenerationOptions
from kernai.injection import neutralize
from kernai.isolation import isolated, reset
from kernai.limits import Limits
from kernai.llm_response import LlmResponse
from kernai.media import Media
from kernai.media_store import MediaStore
from kernai.message import Message
from kernai.model import Model, Models
from kernai.parser import parse
from kernai.plan import Plan, PlanResult, Task
from kernai.protocol_registry import REGISTRY as protocols
from kernai.protocol_registry import Protocol, ProtocolRegistry, protocol
from kernai.provider import Provider
from kernai.recorder import CompositeSink, JsonlSink, MemorySink, Recorder
from kernai.result import Result, StopReason, Usage
from kernai.run_stream import RunStream
from kernai.running import aexecute, arun, astream, execute, run, stream
from kernai.skill_context import Credential, Setting, SkillContext
from kernai.skill_definition import Skill
from kernai.skill_inputs import Input
from kernai.skill_registry import REGISTRY as skills
from kernai.skill_registry import SkillRegistry, skill
from kernai.skill_result import SkillResult
from kernai.stream_parser import StreamParser
from kernai.task_scheduler import TaskScheduler

if TYPE_CHECKING:
    from kernai.mock.provider import MockProvider

__version__ = "0.1.0"

__all__ = [
    "Agent",
    "Block",
    "CompositeSink",
    "Context",
    "Credential",
    "CredentialMissingError",
    "DeadlockError",
    "Event",
    "GenerationOptions",
    "Input",
    "JsonlSink",
    "KernaiError",
    "LimitReachedError",
    "Limits",
    "LlmResponse",
    "MappingResolver",
    "MaxStepsReachedError",
    "Media",
    "MediaStore",
    "MemorySink",
    "Message",
    "MockProvider",
    "Model",
    "Models",
    "Plan",
    "PlanResult",
    "Protocol",
    "ProtocolRegistry",
    "Provider",
    "ProviderError",
    "Recorder",
    "Result",
    "RunCancelledError",
    "RunStoppedError",
    "RunStream",
    "Setting",
    "Skill",
    "SkillContext",
    "SkillInputError",
    "SkillNotAllowedError",
    "SkillNotFoundError",
    "SkillRegistry",
    "SkillResult",
    "StopReason",
    "StreamParser",
    "Task",
    "TaskScheduler",
    "Usage",
    "aexecute",
    "arun",
    "astream",
    "config",
    "configure",
    "execute",
    "isolated",
    "neutralize",
    "parse",
    "protocol",
    "protocols",
    "reset",
    "run",
    "skill",
    "skills",
    "stream",
]


def __getattr__(name: str) -> Any:
    """`MockProvider` is imported when it is asked for: what runs in production has no use for a test double."""
    if name != "MockProvider":
        raise AttributeError(f"module 'kernai' has no attribute {name!r}")
    from kernai.mock.provider import MockProvider

    return MockProvider


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
