"""Processes that resume one run in PostgreSQL at once: one pays for the model call."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kernai.postgres import PostgresStore
from tests.durable.eight_resumers import RESUMED, check_eight_resumers
from tests.postgres.server import Server
from tests.warm_python import WarmPython


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
@pytest.mark.parametrize("case", RESUMED)
def test_of_eight_that_resume_at_once_one_calls_the_model(
    server: Server, schema: str, python: WarmPython, tmp_path: Path, case: str
) -> None:
    PostgresStore(server.dsn, schema=schema, create=True).close()
    opened = f"PostgresStore({server.dsn!r}, schema={schema!r})"
    check_eight_resumers(python, tmp_path, opened, case, "from kernai.postgres import PostgresStore")
