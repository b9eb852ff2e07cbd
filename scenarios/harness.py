"""The small language in which a scenario is written: one standalone file each, run end to end and judged.

    from harness import Outcome, Scenario

    scenario = Scenario("inventory_lookup", description="Find out what is out of stock.")
    scenario.instructions("You keep the stock of ...")

    @scenario.skill
    def find_stock(status: str) -> list[dict[str, object]]: ...

    scenario.input("What has to be ordered?")
    scenario.max_steps(8)

    @scenario.expect
    def names_the_missing_product(outcome: Outcome) -> bool:
        return "KX-2041" in outcome.text

    if __name__ == "__main__":
        scenario.main()

Only the model's turns may come from a tape (`tapes/NAME.json`, see `Tape`). Everything else of a run is real.
Exit status: 0 when every expectation holds, 1 when not, 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import kernai
from live_view import LiveView, printable

TAPES = Path(__file__).resolve().parent / "tapes"
TAPE_FORMAT = 1
PIECE = 7  # characters a streamed piece; small, so that tags come in parts as they do from a vendor
CHARACTERS_A_TOKEN = 4

OK, FAILED, WRONG_USAGE, INTERRUPTED = 0, 1, 2, 130


class UsageError(Exception):
    """What the user of the command line did wrong, in one line."""


class ExpectationError(Exception):
    """Raised by an expectation that can say in what way the run was not good."""


@dataclass(frozen=True)
class Outcome:
    """What an expectation judges: the run's result and every event it recorded."""

    result: kernai.Result
    events: Sequence[kernai.Event]

    @property
    def text(self) -> str:
        """The answer, empty when there is none."""
        return self.result.text or ""

    def results_of(self, skill: str) -> list[Any]:
        """What the calls of one skill returned, in order."""
        results = [event.data for event in self.events if event.type == "skill_result"]
        return [data["result"] for data in results if data["skill"] == skill]


# ------------------------------------------------------------------------------------------------------ tapes


