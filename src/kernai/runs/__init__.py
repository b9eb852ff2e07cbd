"""The front doors: what `run`, `stream`, `resume` and their kin check and start."""
