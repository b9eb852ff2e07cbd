"""Utilities that belong to no layer: base classes, locks, worker threads, private files, redaction."""
