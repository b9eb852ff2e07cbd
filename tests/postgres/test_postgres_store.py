"""`PostgresStore` on a real server: the rules for all stores, killed processes, and concurrent resumes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kernai import Media
from kernai.durable.lease import Lease
from kernai.postgres import PostgresStore
from kernai.testing import RunStoreRules, StoreRules
from kernai.testing.run_store_rules import started
from tests.durable.test_processes import RESUMED, check_eight_resumers, check_harness
from tests.postgres.server import Server
from tests.warm_python import WarmPython


class AsRunsDo(PostgresStore):
    """Passes the run's summary to each append under a lease, which is then one statement."""

    def append(self, run_id: str, *given: Any, **terms: Any) -> Lease | None:
        if terms.get("lease") is not None:
            terms.setdefault("info", self._change(run_id, lambda head: head.shown(), writes=False).after(given[1]))
        return super().append(run_id, *given, **terms)


class _Stores:
    kind = PostgresStore

    @pytest.fixture(autouse=True)
    def _server(self, server: Server, schema: str) -> Iterator[None]:
        self.server, self.schema = server, schema
        self.stores: list[PostgresStore] = []
        yield
        for store in self.stores:
            store.close()

    def make(self) -> PostgresStore:
        return self._opened(f"{self.schema}_{len(self.stores)}", create=True)

    def reopen(self, store: Any) -> PostgresStore:
        assert isinstance(store, PostgresStore)
        return self._opened(store.schema)

    def _opened(self, schema: str, **options: Any) -> PostgresStore:
        self.stores.append(self.kind(self.server.dsn, schema=schema, pool_size=8, **options))
        return self.stores[-1]


class TestRules(_Stores, StoreRules):
    pass


class TestRunStoreRules(_Stores, RunStoreRules):
    processes = True
    kind = AsRunsDo

    def test_an_image_that_another_run_is_storing_is_kept(self) -> None:
        store, image = self.make(), Media.from_bytes(b"abc", mime_type="image/png")
        store.append("r1", 0, [started()], [image])
        with ThreadPoolExecutor() as pool:
            with store.transaction() as connection:
                store.append("r2", 0, [started()], [image])
                deleting = pool.submit(store.delete, "r1")
                while connection.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone() == (0,):
                    connection.execute("SELECT pg_sleep(0.01)")
            assert deleting.result() == 1
        assert (store.load_media("r2"), store.load("r1")) == ([image], [])


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
@pytest.mark.parametrize("case", RESUMED)
def test_only_one_of_eight_processes_that_resume_a_run_at_once_calls_the_model(
    server: Server, schema: str, python: WarmPython, tmp_path: Path, case: str
) -> None:
    PostgresStore(server.dsn, schema=schema, create=True).close()
    opened = f"PostgresStore({server.dsn!r}, schema={schema!r})"
    check_eight_resumers(python, tmp_path, opened, case, "from kernai.postgres import PostgresStore")


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.usefixtures("server")
def test_runs_end_with_nothing_lost_or_done_twice_though_workers_and_server_are_killed() -> None:
    check_harness(Path(__file__).with_name("chaos.py"), "--runs", "40", "--workers", "2", "--every", "1", "--lease", "4")
