"""What a provider adds to the network: the time until the callback gets a piece, and the connections of its calls.

The server is a separate process on the loopback interface. Each piece contains the time when it is sent; all processes
share the machine's clock. The floor is a bare socket that receives the same pieces and only reads the number. Figures
are medians.
"""

from __future__ import annotations

import json
import re
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

from kernai import GenerationOptions, Message, Model
from kernai_providers import OpenAIProvider
from support import compare, emit

CALLS = 100
PAUSE = 0.001  # seconds between two pieces, so that each travels alone
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
STAMP = re.compile(rb'"content":"(\d+) "')


def chunk(delta: dict[str, str], finish: str | None = None) -> bytes:
    event = json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}, separators=(",", ":"))
    return framed(f"data: {event}\n\n".encode())


def framed(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


# ------------------------------------------------------------------------------------------------------ the server


def serve(pieces: int) -> None:
    """Prints its port; answers each POST with `pieces` stamped pieces, GET with its count of connections."""
    accepted = 0
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            line, _ = listener.accept()
            accepted += 1
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=answer_all, args=(line, pieces, accepted), daemon=True).start()


def answer_all(line: socket.socket, pieces: int, accepted: int) -> None:
    with line, line.makefile("rb") as file:
        while head := list(iter(file.readline, b"\r\n")):
            if head[0] == b"":
                return
            if head[0].startswith(b"GET"):
                line.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n{accepted - 1:8}".encode())
                return
            length = next(int(one.partition(b":")[2]) for one in head if one.lower().startswith(b"content-length"))
            file.read(length)
            line.sendall(HEAD)
            for _ in range(pieces):
                time.sleep(PAUSE)
                line.sendall(chunk({"content": f"{time.perf_counter_ns()} "}))
            line.sendall(chunk({}, "stop") + framed(b"data: [DONE]\n\n") + END)


# ------------------------------------------------------------------------------------------------------ the figures


def through_the_provider(port: int, calls: int) -> list[int]:
    """The nanoseconds from sending each piece to its callback."""
    seen: list[int] = []
    with OpenAIProvider("key", base_url=f"http://127.0.0.1:{port}") as provider:
        for _ in range(calls):
            provider.call(
                (Message("user", "go"),), Model("bench"), GenerationOptions(),
                lambda text: seen.append(time.perf_counter_ns() - int(text)),
            )
    return seen


def through_a_socket(port: int) -> Iterator[int]:
    """The same through a bare socket."""
    with socket.create_connection(("127.0.0.1", port)) as line:
        line.sendall(b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}")
        data = b""
        while not data.endswith(END):
            data = line.recv(65536)
            now = time.perf_counter_ns()
            for stamp in STAMP.findall(data):
                yield now - int(stamp)


def accepted_by(port: int) -> int:
    with socket.create_connection(("127.0.0.1", port)) as line:
        line.sendall(b"GET / HTTP/1.1\r\n\r\n")
        return int(line.recv(65536)[-8:])


def main(*, quick: bool = False) -> None:
    """Emits both figures."""
    pieces = 100 if quick else 500
    command = [sys.executable, __file__, "--serve"]
    for count, measure in ((pieces, latency), (1, reuse)):
        with subprocess.Popen([*command, str(count)], stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            try:
                measure(int(server.stdout.readline()))
            finally:
                server.kill()


def latency(port: int) -> None:
    compare(
        "a piece from server to callback, against a bare socket",
        lambda: statistics.median(through_the_provider(port, 1)) / 1e9,
        lambda: statistics.median(through_a_socket(port)) / 1e9,
        "<= 3", rounds=3, unit="us",
    )  # fmt: skip


def reuse(port: int) -> None:
    through_the_provider(port, CALLS)
    emit(f"connections for {CALLS} calls in a row", accepted_by(port), 1, "<= 1", "connections")


if __name__ == "__main__":  # the server's process
    serve(int(sys.argv[-1]))
