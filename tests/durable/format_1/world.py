"""The agents that the recordings of format 1 were made with, and what a user can notice when such a recording is resumed.

Each line of `recordings.jsonl.gz` is a recording that the last version with format 1 made: its world (JSON data that says
what the agents and their skills do), `media` and `entries`, what its `replay` gave, and for each cut an index into
`facts`, what resuming that cut gave; null where that version broke down. Nothing here is drawn at random, and every
option whose default may change is set. What is compared must hold for any later version that reads format 1, so
no text that the runtime writes is looked at.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import kernai
from kernai import Agent, Block, Limits, Media, MemoryStore, Message, Pause, PendingCall, Protocol, Result, SkillContext
from kernai.middleware import CallModel, CallSkill, Sleep, retry

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(24))
PRICED = kernai.Model("priced", ("text", "vision"), cost=(1.0, 2.0))
RUN = "r"
#: what our skills, protocols and finals say, whoever quotes it
WORDS = re.compile(r"did-[a-z]+-\w+")
#: how often a resumed run that waits is decided on and resumed again
ROUNDS = 3
World = dict[str, Any]
Facts = dict[str, Any]


def rule(call_id: str, among: int) -> int:
    """A choice that depends on nothing but the call."""
    return sum(map(ord, call_id)) % among


@dataclass
class Count:
    """A typed answer."""

    n: int


class Counting(kernai.Context):
    """A host's state: one counter for the run and all below it."""

    def __init__(self) -> None:
        super().__init__()
        self.counter = {"n": 0}

    def save(self) -> Any:
        return dict(self.counter)

    def restore(self, data: Any) -> None:
        self.counter.update(data)


