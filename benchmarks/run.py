"""Runs the benchmarks, with one JSON line for each figure: `python3 dev.py bench [--quick] [NAME ...]`.

A figure is a ratio to a floor measured in the same run, so that machines can be compared. The exit status is 1 if an
aim is missed.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

NAMES = (
    "parser", "steps", "middleware", "import", "concurrency", "memory", "sse", "http", "viewer", "durable", "resume",
    "large_inputs", "gate",
)
#: run only by name: they take minutes, and need a server, or third-party packages in an environment made by `dev.py`
APART = ("framing", "dialects", "model", "postgres")

sys.path.insert(0, str(Path(__file__).resolve().parent))

import support  # noqa: E402 - beside this file, whatever the working directory


def main() -> int:
    """Runs the chosen benchmarks, or all."""
    options = argparse.ArgumentParser(description="Measure kernai against floors in the same run.")
    options.add_argument("names", nargs="*", metavar="NAME", help=f"some of: {', '.join((*NAMES, *APART))}")
    options.add_argument("--quick", action="store_true", help="fewer rounds: figures for a first look")
    options.add_argument("--provider", metavar="NAME", help="for `model`: whom to ask, such as openai/gpt-6-luna")
    given = options.parse_args()
    if given.provider and given.names != ["model"]:
        options.error("--provider is an option of `model` alone")
    unknown = [name for name in given.names if name not in (*NAMES, *APART)]
    if unknown:
        options.error(f"no benchmark {unknown[0]!r}; there are {', '.join((*NAMES, *APART))}")
    for name in given.names or NAMES:
        chosen = {"provider": given.provider} if given.provider else {}
        importlib.import_module(f"bench_{name}").main(quick=given.quick, **chosen)
    missed = [line["name"] for line in support.EMITTED if not line["ok"]]
    print(f"{len(support.EMITTED) - len(missed)} of {len(support.EMITTED)} aims met", file=sys.stderr)
    for name in missed:
        print(f"  missed: {name}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
