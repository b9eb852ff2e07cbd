"""Starting runs: `run`, `execute`, `stream`, and their asyncio twins `arun`, `aexecute`, `astream`; going on: `resume`.

All six take an agent, an input and the same options, `RunOptions`. A caller's mistake raises `TypeError` or
`ValueError` at the call. The twins' module is imported on first use, because asyncio is slow to import.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from kernai._util.callables import is_async
from kernai.agents.agent import Agent
from kernai.drivers.channel import Channel
from kernai.drivers.delivery import ThreadsDelivery
from kernai.drivers.driver import Stack
from kernai.drivers.run_stream import RunStream
from kernai.drivers.threads import ThreadsDriver
from kernai.events import Event
from kernai.loop.run_state import Run
from kernai.runs.run_request import RunRequest
from kernai.values.result import Output_co, Result

if TYPE_CHECKING:
    from typing import Unpack

    from kernai.drivers.asyncio_run_stream import AsyncRunStream
    from kernai.runs.plan_request import GivenPlan
    from kernai.runs.resume_request import ReplayOptions, ResumeOptions, StreamOptions
    from kernai.runs.run_request import RunOptions, UserInput


def run(agent: Agent[Output_co], input: UserInput, **options: Unpack[RunOptions]) -> Output_co:
    """Runs the agent and gives the answer: its text, or with ``Agent(output=...)`` its value.

    Raises `MaxStepsReachedError`, another `LimitReachedError`, `RunCancelledError` or `ProviderError`; each carries the
    `Result` as `.result`, so that the messages and what was used are not lost.
    """
    return execute(agent, input, **options).unwrap()


def execute(agent: Agent[Output_co], input: UserInput, **options: Unpack[RunOptions]) -> Result[Output_co]:
    """Runs the agent and gives the `Result`; a limit, a cancellation or a provider's failure is its `stop_reason`."""
    return _executed(RunRequest(agent, input, options), options)


def stream(
    agent: Agent[Output_co], input: UserInput | None, **options: Unpack[StreamOptions]
) -> RunStream[Output_co]:
    """The run as an iterator of its events; see `RunStream`. Nothing happens before the first one is asked for.

    With ``resume=True``, a `store` and a `run_id` it is `resume` as a stream, which takes its options too; an input of
    None adds nothing to the conversation, and resumes in any case.
    """
    return _streamed(_request(agent, input, options), options)


def _streamed(request: RunRequest, options: Mapping[str, Any]) -> RunStream[Any]:
    """A request as an iterator of its run's events."""
    channel = Channel()
    delivery = ThreadsDelivery(request.writer, *_plain_observers(options), channel)
    run, work = request.begin(delivery)
    return RunStream(ThreadsDriver(run.root, delivery), work, run, channel)


async def arun(agent: Agent[Output_co], input: UserInput, **options: Unpack[RunOptions]) -> Output_co:
    """`run` for asyncio. Cancelling its task ends the run with a `result` event ``cancelled``, then propagates."""
    return (await aexecute(agent, input, **options)).unwrap()


async def aexecute(
    agent: Agent[Output_co], input: UserInput, **options: Unpack[RunOptions]
) -> Result[Output_co]:
    """`execute` for asyncio: sync skills and providers without `acall` run in worker threads, callbacks on the loop."""
    return await _aexecuted(RunRequest(agent, input, options), options)


def astream(
    agent: Agent[Output_co], input: UserInput | None, **options: Unpack[StreamOptions]
) -> AsyncRunStream[Output_co]:
    """The run as an asynchronous iterator of its events, to be used in ``async with``; see `AsyncRunStream`.

    With ``resume=True`` it is `aresume` as a stream, as with `stream`.
    """
    return _astreamed(_request(agent, input, options), options)


def _astreamed(request: RunRequest, options: Mapping[str, Any]) -> AsyncRunStream[Any]:
    """A request as an asynchronous iterator of its run's events."""
    from kernai.drivers.asyncio_run_stream import AsyncRunStream

    return AsyncRunStream(partial(_begin_async, request, options), request.cancellation)


def run_plan(
    agent: Agent[Any], plan: GivenPlan, *, agents: Mapping[str, Agent[Any]] | None = None, **options: Unpack[RunOptions]
) -> dict[str, str]:
    """Runs a workflow that you have written, as if the agent's model had; gives the results by task id.

    `plan` is a `Plan`, a list of `Task`, or the same as a dict or JSON; `agents` has other agents for some tasks, by
    their ids. A task that fails has the result ``"error: …"``, and the others go on. A plan that cannot be run to the
    letter is a `ValueError`. Raises what `run` raises.
    """
    return _results(execute_plan(agent, plan, agents=agents, **options))


def execute_plan(
    agent: Agent[Any], plan: GivenPlan, *, agents: Mapping[str, Agent[Any]] | None = None, **options: Unpack[RunOptions]
) -> Result:
    """`run_plan` that gives the `Result`, whose text is the results as JSON. `resume` and `replay` know such runs."""
    return _executed(_plan_request(agent, plan, agents, options), options)


def stream_plan(
    agent: Agent[Any], plan: GivenPlan, *, agents: Mapping[str, Agent[Any]] | None = None, **options: Unpack[RunOptions]
) -> RunStream[str]:
    """`execute_plan` as an iterator of its events, those of the tasks among them; see `RunStream`."""
    return _streamed(_plan_request(agent, plan, agents, options), options)


