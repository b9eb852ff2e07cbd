"""A program that is a stdio server without the SDK, and misbehaves as real servers do.

Each tool is a function below. The options take effect before any input is read:

    --garbage           prints lines that are no messages, then serves
    --only-garbage      prints such a line, and never a message
    --stderr FILE       writes the file's bytes to standard error, and exits with status 3
    --stubborn          ignores SIGTERM and the end of its input
    --hold FIFO         keeps the FIFO open for writing, so that a reader sees when the last holder has died
    --pages             lists one tool a page
    --repeat            sends the last page's own cursor with it, and else an empty one
    --invalid           lists tools without a valid schema, too
    --strict            exits if the first request is not to initialize
    --deaf              answers nothing before the request to initialize
    --tasks             lists the tool `build`, which can only be called as a task
    --secret FILE       lists the tool `hidden` once the file exists, without notifying the client
    --description FILE  takes the description of `echo` from the file, each time
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

ANY = {"type": "object"}
OPTIONS = sys.argv[1:]
_written = threading.Lock()
_answers: dict[str, Callable[[Any], None]] = {}


def option(name: str) -> str | None:
    return OPTIONS[OPTIONS.index(name) + 1] if name in OPTIONS else None


def send(message: dict[str, Any]) -> None:
    with _written:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def text(value: object) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": value if isinstance(value, str) else json.dumps(value)}]}


def echo(arguments: dict[str, Any]) -> Any:
    return text(str(arguments.get("text", "")))


def say(arguments: dict[str, Any]) -> Any:
    """Answers with exactly what it was given."""
    return arguments["result"]


def pid(_: dict[str, Any]) -> Any:
    return text(str(os.getpid()))


def environment(_: dict[str, Any]) -> Any:
    return text(dict(os.environ))


def die(arguments: dict[str, Any]) -> Any:
    """Dies in the middle of the call; with `once`, a file that is made first, only the first time."""
    once = arguments.get("once")
    if once and Path(once).exists():
        return text("survived")
    if once:
        Path(once).touch()
    sys.stderr.write("out of memory, so to speak\n")
    sys.stderr.flush()
    return os.kill(os.getpid(), signal.SIGKILL)


def hang(arguments: dict[str, Any]) -> Any:
    log({"data": "hanging"})
    if "started" in arguments:
        Path(arguments["started"]).touch()
    if "prints" in arguments:
        print(arguments["prints"].replace("ID", json.dumps(arguments["id"])), flush=True)
    return None


def log(arguments: dict[str, Any]) -> Any:
    send({"method": "notifications/message", "params": {"level": "warning", "logger": "raw", "data": arguments["data"]}})
    return text("logged")


def list_changed(_: dict[str, Any]) -> Any:
    send({"method": "notifications/tools/list_changed"})
    return text("changed")


def spawn(_: dict[str, Any]) -> Any:
    """Leaves a child behind that ignores SIGTERM."""
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    return text(str(child.pid))


TOOLS: dict[str, Callable[[dict[str, Any]], Any]] = {
    one.__name__: one for one in (echo, say, pid, environment, die, hang, log, list_changed, spawn)
}
#: asks the client for something and answers with its answer
ASKS = {
    "sample": ("sampling/createMessage", {"messages": [], "maxTokens": 5}),
    "elicit": ("elicitation/create", {"message": "Who?", "requestedSchema": {"type": "object", "properties": {}}}),
    "roots": ("roots/list", {}),
}


def definitions() -> list[dict[str, Any]]:
    described = option("--description")
    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    found: list[dict[str, Any]] = [{"name": name, "inputSchema": ANY} for name in (*TOOLS, *ASKS)]
    found[0] |= {"description": Path(described).read_text() if described else "Says it again.", "inputSchema": schema}
    for name in ("die_safely", "hang_safely"):
        found.append({"name": name, "inputSchema": ANY, "annotations": {"idempotentHint": True}})
    if "--tasks" in OPTIONS:
        found.append({"name": "build", "inputSchema": ANY, "execution": {"taskSupport": "required"}})
    if "--invalid" in OPTIONS:
        found += [{"name": "schemaless"}, {"name": "typeless of s3cret-value", "inputSchema": {}}]
    secret = option("--secret")
    if secret and Path(secret).exists():
        found.append({"name": "hidden", "inputSchema": ANY})
    return found


def listing(cursor: str | None) -> dict[str, Any]:
    tools = definitions()
    if "--pages" not in OPTIONS:
        return {"tools": tools}
    page = int(cursor or 0)
    last = cursor if "--repeat" in OPTIONS else ""
    return {"tools": tools[page : page + 1], "nextCursor": str(page + 1) if page + 1 < len(tools) else last}


def call(request_id: Any, name: str, arguments: dict[str, Any]) -> None:
    if name in ASKS:
        method, params = ASKS[name]
        _answers[f"ask-{request_id}"] = lambda answer: send({"id": request_id, "result": text(answer)})
        send({"id": f"ask-{request_id}", "method": method, "params": params})
        return
    result = text("found") if name == "hidden" else TOOLS[name.removesuffix("_safely")]({"id": request_id, **arguments})
    if result is not None:
        send({"id": request_id, "result": result})


def serve(message: dict[str, Any]) -> None:
    method, request_id, params = message.get("method"), message.get("id"), message.get("params") or {}
    if method is None:
        _answers.pop(str(request_id))({key: message[key] for key in ("result", "error") if key in message})
    elif method == "initialize":
        OPTIONS[:] = [one for one in OPTIONS if one not in {"--strict", "--deaf"}]
        send({"id": request_id, "result": {
            "protocolVersion": params["protocolVersion"], "serverInfo": {"name": "raw", "version": "1"},
            "capabilities": {"tools": {"listChanged": True}, "logging": {}},
        }})
    elif "--strict" in OPTIONS:
        sys.exit()
    elif "--deaf" in OPTIONS:
        return
    elif method == "tools/list":
        send({"id": request_id, "result": listing(params.get("cursor"))})
    elif method == "tools/call":
        call(request_id, params["name"], params.get("arguments") or {})
    elif request_id is not None:
        send({"id": request_id, "error": {"code": -32601, "message": "no such method"}})


def main() -> None:
    held = option("--hold")
    _keep = open(held, "w") if held else None  # noqa: SIM115 - open for as long as the process lives
    if "--stubborn" in OPTIONS:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    said = option("--stderr")
    if said:
        sys.stderr.buffer.write(Path(said).read_bytes())
        sys.exit(3)
    if "--garbage" in OPTIONS or "--only-garbage" in OPTIONS:
        print('Welcome to the raw server!\n{"jsonrpc": "2.0"}\n\udcff\xff', flush=True)
    for line in sys.stdin:
        if "--only-garbage" not in OPTIONS:
            serve(json.loads(line))
    if "--stubborn" in OPTIONS:
        threading.Event().wait()


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="surrogateescape")  # type: ignore[union-attr]  # a text file
    main()
