"""What the program's exit status says; `kernai --help` and docs/command-line.md list the same."""

from __future__ import annotations

OK = 0
#: the run gave no answer, the runs differ, something is invalid
NO = 1
#: wrong usage, or a file that cannot be read
USAGE = 2
#: the model's vendor failed
PROVIDER = 3
#: the run is kept, and waits for a person
WAITING = 4
#: Ctrl-C
INTERRUPTED = 130
#: whoever read the output has left; as a shell reports it of any program
PIPE_CLOSED = 141
#: ended by SIGTERM
TERMINATED = 143

TABLE = (
    (OK, "done"),
    (NO, "the run gave no answer, the runs differ, or something is invalid"),
    (USAGE, "wrong usage, or a file that cannot be read"),
    (PROVIDER, "the model's vendor failed"),
    (WAITING, "the run waits for a person's decision"),
    (INTERRUPTED, "interrupted with Ctrl-C"),
    (PIPE_CLOSED, "whoever read the output has left"),
    (TERMINATED, "ended by SIGTERM"),
)
