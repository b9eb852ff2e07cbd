"""`check_provider`: whether a provider of one's own is what the loop expects of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernai.agents.agent import Agent
from kernai.events import LlmResponseRow, ModelRestartedRow
from kernai.recording.recorder import Recorder
from kernai.registry.provider import Provider
from kernai.runs.running import aexecute, execute
from kernai.testing.checks import Checks, at_once
from kernai.values.generation_options import GenerationOptions
from kernai.values.llm_response import LlmResponse
from kernai.values.media import Media
from kernai.values.message import Message
from kernai.values.model import Model, Models

_THREADS = 8
_MESSAGES = (Message("system", "Be brief."), Message("user", "Say something."))
_OPTIONS = GenerationOptions(temperature=0.5, max_tokens=100)


class _StoppedError(Exception):
    """What `on_chunk` raises here, where a run would say that it is to stop."""


class _OnChunk:
    """As a run gives it: takes pieces, knows a deadline, can be asked whether the run is to stop."""

    deadline: float | None = None

    def __init__(self, stop_after: int | None = None) -> None:
        self.pieces: list[str] = []
        self._stop_after = stop_after

    def cancelled(self) -> bool:
        return self._stop_after is not None and len(self.pieces) >= self._stop_after

    def __call__(self, text: str) -> None:
        self.pieces.append(text)
        if self.cancelled():
            raise _StoppedError("the run is to stop")


def check_provider(make: Callable[[], Provider], *, model: Model = Models.TEXT_ONLY) -> None:
    """Raises an `AssertionError` that names all that a provider made by `make` does not do.

    A fresh provider has to answer each call with some text; nothing is asked of what the text says. `model` is what it
    is called with.
    """
    checks = Checks("provider", make)
    with checks.that("a call") as holds:
        on_chunk = _OnChunk()
        answer = make().call(_MESSAGES, model, _OPTIONS, on_chunk)
        holds(isinstance(answer, LlmResponse), f"gave {type(answer).__name__}, not an LlmResponse")
        shown = "".join(on_chunk.pieces)
        holds(shown in ("", answer.content), "what it streamed is not what it answered")
        holds(all(isinstance(piece, str) for piece in on_chunk.pieces), "a piece was no text")
    with checks.that("a run that is to stop") as holds:
        on_chunk = _OnChunk(stop_after=1)
        try:
            make().call(_MESSAGES, model, _OPTIONS, on_chunk)
        except Exception:  # noqa: BLE001, S110 - the loop looks why it stopped, not at what is raised
            pass
        else:
            holds(not on_chunk.pieces, "the call went on although on_chunk had raised")
        holds(len(on_chunk.pieces) <= 1, "on_chunk was called again after it had raised")
    with checks.that("media that the model cannot take") as holds:
        provider, image = make(), Media.from_bytes(b"x", mime_type="image/png")
        encoded = provider.encode(["look: ", image], Models.TEXT_ONLY)
        holds(len(encoded) == 2, f"two parts became {len(encoded)}")  # noqa: PLR2004 - as many as were given
        holds(None not in encoded, "a part was encoded as None, not as its placeholder")
    _check_runs(checks, make, model)
    checks.done()


def _check_runs(checks: Checks, make: Callable[[], Provider], model: Model) -> None:
    import asyncio

    def agent() -> Agent[Any]:
        return Agent(instructions="Be brief.", provider=make(), model=model, generation=_OPTIONS, max_steps=1)

    told: list[Any] = []
    with checks.that("a run") as holds:
        for way in ("sync", "async"):
            recorder = Recorder()
            if way == "sync":
                result = execute(agent(), "Say something.", recorder=recorder)
            else:
                result = asyncio.run(aexecute(agent(), "Say something.", recorder=recorder))
            holds(str(result.stop_reason) in ("final", "max_steps"), f"{way}: {result.stop_reason}: {result.error}")
            holds(not recorder.for_event(ModelRestartedRow.type), f"{way}: what it streamed is not what it answered")
            told.append([type(event.data["metadata"]) for event in recorder.for_event(LlmResponseRow.type)])
        holds(told[0] == told[1], "`call` and `acall` differ")
    with checks.that(f"{_THREADS} threads at once") as holds:
        shared, results = make(), list[Any]()
        one = agent().replace(provider=shared)
        failures = at_once(lambda _: results.append(execute(one, "Say something.").error), _THREADS)
        failures += [error for error in results if error is not None and "steps without" not in str(error)]
        holds(not failures, f"runs failed: {failures[:1]}")
