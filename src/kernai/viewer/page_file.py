"""`write_page`: a page put into a file that only its owner can read, for a recording holds private data."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat

from kernai.errors import KernaiError

#: what the first lines of every page hold; a file without it was made by somebody else
MARK = b"<!-- written by kernai view -->"


def write_page(path: str | os.PathLike[str], page: str, *, overwrite: bool = False) -> None:
    """Puts a page into a file of mode 0600, whole or not at all.

    A page that is there already is replaced; any other file only with `overwrite`, else a `KernaiError` names it. So it
    is in any case where `path` is no regular file. `OSError` where it cannot be written.
    """
    target = os.fspath(path)
    _check(target, overwrite=overwrite)
    # beside the target, so that it can take its place in one step
    part = f"{target}.{secrets.token_hex(4)}.part"
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor
            file.write(page.encode("utf-8"))
        os.replace(part, target)  # noqa: PTH105 - text in, text out
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)  # noqa: PTH108 - likewise
        raise


def _check(target: str, *, overwrite: bool) -> None:
    try:
        about = os.stat(target)  # noqa: PTH116 - text in, text out
    except FileNotFoundError:
        return
    if not stat.S_ISREG(about.st_mode):
        raise KernaiError(f"{target} is not a regular file")
    if overwrite:
        return
    with open(target, "rb") as file:  # noqa: PTH123 - likewise
        if MARK not in file.read(200):
            raise KernaiError(f"{target} is there already, and is no page of this viewer")
