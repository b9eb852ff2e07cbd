"""`kernai view`: a recorded run as one HTML file, or served on this machine while it is being recorded."""

from __future__ import annotations

import os
import re
import sys
from argparse import Namespace
from contextlib import suppress
from pathlib import Path

from kernai.command_line import output
from kernai.command_line.output import OK, CommandError, failing, is_address
from kernai.command_line.program import Command, argument, number
from kernai.command_line.recording import FORMS, Source, first_bytes, source
from kernai.errors import KernaiError
from kernai.viewer import FollowServer, render_page, write_page

_ELSEWHERE = "name another file with -o"


def run(options: Namespace) -> int:
    recording = source([options.recording] if options.run is None else [options.recording, options.run])
    folder = f"{recording.path}.media" if options.media is None else options.media
    if options.media is not None and not os.path.isdir(folder):
        raise CommandError(f"--media: {folder} is not a folder", "name the one that holds the files media_...")
    title = recording.run_id or os.path.basename(recording.path) if options.title is None else options.title
    if options.follow:
        return _follow(recording, options, title, folder)
    if options.port is not None:
        raise CommandError("--port belongs to --follow", "a file needs no port")
    target = _target(recording) if options.output is None else options.output
    if target == "-" and options.open:
        raise CommandError("--open needs a file, and -o - writes to stdout", "leave one of the two out")
    page = render_page(recording.events(), title=title, media_folder=folder, media=recording.media())
    if target == "-":
        sys.stdout.buffer.write(page.encode("utf-8"))  # in another encoding, its script would not match its hash
        return OK
    with failing("", _ELSEWHERE, KernaiError), failing(f"cannot write {target}", _ELSEWHERE):
        write_page(target, page)
    output.write(target)
    if options.open:
        _open(Path(target).resolve().as_uri())
    return OK


def _target(recording: Source) -> str:
    """The file of the page, next to the recording."""
    path, run_id = recording
    if run_id is not None:
        return os.path.join("" if is_address(path) else os.path.dirname(path), f"{run_id}.html")
    return re.sub(r"(?i)\.(jsonl|json|ndjson)\Z", "", path) + ".html"


def _follow(recording: Source, options: Namespace, title: str, folder: str) -> int:
    if options.output is not None:
        raise CommandError("-o and --follow exclude each other", "`kernai view RECORDING` writes the page at the end")
    if recording.run_id is not None:
        raise CommandError("--follow needs a file of JSON lines, and this run is in a store",
                           "without it the page shows the run so far; `--record FILE.jsonl` can be followed")
    if recording.path.lower().endswith(".json"):
        raise CommandError("--follow needs JSON lines, and a .json is written when the run has ended",
                           "record to a .jsonl; other JSON lines can be followed under such a name")
    is_folder = os.path.isdir(recording.path or ".")
    if is_folder or first_bytes(recording.path)[:1] not in (b"", b"{") or is_address(recording.path):
        recording.events()  # raises an error that says what the file is
    with failing(f"--port: cannot listen on port {options.port}", "leave --port out to take any free one"):
        server = FollowServer(recording.path, port=options.port or 0, title=title, media_folder=folder)
    with server:
        output.write(server.url)
        sys.stdout.flush()
        output.note("Whoever has this address can read the recording. Ctrl-C ends.")
        with suppress(KeyboardInterrupt):  # Ctrl-C is how the user stops the server
            if options.open:
                _open(server.opening_url)
            server.serve()
    return OK


def _open(address: str) -> None:
    import webbrowser

    if not webbrowser.open(address):
        output.note("No browser could be opened.", "yellow")


_ARGUMENTS = (
    argument("RECORDING|STORE", FORMS, name="recording"),
    argument("RUN", "the run's id; `kernai runs STORE` lists them", nargs="?"),
    argument("-o --output FILE", "write the page to FILE; - is stdout"),
    argument("--open", "open the page in the browser"),
    argument("--media FOLDER", "take images from FOLDER (default: RECORDING.media)"),
    argument("--title TEXT", "the page's title (default: the recording's name)"),
    argument("--follow", "serve the page while the recording grows; Ctrl-C stops it"),
    argument("--port N", "the port for --follow (default: any free port)", number(int, 1, 65_535)),
)
COMMANDS = {"view": Command(run, _ARGUMENTS, """\
Write a recorded run as one HTML file that needs no network. It shows a time line of the run, its steps and sub-agents,
the conversation, and every event, with filters and search. With --follow, serve the page while the run is being
recorded, on this machine only, at an address with a random token.

The page is written next to the recording (run.html for run.jsonl) unless -o gives another file. An earlier page is
overwritten; any other file is left unchanged. Images come from the folder run.jsonl.media, which `kernai run --record`
creates, or from the store if the run is in one.""", """\
kernai view run.jsonl --open
kernai view run.json -o report.html
kernai view runs.db refund-42 --open
kernai run agent.py "Take stock." --record run.jsonl & kernai view run.jsonl --follow --open
""")}
