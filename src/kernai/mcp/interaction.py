"""Handles what a server needs before its final result: input from a person, a model's answer, or time.

Since revision 2026-07-28, a server that needs input answers with an `InputRequiredResult`. The request is then sent
again with the input and the server's opaque state. If a person must provide the input, the call pauses. The metadata of
the `Pause` has everything needed to continue, so the answer may come days later, in another process.

The extension for tasks uses the same requests for input: a tool returns a task, which is polled until it has a result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

from mcp import MCPError, types
from mcp.client.extension import ClientExtension, ResultClaim
from mcp.client.session import ClientRequestContext
from pydantic import Field, TypeAdapter

from kernai.errors import Pause
from kernai.mcp.connection import Attempt, Connection, every_page
from kernai.mcp.errors import McpError
from kernai.mcp.schemas import defaults_of, faults

Reply = TypeVar("Reply", bound=types.Result)
#: how often a server may ask for input before it answers one request
MAX_ROUNDS = 10
#: seconds between two attempts, if the server asks for no input but only for another attempt
RETRY_SECONDS = 0.2
#: seconds between two polls of a task: the default if its server suggests none, and the minimum
POLL_SECONDS, LEAST_POLL_SECONDS = 1.0, 0.02
#: seconds for the request that cancels a task
CANCEL_SECONDS = 2.0


class Interaction:
    """A request, up to its final result. With `pauses`, raises `Pause` if a person must answer first.

    `approval` is the decision on the call if the call has paused before. It has the metadata of that pause. Its answer
    is used even without `pauses`.
    """

    def __init__(
        self, connection: Connection, method: str, params: Mapping[str, Any], *, pauses: bool, approval: Any
    ) -> None:
        self._connection = connection
        self._method = method
        self._params = params
        self._pauses = pauses
        #: the request in words
        self.what = f"{method} of {params.get('name', params.get('uri'))!r}"
        self._about = {"mcp": "elicitation", "server": connection.name, "request": self.what}
        asked: Mapping[str, Any] = getattr(approval, "asked", None) or {}
        is_resumed = self._about.items() <= asked.items() and approval.params is None
        self._asked = asked if is_resumed else {}
        self._answer = approval.answer if is_resumed else None

    async def result(self, attempt: Attempt) -> Any:
        """Returns the final result of the request, or of the task that it became."""
        self._attempt, self._session = attempt, attempt.session.client.session
        shown = {"requestState": "", "inputRequests": self._asked.get("requests")}
        requests = types.InputRequiredResult.model_validate(shown).input_requests or {}
        state, task, answer = self._asked.get("state"), self._asked.get("task"), self._answer
        if task is not None:
            return await self._of_task(str(task), await self._responses(requests, {"task": task}, answer))
        is_resumed = state is not None
        for _ in range(MAX_ROUNDS):
            responses = await self._responses(requests, {"state": state}, answer)
            answer = None  # it answers only the requests that the person has seen
            try:
                found = await self._send(input_responses=responses, request_state=state)
            except MCPError as error:
                if not is_resumed or error.code != types.INVALID_PARAMS:
                    raise
                # a server that was restarted may not accept its own state any more, so start over without it
                found = await self._send()
                again = found.input_requests if isinstance(found, types.InputRequiredResult) else None
                if again and self._shown(again) == self._asked["requests"]:
                    answer = self._answer
            is_resumed = False
            if isinstance(found, TaskResult):
                return await self._of_task(found.task_id, None)
            if not isinstance(found, types.InputRequiredResult):
                return found
            requests, state = found.input_requests or {}, found.request_state
            if not requests:
                await asyncio.sleep(RETRY_SECONDS)
            self._attempt.extend()
        raise McpError(f"server {self._connection.name!r} asked for input more than {MAX_ROUNDS} times; it got no more")

    async def _send(self, **of_earlier_rounds: Any) -> Any:
        request, answer = REQUESTS[self._method]
        send = partial(
            self._session.send_request, request(params={**self._params, **of_earlier_rounds}), answer,
            progress_callback=self._on_progress if request is types.CallToolRequest else None,
        )
        try:
            return await send()
        except MCPError as error:
            if error.code != types.HEADER_MISMATCH or not self._attempt.session.is_modern:
                raise
        await every_page(self._attempt.session.client, "tools")  # from which the SDK learns what to repeat in headers
        return await send()

    async def _on_progress(self, progress: float, total: float | None, message: str | None) -> None:
        self._attempt.emit("progress", tool=self._params["name"], progress=progress, total=total, message=message)

    async def _responses(
        self, requests: types.InputRequests, place: Mapping[str, Any], answer: Any
    ) -> types.InputResponses | None:
        if not requests:
            return None
        responses = self._answers(requests, place, answer) if self._pauses or answer is not None else {}
        for key, request in requests.items():
            if key not in responses:
                meta = request.params.meta if request.params else None
                context = ClientRequestContext(session=self._session, request_id=key, meta=meta)
                response = await self._session.dispatch_input_request(context, request)
                if isinstance(response, types.ErrorData):
                    raise MCPError.from_error_data(response)
                responses[key] = response
        return responses

    def _answers(self, requests: types.InputRequests, place: Mapping[str, Any], answer: Any) -> types.InputResponses:
        """Returns a person's answers. Raises `Pause` if there are none yet, or if they do not fit the requests."""
        elicited = {key: one for key, one in requests.items() if isinstance(one, types.ElicitRequest)}
        wrong: list[str] = []
        responses: types.InputResponses = {}
        for key, request in elicited.items() if answer is not None else ():
            schema = getattr(request.params, "requested_schema", None)
            if schema is None:  # the request only sends the person to a URL, so there is no content to return
                responses[key] = types.ElicitResult(action="accept")
                continue
            alone = len(elicited) == 1
            given = answer if alone or not isinstance(answer, Mapping) else answer.get(key, {})
            content = {**defaults_of(schema), **given} if isinstance(given, Mapping) else given
            wrong += faults({**schema, "type": "object"}, content, "answer" if alone else key)
            responses[key] = types.ElicitResult.model_construct(action="accept", content=content)
        if not elicited or (responses and not wrong):
            return responses
        texts = [f"{one.params.message} {getattr(one.params, 'url', '')}".strip() for one in elicited.values()]
        if wrong:
            texts.append(f"The answer does not fit: {'; '.join(wrong)}")
        reason = self._connection.redactor.text(f"server {self._connection.name!r} asks: {' '.join(texts)}")
        raise Pause(reason, {**self._about, "requests": self._shown(requests), **place})

    def _shown(self, requests: types.InputRequests) -> Any:
        return self._connection.redactor.data({
            key: one.model_dump(mode="json", by_alias=True, exclude_none=True) for key, one in requests.items()
        })

    # ------------------------------------------------------------------------------------------------------- tasks

    async def _of_task(self, task_id: str, responses: types.InputResponses | None) -> types.CallToolResult:
        answered: set[str] = set()
        try:
            while True:
                if responses:
                    answered |= responses.keys()
                    await self._send_task("update", types.Result, task_id, inputResponses=responses)
                task = await self._send_task("get", TaskState, task_id)
                if task.status == "completed":
                    return types.CallToolResult.model_validate(task.result, by_name=False)
                if task.status == "failed" and task.error is not None:
                    raise MCPError.from_error_data(types.ErrorData.model_validate(task.error))
                if task.status in ("failed", "cancelled"):
                    ended = f"server {self._connection.name!r} ended the task as {task.status}"
                    reason = f": {task.status_message}" if task.status_message else ""
                    raise McpError(self._connection.redactor.text(ended + reason))
                requests = {key: one for key, one in (task.input_requests or {}).items() if key not in answered}
                responses = await self._responses(requests, {"task": task_id}, None)
                self._attempt.emit("task", task=task_id, status=task.status, message=task.status_message)
                if not responses:
                    self._attempt.extend(without_end=True)
                    hint = POLL_SECONDS if task.poll_interval_ms is None else task.poll_interval_ms / 1000
                    await asyncio.sleep(max(hint, LEAST_POLL_SECONDS))
                self._attempt.extend()
        except asyncio.CancelledError:
            with suppress(Exception):  # if the server cannot be reached, the task cannot be cancelled
                cancel = self._send_task("cancel", types.Result, task_id)
                await asyncio.shield(asyncio.wait_for(cancel, CANCEL_SECONDS))
            raise

    async def _send_task(self, method: str, kind: type[Reply], task_id: str, **more: types.InputResponses) -> Reply:
        request = TaskRequest(method=f"tasks/{method}", params={"taskId": task_id, **more})
        return await self._session.send_request(request, kind)


