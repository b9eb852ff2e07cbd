"""The program `kernai`: run an agent, talk to one, and look at what it did. Standard library only.

`main` is the entry point. `program` parses the command line and imports only the module of the command that was given;
`program.Command` is the interface of a command.
"""

from kernai.command_line.program import main

__all__ = ["main"]
