"""Servers that need input from a person, a model's answer or time before they return a result."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

import pytest
from mcp import MCPError, types
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.resolve import Elicit, Resolve
from pydantic import BaseModel

import kernai
from kernai import Agent, MemoryStore, MockProvider, execute, resume
from kernai.mcp import Adapter, interaction, setup
from tests.mcp import bank_server
from tests.mcp.support import ask, call, hurry, raw, sdk_server, text_result

FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
CHOICE = {"type": "object", "properties": {"size": {"enum": ["S", "M"], "type": "string", "default": "M"}, "any": True}}


def form(message: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"method": "elicitation/create", "params": {"mode": "form", "message": message, "requestedSchema": schema}}


def needs(state: Any, **requests: Any) -> Any:
    return types.InputRequiredResult.model_validate({"inputRequests": requests, "requestState": json.dumps(state)})


def text(value: object) -> types.CallToolResult:
    return text_result(json.dumps(value))


def answers(params: Any) -> dict[str, Any]:
    given = params.input_responses or {}
    return {key: one.model_dump(by_alias=True, exclude_none=True, mode="json") for key, one in given.items()}


def register(params: Any) -> Any:
    """Asks twice: who, then which size. The server's state holds the first answer."""
    state, given = json.loads(params.request_state or "null"), answers(params)
    if state is None:
        return needs({"round": 1}, who=form("Who are you?", FORM))
    if state["round"] == 1:
        name = given["who"]["content"]["name"]
        return needs({"round": 2, "name": name}, what=form(f"Which size, {name}?", CHOICE))
    return text([state["name"], given["what"]["content"]["size"], params.arguments])


def sign_in(params: Any) -> Any:
    url = {"method": "elicitation/create", "params": {"mode": "url", "message": "Sign in at", "url": "https://in.example/"}}
    return text(answers(params)) if params.input_responses else needs(0, there=url)


