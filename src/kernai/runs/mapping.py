"""`map_runs`: runs one agent on many inputs. A limited number of runs are active at once; each ends with a `Result`.

Guarantees: results are in the order of the inputs; a run that fails does not affect the others; callbacks are called
one at a time. After Ctrl-C or a cancelled task, all runs are ended before it is raised.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from threading import RLock
from typing import Any, Generic

from kernai._util.api import Value, check_count, check_function, is_async
from kernai.agents.agent import Agent
from kernai.drivers.driver import POLL
from kernai.drivers.run_stream import Channel, Driving
from kernai.errors import Control, KernaiError, RunCancelledError, described
from kernai.interrupts import INTERRUPTS, calls_out
from kernai.loop.run_state import Run
from kernai.recording.log import EventLog
from kernai.registry.configuration import config
from kernai.runs.run_request import MapOptions, RunRequest, UserInput, check_options
from kernai.values.context import child_of
from kernai.values.media import Media
from kernai.values.message import Outside
from kernai.values.result import Output_co, Result, StopReason, Usage, dollars


class RunResults(tuple[Result[Output_co], ...]):
    """The results of `map_runs`, in the order of its inputs."""

    __slots__ = ()

    @property
    def usage(self) -> Usage:
        """The usage of all runs together."""
        return sum((one.usage for one in self), Usage())

    @property
    def failed(self) -> tuple[int, ...]:
        """The indexes of runs without an answer. To try them again, run ``[inputs[at] for at in results.failed]``."""
        return tuple(at for at, one in enumerate(self) if not one.ok)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Progress(Value, Generic[Output_co]):
    """What `map_runs` reports after each run.

    The run of input number `index` has just ended with `result`. Of `total` runs, `done` have ended, `failed` of them
    without an answer. `usage` is the total of the ended runs.
    """

    index: int
    result: Result[Output_co]
    done: int
    total: int
    failed: int
    usage: Usage


Report = Callable[[Progress[Any]], Any]
_LABEL = "runs"  # of the progress bar


class Batch:
    """The runs of one call of `map_runs`, checked before the first one begins."""

    def __init__(
        self, agent: Agent[Any], inputs: Iterable[UserInput], concurrency: int, on_progress: Report | bool | None,
        options: Mapping[str, Any],
    ) -> None:
        check_options(options, MapOptions, "concurrency", "on_progress")
        if on_progress is not None and not isinstance(on_progress, bool):
            check_function("on_progress", on_progress, "the progress (or True, for a bar)", None, may_be_async=True)
        if isinstance(inputs, (str, bytes, Media, Outside, Mapping)) or not isinstance(inputs, Iterable):
            raise TypeError(f"inputs must be a list with an input for each run, got {type(inputs).__name__}")
        self._concurrency, self._on_progress = check_count("concurrency", concurrency), on_progress
        given, history, context = dict(options), options.get("history"), options.get("context")
        if isinstance(history, Iterator):
            given["history"] = list(history)
        self._checked = RunRequest(agent, "", given)  # checks the options even if there are no inputs
        report = on_progress if callable(on_progress) else lambda _: None
        self._report, given["on_event"], given["on_task_complete"] = _in_turns(
            report, options.get("on_event"), options.get("on_task_complete"))
        self.requests: list[RunRequest] = []
        for at, one in enumerate(inputs):
            if context is not None:  # each run gets one made like a sub-run's, but at the depth of the given one
                given["context"] = made = child_of(context, context.task_id)
                made.depth, made.trusted = context.depth, context.trusted
            self.requests.append(RunRequest(agent, one, given, f"inputs[{at}]"))
        self._left = enumerate(self.requests)
        self._results: list[Any] = [None] * len(self.requests)
        self._done = self._failed = 0
        self._usage = Usage()

    # -------------------------------------------------------------------------------------------------- with threads

    def run(self) -> RunResults[Any]:
        self._checked.check_observers_are_plain(("on_progress", self._on_progress))
        with self._reporting():
            INTERRUPTS.during(self._to_the_end)
        return RunResults(self._results)

    def _to_the_end(self) -> None:
        from kernai._util.worker_pool import Inbox

        ended: Inbox[int] = Inbox()
        running: dict[int, tuple[Run, Driving]] = {}
        try:
            while True:
                while len(running) < self._concurrency and (following := next(self._left, None)) is not None:
                    self._begin(*following, running, ended.put)
                if not running:
                    return
                INTERRUPTS.look()
                for _, driving in running.values():
                    driving.look_after()
                if (at := ended.get(POLL)) is not None:
                    self._end(at, *running.pop(at))
        except BaseException:
            for _, driving in running.values():
                driving.abandon()
                driving.look_after()
            for _, driving in running.values():
                driving.end()
            raise

    def _begin(
        self, at: int, request: RunRequest, running: dict[int, tuple[Run, Driving]], ended: Callable[[int], None]
    ) -> None:
        try:
            if request.cancellation.is_set():
                raise request.cancellation.error()
            _, driving = running[at] = request.driven(Channel(lambda: ended(at)))
            driving.begin()
        except Exception as error:  # noqa: BLE001 - the other runs continue
            running.pop(at, None)
            self._report_to_caller(self._note_result(at, _without_answer(request, None, error)))

    def _end(self, at: int, run: Run, driving: Driving) -> None:
        try:
            driving.raise_failure()
            result = run.result
        except Exception as error:  # noqa: BLE001 - the other runs continue
            result = _without_answer(self.requests[at], run, error)
        self._report_to_caller(self._note_result(at, result))

    @calls_out
    def _report_to_caller(self, progress: Progress[Any]) -> None:
        with _logged():
            self._report(progress)

    # -------------------------------------------------------------------------------------------------- with asyncio

    async def arun(self) -> RunResults[Any]:
        from asyncio import TaskGroup

        with self._reporting():
            try:
                async with TaskGroup() as group:
                    for _ in range(min(self._concurrency, len(self.requests))):
                        group.create_task(self._work())
            except ExceptionGroup as errors:
                raise errors.exceptions[0].__cause__ or errors.exceptions[0] from None
        return RunResults(self._results)

    async def _work(self) -> None:
        from asyncio import CancelledError

        try:
            for at, request in self._left:
                await self._one(at, request)
        except (Exception, CancelledError):
            raise
        except BaseException as error:  # Ctrl-C and the like: raised from a task, they would end the event loop
            raise _Ended from error

    async def _one(self, at: int, request: RunRequest) -> None:
        run: Run | None = None
        try:
            if request.cancellation.is_set():
                raise request.cancellation.error()
            run, work = request.begin_async()
            result = await work
        except Exception as error:  # noqa: BLE001 - the other runs continue
            result = _without_answer(request, run, error)
        progress = self._note_result(at, result)
        with _logged():
            given = self._report(progress)
            if hasattr(given, "__await__"):
                await given

    # ------------------------------------------------------------------------------------------------------- for both

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Draws a progress bar if one is wanted: with tqdm or rich if installed, else as text."""
        bar = ExitStack()
        with _logged():
            if self._on_progress is True:
                from importlib.util import find_spec

                draw = next((draw for name, draw in _BARS.items() if find_spec(name) is not None), _as_text)
                self._report = bar.enter_context(draw(len(self.requests)))
        try:
            yield
        finally:
            with _logged():
                bar.close()

    def _note_result(self, at: int, result: Any) -> Progress[Any]:
        self._results[at] = result
        self._done += 1
        self._failed += not result.ok
        self._usage += result.usage
        return Progress(at, result, self._done, len(self.requests), self._failed, self._usage)


