"""Recreates the outcome of a call from its row, so that the loop makes the same decisions and writes the same rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from kernai import events
from kernai.blocks.block import NativeCall, error_block, neutralize, result_block, result_parts
from kernai.errors import LimitReachedError, ProviderError, SkillInputError, Stop, stopped
from kernai.loop import corrections
from kernai.loop.builtin_commands import LISTINGS
from kernai.loop.effects import Cancelled, LimitStop, NotBegun
from kernai.values.llm_response import LlmResponse
from kernai.values.media import MediaReference, MediaStore
from kernai.values.message import Message, Outside, part_from
from kernai.values.model import Model
from kernai.values.result import StopReason
from kernai.values.skill_result import SkillResult

#: rows with the outcome of a call, which the model reads as a message
Outcome = events.CallEndedRow | events.BuiltinResultRow | events.BuiltinErrorRow


class RecordedError(Exception):
    """A recorded failure of a call. It is raised as a subclass with the original exception's name."""


class RecordedExit(SystemExit):
    """A recorded `SystemExit`. It is raised as a subclass with the original exception's name."""


class RecordedResponse(LlmResponse):
    """A model's response with its recorded cost, whatever the model costs now."""

    def cost_at(self, model: Model) -> float | None:
        del model
        return self.cost


def response(row: events.LlmResponseRow) -> RecordedResponse:
    """The response of a model call."""
    recorded: dict[str, Any] = {name: getattr(row, name) for name in LlmResponse.__dataclass_fields__}
    blocks = None if row.blocks is None else [NativeCall(**block) for block in row.blocks]
    return RecordedResponse(**{**recorded, "metadata": row.metadata or {}, "blocks": blocks})


def model_failure(row: events.ModelFailedRow) -> BaseException:
    """The error of a failed model call."""
    name = row.exception
    if name is None:
        return Cancelled()
    if row.stop_reason is not None:
        return _named(name, LimitStop if name == LimitStop.__name__ else Stop)(row.stop_reason, row.error)
    if name == SystemExit.__name__:
        return _named(name, RecordedExit)(row.error)
    wrapped = f" raised {name}: " in row.error  # the loop wrapped another exception in a `ProviderError`
    return _named(name, RecordedError if wrapped else ProviderError)(row.error)


def value(row: events.SkillResultRow | events.ProtocolResultRow, media: MediaStore) -> Any:
    """The value that a call returned."""
    result, metadata = row.result, row.metadata or {}
    if isinstance(result, Mapping):
        return message(result, media)
    if isinstance(result, str) and not metadata:
        return result
    return SkillResult().replaced(parts([result] if isinstance(result, str) else result or [], media), metadata)


def payload(row: Outcome, media: MediaStore, answers: int | None) -> Message:
    """The message with a call's outcome that the model reads. `answers`: which native call it answers."""
    fields = row.fields()
    name = str(fields.get("skill") or fields.get("protocol") or fields.get("command") or "")
    is_refused = "error" in fields and fields.get("exception") in (None, SkillInputError.__name__)
    content: Any
    if isinstance(row, events.SkillErrorRow) and row.exception == SkillInputError.__name__:
        content = corrections.invalid_call(name, SkillInputError(row.error))
    elif "error" in fields:
        block: Any = result_block if fields.get("stop_reason") == StopReason.FINAL else error_block
        content = block(name or None, neutralize(fields["error"]))
    elif isinstance(row, events.BuiltinResultRow):
        content = result_block(name, row.result)
    else:
        assert isinstance(row, (events.SkillResultRow, events.ProtocolResultRow))
        result = value(row, media)
        if isinstance(result, Message) and result.role != "user":
            return result
        content = result.content if isinstance(result, Message) else result_parts(name, SkillResult.of(result).parts)
    return Message("user", content, "runtime" if is_refused or name in LISTINGS else "tool", answers)


def error(row: events.SkillErrorRow | events.ProtocolErrorRow | events.TaskErrorRow, *, ends: bool) -> BaseException:
    """The error of a failed call or task. `ends`: whether it ended the run or task in which it was made."""
    if row.not_run:
        return NotBegun()
    if row.interrupted:
        return Cancelled()
    if isinstance(row, events.TaskErrorRow):
        return RecordedError(row.error)
    if row.stop_reason is not None and (ends or row.stop_reason == StopReason.FINAL):
        return _named(row.exception or Stop.__name__, Stop)(row.stop_reason, row.error)
    kind = RecordedExit if ends else RecordedError
    return _named(row.exception or kind.__name__, kind)(row.error)


def stop(row: events.ResultRow) -> BaseException:
    """The exception that stopped a run between two effects, according to its `result`."""
    if row.stop_reason == StopReason.ERROR:  # the host's own code failed: "CLASS: TEXT"
        name, _, text = str(row.error).partition(": ")
        return _named(name, RecordedError)(text)
    if row.raised:
        return Stop(row.stop_reason, str(row.error))
    error = stopped(row.stop_reason, str(row.error))
    return error if isinstance(error, LimitReachedError) else Cancelled()


def message(recorded: Mapping[str, Any], media: MediaStore) -> Message:
    """The inverse of `Message.to_dict`; missing media stay references."""
    return Message.from_dict(recorded, media, on_lost=MediaReference)


def parts(given: Sequence[Any], media: MediaStore) -> tuple[Any, ...]:
    """Texts and media references as content parts; missing media stay references."""
    return tuple(
        Outside(part["outside"]) if isinstance(part, Mapping) and "outside" in part
        else part_from(part, media, MediaReference) for part in given
    )


@cache
def _named(name: str, base: type[BaseException]) -> type[BaseException]:
    # pickle could not find the class
    made = {"__reduce__": lambda error: (_remade, (name, base, error.args), vars(error))}
    return base if name == base.__name__ else type(name, (base,), made)


def _remade(name: str, base: Any, args: tuple[Any, ...]) -> BaseException:
    return _named(name, base)(*args)