def everything(params: Any) -> Any:
    sample = {"method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 5}}
    if params.input_responses:
        return text({key: one.get("content") for key, one in answers(params).items()})
    return needs(0, who=form("Who?", FORM), what=form("What?", CHOICE), sample=sample)


def never(params: Any) -> Any:
    return types.InputRequiredResult(request_state="again")


TOOLS: dict[str, Callable[[Any], Any]] = {one.__name__: one for one in (register, sign_in, everything, never)}


def server() -> Any:
    tools = [types.Tool(name=name, input_schema={"type": "object", "properties": {"x": {}}}) for name in TOOLS]

    async def prompts(*_: Any) -> types.ListPromptsResult:
        return types.ListPromptsResult(prompts=[types.Prompt(name="greet")])

    async def get_prompt(_: Any, params: Any) -> Any:
        if not params.input_responses:
            return needs(0, who=form("Who?", FORM))
        content = {"type": "text", "text": answers(params)["who"]["content"]["name"]}
        return types.GetPromptResult.model_validate({"messages": [{"role": "user", "content": content}]})

    async def resources(*_: Any) -> types.ListResourcesResult:
        return types.ListResourcesResult(resources=[])

    async def read(_: Any, params: Any) -> Any:
        if not params.input_responses:
            return needs(0, who=form("Who?", FORM))
        name = answers(params)["who"]["content"]["name"]
        return types.ReadResourceResult.model_validate({"contents": [{"uri": params.uri, "text": name}]})

    return sdk_server(
        lambda: tools, lambda params: TOOLS[params.name](params), on_list_prompts=prompts, on_get_prompt=get_prompt,
        on_list_resources=resources, on_read_resource=read,
    )


def desk(**options: Any) -> Adapter:
    return setup({}, {"desk": server}, register=False, **{"elicitation": "pause", **options})


def requests(method: str, **params: Any) -> str:
    return f'<block type="mcp">{json.dumps({"method": method, "params": params})}</block>'


def agent(adapter: Adapter, *turns: str, skills: bool = False) -> Agent[Any]:
    return Agent(
        instructions="", provider=MockProvider(*turns), protocols=[adapter.protocol],
        skills=adapter.skills("desk") if skills else None,
    )


REGISTER = {
    "a protocol": requests("tools/call", name="register", arguments={"x": 1}),
    "a skill": '<block type="command" name="register">{"x": 1}</block>',
}


@pytest.mark.parametrize("way", REGISTER)
def test_a_call_waits_for_a_person_and_continues_in_another_process(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store, skills = MemoryStore(), way == "a skill"
    monkeypatch.setattr(interaction, "RETRY_SECONDS", 600.0)  # only for servers that ask for nothing
    with desk() as adapter:
        first = execute(agent(adapter, REGISTER[way], skills=skills), "Register me.", store=store, run_id="r")
        assert first.stop_reason == "interrupt"
        (pending,) = first.pending
        assert pending.reason == "server 'desk' asks: Who are you?"
        assert pending.metadata["requests"] == {"who": form("Who are you?", FORM)}
    # a new adapter has a new server, so only the store knows the first part
    with desk() as adapter:
        second = resume(agent(adapter, skills=skills), "r", store=store, approvals={"0.0": {"answer": {"name": "Ada"}}})
        (pending,) = second.pending
        assert pending.reason == "server 'desk' asks: Which size, Ada?"
    with desk() as adapter:
        turn = agent(adapter, "<final>Done.</final>", skills=skills)
        last = resume(turn, "r", store=store, approvals={"0.0": {"answer": {"size": "S"}}})
    assert last.ok
    assert '["Ada", "S", {"x": 1}]' in last.messages[-2].text


class Guest(BaseModel):
    name: str


class Size(BaseModel):
    size: str = "M"


def who() -> Elicit[Guest]:
    return Elicit("Who is it for?", Guest)


def which(guest: Annotated[Guest, Resolve(who)]) -> Elicit[Size]:
    return Elicit(f"Which size, {guest.name}?", Size)


def shop() -> MCPServer:
    """A server of the official SDK, which seals its state with a key that only its process has."""
    server = MCPServer("shop")

    @server.tool()
    def order(title: str, guest: Annotated[Guest, Resolve(who)], size: Annotated[Size, Resolve(which)]) -> str:
        """Order a book."""
        return f"{title} for {guest.name} in {size.size}"

    return server


@pytest.mark.parametrize("restarts", [False, True])
def test_a_server_of_the_sdk_that_lost_its_state_asks_again_only_what_has_no_answer(restarts: bool) -> None:
    store, kept = MemoryStore(), shop()

    def adapter() -> Adapter:
        return setup({}, {"shop": shop() if restarts else kept}, register=False, elicitation="pause")

    def reason(answer: Any) -> str:
        with adapter() as another:
            return str(decided(another, store, {"answer": answer}).pending[0].reason)

    with adapter() as first:
        turn = requests("tools/call", name="order", arguments={"title": "Emma"})
        assert execute(agent(first, turn), "go", store=store, run_id="r").pending[0].reason == "server 'shop' asks: Who is it for?"
    assert reason({"name": "Ada"}) == "server 'shop' asks: Which size, Ada?"
    if restarts:  # the answer of before is lost, too
        assert reason({"size": "S"}) == "server 'shop' asks: Who is it for?"
        assert reason({"name": "Eve"}) == "server 'shop' asks: Which size, Eve?"
    else:
        with adapter() as last:
            assert "Emma for Ada in M" in decided(last, store, True).messages[-2].text


def waiting(adapter: Adapter, tool: str) -> tuple[MemoryStore, kernai.PendingCall]:
    store = MemoryStore()
    result = execute(agent(adapter, requests("tools/call", name=tool)), "go", store=store, run_id="r")
    return store, result.pending[0]


def decided(adapter: Adapter, store: MemoryStore, decision: Any) -> kernai.Result[Any]:
    return resume(agent(adapter, "<final>Done.</final>"), "r", store=store, approvals={"0.0": decision})


@pytest.mark.parametrize("tool, decision, why", [
    ("register", True, "answer.name: required, but missing (string)"),
    ("register", {"answer": "Ada"}, 'answer: expected object, received string "Ada"'),
    ("register", {"answer": {"name": 5}}, "answer.name: expected string, received integer 5"),
    # an answer to several requests has an entry for each
    ("everything", True, "who.name: required, but missing (string)"),
    ("everything", {"answer": 5}, "who: expected object, received integer 5; what: expected object, received integer 5"),
    ("everything", {"answer": {"who": "Ada"}}, 'who: expected object, received string "Ada"'),
])
def test_a_person_whose_answer_is_invalid_is_asked_again(tool: str, decision: Any, why: str) -> None:
    with desk() as adapter:
        store, pending = waiting(adapter, tool)
        (again,) = decided(adapter, store, decision).pending
        assert again.reason == f"{pending.reason} The answer does not fit: {why}"
        if tool == "register":
            (pending,) = decided(adapter, store, {"answer": {"name": "Ada"}}).pending
            assert '["Ada", "M"' in decided(adapter, store, True).messages[-2].text  # True accepts the defaults


@pytest.mark.process
def test_a_question_to_a_person_shows_no_secret_and_another_process_may_get_the_answer() -> None:
    servers = {"bank": {"command": sys.executable, "args": [bank_server.__file__], "env": {"TOKEN": "s3cret-token"}}}
    store = MemoryStore()
    with setup({"servers": servers}, register=False, elicitation="pause") as adapter:
        turn = requests("tools/call", name="close_account", arguments={})
        (pending,) = execute(agent(adapter, turn), "go", store=store, run_id="r").pending
    assert pending.reason == "server 'bank' asks: Why? [env TOKEN]"
    assert "s3cret" not in json.dumps(pending.metadata)
    with setup({"servers": servers}, register=False, elicitation="pause") as adapter:
        assert "closed: moving" in decided(adapter, store, {"answer": {"why": "moving"}}).messages[-2].text


def test_a_url_is_shown_to_a_person_who_agrees_to_open_it() -> None:
    with desk() as adapter:
        store, pending = waiting(adapter, "sign_in")
        assert pending.reason == "server 'desk' asks: Sign in at https://in.example/"
        assert '{"there": {"action": "accept"}}' in decided(adapter, store, True).messages[-2].text


def test_several_requests_are_answered_by_key_and_others_by_their_callbacks() -> None:
    def sampling(context: Any, params: Any) -> types.CreateMessageResult:
        return types.CreateMessageResult(role="assistant", content=types.TextContent(text=f"of {params.max_tokens}"), model="m")

    with desk(sampling=sampling) as adapter:
        store, pending = waiting(adapter, "everything")
        assert pending.reason == "server 'desk' asks: Who? What?"
        text = decided(adapter, store, {"answer": {"who": {"name": "Ada"}}}).messages[-2].text
    assert '"who": {"name": "Ada"}, "what": {"size": "M"}, "sample": {"type": "text", "text": "of 5"}' in text


@pytest.mark.parametrize("request_", [requests("prompts/get", name="greet"), requests("resources/read", uri="x://y")])
@pytest.mark.parametrize("elicitation", ["pause", None])
def test_prompts_and_resources_may_need_input_too(request_: str, elicitation: Any) -> None:
    store = MemoryStore()
    with desk() as adapter:
        result = execute(agent(adapter, request_), "go", store=store, run_id="r")
        assert result.pending[0].reason == "server 'desk' asks: Who?"
    with desk(elicitation=elicitation) as adapter:  # the answer counts, however the adapter is set up by then
        assert "Ada" in decided(adapter, store, {"answer": {"name": "Ada"}}).messages[-2].text


def raising(error: BaseException) -> Callable[..., Any]:
    async def callback(context: Any, params: Any) -> Any:
        raise error

    return callback


@pytest.mark.parametrize("callback, reason", [
    (lambda context, params: params["s3cret"], "TypeError"), (lambda context, params: None, "ValidationError"),
    (raising(SystemExit(3)), "SystemExit"), (raising(asyncio.CancelledError()), "CancelledError"),
    (raising(MCPError(-32042, "ask after lunch")), None),
])
def test_a_callback_that_fails_is_logged_and_the_server_reads_only_the_class_of_its_error(
    callback: Callable[..., Any], reason: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    failure = f"the client's elicitation callback failed with {reason}"
    code, message = (-32603, failure) if reason else (-32042, "ask after lunch")  # an `MCPError` is an answer
    with desk(elicitation=callback) as adapter:
        assert call(adapter, "register").error == f"server 'desk' failed at tools/call of 'register': {message}"
    with setup(raw(), register=False, elicitation=callback) as adapter:  # of an older revision
        assert json.loads(call(adapter, "elicit").text) == {"error": {"code": code, "message": message}}
    assert [(one.name, one.message) for one in caplog.records] == [("kernai.mcp", failure)] * (2 if reason else 0)
    assert all(one.exc_info for one in caplog.records)


def test_a_request_that_nobody_can_answer_is_an_error() -> None:
    with desk(elicitation=None) as adapter:
        assert "server 'desk' failed at tools/call of 'register'" in str(call(adapter, "register").error)
    with setup(raw(), register=False, elicitation="pause") as adapter:  # of an older revision, so it cannot wait
        assert call(adapter, "elicit").text == '{"result": {"action": "decline"}}'


def test_a_server_that_keeps_asking_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interaction, "RETRY_SECONDS", 0.1)
    with desk() as adapter:
        adapter.skills("desk")
        hurry(adapter, 0.8)  # less than all attempts take together
        begun = time.monotonic()
        error = str(call(adapter, "never").error)
    assert time.monotonic() - begun >= 1
    assert error == "server 'desk' asked for input more than 10 times; it got no more"


# ----------------------------------------------------------------------------------------------------------- tasks


class TaskParams(types.RequestParams):
    task_id: str
    input_responses: types.InputResponses | None = None


class Jobs:
    """A server whose tool returns tasks. Each `tasks/get` returns the next of the given states."""

    def __init__(self, *states: dict[str, Any]) -> None:
        self.states = list(states)
        self.updates: list[Any] = []
        self.cancelled = asyncio.Event()
        self.polls = 0
        build = types.Tool(name="build", input_schema={"type": "object"}, execution=types.ToolExecution(task_support="required"))
        self.server = sdk_server(lambda: [build], self.begin)
        self.server.add_request_handler("tasks/get", TaskParams, self.get)
        self.server.add_request_handler("tasks/update", TaskParams, self.update)
        self.server.add_request_handler("tasks/cancel", TaskParams, self.cancel)

    def begin(self, params: Any) -> Any:
        assert "io.modelcontextprotocol/tasks" in json.dumps(params.meta)
        times = {"createdAt": "", "lastUpdatedAt": "", "ttlMs": None}
        return {"resultType": "task", "taskId": "t1", "status": "working", **times, "content": [], "isError": False}

    async def get(self, _: Any, params: Any) -> Any:
        assert params.task_id == "t1"
        self.polls += 1
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        return {"resultType": "complete", "taskId": "t1", "createdAt": "", "lastUpdatedAt": "", "ttlMs": None, "pollIntervalMs": 1, **state}

    async def update(self, _: Any, params: Any) -> Any:
        self.updates.append(answers(params))
        return types.Result()

    async def cancel(self, _: Any, params: Any) -> Any:
        self.cancelled.set()
        return types.Result()


WORKING = {"status": "working", "statusMessage": "half done"}
DONE = {"status": "completed", "result": {"content": [{"type": "text", "text": "built"}]}}
ASKS = {"status": "input_required", "inputRequests": {"who": form("Who?", FORM)}}


def test_a_tool_that_returns_a_task_returns_the_result_of_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interaction, "POLL_SECONDS", 600.0)  # only for servers that suggest no interval
    jobs = Jobs(WORKING, WORKING, DONE)
    with setup({}, {"jobs": jobs.server}, register=False) as adapter:
        answer = call(adapter, "build")
    assert answer.text == "built"
    assert answer.events == [{"mcp": "task", "server": "jobs", "task": "t1", "status": "working", "message": "half done"}] * 2


@pytest.mark.parametrize("state, error", [
    ({"status": "failed", "error": {"code": -32603, "message": "no disk."}}, "server 'jobs' failed at tools/call of 'build': no disk."),
    ({"status": "failed"}, "server 'jobs' ended the task as failed"),
    ({"status": "cancelled", "statusMessage": "by an admin"}, "server 'jobs' ended the task as cancelled: by an admin"),
    ({"status": "completed", "result": {"content": [{"type": "text", "text": "bad input"}], "isError": True}}, "bad input"),
    ({"status": "completed", "result": {"content": 5}}, "its answer does not follow the protocol"),
])
def test_a_task_that_fails_is_an_error(state: dict[str, Any], error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interaction, "POLL_SECONDS", 0.0)
    jobs = Jobs({**WORKING, "pollIntervalMs": None}, state)
    with setup({}, {"jobs": jobs.server}, register=False) as adapter:
        assert error in str(call(adapter, "build").error)


def test_a_task_may_take_longer_than_the_timeout_of_its_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interaction, "LEAST_POLL_SECONDS", 0.9)
    jobs = Jobs(WORKING, DONE)
    with setup({"servers": {"jobs": {"timeout": 0.8}}}, {"jobs": jobs.server}, register=False) as adapter:
        begun = time.monotonic()
        assert call(adapter, "build").text == "built"
    assert time.monotonic() - begun >= 0.9


