"""A run with every kind of event, made of new objects each time, so that a resume is like one in a new process."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import accumulate
from math import inf
from typing import Any, NamedTuple, TypeVar

import pytest

import kernai
from kernai import Agent, Context, Media, Message, MockProvider, Model, Result, Skill, SkillContext, SkillResult
from kernai.durable.run_head import MemoryStore
from kernai.durable.store import Entry
from tests.ways import LIVE_ONLY

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(64))
SKILLS = ("look", "fail", "many", "picture", "nothing")
PRICED = Model("priced", ("text", "vision"), cost=(1.0, 2.0))


class Way(NamedTuple):
    """A way to resume a run: sync or async, with or without a callback."""

    is_async: bool
    listens: bool

    def execute(self, *given: Any, **options: Any) -> Result:
        options |= {"on_event": lambda event: None} if self.listens and "on_event" not in options else {}
        return asyncio.run(kernai.aexecute(*given, **options)) if self.is_async else kernai.execute(*given, **options)

    def resume(self, *given: Any, **options: Any) -> Result:
        options |= {"on_event": lambda event: None} if self.listens and "on_event" not in options else {}
        return asyncio.run(kernai.aresume(*given, **options)) if self.is_async else kernai.resume(*given, **options)


def replayed(it: Agent[Any], run_id: str | None = None, **options: Any) -> Result[Any]:
    """Return the result of a run, which must have one."""
    result = kernai.replay(it, run_id, **options).result
    assert result is not None
    return result


WAYS = [Way(is_async, listens) for is_async in (False, True) for listens in (False, True)]
Row = TypeVar("Row")


def share_of(way: Way, rows: Sequence[Row]) -> Sequence[Row]:
    """Return the rows for this way, when each row is tried in only one of the ways."""
    return rows[WAYS.index(way)::len(WAYS)]


def way_id(way: Way) -> str:
    return ("async" if way.is_async else "sync") + (", listening" if way.listens else "")


EACH_WAY = pytest.mark.parametrize("way", WAYS, ids=way_id)
AT_ONCE = pytest.mark.parametrize("at_once", [False, True], ids=["in order", "at once"])


def command(name: str, content: str = "") -> str:
    return f'<block type="command" name="{name}">{content}</block>'


class Performed:
    """Counts how often each call was performed, by idempotency key or name; shared by all simulated processes."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self._lock = threading.Lock()

    def note(self, what: str) -> None:
        with self._lock:
            self.calls[what] += 1


def call_faults(
    entries: Sequence[Entry], performed: Mapping[str, int], run: str = "r", *, idempotent: Collection[str] = ()
) -> list[str]:
    names = {
        f"{run}:{one['data']['call_id']}": one["data"].get("skill", "ticket")
        for one in entries if one["event"] in ("skill_execute", "protocol_execute")
    }
    ended = [one for one in entries if one["event"] in ("skill_result", "protocol_result")]
    keys = Counter(f"{run}:{one['data']['call_id']}" for one in ended)
    own = {key: count for key, count in performed.items() if key.startswith(f"{run}:")}
    found = {
        "recorded twice": [key for key, count in keys.items() if count > 1],
        "doubled": [key for key, n in own.items() if n > 1 and names.get(key) not in idempotent],
        "lost": [key for key in keys if names.get(key) != "ask_clerk" and not own.get(key)],
        "performed and not on record": [*own.keys() - names.keys()],
    }
    return [f"{what}: {', '.join(sorted(which))}" for what, which in found.items() if which]


class CancelAt:
    def __init__(self, at: int) -> None:
        self._left = at

    def __call__(self, event: kernai.Event) -> None:
        self._left -= event.type not in LIVE_ONLY

    def is_set(self) -> bool:
        return self._left <= 0


#: the model's responses in turn, by the first words of the conversation
SCRIPTS: dict[str, list[str]] = {
    "do everything": [
        "first " + command("look", '{"at": "ship"}') + command("fail") + '<block type="ticket">open \ud800 one</block>',
        command("many", '{"n": 2}') + command("many", '{"n": 3}') + command("ask_clerk", "count the boxes") + command("nothing"),
        '<block type="plan">{"goal": "g", "tasks": [{"id": "a/b", "input": "task one", "parallel": true}, '
        '{"id": "c", "input": "task two", "parallel": true}, {"id": "d", "input": "task three", "depends_on": ["a/b"]}]}</block>',
        command("/skills") + command("many", '{"n": "x"}') + "<json>{}</json>",
        'cut <block type="command" name="look">{',
        command("picture"),
        "<final>all is done</final>",
    ],
    "count the boxes": [command("many", "4"), "<final>forty</final>"],
    "task one": [command("many", "5"), command("ask_clerk", "count the boxes"), "<final>one is done</final>"],
    "task two": [command("look", '{"at": "moon"}'), command("fail"), "<final>two is done</final>"],
    "task three": [command("picture"), command("nothing"), "<final>three is done</final>"],
}


def provider(scripts: Mapping[str, Sequence[str]] = SCRIPTS) -> MockProvider:
    """A model that answers from the script of the conversation's first message."""

    def answer(messages: Sequence[Message], _: Model) -> str:
        said = sum(message.role == "assistant" for message in messages)
        first = next(message.text for message in messages if message.role == "user")
        script = next(script for start, script in scripts.items() if start in first.rpartition("\n")[2])
        return script[said] if said < len(script) else f"<final>{messages[-1].text}</final>"

    return MockProvider().on_call(answer).with_token_counter(
        lambda messages, content: {"prompt_tokens": len(messages), "completion_tokens": len(content)}
    )


