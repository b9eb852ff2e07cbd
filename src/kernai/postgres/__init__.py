"""Runs in PostgreSQL, and workers on many machines. Needs the extra `kernai[postgres]`."""

try:
    from kernai.postgres.store import PostgresStore
    from kernai.postgres.workers import RunHandle, Workers
except ModuleNotFoundError as error:
    raise ImportError(f'kernai.postgres needs {error.name}: pip install "kernai[postgres]"', name=error.name) from error

__all__ = ["PostgresStore", "RunHandle", "Workers"]