class Scripted(kernai.Provider):
    """Answers from the script that the conversation began with."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment

    def call(
        self, messages: Sequence[Message], model: kernai.Model, generation: kernai.GenerationOptions, on_chunk: Callable[[str], Any]
    ) -> kernai.LlmResponse:
        scripts = self._segment.world["scripts"]
        first = next(message.text for message in messages if message.role == "user").rpartition("\n")[2]
        name = first if first in scripts else "go"
        said = sum(message.role == "assistant" for message in messages)
        self._segment.note(f"model {name} {said}")
        script = scripts[name]
        line = script[said] if said < len(script) else self._segment.world["last"]
        content, finish_reason = line if isinstance(line, list) else (line, "stop")
        on_chunk(content[:5])
        on_chunk(content[5:])
        return kernai.LlmResponse(content, prompt_tokens=10, completion_tokens=2, total_tokens=12, finish_reason=finish_reason)


class Segment:
    """One process that resumes a run: objects of its own, and a note of each effect performed."""

    def __init__(self, world: World, limits: Limits | None = None) -> None:
        self.world = world
        self._limits = limits or Limits(max_depth=8)
        self.effects: list[str] = []
        self.context = Counting() if world["state"] else kernai.Context()
        self._lock = threading.Lock()

    def note(self, effect: str) -> None:
        with self._lock:
            self.effects.append(effect)

    # ------------------------------------------------------------------------------------------- what is called

    def _did(self, name: str, x: str, y: str, ctx: SkillContext[Any]) -> str:
        """What every skill and handler does."""
        self.note(f"{name} {ctx.call_id} {x}/{y}")
        if isinstance(self.context, Counting):
            self.context.counter["n"] += 1
        return f"did-{name}-{x}_{y}"

    def _result(self, name: str, x: str, y: str, ctx: SkillContext[Any]) -> Any:
        if name == "waits" and ctx.approval is None:
            raise Pause("may it?", {"x": x})
        did = self._did(name, x, y, ctx)
        match name:
            case "fail":
                raise LookupError(did)
            case "stop" if not self.world["concurrent"]:
                raise kernai.Stop(("guardrail", "timeout", "cancelled", "max_cost", "interrupt")[rule(x, 5)], did)
            case "quit" if not self.world["concurrent"]:
                raise SystemExit(did)
            case "picture":
                return [did, Media.from_bytes(PNG, mime_type="image/png")]
            case "many":
                return kernai.SkillResult(did, metadata={"x": x, "lone": "\udc80"})
            case "facts":
                ctx.emit({"at": x})
                return {"did": did, "nan": float("nan"), "none": None}
            case "nothing":
                return None
        return did

    def _skill(self, name: str) -> kernai.Skill:
        def plain(x: str, ctx: SkillContext[Any], y: str = "0") -> Any:
            return self._result(name, x, y, ctx)

        async def waiting(x: str, ctx: SkillContext[Any], y: str = "0") -> Any:
            await asyncio.sleep(0)
            return self._result(name, x, y, ctx)

        execute: Callable[..., Any] = waiting if name in self.world["async"] else plain
        return kernai.Skill(name, execute=execute, approval=name == "pay", idempotent=name in self.world["idempotent"])

    def _protocols(self) -> list[Protocol]:
        def ticket(block: Block, ctx: SkillContext[Any]) -> str:
            return self._did("ticket", block.content, "", ctx)

        async def letter(block: Block, ctx: SkillContext[Any]) -> Message:
            did = self._did("letter", block.content, "", ctx)
            return Message("user", [did, Media.from_url("https://example.org/a.png?key=1")])

        def broken(block: Block, ctx: SkillContext[Any]) -> str:
            raise LookupError(self._did("broken", block.content, "", ctx))

        return [Protocol("ticket", ticket), Protocol("letter", letter), Protocol("broken", broken)]

    def _middleware(self) -> list[Any]:
        def pausing(effect: Any) -> Any:
            if isinstance(effect, CallModel) and effect.approval is None and rule(effect.call_id, 5) == 1:
                raise Pause("dear")
            return (yield effect)

        def canned(effect: Any) -> Any:
            if isinstance(effect, CallSkill) and effect.skill == "many" and rule(effect.call_id, 2):
                return kernai.SkillResult(f"did-canned-{effect.arguments['x']}")
            if isinstance(effect, CallModel):
                yield Sleep(0, effect.scope, effect.call_id)
            return (yield effect)

        def stopping(effect: Any) -> Any:  # it did while the recordings were made
            return (yield effect)

        known = {"retry": retry(2, first_wait=0), "pausing": pausing, "canned": canned, "stopping": stopping}
        return [known[name] for name in self.world["middleware"]]

    def _approve(self, call: PendingCall) -> bool | str | Pause:
        if self.world["approve"] == "agents":
            return Pause("an agent?") if call.skill in ("clerk", "junior") else True
        return (True, True, "not today", Pause("it?"))[rule(call.call_id, 4)]

    # ----------------------------------------------------------------------------------------------- agents, runs

    def agent(self) -> Agent[Any]:
        """The root's agent, with a clerk as a skill, who has a junior as a skill."""
        world = self.world
        skills = [self._skill(name) for name in (
            "look", "look2", "pay", "fail", "stop", "quit", "waits", "picture", "many", "facts", "nothing")]
        options: dict[str, Any] = {
            "model": PRICED, "parallel_skills": world["at_once"], "max_steps": world["max_steps"], "on_prose": world["on_prose"],
            "on_truncated": world["on_truncated"], "list_skills": world["list_skills"], "quoted_calls": "run",
            "dialects": "correct", "constrain": False, "workflows": True, "protocols": self._protocols(),
            "approve": self._approve if world["approve"] else None,
        }
        junior = Agent(instructions="j", name="junior", skills=skills, **{**options, "max_steps": 2})
        clerk = Agent(instructions="c", name="clerk", skills=[*skills, junior.as_skill("junior", "Helps.")], **options)
        return Agent(
            instructions="x", name="root", skills=[*skills, clerk.as_skill("clerk", "Does it.")],
            middleware=self._middleware(), output={"int": int, "record": Count}.get(world["output"]), output_retries=1,
            **options,
        )

    def _options(self) -> dict[str, Any]:
        given: dict[str, Any] = {"provider": Scripted(self), "context": self.context, "limits": self._limits}
        if self.world["plan"]:
            other = Agent(instructions="o", name="other", model=PRICED, skills=[self._skill("look")], protocols=[],
                          on_prose="accept", list_skills=False, max_steps=3)
            given["agents"] = dict.fromkeys(self.world["task_agents"], other)
        return given

    def resume(self, store: MemoryStore, *, is_async: bool, **given: Any) -> Result[Any]:
        given = {**self._options(), "store": store, **given}
        if is_async:
            return asyncio.run(kernai.aresume(self.agent(), RUN, **given))
        return kernai.resume(self.agent(), RUN, **given)

    def replay(self, store: MemoryStore) -> Result[Any] | None:
        given = {key: value for key, value in self._options().items() if key in ("context", "agents")}
        return kernai.replay(self.agent(), RUN, store=store, **given).result


