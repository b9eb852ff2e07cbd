"""The context of a call: what it holds, what it emits, and that credentials read through it do not leak."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernai
from kernai import Agent, Context, Credential, JsonlSink, Media, MediaStore, Recorder, Skill, SkillContext, SkillResult
from kernai.testing.contracts import at_once

KEYS = ("a", "b", "c")
SKILL = Skill("probe", execute=lambda: None, credentials={key: Credential(required=False) for key in KEYS})


def reading(**credentials: str) -> SkillContext[Any]:
    ctx = SkillContext(SKILL, credentials=credentials)
    for key in credentials:
        ctx.credential(key)
    return ctx


# --------------------------------------------------------------------------------------------- what it holds


def test_a_context_can_be_created_with_only_a_skill() -> None:
    ctx = SkillContext(SKILL)
    assert (ctx.skill, ctx.run_context, type(ctx.media_store)) == (SKILL, None, MediaStore)
    assert (ctx.call_id, ctx.idempotency_key, ctx.cancelled, ctx.emitted) == ("", ":", False, [])
    ctx.emit({"done": 1})
    ctx.emit("half")
    assert ctx.emitted == [{"done": 1}, "half"]


def test_a_context_has_what_its_call_gives_it() -> None:
    context, store, flag = Context(), MediaStore(), threading.Event()
    ctx = SkillContext(SKILL, context, call_id="2.a/0.1", run_id="r1", cancelled=flag.is_set)
    assert (ctx.media_store, SkillContext(SKILL, context, store).media_store) == (context.media_store, store)
    assert (ctx.idempotency_key, repr(ctx)) == ("r1:2.a/0.1", "SkillContext(skill='probe', call_id='2.a/0.1')")
    assert not ctx.cancelled
    flag.set()
    assert ctx.cancelled


# ------------------------------------------------------------------------------------------------------- emitting


def test_emitted_data_is_copied_as_json_for_the_run() -> None:
    seen: list[object] = []
    ctx = SkillContext(SKILL, emit=seen.append)
    data: dict[str, Any] = {"rows": [1], "kinds": {"b", "a"}}
    ctx.emit(data)
    data["rows"].append(2)
    assert seen == [{"rows": [1], "kinds": ["a", "b"]}]
    assert ctx.emitted == []


def test_data_that_json_cannot_hold_is_neither_emitted_nor_scrubbed() -> None:
    circle: list[object] = []
    circle.append(circle)
    for data in (b"raw", circle):
        with pytest.raises(kernai.KernaiError):
            SkillContext(SKILL).emit(data)
    with pytest.raises(kernai.KernaiError, match="contains itself or nests deeper"):
        reading(a="alpha").scrub(circle)


# ------------------------------------------------------------------------------------------------------ scrubbing


def test_only_credentials_that_were_read_are_scrubbed() -> None:
    ctx = SkillContext(SKILL, credentials={"a": "alpha", "b": "beta"})
    value = ["alpha beta"]
    assert ctx.scrub(value) is value
    ctx.credential("a")
    assert ctx.scrub(value) == ["[credential a] beta"]
    assert reading(a="90210").scrub([90210, 90210.0, 7, True, 10**5000]) == ["[credential a]", "[credential a].0", 7, True, 10**5000]


def test_scrubbing_reaches_every_depth_of_lists_tuples_dicts_results_and_media_metadata() -> None:
    ctx = reading(a="alpha")
    image = Media.from_bytes(b"x", mime_type="image/png", metadata={"by": "alpha", "n": 1})
    plain = Media.from_bytes(b"y", mime_type="image/png")
    scrubbed = ctx.scrub({"k alpha": ("alpha", [1, None, {"deep": "xalphax"}]), "m": image})
    assert scrubbed["k [credential a]"] == ("[credential a]", [1, None, {"deep": "x[credential a]x"}])
    assert dict(scrubbed["m"].metadata) == {"by": "[credential a]", "n": 1}
    assert scrubbed["m"].id == image.id
    result = ctx.scrub(SkillResult("is alpha", [image, plain], {"raw": ["alpha"]}))
    assert isinstance(result, SkillResult)
    assert result.text == "is [credential a]"
    assert result.metadata == {"raw": ["[credential a]"]}
    assert dict(result.media[0].metadata) == {"by": "[credential a]", "n": 1}
    assert result.media[1] is plain


class Odd:
    def __init__(self, secret: str) -> None:
        self.secret = secret

    def __str__(self) -> str:
        return f"Odd({self.secret})"


class Exporting(Odd):
    def to_dict(self) -> dict[str, object]:
        return {"deep": [self.secret]}


@dataclass
class Held:
    inner: object


class Word(Enum):
    SECRET = "alpha-secret"


PICTURE = Media.from_bytes(b"x", mime_type="image/png")
LEAKS: dict[str, Callable[[str], object]] = {
    "a URL's path": lambda key: Media.from_url(f"https://example.org/{key}/a.png"),
    "a URL's query": lambda key: Media.from_url(f"https://example.org/a.png?key={key}"),
    "a URL's user": lambda key: Media.from_url(f"https://me:{key}@example.org/a.png"),
    "a path": lambda key: Media.from_file(f"/nowhere/{key}.png"),
    "a path in a list": lambda key: ["see", Media.from_file(f"/nowhere/{key}.png")],
    "a path in data": lambda key: {"media": [Media.from_file(f"/nowhere/{key}.png")]},
    "a set": lambda key: SkillResult("x", metadata={"k": {key}}),
    "bytes": lambda key: SkillResult("x", metadata={"k": key.encode()}),
    "an object with a text": lambda key: SkillResult("x", metadata={"k": Odd(key)}),
    "an object that exports itself": lambda key: SkillResult("x", metadata={"k": Exporting(key)}),
    "a dataclass": lambda key: SkillResult("x", metadata={"k": Held(Held(key))}),
    "an enum": lambda _: SkillResult("x", metadata={"k": Word.SECRET}),
    "a key": lambda key: SkillResult("x", metadata={key: 1}),
    "an exception": lambda key: SkillResult("x", metadata={"k": ValueError(key)}),
    "a path object": lambda key: SkillResult("x", metadata={"k": Path("/home") / key}),
    "metadata of media": lambda key: Media.from_bytes(b"x", mime_type="image/png", metadata={"k": Exporting(key)}),
    "media in metadata": lambda key: SkillResult("x", metadata={"k": Media.from_file(f"/nowhere/{key}.png")}),
    "metadata of media in a list": lambda key: ["x", replace(PICTURE, metadata={"k": {key}})],
    "an object itself": Odd,
    "a dataclass itself": lambda key: Held({key: Held(key)}),
    "progress": lambda key: key,
}


@pytest.mark.parametrize("leak", LEAKS)
def test_a_credential_is_in_nothing_that_a_run_records_or_sends(leak: str, tmp_path: Path) -> None:
    secret = "alpha-secret"

    def leaky(ctx: SkillContext[Any]) -> Any:
        made = LEAKS[leak](ctx.credential("a") or "")
        if leak == "progress":
            ctx.emit({"deep": [made, Odd(secret), Held(secret)]})
        return made

    kernai.configure(credential_resolver=kernai.MappingResolver({"a": secret}))
    one = Skill("leaky", execute=leaky, credentials={"a": Credential()})
    provider, memory = kernai.MockProvider('<command name="leaky"></command>', "done"), kernai.MemorySink()
    with JsonlSink(tmp_path / "run.jsonl") as sink:
        recorder = Recorder(kernai.CompositeSink(memory, sink))
        context = Context()
        result = kernai.execute(
            Agent(instructions="", skills=[one], provider=provider), "Go.", recorder=recorder, context=context
        )
    assert result.text == "done"
    assert recorder.for_event("skill_error") == []
    sent = [part for message in result.messages for part in message.content]
    kept = [(tmp_path / "run.jsonl").read_text(), str([event.to_dict() for event in memory.entries]), recorder.to_json()]
    shown = [getattr(one, "data", one) for one in [*sent, *context.media_store]]
    assert all(secret not in str(text) for text in [*kept, *shown])
    assert any("[credential a]" in str(text) for text in kept) or "URL" in leak


def test_a_credential_in_the_text_of_an_exit_reaches_neither_the_caller_nor_a_recording() -> None:
    def leaky(ctx: SkillContext[Any]) -> None:
        sys.exit(f"no access with {ctx.credential('a')}")

    kernai.configure(credential_resolver=kernai.MappingResolver({"a": "alpha-secret"}))
    one = Skill("call", execute=leaky, credentials={"a": Credential()})
    inner = Agent(instructions="", skills=[one], provider=kernai.MockProvider('<command name="call"></command>'))
    outer = inner.replace(skills=[inner.as_skill("call", "An agent that calls it.")])
    with pytest.raises(SystemExit, match=r"^no access with \[credential a\]$"):
        kernai.execute(outer, "Go.", recorder=(recorder := Recorder()))
    assert "alpha-secret" not in recorder.to_json()


def test_credentials_read_in_several_threads_are_all_scrubbed() -> None:
    for _ in range(20):
        ctx = SkillContext(SKILL, credentials={"a": "alpha", "b": "beta", "c": "gamma"})
        assert at_once(lambda number, ctx=ctx: ctx.credential(KEYS[number]), len(KEYS)) == []  # type: ignore[misc]
        assert ctx.scrub("alpha beta gamma") == "[credential a] [credential b] [credential c]"


# A replacement such as "[credential a]" has none of these characters, so any secret in the text was missed.
SECRETS = st.text(alphabet="xyz\\\"'\n&%/é🙂", min_size=1, max_size=6)
TEXTS = st.text(alphabet="xyz\\\"'\n&%/é🙂 ", max_size=12)
DATA = st.recursive(
    st.none() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3) | st.tuples(inner, inner),
    max_leaves=6,
)


def texts_in(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for pair in value.items() for one in pair for text in texts_in(one)]
    return [text for one in value for text in texts_in(one)] if isinstance(value, (list, tuple)) else []


@given(secrets=st.tuples(SECRETS, SECRETS, SECRETS), data=DATA, places=st.lists(st.integers(0, 2), max_size=5))
def test_no_secret_is_left_in_any_data(secrets: tuple[str, str, str], data: object, places: list[int]) -> None:
    ctx = reading(**dict(zip(KEYS, secrets, strict=True)))
    planted = [data, *[f"before {secrets[place]} after" for place in places], {secrets[0]: list(secrets)}]
    for text in texts_in(ctx.scrub(planted)):
        assert [secret for secret in secrets if secret in text] == []
