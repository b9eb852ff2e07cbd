"""The public entry points (`run`, `stream`, `resume` and their variants): they check arguments and start runs."""
