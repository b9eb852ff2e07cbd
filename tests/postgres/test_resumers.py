"""Processes that resume one run in PostgreSQL at once: one pays for the model call."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from kernai.postgres import PostgresStore
from tests.durable.test_leases import RESUMER
from tests.postgres.server import Server
from tests.warm_python import WarmPython


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
@pytest.mark.parametrize("case", ["a run that is alive", "a run that was killed", "chat turns"])
def test_of_eight_that_resume_at_once_one_calls_the_model(
    server: Server, schema: str, python: WarmPython, tmp_path: Path, case: str
) -> None:
    calls, script = tmp_path / "calls", tmp_path / "worker.py"
    opened = f"PostgresStore({server.dsn!r}, schema={schema!r})"
    program = RESUMER.format(db="", calls=str(calls)).replace("SqliteStore('', durability=\"process\")", opened)
    script.write_text(f"from kernai.postgres import PostgresStore\n{program}")
    assert opened in program
    PostgresStore(server.dsn, schema=schema, create=True).close()
    given = "{'input': 'and this?'}" if case == "chat turns" else "{}"
    with ExitStack() as stack:
        first = stack.enter_context(python.run(script, "first", given))
        assert first.stdout.readline() == "calling\n"
        if case == "a run that was killed":
            first.send_signal(signal.SIGKILL)  # within its model call
            first.wait()
        elif case == "chat turns":
            first.communicate("go\ngo\n")
            calls.write_text("call\n")  # what it asked when it resumed itself aside
        workers = [stack.enter_context(python.run(script, "resumes", given)) for _ in range(8)]
        for worker in workers:
            assert worker.stdout.readline() == "ready\n"
        for worker in workers:
            worker.stdin.write("go\n")
            worker.stdin.flush()
        said = [worker.communicate()[0].strip() for worker in workers]
        if case == "a run that is alive":
            first.communicate("go\ngo\n")
    made = len(calls.read_text().split())
    print(f"eight resumers of {case}: {said}, {made} model calls")
    if case == "a run that is alive":
        assert set(said) == {"RunBusyError"}
        assert made == 1
    else:
        assert set(said) <= {"done", "RunBusyError", "RunConflictError"}
        assert made == 1 + (1 if given == "{}" else said.count("done"))