def agent(performed: Performed, *, idempotent: Collection[str] = SKILLS, **changes: Any) -> Agent:
    """Return an agent with a sub-agent, whose skills note that they were performed."""

    def look(at: str, ctx: SkillContext[Context]) -> dict[str, object]:
        performed.note(ctx.idempotency_key)
        ctx.emit({"looking": at})
        return {"seen": at, "odd": {3, 1, 2}, "nan": None}

    def fail(ctx: SkillContext[Context]) -> str:
        performed.note(ctx.idempotency_key)
        raise LookupError("no such thing")

    def many(n: int, ctx: SkillContext[Context]) -> SkillResult:
        performed.note(ctx.idempotency_key)
        return SkillResult("x" * n, metadata={"n": n, "lone": "\udc80"})

    async def picture(ctx: SkillContext[Context]) -> list[str | Media]:
        performed.note(ctx.idempotency_key)
        return ["here: ", Media.from_bytes(PNG, mime_type="image/png")]

    def nothing(ctx: SkillContext[Context]) -> None:
        performed.note(ctx.idempotency_key)

    def ticket(block: kernai.Block, ctx: SkillContext[Context]) -> Message:
        performed.note(ctx.idempotency_key)
        return Message("user", [f"ticket {block.content}", Media.from_url("https://example.org/a.png?key=1")])

    functions: dict[str, Callable[..., Any]] = {
        "look": look, "fail": fail, "many": many, "picture": picture, "nothing": nothing,
    }
    skills = [Skill(name, execute=function, idempotent=name in idempotent) for name, function in functions.items()]
    clerk = Agent(instructions="You count.", skills=skills, model=PRICED)
    given: dict[str, Any] = {
        "instructions": "You do.", "model": PRICED, "skills": [*skills, clerk.as_skill("ask_clerk", "Counts.")],
        "protocols": [kernai.Protocol("ticket", ticket)], "parallel_skills": True,
    }
    return Agent(**{**given, **changes})


def payer(paid: list[Any], *skills: Skill, **changes: Any) -> Agent[Any]:
    """Return an agent whose `pay` needs approval and notes each payment."""

    def pay(amount: int = 1) -> str:
        paid.append(amount)
        return "paid"

    return Agent(**{"instructions": "x", "skills": [Skill("pay", execute=pay, approval=True), *skills], **changes})


class Stored:
    """One run in a store, which a test makes, resumes and replays in one of the ways."""

    def __init__(self, way: Way, agent: Agent[Any], model: Any = None, store: Any = None) -> None:
        """`model` is a provider, or the scripts of `provider`; by default the agent has its own."""
        self.way, self.agent = way, agent
        self.store: Any = MemoryStore() if store is None else store
        self.model = provider(model) if isinstance(model, Mapping) else model

    def execute(self, input: Any = "go", **options: Any) -> Result[Any]:
        return self.way.execute(self.agent, input, **{"store": self.store, "provider": self.model, "run_id": "r", **options})

    def resume(self, **options: Any) -> Result[Any]:
        given = {"store": self.store, "provider": self.model, **options}
        return self.way.resume(given.pop("agent", self.agent), "r", **given)

    def replay(self, **options: Any) -> Any:
        """Return the result of a replay, or None if the recording stops earlier."""
        return kernai.replay(self.agent, "r", store=self.store, **options).result

    def load(self) -> list[Entry]:
        entries: list[Entry] = self.store.load("r")
        return entries

    def data(self, *types: str) -> list[Any]:
        return [entry["data"] for entry in self.load() if entry["event"] in types]

    def index(self, type: str) -> int:
        return [entry["event"] for entry in self.load()].index(type)

    def cuts(self) -> Iterator[Stored]:
        """Return the run cut off after each event, for this way's share of them."""
        return map(self.cut, share_of(self.way, range(1, len(self.load()))))

    def cut(self, length: int, agent: Agent[Any] | None = None) -> Stored:
        """Return the same run with only the first entries, as if its process had died."""
        return Stored(self.way, agent or self.agent, self.model, cut(self.store, length))


class Appends(MemoryStore):
    """Notes the entries of each append. After `left` more appends each one fails: before it writes, or `after` that."""

    def __init__(self, left: float = inf, error: type[BaseException] = OSError, *, after: bool = False) -> None:
        super().__init__()
        self.left, self.error, self.after = left, error, after
        self.batches: list[list[str]] = []

    @property
    def lengths(self) -> list[int]:
        """Return the length of the run after each append, where a crash can cut it off."""
        return list(accumulate(map(len, self.batches)))

    def append(self, run_id: str, first_seq: int, entries: Sequence[Entry], media: Any, **terms: Any) -> Any:
        self.batches.append([entry["event"] for entry in entries])
        self.left -= 1
        if self.left < 0 and not self.after:
            raise self.error("the disk is full")
        lease = super().append(run_id, first_seq, entries, media, **terms)
        if self.left < 0:
            raise self.error("the disk is full")
        return lease


class Reversed:
    """A codec that is no encryption, but makes data unreadable. With `error`, decoding fails."""

    error: Exception | None = None

    def encode(self, data: bytes) -> bytes:
        return data[::-1]

    def decode(self, data: bytes) -> bytes:
        if self.error is not None:
            raise self.error
        return data[::-1]


def cut(store: MemoryStore, length: int, run_id: str = "r") -> MemoryStore:
    """Return a store with the first `count` entries of a run, and its media."""
    made = MemoryStore()
    made.append(run_id, 0, store.load(run_id)[:length], store.load_media(run_id))
    return made
