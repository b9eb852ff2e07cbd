"""What the rest needs and no layer owns: locks, worker threads, private files."""
