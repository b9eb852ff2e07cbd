"""What the rest needs and no layer owns: locks, worker threads, private files, text for a terminal."""
