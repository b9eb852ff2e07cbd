"""`PostgresStore` on a real server: the rules for all stores, and what only a server does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kernai.postgres import PostgresStore
from kernai.testing import RunStoreRules, StoreRules
from tests.postgres.server import Server


class _Stores:
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
        self.stores.append(PostgresStore(self.server.dsn, schema=schema, pool_size=9, **options))
        return self.stores[-1]


class TestRules(_Stores, StoreRules):
    pass


class TestRunStoreRules(_Stores, RunStoreRules):
    processes = True
