"""How fast a streamed answer is decoded, `json.loads` of each event or line included, in MB/s.

The floor has the whole body, splits it into lines, and parses the text after ``data: ``. It does not handle chunks,
characters that are cut, other line ends or events. Aim: 0.7 of its speed, in chunks such as a network delivers. Chunks
of a few bytes, a line of megabytes and events of several lines are measured too.

Only decoding is timed, not the cutting. Each figure is the best of some rounds, with its floor measured in turns.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle, islice

from kernai_providers.reader import Lines, SseDecoder
from support import best, emit, timed

SIZES = (256, 1460, 16 << 10, 64 << 10, 0)  # bytes of a chunk; 0: the whole body
WORDS = ("The", " report", " names", " two", " offices", ",", " Lyon", " and", " Ménage", " 漢字", " \U0001f600", ".\n")

Chunks = Sequence[bytes]


def openai(events: int) -> bytes:
    """Chunks of an answer as a vendor's server writes them, about 250 bytes each."""
    pieces = []
    for word in islice(cycle(WORDS), events):
        chunk = {
            "id": "chatcmpl-B9MHDbslfkBeAs8l4bebGdFOJ6PeG",
            "object": "chat.completion.chunk",
            "created": 1741570283,
            "model": "gpt-4o-2024-08-06",
            "service_tier": "default",
            "system_fingerprint": "fp_fc9f1d7035",
            "choices": [{"index": 0, "delta": {"content": word}, "logprobs": None, "finish_reason": None}],
        }
        pieces.append(f"data: {json.dumps(chunk, separators=(',', ':'), ensure_ascii=False)}\n\n")
    return "".join(pieces).encode()


def ollama(lines: int) -> bytes:
    """The same with one JSON object in each line."""
    objects = (
        {
            "model": "llama3.2",
            "created_at": "2026-03-01T12:00:00.000000Z",
            "message": {"role": "assistant", "content": word},
            "done": False,
        }
        for word in islice(cycle(WORDS), lines)
    )
    return b"".join(json.dumps(one, ensure_ascii=False).encode() + b"\n" for one in objects)


def anthropic(events: int) -> bytes:
    """The same with two lines for each event."""
    data = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": " offices"}}
    return (f"event: content_block_delta\ndata: {json.dumps(data)}\n\n").encode() * events


def floor(whole: Chunks, prefix: bytes = b"data: ") -> None:
    for line in whole[0].split(b"\n"):
        if line and line.startswith(prefix):
            json.loads(line[len(prefix) :])


def sse(chunks: Chunks) -> None:
    decoder = SseDecoder()
    for chunk in chunks:
        for _, data in decoder.feed(chunk):
            json.loads(data)


def ndjson(chunks: Chunks) -> None:
    lines = Lines()
    for chunk in chunks:
        for line in lines.feed(chunk):
            if text := line.strip():
                json.loads(text)


def seconds(work: Callable[[Chunks], object], chunks: Chunks) -> float:
    gc.collect()
    return timed(lambda: work(chunks))()


def against(
    label: str, body: bytes, sizes: Sequence[int], rounds: int, aim: str = ">= 0.7", *, lines: bool = False
) -> None:
    decode, least = (ndjson, partial(floor, prefix=b"")) if lines else (sse, floor)
    for size in sizes:
        chunks = [body[at : at + size] for at in range(0, len(body), size)] if size else [body]
        ours, theirs = best(rounds, partial(seconds, decode, chunks), partial(seconds, least, [body]))
        cut = f"chunks of {size} bytes" if size else "whole"
        emit(f"{label}, {cut}, against split and json.loads", len(body) / ours, len(body) / theirs, aim, "MB/s")


def main(*, quick: bool = False) -> None:
    """Emits all figures; `quick` measures less text, less often."""
    rounds, events = (3, 2_000) if quick else (9, 10_000)
    against("SSE", openai(events), SIZES, rounds)
    against("SSE, two lines an event", anthropic(events), SIZES, rounds)
    against("SSE, CR LF", openai(events).replace(b"\n", b"\r\n"), SIZES, rounds)
    against("NDJSON", ollama(events), SIZES, rounds, lines=True)
    against("SSE", openai(events // 10), (1, 16), rounds, ">= 0")
    line = b"data: " + json.dumps({"text": "a long answer in one piece " * (events * 10)}).encode() + b"\n\n"
    against("SSE, one line of all", line, (1460, 64 << 10, 0), rounds)