@dataclass(frozen=True)
class Tape:
    """The model's turns of one run, in order.

    As a file: ``{"format": 1, "scenario": NAME, "turns": [{"content": TEXT}, ...]}``; a turn may also hold the
    `prompt_tokens` and `completion_tokens` that a vendor reported.
    """

    path: Path
    turns: tuple[dict[str, Any], ...]

    @classmethod
    def load(cls, path: Path, scenario: str) -> Tape:
        """Read a tape; `UsageError` when there is none, or when it is no tape of this scenario and format."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else f"not JSON: {error}"
            raise UsageError(f"cannot read the tape {path}: {reason}") from error
        if not isinstance(data, dict) or data.get("format") != TAPE_FORMAT:
            raise UsageError(f'{path} is no tape of format {TAPE_FORMAT}: it must be an object with "format": 1')
        if data.get("scenario") != scenario:
            raise UsageError(f"{path} is a tape of the scenario {data.get('scenario')!r}, not of {scenario!r}")
        turns = data.get("turns")
        if not isinstance(turns, list) or not all(_is_turn(turn) for turn in turns):
            raise UsageError(f'{path} has no "turns": a list of objects that each hold the text "content"')
        return cls(path, tuple(turns))


def _is_turn(turn: object) -> bool:
    return isinstance(turn, dict) and isinstance(turn.get("content"), str)


class TapeProvider(kernai.Provider):
    """Replays a tape for one run, streaming each turn in small pieces.

    Where the tape holds no token counts, they are estimated at four characters a token, so that the figures of a run
    behave as with a vendor.
    """

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.played = 0
        self._lock = threading.Lock()

    def call(
        self,
        messages: Sequence[kernai.Message],
        model: kernai.Model,
        generation: kernai.GenerationOptions,
        on_chunk: Callable[[str], object],
    ) -> kernai.LlmResponse:
        """The next turn. `ProviderError` when there is none: the run has left the recorded path."""
        del model, generation
        turn = self._next_turn()
        content = turn["content"]
        for start in range(0, len(content), PIECE):
            on_chunk(content[start : start + PIECE])
        sent = sum(len(message.text) for message in messages)
        return kernai.LlmResponse(
            content,
            prompt_tokens=turn.get("prompt_tokens", sent // CHARACTERS_A_TOKEN),
            completion_tokens=turn.get("completion_tokens", len(content) // CHARACTERS_A_TOKEN),
            finish_reason="stop",
        )

    def _next_turn(self) -> dict[str, Any]:
        with self._lock:
            if self.played == len(self.tape.turns):
                raise kernai.ProviderError(
                    f"the tape {self.tape.path.name} ends after {self.played} turns and the run asks for another: "
                    "it has left the recorded path",
                    vendor="tape",
                )
            self.played += 1
            return self.tape.turns[self.played - 1]


# --------------------------------------------------------------------------------------------------- scenario


class Scenario:
    """One end-to-end run: what the agent is told, what it may use, and what a good run shows.

    `real` completes "only the model's turns come from the tape; ... are real" in the first lines of the output.
    """

    def __init__(self, name: str, description: str, real: str = "skills, loop and recording") -> None:
        self.name = name
        self.description = description
        self.real = real
        self._instructions: str | Callable[..., str] = ""
        self._skills: list[kernai.Skill] = []
        self._capabilities: tuple[str, ...] = ("text",)
        self._input: str | kernai.Media | list[str | kernai.Media] = ""
        self._max_steps = 10
        self._expectations: list[Callable[[Outcome], bool]] = []

    def instructions(self, text: str | Callable[..., str]) -> None:
        """Text, or a callable that gives it, as `Agent` takes it."""
        self._instructions = text

    def skill(self, function: Callable[..., Any]) -> kernai.Skill:
        """Decorate a function into a skill of this scenario's agent; nothing global is registered."""
        made = kernai.skill(register=False)(function)
        self._skills.append(made)
        return made

    def capabilities(self, words: Sequence[str]) -> None:
        """What the model must be able to do; see `kernai.Model`."""
        self._capabilities = tuple(words)

    def input(self, what: str | kernai.Media | list[str | kernai.Media]) -> None:
        """What the user says: text, media, or a list of both."""
        self._input = what

    def max_steps(self, count: int) -> None:
        """The ceiling of the loop."""
        self._max_steps = count

    def expect(self, check: Callable[[Outcome], bool]) -> Callable[[Outcome], bool]:
        """Add what a good run shows. Its name is printed; it may raise `ExpectationError` to give the reason."""
        self._expectations.append(check)
        return check

    def main(self, arguments: Sequence[str] | None = None) -> NoReturn:
        """Run the scenario from the command line and exit."""
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # a terminal may lack what a product is called
        try:
            options = self._command_line(arguments)
            status = self._run(options)
            sys.stdout.flush()
        except UsageError as error:
            print(f"{self.name}: error: {printable(str(error))}", file=sys.stderr)
            status = WRONG_USAGE
        except BrokenPipeError:  # whoever read the output has gone, as `head` does; the interpreter must not try again
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            status = FAILED
        except KeyboardInterrupt:
            print(f"{self.name}: interrupted", file=sys.stderr)
            status = INTERRUPTED
        sys.exit(status)

    # ------------------------------------------------------------------------------------------------- inside

    def _command_line(self, arguments: Sequence[str] | None) -> argparse.Namespace:
        parser = _Parser(
            prog=f"python scenarios/{self.name}.py",
            description=self.description,
            epilog="Exit status: 0 when every expectation holds, 1 when not, 2 for wrong usage.",
        )
        parser.add_argument("--offline", action="store_true", help="replay the tape, whatever else is configured")
        parser.add_argument("--tape", type=Path, default=TAPES / f"{self.name}.json", help="replay this tape instead")
        parser.add_argument("--record", type=Path, metavar="FILE", help="write the recording to FILE, .json or .jsonl")
        return parser.parse_args(arguments)

    def _run(self, options: argparse.Namespace) -> int:
        provider = TapeProvider(Tape.load(options.tape, self.name))
        with _recording(options.record) as recorder:
            print(f"{self.name}: {self.description}")
            print(f"provider: the tape {_short(options.tape)} ({_reason(options)})")
            print(f"Only the model's turns come from the tape; {self.real} are real. Token counts are estimates.")
            began = time.perf_counter()
            result = kernai.execute(self._agent(provider), self._input, recorder=recorder, on_event=LiveView())
            seconds = time.perf_counter() - began
            outcome = Outcome(result, recorder.entries)
        _report(outcome, seconds)
        if options.record is not None:
            print(f"recording: {options.record}")
        faults = [*self._faults(outcome), *_tape_faults(provider, result)]
        for fault in faults:
            print(f"FAILED: {printable(fault)}")
        if not faults:
            print("ok: " + "; ".join(map(_sentence, self._expectations)))
        return FAILED if faults else OK

    def _agent(self, provider: kernai.Provider) -> kernai.Agent:
        return kernai.Agent(
            name=self.name,
            instructions=self._instructions,
            provider=provider,
            model=kernai.Model("bundled-tape", self._capabilities),
            skills=self._skills,
            max_steps=self._max_steps,
        )

    def _faults(self, outcome: Outcome) -> list[str]:
        """What is wrong with a run: how it ended, and each expectation that does not hold."""
        if outcome.result.stop_reason != kernai.StopReason.FINAL:
            return [f"the run ended with {outcome.result.stop_reason}: {outcome.result.error}"]
        faults = []
        for check in self._expectations:
            try:
                if not check(outcome):
                    faults.append(f"this does not hold: {_sentence(check)}")
            except ExpectationError as error:
                faults.append(f"this does not hold: {_sentence(check)}; {error}")
        return faults


