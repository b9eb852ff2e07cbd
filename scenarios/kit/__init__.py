"""The parts of `harness.py` and `run_matrix.py`, and helpers that scenarios share. Scenarios import `harness`."""
