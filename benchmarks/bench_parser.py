"""How fast text is parsed, in MB/s, streamed in chunks of 1, 4, 64 and 4,096 characters, and as a whole.

- Mixed text, 900 characters of prose for each 200-byte block. Floors: a class whose `push` looks for `<` and appends
  the chunk to a list (aim: half of its speed with chunks of 1 and 4, with a listener for blocks), and expat with three
  handlers on the same text as XML (aim: as fast; nine tenths with chunks of 64). Measured with a listener for blocks,
  and with one for every event. Shorter prose means more tags: dense text, 180 characters of prose for each block, is
  measured too, without aims.
- Texts that are hard for parsers: the speed with 10 MB must be 0.8 of that with 1 MB, for all chunks. With chunks of 64
  and more, the cost of one large block is that of its memory; the cost of joining a list at the end is measured too,
  without an aim.
- `parse` against `re.finditer` with a plain pattern for blocks.
- Small calls in JSON against calls of the same length in plain text: the cost of treating tags in a JSON value as
  content.

Only pushing is timed, not the cutting. Each figure is the best of some rounds, with its floor measured in turns.
"""

from __future__ import annotations

import gc
import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from xml.parsers import expat

from kernai import StreamParser, parse
from support import best, emit, timed

SIZES = (1, 4, 64, 4096)
WINDOW = 1 << 18  # characters that are cut at a time, so that not all pieces of 10 MB exist at once

PROSE = """The report names two offices. The one in Lyon closed in March, so only Turin counts for the second half of
the year, and the figure in the summary still holds both. I will look that up before I answer; it may have changed.

"""
TAGS = ('<block type="command" name="search">', '<block type="command" name="read_file">', '<block type="json">')
CONTENT = (
    '{"query": "revenue of the Turin office, second half",\n "limit": 10, "years": [2023, 2024], "note": "audited"}\n'
)


