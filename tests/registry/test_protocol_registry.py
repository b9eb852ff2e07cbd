"""Protocols: what may be one, the registry, the decorator, and which an agent may use."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from kernai import Agent, Block, MockProvider, Protocol, ProtocolRegistry, SkillContext, execute, protocol, protocols
from kernai.blocks.grammar import CORE_TYPES


def answer(block: Block, ctx: SkillContext[Any]) -> str:
    return f"{block.name}: {block.content}"


def yielding(block: Block, ctx: SkillContext[Any]) -> Any:
    yield answer(block, ctx)


# ---------------------------------------------------------------------------------------------- what may be one


@pytest.mark.parametrize("name", [*CORE_TYPES, "media"])
def test_a_core_block_type_cannot_be_claimed(name: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}' is a core block type and cannot be claimed"):
        Protocol(name, answer)
    assert not protocols.is_registered(name)


@pytest.mark.parametrize("arguments, error, complaint", [
    *(((name, answer), TypeError, "name must be a string, got") for name in (None, 5)),
    *(((name, answer), ValueError, "must not be blank, or hold quotes, .*, got") for name in ("", " ", 'a"b', "a<b", "a\nb")),
    (("a", None), TypeError, r"handler must be a function of \(block, ctx\), got None"),
    (("a", lambda block: "x"), TypeError, r"handler must be a function of \(block, ctx\): too many positional arguments"),
    (("a", yielding), TypeError, r"handler must be a function of \(block, ctx\), got the generator <function yielding"),
])
def test_a_wrong_argument_of_a_protocol_is_an_error_that_names_it(arguments: Any, error: type[Exception], complaint: str) -> None:
    with pytest.raises(error, match=complaint):
        Protocol(*arguments)


# ------------------------------------------------------------------------------------------------- the registry


def test_a_protocol_can_be_registered_found_and_removed() -> None:
    registry = ProtocolRegistry()
    made = registry.register("tickets", answer, documentation="How to ask.")
    assert made == Protocol("tickets", answer, "How to ask.")
    assert registry.find("tickets") is made
    assert "tickets" in registry
    assert registry.all() == [made] == list(registry)
    assert len(registry) == 1
    assert registry.unregister("tickets") is made
    assert registry.unregister("tickets") is None
    assert "tickets" not in registry
    registry.register("a", answer)
    registry.reset()
    assert registry.all() == []
    assert registry, "it is true even if it is empty"
    assert 5 not in registry


@pytest.mark.parametrize("arguments, complaint", [
    (("a",), r"handler must be a function of \(block, ctx\), got None"), ((5,), "takes a Protocol or a name, got int"),
    ((Protocol("a", answer), answer), "only with a name: a Protocol has its own"),
])
def test_registering_anything_but_a_protocol_is_refused(arguments: Any, complaint: str) -> None:
    with pytest.raises(TypeError, match=complaint):
        ProtocolRegistry().register(*arguments)


# ---------------------------------------------------------------------------------------------------- in a run

def test_the_decorator_registers_a_function_by_its_name_and_docstring_and_returns_it() -> None:
    @protocol
    def ticketing(block: Block, ctx: SkillContext[Any]) -> str:
        """Tickets by number."""
        return f"ticket {block.content}"

    @protocol()
    def orders(block: Block, ctx: SkillContext[Any]) -> str:
        return block.content

    @protocol("tickets", documentation="How to ask.")
    def handler(block: Block, ctx: SkillContext[Any]) -> str:
        """Not this."""
        return answer(block, ctx)

    assert protocols.all() == [
        Protocol("ticketing", ticketing, "Tickets by number."), Protocol("orders", orders), Protocol("tickets", handler, "How to ask.")]
    result = execute(Agent(instructions="", provider=MockProvider('<block type="ticketing">5</block>', "<final>x</final>")), "x")
    assert result.messages[2].text == '<block type="result" name="ticketing">ticket 5</block>'


def test_a_handler_without_a_name_must_be_given_one() -> None:
    handler = partial(answer)
    for decorate in (protocol, protocol()):
        with pytest.raises(TypeError, match="a protocol's name must be a string, got NoneType"):
            decorate(handler)
    assert protocol("ticketing", register=False)(handler) is handler
    assert protocols.names == []