class _Ended(Exception):  # noqa: N818 - never seen outside
    """Carries a `BaseException` out of a task, as its cause."""


def _in_turns(*observers: Any) -> Iterable[Any]:
    """Wraps observers so that they are called one at a time. None stays None."""
    lock = RLock()  # reentrant: a callback may use the context of a call, which emits events
    async_lock: Any = None
    if any(map(is_async, observers)):
        from asyncio import Lock

        async_lock = Lock()

    def wrapped(observer: Any) -> Any:
        @calls_out
        def call(*given: Any, **named: Any) -> Any:
            with lock:
                return observer(*given, **named)

        async def acall(*given: Any, **named: Any) -> Any:
            async with async_lock:  # plain ones too: an async one may be waiting
                made = observer(*given, **named)
                return await made if hasattr(made, "__await__") else made

        return None if observer is None else call if async_lock is None else acall

    return map(wrapped, observers)


def _without_answer(request: RunRequest, run: Run | None, error: Exception) -> Result[Any]:
    """Returns the result of a run that ended with an exception, for example from its store."""
    if not isinstance(error, KernaiError):
        failure = KernaiError(described(error))
        failure.__cause__ = error
        error = failure
    reason = StopReason.CANCELLED if isinstance(error, RunCancelledError) else StopReason.ERROR
    steps, usage, messages = (0, Usage(), ()) if run is None else (run.steps, run.meter.usage(), tuple(run.messages))
    error.result = result = Result(None, reason, steps, usage, messages, request.run_id, error)
    return result


@contextmanager
def _logged() -> Iterator[None]:
    """Logs what an observer or a progress bar raises, since it must not affect the runs."""
    try:
        yield
    except (Exception, Control) as error:  # noqa: BLE001 - logged
        warn = EventLog(config.logger, debug=config.debug).warn
        warn("callback.failed", during="on_progress", error=described(error))


# ---------------------------------------------------------------------------------------------------- the progress bar


@contextmanager
def _by_tqdm(total: int) -> Iterator[Report]:
    from tqdm.auto import tqdm

    with tqdm(total=total, desc=_LABEL, file=sys.stderr) as bar:

        def show(progress: Progress[Any]) -> None:
            bar.set_postfix_str(_about(progress), refresh=False)
            bar.update()

        yield show


@contextmanager
def _by_rich(total: int) -> Iterator[Report]:
    from rich.console import Console
    from rich.progress import Progress as Bar

    class OnStderr(Console):
        def on_broken_pipe(self) -> None:  # without this method, rich ends the process
            raise BrokenPipeError("nobody reads stderr")

    with Bar(console=OnStderr(stderr=True)) as bar:
        task = bar.add_task(_LABEL, total=total)
        yield lambda progress: bar.update(task, advance=1, description=f"{_LABEL} {_about(progress)}".strip())


@contextmanager
def _as_text(total: int) -> Iterator[Report]:
    """Rewrites one line on a terminal; otherwise writes only the last state."""
    shown = ""

    def show(progress: Progress[Any]) -> None:
        nonlocal shown
        shown = f"{_LABEL}: {progress.done}/{total} {_about(progress)}".rstrip()
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{shown}\x1b[K")
            sys.stderr.flush()

    try:
        yield show
    finally:
        if shown:
            sys.stderr.write("\n" if sys.stderr.isatty() else f"{shown}\n")


def _about(progress: Progress[Any]) -> str:
    cost = progress.usage.cost
    facts = [f"{progress.failed} failed"] if progress.failed else []
    return ", ".join([*facts, *([] if cost is None else [dollars(cost)])])


_BARS = {"tqdm": _by_tqdm, "rich": _by_rich}
