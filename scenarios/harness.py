"""Defines a scenario: a standalone file that runs an agent end to end and judges the run.

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

Only the model's turns may come from a tape (`tapes/NAME.json` beside the file, see `Tape`). Everything else in a run is
real. A guide is in docs/scenarios.md. Exit status: 0 if every expectation is met, 1 if not, 2 for wrong usage, 130
after Ctrl-C.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NoReturn, TypeVar, overload

try:
    import kernai
except ModuleNotFoundError as error:
    if error.name != "kernai":
        raise
    name = Path(sys.argv[0]).stem
    task = "matrix" if name == "run_matrix" else f"scenario {sys.argv[0]}"
    advice = f"`python3 dev.py {task}` runs it with one that has"
    print(f"{name}: error: this Python has no kernai; {advice}", file=sys.stderr)
    sys.exit(2)
from kernai._util.api import check_function
from kernai.registry.skill_definition import FunctionSkill, Params, Returned
from kit.definition import (
    ROOT,
    SCENARIOS,
    Check,
    Definition,
    Expectation,
    ExpectationError,
    Input,
    Outcome,
    UsageError,
    name_of,
    require,
    shown,
)
from kit.kept import Kept
from kit.known_providers import listing, register_provider
from kit.options import Options, parse
from kit.plain_view import say, view_for
from kit.provider_choice import choose
from kit.run import perform, recording
from kit.run_log import RunLog
from kit.standard_output import FAILED, INTERRUPTED, PASSED, exit_status, made_printable
from kit.tape import check_place
from kit.tape_making import save_from_log, save_from_run

__all__ = ["ExpectationError", "Kept", "Outcome", "Scenario", "UsageError", "register_provider", "require"]

AnyCheck = TypeVar("AnyCheck", bound=Check)
AnyPreparation = TypeVar("AnyPreparation", bound=Callable[[], object])
AnyDrive = TypeVar("AnyDrive", bound=Callable[[Kept], kernai.Result])
AnySkill = TypeVar("AnySkill", bound=kernai.Skill)


class Scenario:
    """One end-to-end run: the agent's instructions, what it may use, and what a good run shows.

    `real` completes "only the model's turns come from the tape; ... are real" in the first lines of the output.
    """

    def __init__(self, name: str, description: str, real: str = "skills, loop and recording") -> None:
        if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
            raise ValueError(f"name must be the file's name without its ending, got {name!r}")
        # the file that calls this: its tape and its logs are beside it
        file = sys._getframe(1).f_globals.get("__file__")  # noqa: SLF001 - as namedtuple and warnings find it
        self.definition = Definition(name, description, real, Path(file).absolute().parent if file else SCENARIOS)


    def instructions(self, text: str | Callable[..., str]) -> None:
        """Text, or a callable that returns it, as in `Agent`."""
        self.definition.instructions = text

    @overload
    def skill(self, function: Callable[Params, Returned], /) -> FunctionSkill[Params, Returned]: ...

    @overload
    def skill(
        self,
        /,
        *,
        name: str | None = None,
        description: str | None = None,
        requires: str | Iterable[str] = (),
        produces: str | Iterable[str] = (),
        approval: bool = False,
        idempotent: bool = False,
    ) -> Callable[[Callable[Params, Returned]], FunctionSkill[Params, Returned]]: ...

    def skill(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Decorate a function into a skill of this scenario's agent; nothing global is registered. Options are those
        of `kernai.skill`.
        """
        if function is None:
            return lambda given: self.add_skill(kernai.skill(register=False, **options)(given))
        return self.add_skill(kernai.skill(register=False)(function))

    def add_skill(self, skill: AnySkill) -> AnySkill:
        """Add a skill that was made elsewhere, such as `agent.as_skill(...)`."""
        if not isinstance(skill, kernai.Skill):
            raise TypeError(f"add_skill takes a Skill, got {type(skill).__name__}; decorate a function with .skill")
        self.definition.skills.append(skill)
        return skill

    def protocols(self, protocols: Sequence[str | kernai.Protocol]) -> None:
        """The protocols that the agent may use, by name or as objects; by default, only that of `mcp_config`."""
        if isinstance(protocols, str):
            raise TypeError(f"protocols takes a list; did you mean [{protocols!r}]?")
        self.definition.protocols = list(protocols)

    def mcp_config(self, path: str | os.PathLike[str]) -> None:
        """The file of the MCP servers, which run only in the run. A relative path is from the repository's root."""
        self.definition.mcp_config = ROOT / path

    def capabilities(self, words: Sequence[str]) -> None:
        """The capabilities that the model needs; see `kernai.Model`. The agent's model is declared with just these."""
        if isinstance(words, str):
            raise TypeError(f"capabilities takes a list; did you mean [{words!r}]?")
        self.definition.capabilities = kernai.Model("any", tuple(words)).capabilities

    def input(self, what: Input) -> None:
        """What the user says: text, media, or a list of both."""
        self.definition.input = what

    def max_steps(self, count: int) -> None:
        """The most steps that the run may take."""
        self.definition.max_steps = count

    def limits(self, limits: kernai.Limits) -> None:
        """The budget of the whole run; see `kernai.Limits`."""
        self.definition.limits = limits

    def prepare(self, prepare: AnyPreparation) -> AnyPreparation:
        """Add a function without arguments that is called before the run. May be used as a decorator."""
        self.definition.preparations.append(check_function("prepare", prepare, "no arguments"))
        return prepare

    def kept(self, drive: AnyDrive) -> AnyDrive:
        """Decorate a function that receives a `Kept`, the run in a store, and returns the `Result` to be judged."""
        self.definition.drive = check_function("kept", drive, "a Kept", None)
        return drive

    @overload
    def expect(self, check: AnyCheck, /, *, name: str | None = None, reason: str = "") -> AnyCheck: ...

    @overload
    def expect(self, /, *, name: str | None = None, reason: str = "") -> Callable[[AnyCheck], AnyCheck]: ...

    def expect(self, check: Any = None, /, *, name: str | None = None, reason: str = "") -> Any:
        """Add an expectation: a function of the `Outcome` that is true for a good run.

        `name` is its name in the output, by default the function's own. `reason` says what is wrong if it does not
        hold. The function may raise `ExpectationError` to give the reason itself.
        """
        if check is None:
            return lambda given: self.expect(given, name=name, reason=reason)
        check_function("expect", check, "the Outcome", None)
        expectations = self.definition.expectations
        expectations.append(Expectation(name or name_of(check, len(expectations) + 1), check, reason))
        return check

    def main(self, arguments: Sequence[str] | None = None) -> NoReturn:
        """Run the scenario from the command line and exit."""
        sys.exit(self.run(arguments))

    def run(self, arguments: Sequence[str] | None = None) -> int:
        """Run the scenario and return the exit status. `arguments` are by default those of the command line."""
        return exit_status(self.definition.name, lambda: self._performed(parse(self.definition, arguments)))

    def _performed(self, options: Options) -> int:
        tape = options.tape or self.definition.tape
        if options.list_providers:
            say(listing(self.definition.tape))
            return PASSED
        if options.save_tape is not None:
            check_place(tape)
        if options.save_tape:  # from a log
            say(save_from_log(Path(options.save_tape), self.definition.name, tape))
            return PASSED
        choice = choose(self.definition, options)
        view = view_for(plain=options.plain)
        log = nullcontext() if options.no_log else RunLog(options.logs, self.definition.name, choice.name)
        with log, recording(options.record) as recorder:
            view.begin(self.definition, choice)
            with view.live(), made_printable():
                run = perform(self.definition, choice, recorder, view, debug=options.debug)
            files = {"recording": options.record}
            try:
                files["log"] = log.write(run, recorder) if isinstance(log, RunLog) else None
            finally:  # an answer that was paid for is shown even if its log cannot be written
                view.report(run, [f"{name}: {shown(path)}" for name, path in files.items() if path is not None])
        if options.save_tape is not None:
            say(save_from_run(run, recorder, tape))
        return INTERRUPTED if run.interrupted else PASSED if run.passed else FAILED