def _tape_faults(provider: TapeProvider, result: kernai.Result) -> list[str]:
    left = len(provider.tape.turns) - provider.played
    if left == 0 or result.stop_reason != kernai.StopReason.FINAL:
        return []
    return [f"the run ended with {left} turns left on the tape: it has left the recorded path"]


def _report(outcome: Outcome, seconds: float) -> None:
    usage = outcome.result.usage
    calls = sum(event.type == "skill_execute" for event in outcome.events)
    refused = sum(event.type == "skill_error" for event in outcome.events)
    print("\nanswer:")
    print("\n".join(f"    {line}" for line in printable(outcome.text or "none").splitlines()))
    print(
        f"\nstop: {outcome.result.stop_reason}; steps: {outcome.result.steps}; "
        f"skill calls: {calls}, {refused} of them answered by an error; "
        f"tokens: {usage.prompt_tokens} in, {usage.completion_tokens} out; {seconds:.2f} s"
    )


def _reason(options: argparse.Namespace) -> str:
    return "--offline" if options.offline else "no model vendor is configured"


def _sentence(check: Callable[[Outcome], bool]) -> str:
    return check.__name__.replace("_", " ")


@contextmanager
def _recording(path: Path | None) -> Iterator[kernai.Recorder]:
    """A recorder that keeps its events, and writes them to a file where one is asked for: whole or line by line."""
    memory = kernai.MemorySink()
    recorder = kernai.Recorder(memory)
    if path is None:
        yield recorder
        return
    _make_empty(path)
    if path.suffix == ".jsonl":
        with kernai.JsonlSink(path) as lines:
            yield kernai.Recorder(kernai.CompositeSink(memory, lines))
        return
    try:
        yield recorder
    finally:
        path.write_text(recorder.to_json(), encoding="utf-8")


def _make_empty(path: Path) -> None:
    """Make the file before the run, so that a wrong path is told at once."""
    try:
        path.touch(mode=0o600)
        path.write_bytes(b"")
    except OSError as error:
        raise UsageError(f"cannot write the recording to {path}: {error.strerror}") from error


def _short(path: Path) -> str:
    """A path as a reader of the output would type it."""
    root = TAPES.parent.parent
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see --help")
