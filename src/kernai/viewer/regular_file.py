"""`open_regular`: opening a file that is one, and nothing that only bears a file's name."""

from __future__ import annotations

import os
import stat
from typing import BinaryIO

# Opening a pipe must not wait for its writer, and a descriptor, once open, cannot be exchanged for something else.
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def open_regular(path: str, *, follow_links: bool) -> BinaryIO | None:
    """The file, opened for reading; None where there is a folder, a pipe or a device. `OSError` as `open`."""
    descriptor = os.open(path, _READ if follow_links else _READ | getattr(os, "O_NOFOLLOW", 0))
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return open(descriptor, "rb")  # noqa: PTH123 - a descriptor
    os.close(descriptor)
    return None
