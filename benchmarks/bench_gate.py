"""What a replay notices: mutants of the agents of scenarios and examples; and no false alarms for unchanged agents.

Each scenario and example is run offline, and each of its runs is recorded with its agent. Then one thing in the agent
is changed at a time, and the recording is replayed: a mutant is noticed if the replay fails, or lists the change. For
mutants of skills' results, all skills are replaced by ones that return the recorded results, except one, and replayed
with ``skills="run"``. The same programs run again in processes with other hash seeds, and replay the same recordings
with their agents: no replay may fail or list a change there.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import kernai
from kernai import Agent, Context, Input, Protocol, Skill
from kernai.errors import KernaiError, ReplayDivergenceError
from kernai.events import KINDS
from kernai.runs.run_request import RunRequest
from support import emit

ROOT = Path(__file__).resolve().parent.parent
#: files that need servers or third-party packages, or are not programs
APART = {
    "harness", "run_matrix", "mcp_filesystem", "mcp_memory", "skill_and_mcp", "mcp_server", "otel_spans", "local_model",
    "rag",
}
MUTANTS, REPLAYS, PROCESSES = 300, 1000, 6


class Recorded(NamedTuple):
    """A run: its agent and options, and its entries."""

    name: str
    request: RunRequest
    entries: list[dict[str, Any]]

    def replay(self, agent: Agent[Any] | None = None, **options: Any) -> tuple[str, ...]:
        """The changes that a replay lists. Raises if the agent decides differently, or is less protected."""
        request = self.request
        return kernai.replay(
            request.agent if agent is None else agent, recording=self.entries, model=request._model,  # noqa: SLF001
            agents=dict(request._task_agents) or None,  # noqa: SLF001 - nothing public has the tasks' agents
            context=Context(media_store=request._context.media_store), **options,  # noqa: SLF001
        ).changes


def programs() -> list[Path]:
    """The scenarios, and the examples that need no servers or packages."""
    found = [*sorted((ROOT / "scenarios").glob("*.py")), *sorted((ROOT / "examples").glob("*.py"))]
    return [path for path in found if path.stem not in APART]


@contextlib.contextmanager
def recorded_runs(path: Path) -> Iterator[list[Recorded]]:
    """The runs of a program that has ended. Its skills stay registered inside the ``with`` block."""
    runs: list[Recorded] = []
    begin = RunRequest.__init__

    def begun(self: RunRequest, agent: Agent[Any], content: Any, options: Mapping[str, Any]) -> None:
        begin(self, agent, content, options)
        if type(self).__name__ != "RunRequest":
            return
        entries: list[dict[str, Any]] = []
        runs.append(Recorded(f"{path.stem}.{len(runs)}", self, entries))
        seen = self._on_event

        def on_event(event: Any) -> Any:
            if event.type in KINDS and KINDS[event.type].role != "live":
                entries.append(event.to_dict())
            return None if seen is None else seen(event)

        self._on_event = on_event

    folder, offline = Path.cwd(), ["--offline", "--no-log"] if path.parent.name == "scenarios" else []
    arguments = [str(path), *offline]
    with kernai.isolated(), mock.patch.object(RunRequest, "__init__", begun), mock.patch.object(sys, "argv", arguments):
        sys.path.insert(0, str(path.parent))
        try:
            silent = contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO())
            with silent[0], silent[1], contextlib.suppress(SystemExit):
                runpy.run_path(str(path), run_name="__main__")
        finally:
            sys.path.remove(str(path.parent))
            os.chdir(folder)
        with mock.patch.object(RunRequest, "__init__", begin):
            yield [one for one in runs if one.entries and one.entries[-1]["event"] == "result"]


# ---------------------------------------------------------------------------------------------------------- mutants


def skill_like(skill: Skill, **changes: Any) -> Skill:
    """A skill with some of its attributes changed."""
    made = object.__new__(type(skill))
    vars(made).update(vars(skill), **changes)
    return made


def listed(agent: Agent[Any]) -> list[str | Skill]:
    return list(kernai.skills.all() if agent.skills == "all" else agent.skills or ())


def plain_skills(agent: Agent[Any]) -> list[Skill]:
    """The agent's skills that are functions, and that its model can use."""
    found = [kernai.skills.find(one) if isinstance(one, str) else one for one in listed(agent)]
    return [one for one in found if one and not hasattr(one, "agent") and agent.model.supports(*one.requires)]


