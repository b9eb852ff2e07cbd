"""The program `kernai`: run an agent, talk to one, and look at what it did. Standard library only.

`main` is its entry; `program` reads the command line, and imports the module of a command (`program.Command` is the
interface) when it is asked for.
"""

from kernai.command_line.program import main

__all__ = ["main"]
