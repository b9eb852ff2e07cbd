"""What came of a call, made again from the event that told of it: the loop is to decide, and to tell, the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from kernai.errors import LimitReachedError, ProviderError, RunCancelledError, RunStoppedError, Stop
from kernai.loop.effects import Cancelled, LimitStop, NotBegun
from kernai.values.llm_response import LlmResponse
from kernai.values.media import Media, MediaReference
from kernai.values.media_store import MediaStore
from kernai.values.message import Message, Part
from kernai.values.model import Model
from kernai.values.result import StopReason
from kernai.values.skill_result import SkillResult

#: by the event that tells how a call ended
CALL_OUTCOMES = ("skill_result", "skill_error", "protocol_result", "protocol_error")


class RecordedError(Exception):
    """What a call failed with, as far as that is on record. Its class bears the name of the one that was raised."""


class RecordedExit(SystemExit):
    """What ended a task by itself, as far as that is on record. Its class bears the name of the one that was raised."""


class RecordedResponse(LlmResponse):
    """A model's answer with the price that was recorded, whatever the model costs now."""

    def cost_at(self, model: Model) -> float | None:
        del model
        return self.cost


def response(data: Mapping[str, Any]) -> RecordedResponse:
    """What `llm_response` told."""
    return RecordedResponse(
        data["content"],
        data.get("latency_ms") or 0,
        data.get("prompt_tokens"),
        data.get("completion_tokens"),
        data.get("total_tokens"),
        data.get("finish_reason"),
        data.get("metadata") or {},
        cost=data.get("cost"),
        model=data.get("model"),
        cached_tokens=data.get("cached_tokens"),
        cache_write_tokens=data.get("cache_write_tokens"),
    )


def model_failure(data: Mapping[str, Any]) -> BaseException:
    """What `model_failed` told."""
    name, text = data.get("exception"), str(data.get("error"))
    if name is None:
        return Cancelled()
    if "stop_reason" in data:
        return _named(name, LimitStop if name == LimitStop.__name__ else Stop)(data["stop_reason"], text)
    wrapped = f" raised {name}: " in text  # by the loop, in a `ProviderError` of its own
    return _named(name, RecordedError if wrapped else ProviderError)(text)


def value(data: Mapping[str, Any], media: MediaStore) -> Any:
    """What a call returned, as `skill_result` or `protocol_result` told it."""
    result, metadata = data.get("result"), data.get("metadata") or {}
    if isinstance(result, Mapping):
        return message(result, media)
    if isinstance(result, str) and not metadata:
        return result
    return SkillResult().replaced(parts([result] if isinstance(result, str) else result or [], media), metadata)


def error(data: Mapping[str, Any], *, went_on: bool) -> BaseException:
    """What a call failed with, as `skill_error` or `protocol_error` told it. After a `Stop` its run `went_on`, where a
    resume took it up again.
    """
    if data.get("not_run"):
        return NotBegun()
    if data.get("interrupted"):
        return Cancelled()
    name, text = data.get("exception"), str(data.get("error"))
    if "stop_reason" in data and not went_on:
        return _named(name or Stop.__name__, Stop)(data["stop_reason"], text)
    return _named(name or RecordedError.__name__, RecordedError)(text)


def exit_told(data: Mapping[str, Any]) -> BaseException | None:
    """The `SystemExit` of which `skill_error` or `protocol_error` told, if it did."""
    name = data.get("exception")
    return _named(name, RecordedExit)(str(data.get("error"))) if name == SystemExit.__name__ else None


def stop(data: Mapping[str, Any]) -> BaseException:
    """What stopped a run between two effects, as its `result` told it."""
    if data["stop_reason"] == StopReason.ERROR:  # the host's own code failed; its class and its words
        name, _, text = str(data["error"]).partition(": ")
        return _named(name, RecordedError)(text)
    if data.get("raised"):
        return Stop(data["stop_reason"], str(data["error"]))
    error = stop_error(data)
    return error if isinstance(error, LimitReachedError) else Cancelled()


def stop_error(data: Mapping[str, Any]) -> RunStoppedError:
    """What a stopped run's result carried as its error."""
    reason, text = str(data["stop_reason"]), str(data["error"])
    return RunCancelledError(text) if reason == StopReason.CANCELLED else LimitReachedError(text, reason)


def message(told: Mapping[str, Any], media: MediaStore) -> Message:
    """What `Message.to_dict` gave; media that are not at hand stay what is told of them."""
    content, reasoning = told["content"], told.get("reasoning", ())
    return Message(
        told["role"], content if isinstance(content, str) else parts(content, media), reasoning=reasoning
    )


def parts(given: Sequence[Any], media: MediaStore) -> tuple[Part, ...]:
    """Texts and media references as what they stand for; media that are not at hand stay what is told of them."""
    return tuple(part if isinstance(part, str) else _media(part, media) for part in given)


def _media(reference: Mapping[str, Any], media: MediaStore) -> Media:
    known = media.get(str(reference["id"]))
    return MediaReference(reference) if known is None else known


@cache
def _named(name: str, base: type[BaseException]) -> type[BaseException]:
    return base if name == base.__name__ else type(name, (base,), {})
