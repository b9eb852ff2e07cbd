"""The skills that the tests serve, and a program that serves them over stdio."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp.types import CallToolResult

import kernai
from kernai import Agent, Context, Credential, Media, Message, MockProvider, Model, Skill, SkillContext, skill

PATIENCE = 30  # seconds after which a test that hangs fails

PICTURE = Media.from_bytes(b"\x89PNG...", mime_type="image/png")
SOUND = Media.from_bytes(b"RIFF...", mime_type="audio/wav")
LETTER = Media.from_bytes("Grüße".encode(), mime_type="text/plain")
ARCHIVE = Media.from_bytes(b"%PDF\xff", mime_type="application/pdf")
PAGE = Media.from_url("https://example.org/page.pdf?key=1")


@dataclass
class Point:
    x: int
    y: float = 0.0


@skill(register=False)
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


@skill(register=False)
async def add_later(a: int, b: int) -> int:
    """Add two numbers, asynchronously."""
    await asyncio.sleep(0)
    return a + b


@skill(register=False)
def relay() -> Any:
    """Call another skill, wrongly."""
    return add.call({"b": "many"})


@skill(register=False)
def give(what: str) -> Any:
    """Give something of each kind."""
    return {
        "nothing": None, "text": "a <b> & ü", "dict": {"a": [1, None]}, "list": [1, "x"], "record": Point(1),
        "picture": PICTURE, "sound": SOUND, "letter": LETTER, "archive": ARCHIVE, "page": PAGE,
        "parts": ["see: ", PICTURE], "noted": kernai.SkillResult("text", [SOUND], {"secret": "of the recording"}),
        "dict with media": {"picture": PICTURE}, "bytes": b"raw", "gone": Media.from_file("/nowhere/x.png"),
        "surrogate": "a\ud800b", "surrogates in data": {"\ud800": ["\udfff"]}, "json text": '{"not": "data"}',
        "result of MCP": CallToolResult(content=[], is_error=True),
    }[what]


@skill(register=False)
def look(image: Media, point: Point | None = None) -> str:
    """Say what an image is."""
    return f"{image.mime_type} {image.read_bytes()!r} {point}"


@skill(register=False)
def repeat(text: str, times: int) -> str:
    """Say a text many times."""
    return text * times


@dataclass
class Account:
    key: str


@skill(register=False, credentials={"key": Credential()})
def login(how: str, ctx: SkillContext[Any]) -> Any:
    """Log in."""
    key = ctx.credential("key")
    ctx.emit({"with": key})
    if how == "wrong":
        raise ValueError(f"no access with {key}")
    return Account(str(key)) if how == "data" else Path(f"/{key}") if how == "object" else f"in with {key}"


@skill(register=False)
def leave(how: str) -> str:
    """End in a bad way."""
    raise {"exit": SystemExit(3), "interrupt": KeyboardInterrupt(), "stop": StopIteration("x"),
           "cancel": asyncio.CancelledError(), "silent": ValueError(),
           "surrogate": ValueError("no \ud800"), "group": BaseExceptionGroup("both", [SystemExit(3)])}[how]


@skill(register=False)
async def leave_later(how: str) -> str:
    """End in a bad way, asynchronously."""
    await asyncio.sleep(0)
    return leave(how)


@skill(register=False)
def shout(text: str) -> str:
    """Write to stdout in every way there is."""
    print("print:", text)
    assert sys.__stdout__ is not None
    sys.__stdout__.write(f"original: {text}\n")
    sys.__stdout__.flush()
    os.write(1, f"descriptor: {text}\n".encode())
    subprocess.run([sys.executable, "-c", f"print('child: {text}')"], check=True)
    subprocess.run([sys.executable, "-c", "import sys; assert sys.stdin.read() == ''"], check=True)
    sys.__stdout__.write(f"unflushed: {text}\n")
    assert sys.stdin.read() == "", "the client's input is not theirs"
    return "shouted"


@skill(register=False)
def count(upto: int, ctx: SkillContext[Any]) -> str:
    """Emit numbers, texts and data."""
    for number in range(upto):
        ctx.emit({"progress": number, "total": upto, "message": f"number {number}"})
    ctx.emit(1)
    ctx.emit("nearly")
    ctx.emit({"left": 0})
    return "counted"


RELEASED, CANCELLED = threading.Event(), threading.Event()


@skill(register=False)
def hold(ctx: SkillContext[Any]) -> str:
    """Wait until another call releases it."""
    ctx.emit("held")
    assert RELEASED.wait(PATIENCE)
    return "released"


@skill(register=False)
async def release() -> str:
    """Release what is held."""
    RELEASED.set()
    return "done"


@skill(register=False)
def poll(ctx: SkillContext[Any]) -> str:
    """Wait until it is cancelled."""
    ctx.emit("polling")
    stop = threading.Event()
    while not ctx.cancelled:
        stop.wait(0.005)
    CANCELLED.set()
    return "seen by nobody"


@skill(register=False)
async def poll_later(ctx: SkillContext[Any]) -> str:
    """Wait for ever, and tidy up."""
    ctx.emit("polling")
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0)  # tidying up may wait, too
        await asyncio.sleep(0)
        assert ctx.cancelled
        CANCELLED.set()
    return "never"


#: set after the test, so that stuck skills in the test process end
OVER = threading.Event()


@skill(register=False)
def stuck(ctx: SkillContext[Any]) -> str:
    """Never end, whatever comes."""
    ctx.emit("stuck")
    OVER.wait()
    return "never"


@skill(register=False)
async def stuck_later(ctx: SkillContext[Any]) -> str:
    """Never end, and take no notice of cancellation."""
    ctx.emit("stuck")
    while not OVER.is_set():
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0.01)
    return "never"


@skill(register=False)
def was_cancelled() -> bool:
    """Whether a call saw its cancellation, waiting for it."""
    seen = CANCELLED.wait(PATIENCE)
    CANCELLED.clear()
    return seen


class Shop(Context):
    """State of the host."""

    owner = "ada"


@skill(register=False)
def owner(ctx: SkillContext[Shop]) -> str:
    """Whose shop it is."""
    return ctx.run_context.owner


def think(messages: Sequence[Message], model: Model) -> str:
    last = messages[-1].text
    if last == "fail":
        raise kernai.ProviderError("the vendor is gone")
    if last == "wait":
        return '<command name="poll"></command>'
    if 'name="count"' in last:
        return "<final>counted it</final>"
    return '<command name="count">{"upto": 2}</command>'


AGENT = Agent(name="thinker", instructions="the host's secret", provider=MockProvider().on_call(think), skills=[count, poll])

SKILLS: list[Skill] = [
    add, add_later, relay, repeat, give, look, login, leave, leave_later, shout, count, hold, release, poll, poll_later, stuck,
    stuck_later, was_cancelled, owner, AGENT.as_skill("ask", "Ask the thinker."),
]

OPTIONS: dict[str, Any] = {"name": "served", "version": "9.1", "instructions": "Add first.", "context": Shop, "max_workers": 64}

if __name__ == "__main__":
    from kernai.mcp import serve, serving

    if "KERNAI_TEST_PATIENCE" in os.environ:  # seconds to wait for skills that ignore cancellation, in a test
        vars(serving)["GRACE"] = float(os.environ["KERNAI_TEST_PATIENCE"])

    serve(SKILLS, **OPTIONS)
