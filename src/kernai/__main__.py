"""`python -m kernai`: the same as the program `kernai`."""

import sys

from kernai.command_line import main

if __name__ == "__main__":
    sys.exit(main())
