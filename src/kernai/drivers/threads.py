"""The synchronous driver: performs the loop's effects on threads.

Guarantees: skills are called in the caller's thread, except for work that the loop starts beside itself (workflow
tasks, parallel skills), which runs in workers of a bounded pool, each in a copy of the caller's context variables.
Every event is delivered before the effect that follows it is performed. Started work has ended when the loop ends.
Assumes: a piece of `Work` is advanced by one driver at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kernai.drivers.background_loop import PrivateLoop
from kernai.drivers.channel import Channel
from kernai.errors import RunCancelledError, as_failure
from kernai.loop.effects import CallModel, CallProtocol, CallSkill, Effect, Ended, NextEnded, Start, Work
from kernai.worker_pool import WorkerPool

if TYPE_CHECKING:
    from kernai.drivers.cancellation import Cancellation
    from kernai.drivers.delivery import Rails
    from kernai.loop.outbox import Outbox
    from kernai.values.event import Event


class Driver:
    """Drives one root run and everything below it."""

    def __init__(self, rails: Rails, cancellation: Cancellation) -> None:
        self.rails = rails
        self._cancellation = cancellation
        self._pool = WorkerPool()
        self._loop = PrivateLoop()
        self._perform: dict[type[Effect], Callable[[Any, Channel], Any]] = {
            CallModel: self._call_model,
            CallSkill: self._call_skill,
            CallProtocol: self._call_protocol,
            Start: self._start,
            NextEnded: self._next_ended,
        }

    def run(self, work: Work, outbox: Outbox) -> Any:
        """Drives the root's work to its end."""
        inbox = Channel()
        try:
            return _drained(self.steps(work, outbox, inbox))
        except Exception:
            raise
        except BaseException as interrupt:
            self._finish(work, outbox, inbox, interrupt)
            raise
        finally:
            self.close()

    def _finish(self, work: Work, outbox: Outbox, inbox: Channel, interrupt: BaseException) -> None:
        """After Ctrl-C: where it came between two effects, the loop has not heard of it and still has to end."""
        self._cancellation.set()
        if getattr(work, "gi_frame", None) is not None and not getattr(work, "gi_running", False):
            with suppress(type(interrupt)):
                _drained(self.steps(work, outbox, inbox, error=interrupt))
        self.rails.flush(outbox)

    def stream(self, work: Work, outbox: Outbox, channel: Channel) -> Generator[Event, None, Any]:
        """The same, giving the events that arrive in `channel` to whoever iterates, in that thread."""
        try:
            return (yield from self.steps(work, outbox, channel, streaming=True))
        except GeneratorExit:
            # dropped before its end: what still runs in workers is to stop
            self._cancellation.set()
            raise
        finally:
            self.close()

    def works_here(self) -> bool:
        """Whether the current thread works for this run, so that waiting for the run in it would never end."""
        return self._pool.works_here() or self._loop.serves_here()

    def close(self) -> None:
        """Frees what the run needed."""
        self._loop.close()

    def steps(
        self,
        work: Work,
        outbox: Outbox,
        inbox: Channel,
        *,
        streaming: bool = False,
        error: BaseException | None = None,
    ) -> Generator[Event, None, Any]:
        """Drives `work`: performs each effect and sends back what came of it. What it started reports to `inbox`.

        There is one such loop. It yields events only where `inbox` is a stream's; not streaming is draining. With an
        `error` it goes on by throwing that into the work.
        """
        value = outcome = None
        while True:
            try:
                effect = work.send(outcome) if error is None else work.throw(error)
            except StopIteration as stop:
                value = stop.value
                break
            except BaseException as raised:
                self._flush_whole(outbox)
                if streaming and isinstance(raised, Exception):
                    yield from inbox.take_events()
                raise
            outcome = error = None
            try:
                self.rails.flush(outbox)
                if streaming:
                    yield from inbox.take_events()
                    outcome = yield from self._perform_streaming(effect, inbox)
                else:
                    outcome = self._perform_here(effect, inbox)
            except GeneratorExit:
                raise
            except BaseException as raised:  # noqa: BLE001 - it belongs to the loop, which decides
                error = as_failure(raised)
                if not isinstance(error, Exception) and not self._pool.works_here():
                    # Ctrl-C and the like: work beside this one is to stop too. (In a worker it is a skill's own exit.)
                    self._cancellation.set()
                    self._loop.cancel()
        self._flush_whole(outbox)
        if streaming:
            yield from inbox.take_events()
        return value

    def _flush_whole(self, outbox: Outbox) -> None:
        """The last flush: even when an observer is interrupted, the events behind that one are not lost."""
        try:
            self.rails.flush(outbox)
        except BaseException:
            self.rails.flush(outbox)
            raise

    def _perform_streaming(self, effect: Effect, channel: Channel) -> Generator[Event, None, Any]:
        """Model calls and async skills go to a worker, so that their events can be given out meanwhile; everything
        else is performed in the thread that iterates.
        """
        if isinstance(effect, Start):
            return self._start(effect, channel)
        aside = isinstance(effect, CallModel) or (isinstance(effect, CallSkill) and effect.skill.is_async)
        if not aside and not isinstance(effect, NextEnded):
            with channel.consumer_works():
                return self._perform_here(effect, channel)
        if aside:
            self._pool.submit(lambda: channel.put(self._performed(effect, channel)))
        while not isinstance(item := channel.get(), Ended):
            yield item
        if isinstance(effect, NextEnded):
            return item
        if item.error is not None:
            raise item.error
        return item.value

    def _perform_here(self, effect: Effect, inbox: Channel) -> Any:
        try:
            return self._perform[type(effect)](effect, inbox)
        except GeneratorExit as error:
            # a skill's own; where the driver sees one otherwise, it is being closed itself
            raise as_failure(error) from error

    def _performed(self, effect: Effect, inbox: Channel) -> Ended:
        try:
            return Ended(None, self._perform_here(effect, inbox))
        except BaseException as error:  # noqa: BLE001 - delivered to the loop by the thread that iterates
            return Ended(None, error=error)

    def _call_model(self, effect: CallModel, _: Channel) -> Any:
        cancelled, forward = self._cancellation.is_set, effect.on_chunk

        def on_chunk(text: str) -> None:
            if cancelled():
                raise RunCancelledError("the run was cancelled")
            forward(text)

        return effect.provider.call(effect.messages, effect.model, effect.generation, on_chunk)

    def _call_skill(self, effect: CallSkill, _: Channel) -> Any:
        return self._value(effect.skill.invoke(effect.arguments, effect.context))

    def _call_protocol(self, effect: CallProtocol, _: Channel) -> Any:
        return self._value(effect.protocol.handler(effect.block, effect.context))

    def _value(self, value: Any) -> Any:
        """The value itself, or what an async function's awaitable comes to on the run's private event loop."""
        if type(value) is not str and hasattr(value, "__await__"):
            return self._loop.run(value)
        return value

    def _start(self, effect: Start, inbox: Channel) -> None:
        self._pool.submit(lambda: inbox.put(self._outcome(effect)))

    def _outcome(self, effect: Start) -> Ended:
        """In a worker: the value or the error of started work, which only the parent delivers."""
        try:
            return Ended(effect.key, _drained(self.steps(effect.work, effect.outbox, Channel())))
        except BaseException as error:  # noqa: BLE001 - delivered to the loop by the thread that iterates
            return Ended(effect.key, error=error)

    def _next_ended(self, _: NextEnded, inbox: Channel) -> Ended:
        with self._pool.waiting():
            ended = inbox.get()
        assert isinstance(ended, Ended)
        return ended


def _drained(steps: Generator[Event, None, Any]) -> Any:
    try:
        while True:
            next(steps)
    except StopIteration as stop:
        return stop.value
