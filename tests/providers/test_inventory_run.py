"""The inventory scenario through each adapter: skills, database, loop and sockets are real, the model's turns are not."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

import inventory_lookup
import kernai
from asking import ADAPTERS
from harness import Outcome
from kernai import Block, Model
from kit.outcome import judged
from kit.tape import Tape
from vendor_wires import WIRES, Answering
from wire_server import WireServer

KEY = "sk-inventory-0123456789"
EVERY = pytest.mark.parametrize("vendor", ADAPTERS)
TURNS = (
    str(Block("command", "find_stock", json.dumps({"status": "out_of_stock_everywhere", "limit": 50}))),
    str(Block("final", None, "Seven products are sold out, the Kühlkörper too.")),
)


def run_through(vendor: str, turns: tuple[str, ...], *, native: bool) -> tuple[kernai.Result, kernai.Recorder, Any]:
    wire, recorder = WIRES[vendor], kernai.Recorder()
    script = Answering(wire, turns, key=KEY)
    model = Model(wire.model, cost=(1.0, 2.0))
    options: dict[str, Any] = {"recorder": recorder, "on_event": lambda event: None}
    with (
        WireServer(script) as server,
        ADAPTERS[vendor](KEY, base_url=wire.base_url(server.url)) as provider,
        inventory_lookup.scenario.definition.agent(provider, model) as agent,
    ):
        if native:
            result = asyncio.run(kernai.aexecute(agent, "What has to be ordered?", **options))
        else:
            result = kernai.execute(agent, "What has to be ordered?", **options)
        sent = [wire.text_of(request) for request in server.requests]
    return result, recorder, (script, sent)


@EVERY
@pytest.mark.parametrize("native", [False, True], ids=["sync", "async"])
def test_two_steps_a_skill_call_and_the_sum_of_their_usage(vendor: str, native: bool) -> None:
    result, recorder, (script, sent) = run_through(vendor, TURNS, native=native)
    assert result.unwrap() == "Seven products are sold out, the Kühlkörper too."
    assert result.steps == 2
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) == script.usage
    assert result.usage.cost == pytest.approx((script.usage[0] + 2 * script.usage[1]) / 1_000_000)
    (found,) = recorder.for_event("skill_result")
    assert len(json.loads(found.data["result"])) > 1
    # the second request carries the tape: what the model wrote, and what the database said
    assert [role for role, _ in sent[1]] == ["system", "user", "assistant", "user"]
    assert sent[1][2][1] == TURNS[0]
    assert '<block type="result" name="find_stock">' in sent[1][3][1]


@EVERY
def test_the_whole_tape_through_an_adapter_satisfies_the_scenario(vendor: str) -> None:
    tape = Tape.load(inventory_lookup.scenario.definition.tape, "inventory_lookup")
    turns = tuple(turn.content for turn in tape.conversations[0].turns)
    result, recorder, _ = run_through(vendor, turns, native=False)
    verdicts = judged(Outcome(result, recorder.entries), inventory_lookup.scenario.definition.expectations)
    assert [verdict.holds for verdict in verdicts] == [True, True]


@EVERY
def test_the_recording_of_a_run_over_http_holds_no_key(vendor: str) -> None:
    _, recorder, _ = run_through(vendor, TURNS, native=False)
    assert KEY not in recorder.to_json()
    assert "req_0" in recorder.to_json() or vendor in ("gemini", "ollama")  # it does hold the request's id