def mixed(prose: int, blocks: int) -> str:
    """Blocks of 200 bytes, each after that many characters of prose."""
    before = (PROSE * (prose // len(PROSE) + 1))[:prose]
    texts = [f"{before}{tag}{CONTENT:<{200 - len(tag) - len('</block>')}}</block>" for tag in TAGS]
    return "".join(texts * (blocks // len(texts)))


SHAPES = {
    "one JSON block": (
        '<block type="json">',
        '{"id": 17, "name": "Ada", "tags": ["a", "b"], "note": "plain"},\n',
        "</block>",
    ),
    "an early nested pair": (
        '<block type="json">"<block type=\\"a\\"></block>"',
        '{"id": 17, "name": "Ada"},\n',
        "</block>",
    ),
    "a nested open, never closed": ('<block type="json">"<block type=\\"a\\">', '{"id": 17, "name": "Ada"},\n', ""),
    "stray <": ("", "if a < b and b << 2 <= c: print(a <b)\n", ""),
    "HTML": ("", '<p class="note">Some <b>bold</b> words and a <a href="/page">link</a>.</p>\n', ""),
    "UTF-8 beyond Latin-1": ("<final>", "漢字かな交じり文、ここで改行。 Ελληνικά και emoji \U0001f600\n", "</final>"),
}


class Floor:
    """The least that a streaming parser must do."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.tags = 0

    def push(self, chunk: str) -> None:
        if "<" in chunk:
            self.tags += 1
        self.parts.append(chunk)


def ignore(_data: object) -> None:
    """A listener that does nothing, since only the parser is measured."""


def ignore_start(_name: str, _attributes: dict[str, str]) -> None:
    """The same for the start of an XML element."""


# A function for chunks, and one that is called after the last chunk.
Way = tuple[Callable[[str], object], Callable[[], object]]


def floor() -> Way:
    return Floor().push, list


def joined() -> Way:
    collector = Floor()
    return collector.push, lambda: "".join(collector.parts)


def blocks_only() -> Way:
    parser = StreamParser().on("block_complete", ignore)
    return parser.push, parser.flush


def all_events() -> Way:
    parser = StreamParser()
    for event in ("text_chunk", "block_start", "block_content", "block_complete", "block_incomplete"):
        parser.on(event, ignore)
    return parser.push, parser.flush


def xml() -> Way:
    parser = expat.ParserCreate()
    parser.StartElementHandler = ignore_start
    parser.EndElementHandler = ignore
    parser.CharacterDataHandler = ignore
    return parser.Parse, lambda: parser.Parse("", True)


def seconds(make: Callable[[], Way], text: str, size: int) -> float:
    """The seconds that pushing a text takes."""
    push, finish = make()
    taken = 0.0
    gc.collect()
    for start in range(0, len(text), WINDOW):
        window = text[start : start + WINDOW]
        chunks = [window[at : at + size] for at in range(0, len(window), size)]
        started = time.perf_counter()
        for chunk in chunks:
            push(chunk)
        taken += time.perf_counter() - started
    started = time.perf_counter()
    finish()
    return taken + time.perf_counter() - started


def speed(text: str, taken: float) -> float:
    """Bytes per second."""
    return len(text.encode()) / taken


def against_floors(name: str, text: str, rounds: int, *, aim: bool) -> None:
    texts = {floor: text, blocks_only: text, all_events: text, xml: f"<text>{text}</text>"}
    for size in SIZES:
        taken = best(rounds, *(partial(seconds, make, one, size) for make, one in texts.items()))
        listed, blocks, everything, parsed = (speed(text, one) for one in taken)
        for ours, heard in ((blocks, "blocks heard"), (everything, "all heard")):
            label = f"{name}, chunks of {size}, {heard}"
            if size <= 4:
                emit(f"{label}, against a list", ours, listed, ">= 0.5" if aim and ours is blocks else ">= 0", "MB/s")
            wanted = ">= 0.9" if size == 64 else ">= 1"
            emit(f"{label}, against expat", ours, parsed, wanted if aim else ">= 0", "MB/s")


def shape(name: str, size: float) -> str:
    head, body, tail = SHAPES[name]
    return head + body * int(size * 1e6 / len(body.encode())) + tail


def speeds(make: Callable[[], Way], texts: Sequence[str], size: int, rounds: int) -> tuple[float, float]:
    """The speeds for a long and a short text, with as much text of each, so that noise affects both equally."""
    short, long = texts
    times = round(len(long) / len(short))
    taken = best(
        rounds, partial(seconds, make, long, size),
        lambda: sum(seconds(make, short, size) for _ in range(times)) / times,
    )  # fmt: skip
    return speed(long, taken[0]), speed(short, taken[1])


def growth(small: float, large: float, rounds: int) -> None:
    bytearray(31 << 20)  # the allocator keeps large memory after its first use, which is slow
    for name in SHAPES:
        texts = shape(name, small), shape(name, large)
        for size in SIZES:
            label = f"{name}, chunks of {size}, {large:g} MB against {small:g} MB"
            emit(label, *speeds(blocks_only, texts, size, rounds), ">= 0.8", "MB/s")
            if size >= 64 and SHAPES[name][0]:  # the shape is one block, so the cost of its memory is measured too
                emit(f"{label}, a list that is joined", *speeds(joined, texts, size, rounds), ">= 0", "MB/s")


def html_against_expat(size: float, rounds: int) -> None:
    text = shape("HTML", size)
    for chunks in SIZES:
        taken = best(
            rounds, partial(seconds, all_events, text, chunks), partial(seconds, xml, f"<text>{text}</text>", chunks)
        )
        label = f"HTML, chunks of {chunks}, all heard, against expat"
        emit(label, speed(text, taken[0]), speed(text, taken[1]), ">= 0.5", "MB/s")


def whole(text: str, rounds: int) -> None:
    pattern = re.compile(r'<block type="([^"]*)"(?: name="([^"]*)")?>(.*?)</block>', re.DOTALL)
    taken = best(rounds, timed(lambda: parse(text)), timed(lambda: list(pattern.finditer(text))))
    emit("parse, against finditer", speed(text, taken[0]), speed(text, taken[1]), ">= 0.5", "MB/s")


def small_calls(rounds: int) -> None:
    content = '{"query": "tea", "limit": 3}'
    texts = [f'<block type="command" name="search">{one:28}</block>\n' * 100 for one in (content, "tea")]
    ways: dict[str, Callable[[str], float]] = {"whole": lambda text: timed(lambda: parse(text))()}
    ways |= {f"chunks of {size}": partial(seconds, blocks_only, size=size) for size in SIZES}
    for name, way in ways.items():
        json, plain = best(30 * rounds, *(partial(way, text) for text in texts))
        label = f"small JSON calls, {name}, against plain text"
        emit(label, speed(texts[0], json), speed(texts[1], plain), ">= 0.75", "MB/s")


def main(*, quick: bool = False) -> None:
    """Emits all figures; `quick` measures less text, less often."""
    rounds = 3 if quick else 7
    against_floors("mixed", mixed(900, 300 if quick else 900), rounds, aim=True)
    against_floors("dense", mixed(180, 300 if quick else 900), rounds, aim=False)
    whole(mixed(900, 900), rounds)
    small_calls(rounds)
    html_against_expat(0.2 if quick else 1, rounds)
    growth(*((0.2, 2, 1) if quick else (1, 10, 3)))
