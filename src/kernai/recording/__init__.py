"""Keeps events: the recorder, its sinks, the log, and reading recordings."""
