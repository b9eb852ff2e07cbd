"""The public functions `run`, `execute`, `stream`, `run_plan`, `resume` and their variants, for threads and asyncio.

All take an agent and the same options, `RunOptions`. A caller's mistake raises `TypeError` or `ValueError` at the call.
Modules that few programs need are imported on first use, above all those that import asyncio, which is slow.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Literal, Unpack

from kernai._util.api import check_seconds
from kernai.agents.agent import Agent
from kernai.errors import RunConflictError
from kernai.events import Event
from kernai.loop.root import Cancellation, Clock
from kernai.runs.run_request import Agents, MapOptions, ResumeOptions, RunOptions, RunRequest, UserInput
from kernai.values.context import Context
from kernai.values.model import Model
from kernai.values.result import Output_co, Result

if TYPE_CHECKING:
    from kernai.drivers.asyncio_run_stream import AsyncRunStream
    from kernai.drivers.run_stream import RunStream
    from kernai.durable.durable_run import InFlight
    from kernai.durable.store import Store
    from kernai.runs.mapping import Report, RunResults
    from kernai.runs.plan_request import GivenPlan
    from kernai.runs.resume_request import Replay, Same

Approvals = Mapping[str, Any] | None
#: how often a resume checks whether another worker still holds the run, in seconds
BUSY_POLL = 0.05


def run(agent: Agent[Output_co], input: UserInput, **options: Unpack[RunOptions]) -> Output_co:
    """Runs the agent and returns the answer: its text, or with ``Agent(output=...)`` its value.

    Raises `MaxStepsReachedError`, another `LimitReachedError`, `RunCancelledError` or `ProviderError`; each has the
    `Result` as `.result`, with the messages and the usage so far.
    """
    return execute(agent, input, **options).unwrap()


def execute(agent: Agent[Output_co], input: UserInput, **options: Unpack[RunOptions]) -> Result[Output_co]:
    """Runs the agent and returns the `Result`, even if a limit, `cancel` or a failed provider ends the run."""
    return RunRequest(agent, input, options).execute()


def stream(
    agent: Agent[Output_co], input: UserInput | None = None, *, resume: bool = False, approvals: Approvals = None,
    in_flight: InFlight = "fail", agents: Agents = None, **options: Unpack[RunOptions],
) -> RunStream[Output_co]:
    """Returns an iterator of the run's events; see `RunStream`. The run starts when you ask for the first event.

    With ``resume=True``, a `store` and a `run_id`, this is `resume` as a stream, with the same options except `wait`
    and `accept`. Without an input, a `store` and a `run_id` are enough.
    """
    return _request(agent, input, options, resume, approvals, in_flight, agents).stream()


async def arun(agent: Agent[Output_co], input: UserInput, **options: Unpack[RunOptions]) -> Output_co:
    """`run` for asyncio. Cancelling its task ends the run with a `result` event ``cancelled``, then propagates."""
    return (await aexecute(agent, input, **options)).unwrap()


async def aexecute(agent: Agent[Output_co], input: UserInput, **options: Unpack[RunOptions]) -> Result[Output_co]:
    """`execute` for asyncio. Sync skills and providers without `acall` run in worker threads, callbacks on the loop."""
    return await RunRequest(agent, input, options).aexecute()


def astream(
    agent: Agent[Output_co], input: UserInput | None = None, *, resume: bool = False, approvals: Approvals = None,
    in_flight: InFlight = "fail", agents: Agents = None, **options: Unpack[RunOptions],
) -> AsyncRunStream[Output_co]:
    """Returns an asynchronous iterator of the run's events, to use in ``async with``; see `AsyncRunStream`.

    With ``resume=True`` this is `aresume` as a stream, except that the store is read in your thread; see `stream`.
    """
    return _request(agent, input, options, resume, approvals, in_flight, agents).astream()


def run_plan(
    agent: Agent[Any], plan: GivenPlan, *, agents: Agents = None, **options: Unpack[RunOptions]
) -> dict[str, Any]:
    """Runs a workflow of your own, as if the agent's model had written it. Returns the results by task id: texts, or
    the values of agents with an `output` type.

    `plan` is a `Plan`, a list of `Task`, or the same as a dict or JSON. `agents` are other agents for some of the
    tasks, by task id. If a task fails, its result is ``"error: …"``, and the others continue. A plan that cannot be run
    as written raises a `ValueError`. Otherwise raises what `run` raises.
    """
    return execute_plan(agent, plan, agents=agents, **options).unwrap()


def execute_plan(
    agent: Agent[Any], plan: GivenPlan, *, agents: Agents = None, **options: Unpack[RunOptions]
) -> Result[dict[str, Any]]:
    """`run_plan`, but returns the `Result`: its `output` has the task results, its text has them as JSON. Such runs can
    be resumed and replayed.
    """
    return _plan_request(agent, plan, agents, options).execute()


def stream_plan(
    agent: Agent[Any], plan: GivenPlan, *, agents: Agents = None, **options: Unpack[RunOptions]
) -> RunStream[dict[str, Any]]:
    """`execute_plan` as an iterator of events, including those of the tasks; see `RunStream`."""
    return _plan_request(agent, plan, agents, options).stream()


async def arun_plan(
    agent: Agent[Any], plan: GivenPlan, *, agents: Agents = None, **options: Unpack[RunOptions]
) -> dict[str, Any]:
    """`run_plan` for asyncio."""
    return (await aexecute_plan(agent, plan, agents=agents, **options)).unwrap()


async def aexecute_plan(
    agent: Agent[Any], plan: GivenPlan, *, agents: Agents = None, **options: Unpack[RunOptions]
) -> Result[dict[str, Any]]:
    """`execute_plan` for asyncio."""
    return await _plan_request(agent, plan, agents, options).aexecute()


def astream_plan(
    agent: Agent[Any], plan: GivenPlan, *, agents: Agents = None, **options: Unpack[RunOptions]
) -> AsyncRunStream[dict[str, Any]]:
    """`stream_plan` for asyncio; see `AsyncRunStream`."""
    return _plan_request(agent, plan, agents, options).astream()


def map_runs(
    agent: Agent[Output_co], inputs: Iterable[UserInput], *, concurrency: int = 8,
    on_progress: Report | bool | None = None, **options: Unpack[MapOptions],
) -> RunResults[Output_co]:
    """Runs the agent once for each input, `concurrency` at a time. Returns the `Result` objects in the inputs' order.

    A run that fails (because of a limit, its provider or its store) does not affect the others. The returned sequence
    also has `usage`, the total of all runs, and `failed`, the indexes of runs without an answer.

    - `on_progress`: called with a `Progress` after each run; True shows a bar on stderr, with tqdm or rich if
      installed.

    Each run has its own limits, and its own context, made by `Context.child`. Callbacks are called one at a time. Once
    `cancel` is set, runs that have not begun are not started, and end as ``cancelled``.
    """
    from kernai.runs.mapping import Batch

    return Batch(agent, inputs, concurrency, on_progress, options).run()


async def amap_runs(
    agent: Agent[Output_co], inputs: Iterable[UserInput], *, concurrency: int = 8,
    on_progress: Report | bool | None = None, **options: Unpack[MapOptions],
) -> RunResults[Output_co]:
    """`map_runs` for asyncio; `on_progress` may be an async function."""
    from kernai.runs.mapping import Batch

    return await Batch(agent, inputs, concurrency, on_progress, options).arun()


def resume(
    agent: Agent[Output_co], run_id: str, *, input: UserInput | None = None, approvals: Approvals = None,
    in_flight: InFlight = "fail", agents: Agents = None, wait: float = 0, accept: Iterable[str] | None = None,
    **options: Unpack[ResumeOptions],
) -> Result[Output_co]:
    """Continues a stored run: after a crash, a pause, a limit, a cancellation, a failure, or with a new `input`.

    Nothing that was done before is done again. If the run has finished, returns its `Result`.

    - `input`: what the user says next; it continues the same conversation.
    - `approvals`: a decision for each waiting call, by call id: True, False, a text that says why not,
      ``{"params": {...}}``, ``{"answer": ...}``, or a `Decision`. Raises `ValueError` for a call that is not waiting.
    - `in_flight`: what to do about calls that had begun but not ended: ``"fail"`` (`InFlightError`), ``"skip"``,
      ``"retry"``, or a function of the `PendingCall` that returns one of these.
    - `agents`: the agents that were passed to `run_plan`, by task id.
    - `wait`: how many seconds to wait while another worker has the run, unless `cancel` is set.
    - `accept`: if given, an agent that has lost protections since the run was recorded is refused
      (`ReplayLoosenedError`), except for protections with these keys, as in `replay`; ``[]`` accepts no loss. By
      default protections are not compared.

    Raises `KernaiError` if the store does not have the run, `RunBusyError` if another worker has it,
    `ReplayDivergenceError` if the agent decides differently from the recording, and `InFlightError`.
    """
    waits = _waits(run_id, wait, options)
    while True:
        try:
            return _resume_request(agent, run_id, input, approvals, in_flight, agents, options, accept).execute()
        except RunConflictError as busy:
            if not waits(busy):
                raise
        sleep(BUSY_POLL)


async def aresume(
    agent: Agent[Output_co], run_id: str, *, input: UserInput | None = None, approvals: Approvals = None,
    in_flight: InFlight = "fail", agents: Agents = None, wait: float = 0, accept: Iterable[str] | None = None,
    **options: Unpack[ResumeOptions],
) -> Result[Output_co]:
    """`resume` for asyncio. The store is read in a worker thread."""
    import asyncio

    from kernai._util.worker_pool import WorkerPool, in_worker

    given = agent, run_id, input, approvals, in_flight, agents, options, accept
    waits = _waits(run_id, wait, options)
    while True:
        try:
            return await (await in_worker(WorkerPool(1), lambda: _resume_request(*given))).aexecute()
        except RunConflictError as busy:
            if not waits(busy):
                raise
        await asyncio.sleep(BUSY_POLL)


def _waits(run_id: str, wait: float, options: ResumeOptions) -> Callable[[RunConflictError], bool]:
    """Returns a function: whether to wait for another worker, after a resume that could not claim the run. It has done
    nothing yet: the run was busy, or another worker had continued it since it was loaded.
    """
    until = monotonic() + (check_seconds("wait", wait) if wait != 0 else 0)
    cancellation = Cancellation(Clock(), options.get("cancel"))
    return lambda busy: busy.run_id == run_id and monotonic() < until and not cancellation.is_set()


def replay(
    agent: Agent[Output_co], run_id: str | None = None, *, store: Store | None = None,
    recording: str | os.PathLike[str] | Iterable[Event | Mapping[str, Any]] | None = None,
    model: Model | None = None, context: Context | None = None, agents: Agents = None, accept: Iterable[str] = (),
    skills: Literal["recorded", "run"] = "recorded", same: Same | None = None,
) -> Replay[Output_co]:
    """Runs the agent on a recording, calling nothing, and compares every decision with the recorded one.

    The run is in a `store`, or in a `recording`: a file, or a list of entries. The `result` is None if the recording
    stops in the middle of the run; `changes` describes other changes to the agent. `ReplayDivergenceError` names the
    first event that differs. `ReplayLoosenedError` lists protections that the agent has lost and whose keys are not in
    `accept`.

    With ``skills="run"``, skills are called again with the recorded parameters, and must return the same as before:
    ``same(recorded, now)`` decides, by default equality. Use it for skills without side effects, or in a sandbox.
    """
    from kernai.runs.resume_request import ReplayRequest

    request = ReplayRequest(
        agent, run_id, store, recording, agents, {"model": model, "context": context}, accept=accept, skills=skills,
        same=same,
    )
    return request.replay()


def _plan_request(agent: Agent[Any], plan: GivenPlan, agents: Agents, options: Mapping[str, Any]) -> RunRequest:
    from kernai.runs.plan_request import NO_GOAL, checked_plan

    checked = checked_plan(plan)  # replaces the model's first response
    request = RunRequest(agent, checked.goal or NO_GOAL, options)
    request.give_plan(checked, agents)
    return request


def _resume_request(agent: Agent[Any], run_id: str, *given: Any) -> RunRequest:
    from kernai.runs.resume_request import ResumeRequest

    return ResumeRequest(agent, run_id, *given)


def _request(
    agent: Agent[Any], input: UserInput | None, options: RunOptions, resume: bool, approvals: Approvals,
    in_flight: InFlight, agents: Agents,
) -> RunRequest:
    run_id = None if options.get("store") is None else options.get("run_id")
    if resume or (input is None and run_id is not None):
        if run_id is None:
            raise TypeError("resume=True needs the store that has the run, and its id: pass store=... and run_id=...")
        rest = {key: value for key, value in options.items() if key != "run_id"}
        return _resume_request(agent, run_id, input, approvals, in_flight, agents, rest)
    if approvals or agents or in_flight != "fail":
        raise TypeError("approvals, in_flight and agents are for a run that is resumed: pass resume=True")
    return RunRequest(agent, input, options)  # type: ignore[arg-type]  # it refuses None with a message


def _list_options(functions: Iterable[Any], *kinds: Any) -> None:
    """Makes `help` and `inspect.signature` show each option of a function instead of ``**options``."""
    from inspect import Parameter, Signature, signature  # costs nothing: dataclasses has already imported it

    named = [Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=kind.__forward_arg__)
             for name, kind in kinds[-1].__annotations__.items()]
    listed = "".join([kind.__doc__.rstrip() for kind in kinds if kind.__doc__])  # no docstrings under python -OO
    for function in functions:
        whole = signature(function)
        function.__signature__ = Signature(
            [*list(whole.parameters.values())[:-1], *named], return_annotation=whole.return_annotation,
            __validate_parameters__=False)
        if listed:
            function.__doc__ = f"{function.__doc__.rstrip()}\n{listed}"


_NEW_RUNS: tuple[Any, ...] = (
    run, execute, stream, arun, aexecute, astream, run_plan, execute_plan, stream_plan, arun_plan, aexecute_plan,
    astream_plan,
)
_list_options(_NEW_RUNS, ResumeOptions, MapOptions, RunOptions)
_list_options((map_runs, amap_runs), ResumeOptions, MapOptions)
_list_options((resume, aresume), ResumeOptions)
