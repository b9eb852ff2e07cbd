"""Runs as OpenTelemetry spans, read from the SDK's in-memory exporter."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason='OpenTelemetry is not installed: pip install "kernai[otel]"')

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import kernai
from kernai import Agent, Event, LlmResponse, MemoryStore, MockProvider, Pause, Recorder, Usage, execute, outside, skill
from kernai.middleware import retry
from kernai.otel import SpanSink
from kernai.testing import check_sink
from tests.ways import Way, by_aexecute, by_execute

SECRET = "a-word-nobody-else-says"


@skill(register=False)
def search(query: str) -> str:
    """Search."""
    if query == "fail":
        raise ValueError(f"no {SECRET}")
    return f"{SECRET} {query}"


class Traced:
    """A span sink and the spans it has ended."""

    def __init__(self, **options: Any) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.sink = SpanSink(self.provider, **options)

    @property
    def spans(self) -> list[ReadableSpan]:
        """In the order in which they ended."""
        return list(self._exporter.get_finished_spans())

    def named(self, name: str) -> ReadableSpan:
        [found] = [one for one in self.spans if one.name == name]
        return found

    def parents(self) -> set[tuple[str, str | None]]:
        names = {one.context.span_id: one.name for one in self.spans}
        return {(one.name, names[one.parent.span_id] if one.parent else None) for one in self.spans}


def agent_saying(*answers: Any, **options: Any) -> Agent:
    texts = [one if isinstance(one, str) else "" for one in answers]
    mock = MockProvider(*texts)
    for step, one in enumerate(answers):
        if isinstance(one, Exception):
            mock.fail_on_step(step, one)
    mock.with_token_counter(lambda *_: {"prompt_tokens": 100, "completion_tokens": 10})
    return Agent(**{"name": "clerk", "instructions": "x", "provider": mock, "skills": [search], **options})


def run_to(sink: SpanSink, agent: Agent, way: Way = by_execute, **options: Any) -> kernai.Result:
    return way(agent, "Look.", recorder=Recorder(sink), run_id="run-1", **options)


WAYS = pytest.mark.parametrize("way", [by_execute, by_aexecute])


@WAYS
def test_spans_of_model_calls_and_tools_are_nested_in_the_span_of_the_run(way: Way) -> None:
    traced = Traced(provider_name="openai")
    run_to(traced.sink, agent_saying('<command name="search">tea</command>', "<final>Found.</final>"), way)
    assert traced.parents() == {
        ("invoke_agent clerk", None), ("chat text-only", "invoke_agent clerk"), ("execute_tool search", "invoke_agent clerk"),
    }
    whole = traced.named("invoke_agent clerk")
    assert whole.kind is SpanKind.INTERNAL
    assert dict(whole.attributes or {}) == {
        "gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "clerk", "gen_ai.request.model": "text-only",
        "kernai.run_id": "run-1", "kernai.stop_reason": "final", "gen_ai.usage.input_tokens": 200,
        "gen_ai.usage.output_tokens": 20,
    }
    first, second = [one for one in traced.spans if one.name == "chat text-only"]
    assert first.kind is SpanKind.CLIENT
    assert (first.attributes or {})["gen_ai.provider.name"] == "openai"
    assert [(one.attributes or {})["kernai.step"] for one in (first, second)] == [0, 1]
    assert (first.attributes or {})["gen_ai.usage.input_tokens"] == 100
    tool = traced.named("execute_tool search").attributes or {}
    assert (tool["gen_ai.tool.name"], tool["gen_ai.tool.call.id"], tool["gen_ai.tool.type"]) == ("search", "0.0", "function")
    assert SECRET not in "".join(one.to_json() for one in traced.spans), "what was said stays in the process"


def test_with_content_spans_hold_the_messages_as_the_conventions_say() -> None:
    traced = Traced(content=True)
    run_to(traced.sink, agent_saying('<command name="search">tea</command>', "<final>Found.</final>"))
    tool = traced.named("execute_tool search").attributes or {}
    assert json.loads(str(tool["gen_ai.tool.call.arguments"])) == {"query": "tea"}
    assert json.loads(str(tool["gen_ai.tool.call.result"])) == f"{SECRET} tea"
    _, last = [one for one in traced.spans if one.name == "chat text-only"]
    system, user, *_ = json.loads(str((last.attributes or {})["gen_ai.input.messages"]))
    assert system["role"] == "system"
    assert user == {"role": "user", "parts": [{"type": "text", "content": "Look."}]}
    answer = {"role": "assistant", "parts": [{"type": "text", "content": "<final>Found.</final>"}], "finish_reason": "unknown"}
    assert json.loads(str((last.attributes or {})["gen_ai.output.messages"])) == [answer]
    failing = Traced(content=True)
    asked: list[Any] = [outside("mail"), kernai.Media.from_bytes(b"1", mime_type="image/png")]
    execute(agent_saying(RuntimeError("down")), asked, recorder=Recorder(failing.sink))
    chat, run = [{key: str(value) for key, value in (one.attributes or {}).items()} for one in failing.spans]
    assert json.loads(chat["gen_ai.output.messages"])[0]["finish_reason"] == "error"
    assert [one["type"] for one in json.loads(run["gen_ai.input.messages"])[0]["parts"]] == ["text", "media"]
    assert run["gen_ai.output.messages"] == "[]"


@WAYS
def test_a_failed_call_is_an_error_span_with_its_type(way: Way) -> None:
    traced = Traced()
    calls = '<command name="search">fail</command><command name="gone">x</command>'
    run_to(traced.sink, agent_saying(calls, RuntimeError("overloaded")), way)
    failed = {one.name: (one.attributes or {}).get("error.type") for one in traced.spans if not one.status.is_ok}
    assert failed == {
        "execute_tool search": "ValueError", "execute_tool gone": "refused", "chat text-only": "RuntimeError",
        "invoke_agent clerk": "error",
    }
    assert all(one.status.description is None for one in traced.spans)
    limited = Traced()
    run_to(limited.sink, agent_saying('<command name="search">tea</command>'), way, limits=kernai.Limits(max_calls=1))
    whole = limited.named("invoke_agent clerk")
    assert (whole.status.status_code, (whole.attributes or {})["error.type"]) == (StatusCode.ERROR, "max_calls")
    asks = agent_saying('<command name="search">tea</command>').replace(approve=lambda _: Pause("may I?"))
    run_to(traced.sink, asks, way, store=MemoryStore())
    assert traced.spans[-1].status.is_ok, "a run that waits for a decision has not failed"


PLAN = '<block type="plan">{"strategy": "parallel", "tasks": [{"id": "a", "input": "x"}, {"id": "b", "input": "y"}]}</block>'


@WAYS
def test_spans_of_tasks_are_below_their_workflow_and_those_of_sub_agents_below_their_call(way: Way) -> None:
    traced = Traced()
    helper = agent_saying("<final>helped</final>", name="helper", skills=None).as_skill("ask", "Asks.")
    agent = agent_saying(
        '<command name="ask">it</command>', PLAN, "<final>a</final>", "<final>b</final>", "<final>done</final>",
        skills=[helper],
    )
    run_to(traced.sink, agent, way)
    assert {
        ("execute_tool ask", "invoke_agent clerk"), ("invoke_agent helper", "execute_tool ask"),
        ("invoke_workflow", "invoke_agent clerk"), ("invoke_agent clerk", "invoke_workflow"), ("invoke_agent clerk", None),
        ("chat text-only", "invoke_agent helper"),
    } <= traced.parents()
    tasks = {(one.attributes or {}).get("kernai.task_id") for one in traced.spans if one.name == "invoke_agent clerk"}
    assert tasks == {None, "a", "b"}


def test_the_span_of_a_run_is_below_the_callers_span() -> None:
    traced = Traced()
    with traced.provider.get_tracer("host").start_as_current_span("request"):
        run_to(traced.sink, agent_saying("<final>x</final>"))
    assert ("invoke_agent clerk", "request") in traced.parents()


def test_spans_of_a_recording_exported_later_keep_the_recorded_times() -> None:
    live, later, kept = Traced(), Traced(), kernai.MemorySink()
    agent = agent_saying('<command name="search">tea</command>', "<final>Found.</final>")
    execute(agent, "Look.", recorder=Recorder(kept))
    for event in kept.entries:
        live.sink.record(event)
        later.sink.record(Event.from_dict(json.loads(json.dumps(event.to_dict()))))
    first, second = [sorted((one.name, one.start_time, one.end_time) for one in kind.spans) for kind in (live, later)]
    assert first == second
    assert all((one.end_time or 0) >= (one.start_time or 0) for one in later.spans)


def test_a_recording_without_its_start_or_its_end_still_results_in_spans() -> None:
    traced = Traced()
    with traced.sink as sink:
        for type, data in [
            ("run_resumed", {}), ("messages_sent", []), ("skill_result", {"call_id": "0.0", "skill": "x"}),
            ("workflow_start", {"goal": "", "strategy": "mixed", "tasks": []}), ("workflow_error", {"error": "no", "duration_ms": 4}),
            ("quoted_call", {}), ("approval_given", {}), ("progress", {}), ("plan", "x"),
        ]:
            sink.record(Event(type, data, 0, run_id="r"))
    assert traced.parents() == {
        ("invoke_agent", None), *((name, "invoke_agent") for name in ("chat", "execute_tool x", "invoke_workflow"))}
    failed = traced.named("invoke_workflow")
    assert (failed.status.status_code, (failed.attributes or {})["error.type"]) == (StatusCode.ERROR, "workflow_error")
    noted = [event.name for event in traced.named("invoke_agent").events]
    assert noted == ["kernai.run_resumed", "kernai.quoted_call", "kernai.approval_given"]


@pytest.mark.parametrize("end", ["result", "run_start", "close"])
def test_spans_that_were_cut_off_end_once_with_their_run_the_next_of_its_id_or_the_sink(
    end: str, caplog: pytest.LogCaptureFixture
) -> None:
    traced = Traced()
    for runs in (1, 2):
        for type, scope, data in [
            ("run_start", "", {"agent": "clerk"}), ("skill_execute", "", {"call_id": "0.0", "skill": "helper"}),
            ("run_start", "0.0", {"agent": "helper"}), ("messages_sent", "0.0", []), (end, "", {}),
        ]:
            traced.sink.close() if type == "close" else traced.sink.record(Event(type, data, 0, scope=scope, run_id="r"))
        assert len(traced.spans) == 4 * runs + (end == "run_start") * (runs - 1)
    assert not caplog.records  # OpenTelemetry warns of a span that ends twice


class RunsAnAgent(SpanProcessor):
    def __init__(self, sink: SpanSink) -> None:
        self.sink = sink

    def on_end(self, span: ReadableSpan) -> None:
        self.sink.record(Event("plan", "x"))


def test_a_processor_may_run_an_agent_with_the_same_sink() -> None:
    traced = Traced()
    traced.provider.add_span_processor(RunsAnAgent(traced.sink))
    assert run_to(traced.sink, agent_saying("<final>x</final>")).text == "x"


def test_a_model_call_of_a_resumed_run_has_a_span_with_its_usage() -> None:
    traced, store = Traced(), MemoryStore()
    execute(agent_saying(RuntimeError("down")), "Look.", store=store, run_id="run-1")
    kernai.resume(agent_saying("<final>x</final>"), "run-1", store=store, recorder=Recorder(traced.sink))
    assert ("chat text-only", "invoke_agent clerk") in traced.parents()
    assert (traced.named("chat text-only").attributes or {})["gen_ai.usage.input_tokens"] == 100


def test_a_model_calls_span_names_the_model_that_answered_and_the_tokens_of_all_attempts() -> None:
    class Vendor(kernai.Provider):
        def call(self, messages: Any, model: Any, generation: Any, on_chunk: Any) -> LlmResponse:
            if on_chunk.given_up is None:
                on_chunk.report_usage(Usage(prompt_tokens=4))
                raise kernai.ProviderError("down", retryable=True)
            beside = {"model": "gpt-4o-2024", "response_id": "r-1"}
            return LlmResponse("Hi.", prompt_tokens=9, completion_tokens=1, cached_tokens=5, cache_write_tokens=2, metadata=beside)

    traced = Traced()
    execute(Agent(instructions="", provider=Vendor(), middleware=[retry(first_wait=0)]), "Hi.", recorder=Recorder(traced.sink))
    said = traced.named("chat text-only").attributes or {}
    assert (said["gen_ai.response.model"], said["gen_ai.response.id"]) == ("gpt-4o-2024", "r-1")
    for span in traced.spans:
        attributes = span.attributes or {}
        assert attributes["gen_ai.usage.input_tokens"] == 4 + 9
        assert attributes["gen_ai.usage.cache_read.input_tokens"] == 5
        assert attributes["gen_ai.usage.cache_creation.input_tokens"] == 2


@pytest.mark.parametrize("content", [False, True])
def test_the_span_sink_keeps_the_contract_of_sinks(content: bool) -> None:
    check_sink(lambda: Traced(content=content).sink)


def measured(**options: Any) -> tuple[SpanSink, InMemoryMetricReader]:
    reader = InMemoryMetricReader()
    return SpanSink(TracerProvider(), meter_provider=MeterProvider([reader]), provider_name="openai", **options), reader


def points(reader: InMemoryMetricReader) -> dict[str, list[Any]]:
    data: Any = reader.get_metrics_data()
    metrics = [metric for one in data.resource_metrics for scope in one.scope_metrics for metric in scope.metrics]
    return {f"{metric.name} {metric.unit}": list(metric.data.data_points) for metric in metrics}


def test_each_model_call_is_measured_as_the_conventions_say() -> None:
    sink, reader = measured()
    answers = (LlmResponse('<command name="search">{"query": "tea"}</command>', prompt_tokens=100, completion_tokens=10),
               LlmResponse("<final>Done.</final>", prompt_tokens=200, completion_tokens=5, metadata={"model": "text-only-2"}))
    agent = Agent(instructions="", provider=MockProvider(*answers), skills=[search])
    execute(agent, "Tea?", recorder=Recorder(sink))
    found = points(reader)
    assert set(found) == {"gen_ai.client.operation.duration s", "gen_ai.client.token.usage {token}"}
    assert sum(point.count for point in found["gen_ai.client.operation.duration s"]) == 2
    usage = {(dict(point.attributes)["gen_ai.token.type"], dict(point.attributes).get("gen_ai.response.model")): point.sum
             for point in found["gen_ai.client.token.usage {token}"]}
    assert usage == {("input", None): 100, ("output", None): 10, ("input", "text-only-2"): 200, ("output", "text-only-2"): 5}
    about = dict(found["gen_ai.client.operation.duration s"][0].attributes)
    assert about["gen_ai.operation.name"] == "chat"
    assert about["gen_ai.provider.name"] == "openai"
    assert about["gen_ai.request.model"] == "text-only"
    failing, reader = measured()
    execute(agent.replace(provider=MockProvider().fail_on_step(0)), "Tea?", recorder=Recorder(failing))
    ((name, [point]),) = points(reader).items()  # the usage is unknown
    assert (name, dict(point.attributes)["error.type"]) == ("gen_ai.client.operation.duration s", "ProviderError")


def test_the_spans_comply_with_the_conventions() -> None:
    semconv = pytest.importorskip("pytest_genai_semconv", reason="needs pytest-genai-semconv")
    traced = Traced(provider_name="openai", content=True)
    answers = ('<command name="search">{"query": "tea"}</command>', '<command name="search">{"query": "fail"}</command>', "<final>Done.</final>")
    agent = Agent(instructions="Be brief.", name="clerk", provider=MockProvider(*answers), skills=[search])
    execute(agent, "Tea?", recorder=Recorder(traced.sink))
    for span in traced.spans:
        semconv.assert_genai_span_compliant(span)
    assert len(traced.spans) == 6
