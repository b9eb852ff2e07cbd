"""Files that may contain private data: written completely or not at all, readable only by their owner.

A file is written under a new name and then moved into place. So the mode of an old file does not apply, the target of a
link is not overwritten, and a process that has the old file open cannot read the new one. Only regular files are read.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from typing import BinaryIO

# O_NONBLOCK, since opening a pipe must not wait for its writer
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)


def new_part(path: str) -> tuple[str, int]:
    """Creates a file of mode 0600, to be moved to `path` by `os.replace`. Returns its name and its descriptor."""
    part = f"{path}.{secrets.token_hex(4)}.part"
    return part, os.open(part, _NEW, 0o600)


def write_private(path: str, data: bytes) -> None:
    """Writes a file of mode 0600, completely or not at all. Replaces an existing file or link. May raise `OSError`."""
    part, descriptor = new_part(path)
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor
            file.write(data)
        os.replace(part, path)  # noqa: PTH105 - text in, text out
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)  # noqa: PTH108 - text in, text out
        raise


def open_regular(path: str, *, follow_links: bool) -> BinaryIO:
    """Opens a file for reading. Raises `OSError` as `open` does, and also for a folder, a pipe or a device.

    The open descriptor is checked, so another process cannot exchange the file after the check.
    """
    descriptor = os.open(path, _READ if follow_links else _READ | getattr(os, "O_NOFOLLOW", 0))
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return open(descriptor, "rb")  # noqa: PTH123 - a descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is not a regular file", path)
