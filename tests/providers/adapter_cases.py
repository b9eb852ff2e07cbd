"""The table of test_adapters.py: what a vendor may send, and what has to come of it.

A row is a script for the server and the one outcome that is right. Each vendor has each row that its format allows; each
is run in every way to call an adapter. The `gate` a script is given lets one wait pass for each piece that reached the
callback, so a row with it ends only if pieces are given as they come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from adapter_calls import ADAPTERS
from wire_format import USAGE, Turn, Wire, sse
from wire_openai import OpenAIWire
from wire_server import Answer, Close, Framing, Gate, garbage, hang_up, plain, redirect

#: two, three and four bytes a character; what JSON escapes; what only looks like the end of a line
PIECES = ("Grüße ", "aus 東京", " 🗼🎉", ' <b> & "q" \\ \n\u2028\u0085', "Ende")
TEXT = "".join(PIECES)
PAGE = b"<!doctype html><html><head><title>Bad Gateway</title></head><body><h1>nginx</h1></body></html>"
#: seconds: for a server that says nothing, for one that answers then, and to connect
SHORT, ENOUGH, TO_CONNECT = 0.1, 0.3, 5.0

MODELS = {"openai": "gpt-4o-2024-11-20", "openai-responses": "gpt-5-pro-2025-10-06", "anthropic": "claude-sonnet-4-5-20250929"}

#: the messages of the errors that come in a stream
SAID = ("the server had an error", "it broke", "The model is overloaded", "CUDA error")

Script = Callable[[Gate], Sequence[Answer]]


@dataclass(frozen=True)
class Case:
    """`text` is the whole answer; None: a `ProviderError`. `fields` are those of the response, or of the error."""

    name: str
    script: Script
    text: str | None = None
    pieces: Sequence[str] | None = None
    requests: int = 1
    fields: Mapping[str, Any] = field(default_factory=dict)
    says: Sequence[str] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


def cases_of(wire: Wire) -> Iterator[Case]:
    yield from whole_answers(wire)
    yield from finish_reasons(wire)
    yield from odd_answers(wire)
    yield from own_oddities(wire)
    yield from cuts(wire)
    yield from faults_after_status_200(wire)
    yield from faults_before_the_answer(wire)
    yield from retries(wire)


def always(*answers: Answer) -> Script:
    """A script without waits."""
    return lambda gate: answers


def whole_answers(wire: Wire) -> Iterator[Case]:
    prompt, completion = USAGE
    counted = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    turn = Turn(PIECES, reasoning=("Think ", "hard."), request_id="re_77")
    metadata: dict[str, Any] = {"reasoning": "Think hard.", "model": MODELS.get(wire.name, wire.model)}
    if wire.request_id_header is not None:
        metadata["request_id"] = "req_5"
    if wire.name != "ollama":
        metadata["response_id"] = "re_77"
    yield Case(
        "a whole answer with all that belongs to it",
        always(wire.reply(wire.whole(turn), request_id="req_5")), TEXT, PIECES,
        fields={**counted, "finish_reason": "stop", "metadata": metadata},
    )
    uncounted = dict.fromkeys(counted)
    yield Case("usage that is left out", always(wire.reply(wire.stream(PIECES, usage=None))), TEXT, fields=uncounted)
    yield Case(
        "each piece before the next one is sent",
        lambda gate: [wire.reply(wire.stream(PIECES)).trickle(gate, lambda event: bool(wire.text_in(event)))],
        TEXT, PIECES,
    )
    yield Case(
        "compressed, each piece before the next one is sent",
        lambda gate: [wire.reply(wire.stream(PIECES)).trickle(gate, lambda event: bool(wire.text_in(event))).gzipped()],
        TEXT, PIECES, options={"headers": {"Accept-Encoding": "gzip"}},
    )
    # where the body's end is the only one, silence has to stand for it
    soon = {"timeout": (TO_CONNECT, ENOUGH)} if wire.name == "gemini" else {}
    lingering = wire.answer(*PIECES).hold(Gate())
    yield Case("a body that does not end after the last event", lambda gate: [lingering], TEXT, options=soon)


def finish_reasons(wire: Wire) -> Iterator[Case]:
    for own, ours in {**wire.finish_reasons, "MAX_TOKENS": "length", "brand_new": "other"}.items():
        script = always(wire.reply(wire.stream(PIECES, finish=own)))
        yield Case(f"finish reason {own!r}", script, TEXT, fields={"finish_reason": ours})


def odd_answers(wire: Wire) -> Iterator[Case]:
    yield Case("an answer that says nothing", always(wire.answer()), "", (), fields={"finish_reason": "stop"})
    yield Case(
        "no answer and no reason", always(wire.reply(wire.no_candidates())), requests=3, pieces=(),
        fields={"retryable": True, "status": 200},
    )
    for name, (events, ours) in wire.refusals().items():
        text = "".join(map(wire.text_in, events))
        if "blockReason" in name:
            yield Case(name, always(wire.reply(events)), fields={"retryable": False}, says=["PROHIBITED_CONTENT"])
        else:
            yield Case(name, always(wire.reply(events)), text, fields={"finish_reason": ours})


def own_oddities(wire: Wire) -> Iterator[Case]:
    if wire.name == "openai":
        other = OpenAIWire("reasoning")
        events = other.whole(Turn(PIECES, reasoning=("Think ", "hard.")))
        thought = {"metadata": {"reasoning": "Think hard."}}
        yield Case("reasoning under its other name", always(other.reply(events)), TEXT, PIECES, fields=thought)
        opening, *_, done = wire.stream([])
        said = [sse({"choices": [{"index": 0, "delta": {"refusal": word}}]}) for word in ("I cannot ", "do that.")]
        refused = {"finish_reason": "refusal", "metadata": {"refusal": "I cannot do that."}}
        yield Case("a refusal in its own field", always(wire.reply([opening, *said, done])), "", (), fields=refused)


def cuts(wire: Wire) -> Iterator[Case]:
    good = wire.answer(*PIECES)
    early, unended = wire.reply(wire.without_end([])), wire.reply(wire.without_end(PIECES))
    cut = {"status": None, "retryable": True}
    for how, reset in (("FIN", False), ("RST", True)):
        yield Case(f"cut by {how} after pieces had come", cut_after_pieces(wire, reset=reset), pieces=PIECES, fields=cut)
        cut_off = replace(early, body=(*early.body, Close(reset)))
        yield Case(f"cut by {how} before a piece", always(cut_off, good), TEXT, PIECES, requests=2)
    framings: tuple[Framing, ...] = ("chunked", "length", "close")
    for framing in framings:
        yield Case(
            f"a body with {framing} framing that ends without the last event", always(unended.framed(framing), good),
            pieces=PIECES, fields={"retryable": True, "code": "cut", "vendor": wire.name},
        )
    yield Case("a body that ends before a piece", always(early, good), TEXT, PIECES, requests=2)
    yield Case("no body at all", always(replace(early, body=()), good), TEXT, PIECES, requests=2)


def cut_after_pieces(wire: Wire, *, reset: bool) -> Script:
    """The server waits until the callback has had each piece: with a RST they might be lost on their way."""
    unended, good = wire.reply(wire.without_end(PIECES)), wire.answer(*PIECES)
    cut = replace(unended, body=(*unended.body, Close(reset)))
    return lambda gate: [cut.trickle(gate, lambda event: bool(wire.text_in(event))), good]


def faults_after_status_200(wire: Wire) -> Iterator[Case]:
    good = wire.answer(*PIECES)
    for name, events in wire.errors().items():
        said = next((words for words in SAID if words.encode() in b"".join(events)), "gave up")
        half = wire.reply(wire.error_in_stream(PIECES[:2], name))
        yield Case(
            f"{name} after half an answer", always(half, good), pieces=PIECES[:2],
            fields={"retryable": True, "status": 200, "vendor": wire.name}, says=[said],
        )
        yield Case(f"{name} before a piece", always(wire.reply([*wire.opening(Turn()), *events]), good), TEXT, requests=2)
    yield Case("a page with status 200", always(plain(PAGE, 200, "text/html")), pieces=(), options={"max_retries": 0})


def faults_before_the_answer(wire: Wire) -> Iterator[Case]:
    good = wire.answer(*PIECES)
    for how, reset in (("closed", False), ("reset", True)):
        yield Case(f"{how} without an answer", always(hang_up(reset=reset), good), TEXT, PIECES, requests=2)
    yield Case(
        "no HTTP at all", always(garbage(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")), pieces=(),
        fields={"code": "protocol", "retryable": False},
    )
    patient, once = {"timeout": (TO_CONNECT, ENOUGH)}, {"timeout": (TO_CONNECT, SHORT), "max_retries": 0}
    silent = {"code": "timeout", "retryable": True, "vendor": wire.name}
    yield Case("silence before the headers", lambda gate: [good.stall(Gate()), good], TEXT, requests=2, options=patient)
    yield Case(
        "silence before the headers, and no retries", lambda gate: [good.stall(Gate()), good], pieces=(),
        fields=silent, options=once, says=["silent", f"{SHORT:g}", "raise the provider's timeout"],
    )
    middle = len(wire.opening(Turn())) + len(wire.middle(Turn(PIECES[:1])))
    yield Case(
        "silence in the middle", lambda gate: [good.hold(Gate(), middle), good], pieces=PIECES[:1], fields=silent,
        options=patient,  # long enough for the first piece to come, on a busy machine too
    )


def retries(wire: Wire) -> Iterator[Case]:
    good = wire.answer(*PIECES)
    for status in (429, 500):  # test_failures.py has them all
        yield Case(f"HTTP {status}, then an answer", always(wire.error(status), good), TEXT, PIECES, requests=2)
    yield Case("an empty 503, a page, then an answer", always(plain(b"", 503), plain(PAGE, 502), good), TEXT, requests=3)
    busy = always(wire.error(503, "too busy"))
    for allowed in (0, 1, 2, 4):
        yield Case(
            f"HTTP 503 each time, and {allowed} retries", busy, requests=1 + allowed, options={"max_retries": allowed},
            fields={"status": 503, "retryable": True}, says=["503", "too busy"],
        )
    for status in (400, 404):
        yield Case(
            f"HTTP {status}, then an answer", always(wire.error(status, "no luck today"), good), pieces=(),
            fields={"status": status, "retryable": False, "code": wire.codes.get(status)} if status in wire.codes
            else {"status": status, "retryable": False}, says=[f"HTTP {status}", "no luck today"],
        )
    yield Case(
        "HTTP 401, then an answer", always(wire.error(401), good), fields={"status": 401, "retryable": False},
        says=[ADAPTERS[wire.name].key_variables[0]],
    )
    for status in (301, 307):
        yield Case(
            f"HTTP {status}, which would send the key elsewhere",
            always(redirect("http://127.0.0.1:9/elsewhere?token=x", status), good),
            fields={"status": status, "retryable": False}, says=["http://127.0.0.1:9/elsewhere: redirects are not followed"],
        )