async def arun_plan(
    agent: Agent[Any], plan: GivenPlan, *, agents: Mapping[str, Agent[Any]] | None = None, **options: Unpack[RunOptions]
) -> dict[str, str]:
    """`run_plan` for asyncio."""
    return _results(await aexecute_plan(agent, plan, agents=agents, **options))


async def aexecute_plan(
    agent: Agent[Any], plan: GivenPlan, *, agents: Mapping[str, Agent[Any]] | None = None, **options: Unpack[RunOptions]
) -> Result:
    """`execute_plan` for asyncio."""
    return await _aexecuted(_plan_request(agent, plan, agents, options), options)


def astream_plan(
    agent: Agent[Any], plan: GivenPlan, *, agents: Mapping[str, Agent[Any]] | None = None, **options: Unpack[RunOptions]
) -> AsyncRunStream[str]:
    """`stream_plan` for asyncio; see `AsyncRunStream`."""
    return _astreamed(_plan_request(agent, plan, agents, options), options)


def _plan_request(
    agent: Agent[Any], plan: GivenPlan, agents: Mapping[str, Agent[Any]] | None, options: RunOptions
) -> RunRequest:
    from kernai.runs.plan_request import PlanRequest

    return PlanRequest(agent, plan, agents, options)


def resume(agent: Agent[Output_co], run_id: str, **options: Unpack[ResumeOptions]) -> Result[Output_co]:
    """Goes on with a run that a store has: after a crash, a pause, a limit, a cancellation, a failure, or with `input`.

    What was done before is not done again. A run that is finished gives its `Result`. Raises `KernaiError` for a run
    that the store does not have, `ReplayDivergenceError`, `InFlightError` and `RunConflictError`.
    """
    from kernai.runs.resume_request import ResumeRequest

    return _executed(ResumeRequest(agent, run_id, options), options)


async def aresume(
    agent: Agent[Output_co], run_id: str, **options: Unpack[ResumeOptions]
) -> Result[Output_co]:
    """`resume` for asyncio."""
    from kernai.runs.resume_request import ResumeRequest

    return await _aexecuted(ResumeRequest(agent, run_id, options), options)


def replay(
    agent: Agent[Output_co], run_id: str | None = None, **options: Unpack[ReplayOptions]
) -> Result[Output_co] | None:
    """Runs the agent on what is recorded, calls nothing, and compares everything it decides.

    Of a run in a store, or of the `recording` in a file, or of a list of entries. Gives the `Result`, or None where the
    recording stops in the middle of the run. `ReplayDivergenceError` names the first event that differs.
    """
    from kernai.runs.resume_request import ReplayRequest

    return ReplayRequest(agent, run_id, options).result()


def _results(result: Result) -> dict[str, str]:
    import json

    results: dict[str, str] = json.loads(result.unwrap())
    return results


def _request(agent: Agent[Any], input: UserInput | None, options: Mapping[str, Any]) -> RunRequest:
    kept = options.get("store") is not None and options.get("run_id") is not None
    if options.get("resume") or (input is None and kept):
        if not kept:
            raise TypeError("resume=True needs the store that has the run, and its id: pass store=... and run_id=...")
        from kernai.runs.resume_request import ResumeRequest

        again = {key: value for key, value in options.items() if key not in ("run_id", "resume")}
        return ResumeRequest(agent, options["run_id"], {**again, "input": input})
    fresh: Any = {key: value for key, value in options.items() if key != "resume"}
    return RunRequest(agent, input, fresh)  # type: ignore[arg-type]  # it says what is wrong with None


def _executed(request: RunRequest, options: Mapping[str, Any]) -> Result[Any]:
    delivery = ThreadsDelivery(request.writer, *_plain_observers(options))
    run, work = request.begin(delivery)
    result: Result[Any] = ThreadsDriver(run.root, delivery).run(Stack(work, run.outbox, breakable=False))
    return result


def _aexecuted(request: RunRequest, options: Mapping[str, Any]) -> Coroutine[Any, Any, Result[Any]]:
    return _begin_async(request, options)[1]  # no coroutine of its own: it would only pass on, at each step


def _begin_async(
    request: RunRequest, options: Mapping[str, Any], *streams: Callable[[Event], Any]
) -> tuple[Run, Coroutine[Any, Any, Result[Any]]]:
    """On a running event loop: the root run, and what drives it to its end."""
    from kernai.drivers.asyncio_delivery import AsyncioDelivery
    from kernai.drivers.asyncio_driver import AsyncioDriver

    on_event = options.get("on_event")
    callbacks = streams if on_event is None else (on_event, *streams)
    delivery = AsyncioDelivery(request.writer, callbacks, options.get("on_task_complete"))
    run, work = request.begin(delivery)
    return run, AsyncioDriver(run.root, delivery).run(Stack(work, run.outbox, breakable=False))


def _plain_observers(options: Mapping[str, Any]) -> tuple[Callable[[Event], Any] | None, Callable[..., Any] | None]:
    for name in ("on_event", "on_task_complete"):
        if name in options and is_async(options[name]):
            raise TypeError(f"{name} is an async function: pass a plain one, or use arun, aexecute or astream")
    return options.get("on_event"), options.get("on_task_complete")
