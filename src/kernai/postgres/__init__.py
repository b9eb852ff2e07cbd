"""Runs in PostgreSQL. Needs the extra `kernai[postgres]`."""

from kernai.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
