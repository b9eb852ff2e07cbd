"""`kernai view`: a recorded run as one HTML file, or on loopback while it goes on."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from contextlib import suppress

from kernai.command_line import output
from kernai.command_line.errors import OK, CommandError
from kernai.command_line.recording import FORMS, recorded_events, recorded_media, stored_run
from kernai.errors import KernaiError
from kernai.viewer import FollowServer, render_page, write_page

DESCRIPTION = """\
Writes a recorded run as one HTML file that needs no network: the tree of run, steps and sub-agents on a time line, the
conversation, every event, with filters and a search. With --follow it serves the run while it goes on, on this machine
only, under an address with a random token.

The file stands beside the recording, RUN.html for RUN.jsonl, unless -o names another. An earlier page is replaced, any
other file is left as it is. Pictures come from the folder RUN.jsonl.media, which `kernai run --record` makes; those of
a run in a store come from the store."""
EXAMPLES = """\
kernai view run.jsonl --open
kernai view run.json -o report.html
kernai view runs.db:refund-42 --open
kernai run agent.py "Take stock." --record run.jsonl & kernai view run.jsonl --follow --open
"""
ENDINGS = (".jsonl", ".json", ".ndjson")
ELSEWHERE = "name another file with -o"
_MOST = 65_535


def add_arguments(parser: ArgumentParser) -> None:
    """Declares the arguments."""
    parser.add_argument("recording", metavar="RUN", help=FORMS)
    parser.add_argument("-o", "--output", metavar="FILE", help="write the page to FILE; - is stdout")
    parser.add_argument("--open", action="store_true", help="open the page in the browser")
    parser.add_argument("--media", metavar="FOLDER", help="take pictures from FOLDER (default: RUN.media)")
    parser.add_argument("--title", metavar="TEXT", help="the page's title (default: the recording's name)")
    parser.add_argument("--follow", action="store_true", help="serve the page while RUN is being written; Ctrl-C ends")
    parser.add_argument("--port", type=_port, metavar="N", help="with --follow: the port (default: any free one)")


def run(options: Namespace) -> int:
    """Writes the page, or serves it until Ctrl-C."""
    folder = options.recording + ".media" if options.media is None else options.media
    if options.media is not None and not os.path.isdir(folder):  # noqa: PTH112 - text in, text out
        raise CommandError(f"--media: {folder} is not a folder", "name the one that holds the files media_...")
    name = options.title
    if name is None:
        kept = stored_run(options.recording)
        name = os.path.basename(options.recording) if kept is None else kept[1]  # noqa: PTH119 - likewise
    if options.follow:
        return _follow(options, name, folder)
    if options.port is not None:
        raise CommandError("--port belongs to --follow", "a file needs no port")
    return _write(options, name, folder)


def _write(options: Namespace, title: str, folder: str) -> int:
    target = _target(options)
    if target == "-" and options.open:
        raise CommandError("--open needs a file, and -o - writes to stdout", "leave one of the two out")
    entries = recorded_events(options.recording)
    page = render_page(entries, title=title, media_folder=folder, media=recorded_media(options.recording))
    if target == "-":
        sys.stdout.write(page)
        return OK
    try:
        write_page(target, page)
    except OSError as error:
        raise CommandError(f"cannot write {target}: {error.strerror or error}", ELSEWHERE) from error
    except KernaiError as error:
        raise CommandError(str(error), ELSEWHERE) from error
    output.write(target)
    if options.open:
        from pathlib import Path

        _open(Path(target).resolve().as_uri())
    return OK


def _target(options: Namespace) -> str:
    """Where the page goes; never onto the recording itself."""
    source: str = options.recording
    kept = stored_run(source)
    if kept is not None:
        source = kept[0]
        if options.output is None:
            return os.path.join(os.path.dirname(source), f"{kept[1]}.html")  # noqa: PTH118, PTH120 - text in, text out
    if options.output is None:
        stem = next((source[: -len(end)] for end in ENDINGS if source.lower().endswith(end)), source)
        return f"{stem}.html"
    target: str = options.output
    if target != "-" and os.path.exists(target) and os.path.exists(source) and os.path.samefile(target, source):  # noqa: PTH110, PTH121 - text in, text out
        raise CommandError(f"-o: {target} is the recording itself", "name another file")
    return target


def _follow(options: Namespace, title: str, folder: str) -> int:
    if options.output is not None:
        raise CommandError("-o and --follow exclude each other", "to keep the page, run `kernai view RUN` at the end")
    if stored_run(options.recording) is not None:
        raise CommandError("--follow needs a file of JSON lines, and this run is in a store",
                           "without it the page shows the run as far as it is; `--record FILE.jsonl` can be followed")
    if options.recording.lower().endswith(".json"):
        raise CommandError("--follow needs JSON lines, and a .json is written when the run is over",
                           "record to a .jsonl; other JSON lines can be followed under such a name")
    _check_what_is_there(options.recording)
    try:
        server = FollowServer(options.recording, port=options.port or 0, title=title, media_folder=folder)
    except OSError as error:
        raise CommandError(f"--port: cannot listen on port {options.port}: {error.strerror or error}",
                           "leave --port out to take any free one") from error
    with server:
        output.write(server.url)
        sys.stdout.flush()
        output.note("Whoever has this address can read the recording. Ctrl-C ends.")
        try:
            if options.open:
                _open(server.url)
            server.serve()
        except KeyboardInterrupt:
            pass  # the way to end it
    return OK


def _check_what_is_there(path: str) -> None:
    """`CommandError` for a file that does not begin as JSON lines do, and is no recording in another way either.

    The file may come later, and a line further down that cannot be read is shown as one.
    """
    if not os.path.isfile(path):  # noqa: PTH113 - text in, text out
        return
    with suppress(OSError), open(path, "rb") as file:  # noqa: PTH123 - likewise
        if file.read(1) in (b"", b"{"):
            return
    recorded_events(path)


def _open(address: str) -> None:
    import webbrowser

    if not webbrowser.open(address):
        output.note("No browser could be opened.", "yellow")


def _port(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(_MOST)) else 0
    if not 1 <= number <= _MOST:
        raise ArgumentTypeError(f"must be a port from 1 to {_MOST}, got {text!r}")
    return number