def with_skill(agent: Agent[Any], name: str, *instead: Skill) -> Agent[Any]:
    """The agent with other skills, or none, instead of the one with this name."""
    skills: list[str | Skill] = []
    for one in listed(agent):
        skills += instead if name == (one if isinstance(one, str) else one.name) else [one]
    return agent.replace(skills=skills)


#: what options are changed to
VALUES: dict[str, tuple[Any, ...]] = {
    "parallel_skills": (False, True), "workflows": (False, True), "quoted_calls": ("confirm", "refuse", "run"),
    "on_prose": ("accept", "correct", "correct_once"), "dialects": ("correct", "run"),
    "on_truncated": ("accept", "continue", "fail"),
}


def mutants(agent: Agent[Any]) -> Iterator[tuple[str, Agent[Any]]]:
    """The changes of one thing, each with the changed agent."""
    if isinstance(agent.instructions, str):
        yield "instructions", agent.replace(instructions=agent.instructions + " Be quick.")
    if agent.constrain:
        yield "constrain", agent.replace(constrain=False)
    changes = [(option, value) for option, values in VALUES.items() for value in values]
    for option, step in (("max_steps", 1), ("max_tasks", 1), ("max_tasks", -1), ("output_retries", 1)):
        changes.append((option, getattr(agent, option) + step))
    for option, value in changes:
        if value != getattr(agent, option):
            yield f"{option} {value}", agent.replace(**{option: value})
    yield "approve", agent.replace(approve=None if agent.approve else lambda call: True)
    yield "middleware", agent.replace(middleware=[*(agent.middleware or ()), passing])
    if agent.answer_type is None:
        yield "output", agent.replace(output=str | int)
    if agent.protocols is not None:
        yield "a protocol", agent.replace(protocols=[*agent.protocols, Protocol("more", lambda *_: "x")])
    if agent.skills is None:
        return
    yield "a skill more", agent.replace(skills=[*listed(agent), Skill("more", execute=lambda: "x", inputs={})])
    for skill in plain_skills(agent):
        yield f"{skill.name}, gone", with_skill(agent, skill.name)
        changed: dict[str, Any] = {flag: not getattr(skill, flag) for flag in ("approval", "idempotent", "acts")}
        changed["description"] = f"{skill.description} Quickly."
        with contextlib.suppress(TypeError):  # a type that only the function's own module knows
            more = Skill(skill.name, execute=lambda **_: "x", inputs={**skill.inputs, "more": Input(int, default=1)})
            changed["table"] = more.table
        for name, value in changed.items():
            yield f"{skill.name}.{name}", with_skill(agent, skill.name, skill_like(skill, **{name: value}))


def passing(effect: Any) -> Any:
    """A middleware that does nothing."""
    return (yield effect)


def said_of(run: Recorded, agent: Agent[Any] | None = None) -> str:
    """The changes, or the error, that a replay reports for the agent, by default the unchanged one."""
    try:
        return "; ".join(run.replay(agent))
    except ReplayDivergenceError as error:
        return str(error)


def recorded_skills(run: Recorded, agent: Agent[Any], changed: str | None) -> Agent[Any]:
    """The agent with skills that return the recorded results in their order; `changed` returns something else."""
    given: dict[str, list[dict[str, Any]]] = {}
    for entry in run.entries:
        if entry["event"] in ("skill_result", "skill_error"):
            given.setdefault(entry["data"]["skill"], []).append(entry["data"])

    def stub(name: str) -> Callable[..., Any]:
        rows = iter([one for one in given.get(name, []) if one.get("exception") != "SkillInputError"])

        def give(*_: Any, **__: Any) -> Any:
            row = next(rows)
            if "error" in row:
                raise type(row["exception"], (Exception,), {})(row["error"])
            return "something else" if name == changed else row["result"]

        return give

    for skill in plain_skills(agent):
        agent = with_skill(agent, skill.name, skill_like(skill, function=stub(skill.name), is_async=False))
    return agent


