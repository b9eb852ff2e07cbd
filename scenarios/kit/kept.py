"""`Kept`: a run in a store, which a scenario starts, breaks off, continues and forks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import kernai
from kernai.recording.recorder import expand
from kit.definition import Definition
from kit.provider_choice import Choice

#: the environment variable with the path of a child process's store
STORE = "KERNAI_SCENARIO_STORE"


class Kept:
    """Passed to the function that `scenario.kept` decorates. `folder` is new for the run, and shared with its child."""

    def __init__(
        self, definition: Definition, choice: Choice, agent: kernai.Agent, folder: Path, **options: Any
    ) -> None:
        self.agent = agent
        self.folder = folder
        self.run_id = definition.name
        self.store = kernai.SqliteStore(folder / "runs.db")
        self._definition = definition
        self._choice = choice
        self._options = options

    @property
    def is_child(self) -> bool:
        """Whether this process is the one that `start_in_child` started."""
        return STORE in os.environ

    def start(self) -> kernai.Result:
        """Runs the agent from its input until the run ends or waits."""
        return kernai.execute(
            self.agent, self._definition.input, store=self.store, run_id=self.run_id, **self._options
        )

    def start_in_child(self) -> int:
        """Like `start`, but in a child process, which runs the scenario again. Returns the exit status of the child.

        The child's output is printed when it has ended, and its recorded events are recorded here too.
        """
        tape = self._choice.tape
        if tape is not None:
            asked = ["--offline", "--tape", str(tape.path or self._definition.tape)]
        else:
            asked = [self._choice.model.id, self._choice.name]
        command = [sys.executable, str(self._definition.file), *asked, "--no-log", "--plain"]
        environment = {**os.environ, STORE: str(self.folder)}
        done = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8",
            errors="replace", check=False,
        )
        for line in done.stdout.splitlines():
            print(f"child | {line}".rstrip())
        for entry in expand(self.store.load(self.run_id), self.run_id):
            self._options["recorder"].record(kernai.Event.from_dict(entry))
        return done.returncode

    def resume(self, run_id: str | None = None, **options: Any) -> kernai.Result:
        """Continues the run, or another one of the store; `options` are those of `kernai.resume`, and `agent`."""
        agent = options.pop("agent", self.agent)
        if self._choice.tape is not None:
            self._choice.tape.skip_to_recorded()
        return kernai.resume(agent, run_id or self.run_id, store=self.store, **{**self._options, **options})

    def fork(self, at_step: int, run_id: str) -> str:
        """See `kernai.fork`."""
        return kernai.fork(self.store, self.run_id, at_step=at_step, run_id=run_id)


@contextmanager
def kept_run(definition: Definition, choice: Choice, agent: kernai.Agent, **options: Any) -> Iterator[Kept]:
    """A store in a folder that is deleted after the run; in a child process, the store of its parent."""
    given = os.environ.get(STORE)
    if given is not None:
        yield Kept(definition, choice, agent, Path(given), **options)
        return
    with TemporaryDirectory(prefix="kernai-scenario-") as folder:
        kept = Kept(definition, choice, agent, Path(folder), **options)
        with kept.store:
            yield kept