# ----------------------------------------------------------------------------------------------------- what is noticed


def said(world: World, result: Result[Any]) -> Facts:
    """What a user can notice of a result."""
    used = result.usage
    text = result.text
    if world["plan"] and text is not None and text.startswith("{"):  # errors in it are in the runtime's words
        results = json.loads(text)
        text = json.dumps({task: "error" if str(one).startswith("error") else one for task, one in results.items()})
    # that of a plan was its text
    output = result.text if world["plan"] and isinstance(result.output, dict) else result.output
    read = [word for message in result.messages if message.role == "user" for word in WORDS.findall(message.text)]
    return {
        "stop": str(result.stop_reason),
        "text": text,
        "output": None if not world["output"] or output is None else repr(output),
        "steps": result.steps,
        "usage": [used.prompt_tokens, used.completion_tokens, used.total_tokens,
                  None if used.cost is None else round(used.cost, 9), used.model_calls],
        "pending": sorted([one.call_id, one.skill, one.params] for one in result.pending),
        "model": [message.text for message in result.messages if message.role == "assistant"],
        "read": sorted(read) if world["concurrent"] else read,
    }


def decision(call: PendingCall) -> Any:
    """The test's answer to a call that waits."""
    by_rule = rule(call.call_id, 4)
    if by_rule == 0:
        return False
    if by_rule == 1 and call.skill in ("clerk", "junior"):
        return {"params": {"input": "s7"}}
    if by_rule == 1 and isinstance(call.params, Mapping):
        return {"params": {"x": "42", "y": "43"}}
    return True


def in_flight(call: PendingCall) -> str:
    """The test's answer to a call whose outcome is unknown."""
    return ("skip", "retry")[rule(call.call_id, 2)]


def resumed(world: World, store: MemoryStore, *, is_async: bool) -> list[Facts]:
    """Resumes a recording with fresh objects until it ends, and replays it: what there was to notice."""
    noticed: list[Facts] = []
    given: dict[str, Any] = {}
    while len(noticed) <= ROUNDS:
        before = len(store.load(RUN))
        segment = Segment(world, Limits(max_depth=8, **world["limits"]))
        facts: Facts = {}
        noticed.append(facts)
        result: Result[Any] | None = None
        try:
            result = segment.resume(store, is_async=is_async, **given)
            facts |= said(world, result)
        except kernai.InFlightError as error:
            facts |= {"raised": "InFlightError", "calls": sorted([one.call_id, one.skill] for one in error.calls)}
        except (Exception, KeyboardInterrupt, SystemExit) as error:
            facts |= {"raised": type(error).__name__}
        facts["effects"] = sorted(segment.effects) if world["concurrent"] else segment.effects
        if isinstance(segment.context, Counting):
            facts["state"] = segment.context.counter["n"]
        facts["wrote"] = len(store.load(RUN)) > before
        if facts.get("raised") == "InFlightError" and "in_flight" not in given:
            given["in_flight"] = in_flight
        elif result is not None and result.pending:
            given["approvals"] = {call.call_id: decision(call) for call in result.pending}
        else:
            break
    noticed.append(replayed(world, store))
    return noticed


def replayed(world: World, store: MemoryStore) -> Facts:
    """Replays a recording with fresh objects: what there was to notice."""
    segment = Segment(world)
    facts: Facts = {}
    try:
        result = segment.replay(store)
        facts["replay"] = None if result is None else said(world, result)
    except Exception as error:
        facts["raised"] = type(error).__name__
    facts["effects"] = segment.effects
    return facts


# ------------------------------------------------------------------------------------------------------------ as JSON


def media_from_json(parts: list[Any]) -> Media:
    kind, mime_type, source, data, metadata = parts
    return Media(kind, mime_type, source, base64.b64decode(data) if source == "bytes" else data, metadata)


def store_of(case: Mapping[str, Any], length: int | None = None) -> MemoryStore:
    """A store with the first so many entries of a recording, and its media."""
    store = MemoryStore()
    store.append(RUN, 0, case["entries"][:length], [media_from_json(one) for one in case["media"]])
    return store
