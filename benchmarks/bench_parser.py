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
from support import best_of, emit

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


def megabytes(text: str) -> float:
    return len(text.encode()) / 1e6


def against_floors(name: str, text: str, rounds: int, *, aim: bool) -> None:
    as_xml = f"<text>{text}</text>"
    for size in SIZES:
        best = dict.fromkeys((floor, blocks_only, all_events, xml), float("inf"))
        for _ in range(rounds):
            for make in best:
                best[make] = min(best[make], seconds(make, as_xml if make is xml else text, size))
        speed = {make: megabytes(text) / taken for make, taken in best.items()}
        for make, heard in ((blocks_only, "blocks heard"), (all_events, "all heard")):
            label = f"{name}, chunks of {size}, {heard}"
            ratios = {floor: speed[make] / speed[floor], xml: speed[make] / speed[xml]}
            if size <= 4:
                wanted = ">= 0.5" if aim and make is blocks_only else ">= 0"
                emit(f"{label}, against a list", speed[make], speed[floor], ratios[floor], wanted)
            wanted = ">= 0.9" if size == 64 else ">= 1"
            emit(f"{label}, against expat", speed[make], speed[xml], ratios[xml], wanted if aim else ">= 0")


def shape(name: str, size: float) -> str:
    head, body, tail = SHAPES[name]
    return head + body * int(size * 1e6 / len(body.encode())) + tail


def speeds(make: Callable[[], Way], texts: Sequence[str], size: int, rounds: int) -> tuple[float, float]:
    """MB/s for a short and a long text, in turns, with as much text of each, so that noise affects both equally."""
    short, long = texts
    times = round(megabytes(long) / megabytes(short))
    taken = [
        (sum(seconds(make, short, size) for _ in range(times)) / times, seconds(make, long, size))
        for _ in range(rounds)
    ]
    return megabytes(short) / min(pair[0] for pair in taken), megabytes(long) / min(pair[1] for pair in taken)


def growth(small: float, large: float, rounds: int) -> None:
    bytearray(31 << 20)  # the allocator keeps large memory after its first use, which is slow
    for name in SHAPES:
        texts = shape(name, small), shape(name, large)
        for size in SIZES:
            short, long = speeds(blocks_only, texts, size, rounds)
            label = f"{name}, chunks of {size}, {large:g} MB against {small:g} MB"
            emit(label, long, short, long / short, ">= 0.8")
            if size >= 64 and SHAPES[name][0]:  # the shape is one block, so the cost of its memory is measured too
                short, long = speeds(joined, texts, size, rounds)
                emit(f"{label}, a list that is joined", long, short, long / short, ">= 0")


def html_against_expat(size: float, rounds: int) -> None:
    text = shape("HTML", size)
    for chunks in SIZES:
        ours = min(seconds(all_events, text, chunks) for _ in range(rounds))
        theirs = min(seconds(xml, f"<text>{text}</text>", chunks) for _ in range(rounds))
        label = f"HTML, chunks of {chunks}, all heard, against expat"
        emit(label, megabytes(text) / ours, megabytes(text) / theirs, theirs / ours, ">= 0.5")


def whole(text: str, rounds: int) -> None:
    pattern = re.compile(r'<block type="([^"]*)"(?: name="([^"]*)")?>(.*?)</block>', re.DOTALL)
    ours = best_of(lambda: parse(text), rounds)
    theirs = best_of(lambda: list(pattern.finditer(text)), rounds)
    emit("parse, against finditer", megabytes(text) / ours, megabytes(text) / theirs, theirs / ours, ">= 0.5")


def small_calls(rounds: int) -> None:
    content = '{"query": "tea", "limit": 3}'
    json, plain = (f'<block type="command" name="search">{one:28}</block>\n' * 100 for one in (content, "tea"))
    ways: dict[str, Callable[[str], float]] = {"whole": lambda text: best_of(lambda: parse(text), 1)}
    ways |= {f"chunks of {size}": partial(_pushed, size) for size in SIZES}
    for name, way in ways.items():
        ours = theirs = float("inf")
        for _ in range(30 * rounds):
            ours, theirs = min(ours, way(json)), min(theirs, way(plain))
        label = f"small JSON calls, {name}, against plain text"
        emit(label, megabytes(json) / ours, megabytes(plain) / theirs, theirs / ours, ">= 0.75")


def _pushed(size: int, text: str) -> float:
    return seconds(blocks_only, text, size)


def main(*, quick: bool = False) -> None:
    """Emits all figures; `quick` measures less text, less often."""
    rounds = 3 if quick else 7
    against_floors("mixed", mixed(900, 300 if quick else 900), rounds, aim=True)
    against_floors("dense", mixed(180, 300 if quick else 900), rounds, aim=False)
    whole(mixed(900, 900), rounds)
    small_calls(rounds)
    html_against_expat(0.2 if quick else 1, rounds)
    growth(*((0.2, 2, 1) if quick else (1, 10, 3)))
