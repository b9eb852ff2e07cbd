"""Utilities that no layer owns: locks, worker threads, private files, redaction."""
