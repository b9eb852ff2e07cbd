"""Files that only their owner reads, put in place whole: recordings, pages and media hold whatever was said.

What is written stands beside its place until it is whole, in a file that is new in any case: so a file that is there,
one behind a link, and whoever has an old one open see nothing of it, and its mode is never an old one's.
"""

from __future__ import annotations

import contextlib
import os
import secrets

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)


def new_part(path: str) -> tuple[str, int]:
    """A new file of mode 0600 beside `path`, to take its place by `os.replace`: its name and its descriptor."""
    part = f"{path}.{secrets.token_hex(4)}.part"
    return part, os.open(part, _NEW, 0o600)


def write_private(path: str, data: bytes) -> None:
    """Puts data into a file of mode 0600, whole or not at all; what is there is replaced, a link and not its target.

    `OSError` where that cannot be done.
    """
    part, descriptor = new_part(path)
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor
            file.write(data)
        os.replace(part, path)  # noqa: PTH105 - text in, text out
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)  # noqa: PTH108 - likewise
        raise
