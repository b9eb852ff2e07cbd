"""Exports runs as OpenTelemetry spans and metrics: ``Recorder(SpanSink())``; see docs/recording.md.

Needs ``pip install "kernai[otel]"``.

The names follow OpenTelemetry's conventions for generative AI, which are still in development:
https://github.com/open-telemetry/semantic-conventions-genai

The table at the end has the events that begin and end a span. The span of a run is below the call, the workflow or the
run that started it, all others are below their run's. Each model call is also measured:
``gen_ai.client.operation.duration`` and ``gen_ai.client.token.usage``.

Times are taken from the events, so a recording can be exported later. Open spans are looked up by their place in the
run: a run's by its scope, a call's by its id.
"""

# ruff: noqa: SLF001 - the table at the end names the methods of the class above it

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from kernai import Event, StopReason, events
from kernai._util.api import Closing, ForkSafeLock
from kernai.events import KINDS
from kernai.jsonio.json_data import dumps

try:
    from opentelemetry.metrics import MeterProvider, get_meter
    from opentelemetry.trace import Span, SpanKind, Status, StatusCode, TracerProvider, get_tracer, set_span_in_context
except ImportError as error:
    raise ImportError(
        'kernai.otel needs OpenTelemetry for Python: pip install "kernai[otel]"', name="opentelemetry"
    ) from error

__all__ = ["SpanSink"]

_RUN, _CHAT, _CALL, _WORKFLOW = "invoke_agent", "chat", "execute_tool", "invoke_workflow"
#: run id, operation, and scope or call id
_Place = tuple[str, str, str]


class _Open(NamedTuple):
    """A span that has not ended, the model if it is that of a run or a model call, and its start in nanoseconds."""

    span: Span
    model: str | None
    begun: int


#: events without a span of their own that are added to the run's span
_NOTES = frozenset(
    kind.type for kind in KINDS.values()
    if kind.group in {"run", "call", "problem"} and kind is not events.ProgressRow  # a call may report much progress
)


#: the bucket boundaries that the conventions recommend
_SECONDS = [0.01 * 2**at for at in range(14)]
_TOKENS = [4**at for at in range(14)]


