"""Runs in PostgreSQL, and workers on many machines. Needs the extra `kernai[postgres]`."""

try:
    from kernai.postgres.store import PostgresStore
    from kernai.postgres.workers import RunHandle, Workers
except ModuleNotFoundError as error:
    needed = "psycopg, psycopg-pool and Procrastinate"
    raise ImportError(f'kernai.postgres needs {needed}: pip install "kernai[postgres]"', name=error.name) from error

__all__ = ["PostgresStore", "RunHandle", "Workers"]