def test_a_shutdown_ends_a_call_that_waits_for_its_task() -> None:
    jobs = Jobs({**WORKING, "pollIntervalMs": 600_000})
    with setup({}, {"jobs": jobs.server}, register=False) as adapter, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(call, adapter, "build")
        while not jobs.polls:
            pass
        adapter.shutdown()
        assert "effect" in str(waiting.result(20).error)  # nobody knows whether there will be one


def test_a_task_that_needs_input_is_answered_once_by_a_callback() -> None:
    jobs = Jobs(ASKS, ASKS, DONE)
    accept = lambda context, params: types.ElicitResult(action="accept", content={"name": "Ada"})  # noqa: E731
    with setup({}, {"jobs": jobs.server}, register=False, elicitation=accept) as adapter:
        assert call(adapter, "build").text == "built"
    assert jobs.updates == [{"who": {"action": "accept", "content": {"name": "Ada"}}}]


def test_a_task_that_needs_a_person_is_polled_again_after_the_answer() -> None:
    jobs, store = Jobs(ASKS, DONE), MemoryStore()
    with setup({}, {"desk": jobs.server}, register=False, elicitation="pause") as adapter:
        first = execute(agent(adapter, requests("tools/call", name="build")), "go", store=store, run_id="r")
        assert first.pending[0].metadata["task"] == "t1"
        assert "built" in decided(adapter, store, {"answer": {"name": "Ada"}}).messages[-2].text
    assert jobs.updates == [{"who": {"action": "accept", "content": {"name": "Ada"}}}]


def test_a_cancelled_run_cancels_its_task() -> None:
    jobs = Jobs(WORKING)
    with setup({}, {"jobs": jobs.server}, register=False) as adapter:
        with pytest.raises(kernai.RunCancelledError):
            ask(adapter, {"method": "tools/call", "params": {"name": "build"}}, cancelled=lambda: jobs.polls > 1)
        adapter._run(kernai.SkillContext(None), lambda _: asyncio.wait_for(jobs.cancelled.wait(), 30))