class TaskResult(types.Result):
    """The task that a tool returns instead of its result."""

    result_type: Literal["task"]
    task_id: str


#: the answers to a call. A task is one whatever else is in it, so pydantic must not choose by the number of fields
ANSWERS = Annotated[TaskResult | types.CallToolResult | types.InputRequiredResult, Field(union_mode="left_to_right")]
#: by method: the request, and its possible answers. The SDK's own functions for them would also check the result of a
#: tool, on the event loop and without limits
REQUESTS: dict[str, tuple[Callable[..., Any], TypeAdapter[Any]]] = {
    "tools/call": (types.CallToolRequest, TypeAdapter(ANSWERS)),
    "resources/read": (types.ReadResourceRequest, TypeAdapter(types.ReadResourceResult | types.InputRequiredResult)),
    "prompts/get": (types.GetPromptRequest, TypeAdapter(types.GetPromptResult | types.InputRequiredResult)),
}


class TaskState(types.Result):
    """The answer to ``tasks/get``."""

    status: str
    status_message: str | None = None
    poll_interval_ms: int | None = None
    input_requests: types.InputRequests | None = None
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None


class TaskRequest(types.Request[dict[str, Any], str]):
    """``tasks/get``, ``tasks/update`` or ``tasks/cancel``."""

    name_param = "taskId"


class TasksExtension(ClientExtension):
    """Declares to servers that this client supports tasks."""

    identifier = "io.modelcontextprotocol/tasks"

    def claims(self) -> list[ResultClaim[Any]]:
        not_called: Any = None  # `Interaction` takes the task itself
        return [ResultClaim(result_type="task", model=TaskResult, resolve=not_called)]
