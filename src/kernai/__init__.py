"""kernai: an agent kernel. One deterministic loop lets any language model act through a plain-text block protocol.

Start with `Agent`, `run` and `skill`; the guide is in docs/.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernai.agents.agent import Agent
from kernai.blocks.block import Block, NativeCall, neutralize
from kernai.blocks.parser import parse
from kernai.errors import (
    CredentialMissingError,
    DeadlockError,
    InFlightError,
    KernaiError,
    LimitReachedError,
    MaxStepsReachedError,
    Pause,
    ProviderError,
    ReplayDivergenceError,
    ReplayLoosenedError,
    RunBusyError,
    RunCancelledError,
    RunConflictError,
    RunDamagedError,
    RunStoppedError,
    SkillInputError,
    Stop,
    StoreNeededError,
)
from kernai.events import Event
from kernai.inputs.table import Input
from kernai.recording.recorder import CompositeSink, JsonlSink, MemorySink, Recorder
from kernai.registry.configuration import MappingResolver, config, configure
from kernai.registry.protocol_registry import REGISTRY as protocols
from kernai.registry.protocol_registry import Protocol, ProtocolRegistry, protocol
from kernai.registry.provider import Provider
from kernai.registry.registry import isolated, reset
from kernai.registry.skill_context import SkillContext
from kernai.registry.skill_definition import Skill
from kernai.registry.skill_registry import REGISTRY as skills
from kernai.registry.skill_registry import SkillRegistry, skill
from kernai.runs.run_request import ResumeOptions, RunOptions, UserInput
from kernai.runs.running import (
    aexecute,
    aexecute_plan,
    amap_runs,
    aresume,
    arun,
    arun_plan,
    astream,
    astream_plan,
    execute,
    execute_plan,
    map_runs,
    replay,
    resume,
    run,
    run_plan,
    stream,
    stream_plan,
)
from kernai.values.context import Context
from kernai.values.limits import Limits
from kernai.values.llm_response import LlmResponse
from kernai.values.media import Media, MediaStore
from kernai.values.message import Message, outside
from kernai.values.model import Cost, GenerationOptions, Model, Models
from kernai.values.result import Result, StopReason, Usage
from kernai.values.skill_result import SkillResult

if TYPE_CHECKING:
    from kernai.agents.native_tools import Tool, Tools
    from kernai.blocks.plan import Plan, PlanResult, Task
    from kernai.blocks.stream_parser import StreamParser
    from kernai.drivers.asyncio_run_stream import AsyncRunStream
    from kernai.drivers.run_stream import RunStream
    from kernai.durable.approvals import Decision
    from kernai.durable.history import fork
    from kernai.durable.run_head import MemoryStore
    from kernai.durable.sqlite_store import SqliteStore
    from kernai.durable.store import RunInfo, RunStore, Store
    from kernai.inputs.trusted import Trusted
    from kernai.loop.task_scheduler import TaskScheduler
    from kernai.registry.declarations import Credential, Setting
    from kernai.runs.mapping import Progress, RunResults
    from kernai.runs.resume_request import Replay
    from kernai.testing.mock_provider import MockProvider
    from kernai.values.pending_calls import PendingCall, UntrustedValue

__version__ = "0.2.0"

__all__ = [
    "Agent",
    "AsyncRunStream",
    "Block",
    "CompositeSink",
    "Context",
    "Cost",
    "Credential",
    "CredentialMissingError",
    "DeadlockError",
    "Decision",
    "Event",
    "GenerationOptions",
    "InFlightError",
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
    "MemoryStore",
    "Message",
    "MockProvider",
    "Model",
    "Models",
    "NativeCall",
    "Pause",
    "PendingCall",
    "Plan",
    "PlanResult",
    "Progress",
    "Protocol",
    "ProtocolRegistry",
    "Provider",
    "ProviderError",
    "Recorder",
    "Replay",
    "ReplayDivergenceError",
    "ReplayLoosenedError",
    "Result",
    "ResumeOptions",
    "RunBusyError",
    "RunCancelledError",
    "RunConflictError",
    "RunDamagedError",
    "RunInfo",
    "RunOptions",
    "RunResults",
    "RunStoppedError",
    "RunStore",
    "RunStream",
    "Setting",
    "Skill",
    "SkillContext",
    "SkillInputError",
    "SkillRegistry",
    "SkillResult",
    "SqliteStore",
    "Stop",
    "StopReason",
    "Store",
    "StoreNeededError",
    "StreamParser",
    "Task",
    "TaskScheduler",
    "Tool",
    "Tools",
    "Trusted",
    "UntrustedValue",
    "Usage",
    "UserInput",
    "aexecute",
    "aexecute_plan",
    "amap_runs",
    "aresume",
    "arun",
    "arun_plan",
    "astream",
    "astream_plan",
    "config",
    "configure",
    "execute",
    "execute_plan",
    "fork",
    "isolated",
    "map_runs",
    "neutralize",
    "outside",
    "parse",
    "protocol",
    "protocols",
    "replay",
    "reset",
    "resume",
    "run",
    "run_plan",
    "skill",
    "skills",
    "stream",
    "stream_plan",
]


if not TYPE_CHECKING:  # a type checker that sees `__getattr__` accepts any name
    #: names that most runs do not need, imported on first use
    _LAZY = {
        "AsyncRunStream": "drivers.asyncio_run_stream",
        "Credential": "registry.declarations",
        "Decision": "durable.approvals",
        "MemoryStore": "durable.run_head",
        "MockProvider": "testing.mock_provider",
        "PendingCall": "values.pending_calls",
        "Plan": "blocks.plan",
        "PlanResult": "blocks.plan",
        "Progress": "runs.mapping",
        "Replay": "runs.resume_request",
        "RunInfo": "durable.store",
        "RunResults": "runs.mapping",
        "RunStore": "durable.store",
        "RunStream": "drivers.run_stream",
        "Setting": "registry.declarations",
        "SqliteStore": "durable.sqlite_store",
        "Store": "durable.store",
        "StreamParser": "blocks.stream_parser",
        "Task": "blocks.plan",
        "TaskScheduler": "loop.task_scheduler",
        "Tool": "agents.native_tools",
        "Tools": "agents.native_tools",
        "Trusted": "inputs.trusted",
        "UntrustedValue": "values.pending_calls",
        "fork": "durable.history",
    }

    def __getattr__(name: str) -> Any:
        if name not in _LAZY:
            raise AttributeError(f"module 'kernai' has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(f"kernai.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
