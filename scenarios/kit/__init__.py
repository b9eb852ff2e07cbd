"""What `harness.py` and `run_matrix.py` are made of, and what scenarios share. Scenarios import `harness`."""
