"""What type checkers infer about typed answers. Nothing here is run.

mypy checks this file with all tests; `tests/test_packaging.py` checks it with pyright.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypedDict, Unpack, assert_type

from typing_extensions import TypeAliasType

import kernai
from kernai import Agent, Context, MappingResolver, MockProvider, Result, RunResults, Task, skill
from kernai.middleware import Effect, Flow, Hooks
from kernai.testing import assert_replays


@dataclass
class Invoice:
    number: int


class Line(TypedDict):
    price: float


class Deps(Context):
    user = "ann"


class Clerk(Agent[str]):
    shop = "lamps"


class Audit(Hooks):
    def on_run_end(self, run: object, result: Result[Any]) -> None: ...


def instructions(deps: Deps) -> str:
    return f"You help {deps.user}."


def timed(effect: Effect) -> Flow:
    print(effect.scope, effect.call_id)
    return (yield effect)


text = Agent(instructions=instructions, middleware=[timed, Audit()])
number = Agent(instructions="", output=int)
invoice = Agent(instructions="", output=Invoice)
checked = Agent(instructions="", output=Invoice, output_check=lambda value, ctx: None if value.number else "no number")
either: Agent[int | None] = Agent(instructions="", output=int | None)
Count = TypeAliasType("Count", int | None)
count: Agent[int | None] = Agent(instructions="", output=Count)
word: Agent[Literal["yes", "no"]] = Agent(instructions="", output=Literal["yes", "no"])


def answers() -> None:
    assert_type(text, Agent[str])
    assert_type(Agent(instructions="", output=None), Agent[str])
    assert_type(kernai.run(text, "?"), str)
    assert_type(kernai.run(number, "?"), int)
    assert_type(kernai.run(invoice, "?"), Invoice)
    assert_type(kernai.run(Agent(instructions="", output=Line), "?"), Line)
    assert_type(kernai.run(Agent(instructions="", output=list[int]), "?"), list[int])
    assert_type(kernai.run(either, "?"), int | None)
    assert_type(kernai.execute(number, "?").output, int | Any)
    assert_type(kernai.resume(number, "r").unwrap(), int)
    assert_type(kernai.map_runs(invoice, ["?"])[0].output, Invoice | Any)
    assert_type(kernai.map_runs(number, ["?"], on_progress=lambda progress: print(progress.done)), RunResults[int])
    with kernai.stream(invoice, "?") as events:
        assert_type(events.result.output, Invoice | Any)
    assert_type(kernai.run(number.replace(max_steps=3), "?"), int)
    assert_type(number.replace(output=Invoice, name="clerk"), Agent[Invoice])
    assert_type(kernai.run(text.replace(output=list[int]), "?"), list[int])
    assert_type(Clerk(instructions="").replace(max_steps=3), Clerk)


async def awaited_answers() -> None:
    assert_type(await kernai.arun(number, "?"), int)
    async with kernai.astream(invoice, "?") as events:
        async for piece in events.text():
            assert_type(piece, str)
    assert_type(events.result.output, Invoice | Any)


def only_text(agent: Agent, given: kernai.UserInput, **options: Unpack[kernai.RunOptions]) -> Result:
    return kernai.execute(agent, [given, kernai.outside("?")] if isinstance(given, str) else given, **options)


def limited(info: kernai.RunInfo) -> kernai.ResumeOptions:
    return {"context": Deps(), "limits": kernai.Limits(timeout=len(info.tags))}


@skill(register=False)
def search(query: str, limit: int = 3) -> list[str]:
    return [query] * limit


def calls() -> None:
    only_text(text, ["?"], context=Deps())
    assert_type(search("tea", limit=2), list[str])
    assert_type(skill("tea".startswith, name="check", register=False)("t"), bool)
    assert_type(MappingResolver(dict[str, dict[str, str]]()).resolve("search", "key"), str | None)
    assert_type(text.replace(know_how=list[str]()), Agent[str])
    assert_type(assert_replays(number, "run.jsonl"), Result[int] | None)
    assert_type(MockProvider("Hi.").messages_at(0)[-1].text, str | Any)
    counted = MockProvider("Hi.").with_token_counter(lambda messages, content: {"prompt_tokens": None})
    assert_type(counted.last_call.model.id, str | Any)
    assert_type(kernai.run_plan(number, [Task("a", "go")]), dict[str, Any])


def mistakes() -> None:
    only_text(number, "?")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    kernai.resume(text, "r", in_flight="retri")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Agent(output=int)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    kernai.run(number, "?", provder=None)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