def bodies(run: Recorded) -> Iterator[bool]:
    """For each skill, whether a replay with skills notices that its results have changed."""
    agent = run.request.agent
    if agent.skills is None or any(entry.get("scope") for entry in run.entries):
        return
    results = [entry["data"] for entry in run.entries if entry["event"] == "skill_result"]
    texts = {one["skill"] for one in results if isinstance(one["result"], str)}
    with contextlib.suppress(ReplayDivergenceError, KernaiError), contextlib.redirect_stdout(io.StringIO()):
        run.replay(recorded_skills(run, agent, None), skills="run")  # some results cannot be returned by a stub
        for name in sorted(texts & {skill.name for skill in plain_skills(agent)}):
            try:
                run.replay(recorded_skills(run, agent, name), skills="run")
                yield False
            except ReplayDivergenceError:
                yield True


# ------------------------------------------------------------------------------------------------------------- figures


def main(*, quick: bool) -> None:
    """Counts mutants that are noticed, and false alarms for unchanged agents."""
    noticed = tried = false_alarms = 0
    by_skill: list[bool] = []
    recordings: dict[str, list[dict[str, Any]]] = {}
    for path in programs()[:: 4 if quick else 1]:
        with recorded_runs(path) as runs:
            for run in runs:
                changes = said_of(run)
                if changes:
                    print(f"# {run.name}: {changes[:300]}", file=sys.stderr)
                    false_alarms += 1
                    continue
                recordings[run.name] = run.entries
                for what, agent in mutants(run.request.agent.replace(model=run.request._model)):  # noqa: SLF001
                    tried += 1
                    if said_of(run, agent):
                        noticed += 1
                    else:
                        print(f"# {run.name}: {what} was not noticed", file=sys.stderr)
                by_skill += bodies(run)
    emit("gate: mutants noticed", noticed, tried, ">= 0.99", "of")
    emit("gate: mutants of what a skill gives noticed", sum(by_skill), len(by_skill), ">= 0.99", "of")
    alarms, replays = _elsewhere(recordings, 1 if quick else PROCESSES, REPLAYS // (10 if quick else 1))
    emit("gate: false alarms", alarms + false_alarms, replays, "<= 0", "of")
    assert quick or (tried >= MUTANTS and replays >= REPLAYS), (tried, replays)


def _elsewhere(recordings: dict[str, list[dict[str, Any]]], processes: int, replays: int) -> tuple[int, int]:
    """The numbers of false alarms and of replays in separate processes."""
    alarms = made = 0
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "recordings.json"
        file.write_text(json.dumps(recordings), encoding="utf-8")
        for seed in range(1, processes + 1):
            times = -(-replays // (processes * max(len(recordings), 1)))
            done = subprocess.run(
                [sys.executable, __file__, "--child", str(file), str(times)], check=True, text=True, stdout=-1,
                env={**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": os.pathsep.join(sys.path)},
            )
            found = json.loads(done.stdout.splitlines()[-1])
            for alarm in found["alarms"]:
                print(f"# seed {seed}: {alarm[:300]}", file=sys.stderr)
            alarms, made = alarms + len(found["alarms"]), made + found["replays"]
    return alarms, made


def _child(file: str, times: str) -> None:
    recordings: dict[str, list[dict[str, Any]]] = json.loads(Path(file).read_text(encoding="utf-8"))
    alarms, replays = [], 0
    for path in programs():
        if any(name.startswith(f"{path.stem}.") for name in recordings):
            with recorded_runs(path) as runs:
                kept = [one._replace(entries=recordings[one.name]) for one in runs if one.name in recordings]
                for run in kept * int(times):
                    replays += 1
                    changes = said_of(run)
                    if changes:
                        alarms.append(f"{run.name}: {changes}")
    print(json.dumps({"alarms": alarms, "replays": replays}))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    _child(*sys.argv[2:])
