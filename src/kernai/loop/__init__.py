"""The loop and all that it decides. Nothing here does I/O."""
