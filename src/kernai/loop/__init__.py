"""The loop and all its decisions. Nothing here does I/O."""