class SpanSink(Closing):
    """Exports runs as spans, and their model calls as metrics. Thread-safe; runs may share one sink.

    `tracer_provider` and `meter_provider` default to the global ones. `provider_name` is the value of
    ``gen_ai.provider.name``, which events do not contain. With `content`, spans also have instructions, messages,
    arguments and results as JSON; otherwise these do not leave the process. `close` ends the spans of unfinished runs.
    """

    def __init__(
        self, tracer_provider: TracerProvider | None = None, *, meter_provider: MeterProvider | None = None,
        provider_name: str = "kernai", content: bool = False,
    ) -> None:
        self._tracer = get_tracer("kernai", tracer_provider=tracer_provider)
        meter = get_meter("kernai", meter_provider=meter_provider)
        self._duration = meter.create_histogram(
            "gen_ai.client.operation.duration", "s", "Duration of a model call",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._usage = meter.create_histogram(
            "gen_ai.client.token.usage", "{token}", "Tokens that a model call used",
            explicit_bucket_boundaries_advisory=_TOKENS,
        )
        self._provider_name = provider_name
        self._content = content
        self._lock = ForkSafeLock(reentrant=True)  # ending a span calls an exporter, which may itself run an agent
        self._open: dict[_Place, _Open] = {}

    def record(self, event: Event) -> None:
        """Exports the next event of a run. Raises `ValueError` if its timestamp is not a time."""
        export = _EXPORTERS.get(event.type)
        with self._lock:
            if export is not None:
                fields = event.row.fields()
                export(self, event, fields if isinstance(fields, Mapping) else {})
            elif event.type in _NOTES:
                self._run(event).span.add_event(f"kernai.{event.type}", timestamp=_nanoseconds(event))

    def close(self) -> None:
        """Ends all open spans."""
        with self._lock:
            while self._open:
                self._open.popitem()[1].span.end()

    # ------------------------------------------------------------------------------------------------- runs

    def _start_run(self, event: Event, data: Mapping[str, Any]) -> None:
        self._end_below(event)  # the run was resumed under the same id
        agent, model, above = data.get("agent"), data.get("model"), event.scope.rpartition("/")[0]
        # the call, workflow or run that started it
        around = [(_CALL, event.scope), (_WORKFLOW, above), (_RUN, above)] if event.scope else []
        parent = next(filter(None, (self._open.get((event.run_id, *place)) for place in around)), None)
        self._start(event, _RUN, event.scope, agent, parent, {
            "gen_ai.agent.name": agent, "gen_ai.request.model": model,
            "kernai.run_id": event.run_id, "kernai.scope": event.scope, "kernai.task_id": event.task_id,
            "gen_ai.input.messages": self._messages([{"role": "user", "content": data.get("input")}]),
        }, model)

    def _run(self, event: Event) -> _Open:
        """The span of the event's run; started now if the sink never got its `run_start`, or had its `result`."""
        place = (event.run_id, _RUN, event.scope)
        if place not in self._open:
            self._start_run(event, event.row.fields() if isinstance(event.row, events.RunResumedRow) else {})
        return self._open[place]

    def _end_run(self, event: Event, data: Mapping[str, Any]) -> None:
        raw, reason = data.get("usage"), data.get("stop_reason")
        usage: Mapping[str, Any] = raw if isinstance(raw, Mapping) else {}
        is_failed = data.get("error") is not None and reason != StopReason.INTERRUPT
        self._conclude(self._run(event).span, data, str(reason) if is_failed else None, {
            **_tokens(usage), "kernai.stop_reason": reason, "kernai.cost": usage.get("cost"),
            "gen_ai.output.messages": self._answer(data.get("text"), "length" if data.get("truncated") else "stop"),
        })
        self._end_below(event)

    def _end_below(self, event: Event) -> None:
        """Ends the run's span, and the spans in it whose work was cut off without an event of its own."""
        scope = event.scope
        for place in reversed(list(self._open)):
            run_id, operation, where = place
            is_below = not scope or where.startswith(f"{scope}/")
            # the call that started this run has the same scope as its id, and ends with its own event
            if run_id == event.run_id and (is_below or (where == scope and operation != _CALL)):
                self._open.pop(place).span.end(_nanoseconds(event))

    # ------------------------------------------------------------------------------------------------ calls

    def _start_chat(self, event: Event, _: Mapping[str, Any]) -> None:
        run = self._run(event)
        self._start(event, _CHAT, event.scope, run.model or None, run, {
            "gen_ai.provider.name": self._provider_name, "gen_ai.request.model": run.model, "kernai.step": event.step,
            "gen_ai.input.messages": self._messages(event.row.fields()),
        }, run.model)

    def _end_chat(self, event: Event, data: Mapping[str, Any]) -> None:
        place = (event.run_id, _CHAT, event.scope)
        is_whole = place in self._open
        if not is_whole:
            self._start_chat(event, data)  # the request was recorded before the run was resumed
        span, model, begun = self._open.pop(place)
        used = event.row.usage()  # of all attempts
        counted: Mapping[str, Any] = {} if used is None else used.to_dict()
        reason, metadata = data.get("finish_reason"), data.get("metadata")
        answered = metadata if isinstance(metadata, Mapping) else {}
        answered_by = _text(answered.get("model")) or data.get("model")
        failed = (data.get("exception") or "cancelled") if event.type == events.ModelFailedRow.type else None
        self._conclude(span, data, failed, {
            **_tokens(counted), "kernai.cost": counted.get("cost"),
            "gen_ai.response.id": _text(answered.get("response_id")), "gen_ai.response.model": answered_by,
            "gen_ai.response.finish_reasons": None if reason is None else (str(reason),),
            "gen_ai.output.messages": self._answer(data.get("content"), "error" if failed else reason),
        })
        about = {
            "gen_ai.operation.name": _CHAT, "gen_ai.provider.name": self._provider_name, "gen_ai.request.model": model,
            "gen_ai.response.model": answered_by,
        }
        if is_whole:
            self._duration.record((_nanoseconds(event) - begun) / 1e9, _known({**about, "error.type": failed}))
        for kind, name in (("input", "prompt_tokens"), ("output", "completion_tokens")):
            if counted.get(name) is not None:
                self._usage.record(counted[name], _known({**about, "gen_ai.token.type": kind}))
        span.end(_nanoseconds(event))

    def _start_call(self, event: Event, data: Mapping[str, Any]) -> None:
        name, call_id = str(data.get("skill") or data.get("protocol") or "unknown"), str(data.get("call_id"))
        self._start(event, _CALL, call_id, name, self._run(event), {
            "gen_ai.tool.name": name, "gen_ai.tool.call.id": call_id,
            "gen_ai.tool.type": "function" if "skill" in data else "extension",
            "gen_ai.tool.call.arguments": self._content_json(data.get("params", data.get("request"))),
        })

    def _end_call(self, event: Event, data: Mapping[str, Any]) -> None:
        place = (event.run_id, _CALL, str(data.get("call_id")))
        if place not in self._open:
            self._start_call(event, data)  # the call was refused, or started before the run was resumed
        span, failed = self._open.pop(place).span, None
        if "error" in data:
            broken_off = next((word for word in ("interrupted", "not_run") if data.get(word)), "refused")
            failed = data.get("exception") or broken_off
        self._conclude(span, data, failed, {"gen_ai.tool.call.result": self._content_json(data.get("result"))})
        span.end(_nanoseconds(event))

    def _start_workflow(self, event: Event, data: Mapping[str, Any]) -> None:
        self._start(event, _WORKFLOW, event.scope, None, self._run(event), {
            "kernai.strategy": data.get("strategy"),
            "gen_ai.workflow.name": data.get("goal") if self._content else None,
        })

    def _end_workflow(self, event: Event, data: Mapping[str, Any]) -> None:
        if (opened := self._open.pop((event.run_id, _WORKFLOW, event.scope), None)) is not None:
            self._conclude(opened.span, data, events.WorkflowErrorRow.type if "error" in data else None, {})
            opened.span.end(_nanoseconds(event))

    # ------------------------------------------------------------------------------------------------ spans

    def _start(
        self, event: Event, operation: str, where: str, of: object, parent: _Open | None,
        attributes: Mapping[str, Any], model: Any = None,
    ) -> None:
        begun = _nanoseconds(event)
        span = self._tracer.start_span(
            operation if of is None else f"{operation} {of}",
            None if parent is None else set_span_in_context(parent.span),  # None means the thread's current span
            kind=SpanKind.CLIENT if operation == _CHAT else SpanKind.INTERNAL, start_time=begun,
            attributes=_known({"gen_ai.operation.name": operation, **attributes}),
        )
        self._open[event.run_id, operation, where] = _Open(span, _text(model), begun)

    def _conclude(
        self, span: Span, data: Mapping[str, Any], failed: str | None, attributes: Mapping[str, Any]
    ) -> None:
        """Adds the outcome. The text of an error may quote a message, so it counts as content."""
        span.set_attributes(_known({**attributes, "error.type": failed}))
        if failed is not None:
            span.set_status(Status(StatusCode.ERROR, str(data.get("error")) if self._content else None))

    def _content_json(self, value: Any) -> str | None:
        return dumps(value) if self._content and value is not None else None

    def _messages(self, messages: Any, **more: str) -> str | None:
        if not self._content or isinstance(messages, str) or not isinstance(messages, Sequence):
            return None
        return dumps([
            {"role": one.get("role"), "parts": _parts(one["content"]), **more}
            for one in messages if isinstance(one, Mapping) and one.get("content") is not None
        ])

    def _answer(self, content: Any, reason: object) -> str | None:
        return self._messages([{"role": "assistant", "content": content}], finish_reason=str(reason or "unknown"))


def _tokens(data: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "gen_ai.usage.input_tokens": data.get("prompt_tokens"),
        "gen_ai.usage.output_tokens": data.get("completion_tokens"),
        "gen_ai.usage.cache_read.input_tokens": data.get("cached_tokens"),
        "gen_ai.usage.cache_creation.input_tokens": data.get("cache_write_tokens"),
    }


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _known(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in attributes.items() if value is not None and value != ""}


def _parts(content: Any) -> list[Any]:
    """Texts, also those from outside, and media references as recorded."""
    parts = content if isinstance(content, list) else [content]
    said = [one["outside"] if isinstance(one, Mapping) and "outside" in one else one for one in parts]
    return [
        {"type": "media", **one} if isinstance(one, Mapping) else {"type": "text", "content": str(one)} for one in said
    ]


def _nanoseconds(event: Event) -> int:
    return int(datetime.fromisoformat(event.timestamp).timestamp() * 1000) * 1_000_000


_EXPORTERS: Mapping[str, Callable[[SpanSink, Event, Mapping[str, Any]], None]] = {
    kind.type: export
    for base, export in (
        (events.RunStartRow, SpanSink._start_run), (events.ResultRow, SpanSink._end_run),
        (events.MessagesSentRow, SpanSink._start_chat),
        ((events.LlmResponseRow, events.ModelFailedRow), SpanSink._end_chat),
        (events.CallBegunRow, SpanSink._start_call), (events.CallEndedRow, SpanSink._end_call),
        (events.WorkflowStartRow, SpanSink._start_workflow),
        ((events.WorkflowCompleteRow, events.WorkflowErrorRow), SpanSink._end_workflow),
    )
    for kind in KINDS.values() if issubclass(kind, base)
}
