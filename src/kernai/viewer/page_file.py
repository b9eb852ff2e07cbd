"""`write_page`: a page put into a file that only its owner can read, for a recording holds private data."""

from __future__ import annotations

import os
import stat

from kernai._util.private_file import write_private
from kernai.errors import KernaiError

#: what the first lines of every page hold; a file without it was made by somebody else
MARK = b"<!-- written by kernai view -->"


def write_page(path: str | os.PathLike[str], page: str) -> None:
    """Puts a page into a file of mode 0600, whole or not at all.

    An empty file or a page that is there already is replaced; a `KernaiError` names any other. `OSError` where it
    cannot be written.
    """
    target = os.fspath(path)
    _check(target)
    write_private(target, page.encode("utf-8"))


def _check(target: str) -> None:
    try:
        about = os.stat(target)  # noqa: PTH116 - text in, text out
    except FileNotFoundError:
        return
    if not stat.S_ISREG(about.st_mode):
        raise KernaiError(f"{target} is not a regular file")
    with open(target, "rb") as file:  # noqa: PTH123 - likewise
        start = file.read(200)
    if start and MARK not in start:
        raise KernaiError(f"{target} is there already, and is no page of this viewer")
