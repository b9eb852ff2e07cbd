"""Runs in PostgreSQL, and workers on many machines. Needs the extra `kernai[postgres]`."""

from kernai.postgres.store import PostgresStore
from kernai.postgres.workers import RunHandle, Workers

__all__ = ["PostgresStore", "RunHandle", "Workers"]
