"""Blocks as values, those that the runtime writes to the model, and that text from outside cannot pass for them."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernai import Agent, Block, Media, Message, MockProvider, NativeCall, Protocol, Skill, neutralize, parse
from kernai.blocks.block import error_block, result_block, result_parts
from kernai.errors import error_text
from kernai.testing import ByHand
from tests.blocks.parser_cases import FRAGMENTS, events_of
from tests.loop.loop_cases import command

ACTING = ("block", "command", "final", "plan")
PICTURE = Media.from_bytes(b"p", mime_type="image/png")


def test_the_markup_of_a_block_is_read_back_as_that_block() -> None:
    block = Block("command", "a 'name'\\ &amp;", ' {"a": "<b>"} <block type=\\"x\\"></block>\n')
    assert parse(f"a{block}b{block}").blocks == [block, block]


@pytest.mark.parametrize("block, markup", [
    (Block("final"), '<block type="final"></block>'),
    (Block("final", None, "<b>&amp;\n"), '<block type="final"><b>&amp;\n</block>'),
    (Block("command", "", "x"), '<block type="command" name="">x</block>'),
    (Block("a<b", 'say "hi" & <go>'), '<block type="a&lt;b" name="say &quot;hi&quot; & &lt;go&gt;"></block>'),
    (Block("a\nb", "\t\x00\x7f\x9fé"), '<block type="a b" name="    é"></block>'),
])
def test_the_markup_of_a_block_has_escaped_attributes_and_raw_content(block: Block, markup: str) -> None:
    assert str(block) == markup


def test_a_block_is_a_value_that_cannot_be_changed() -> None:
    block = Block("command", "a", "x")
    assert block == Block(type="command", name="a", content="x")
    assert hash(block) == hash(Block("command", "a", "x"))
    assert block not in (Block("command", "a"), Block("command", None, "x"), Block("final", "a", "x"), str(block), None)
    assert [repr(kind("command", "a", "x")) for kind in (Block, NativeCall)] == [
        f"{name}(type='command', name='a', content='x')" for name in ("Block", "NativeCall")]
    assert block.with_content("y") == Block("command", "a", "y")
    for attribute in ("type", "name", "content", "more"):
        with pytest.raises(AttributeError):
            setattr(block, attribute, "y")
    match block:
        case Block(kind, name, content="x"):
            assert (kind, name) == ("command", "a")
        case _:
            pytest.fail("a block is matched by its fields")


@pytest.mark.parametrize("name", ACTING)
def test_every_way_to_write_a_tag_that_acts_is_neutralised(name: str) -> None:
    for markup in (
        f"<{name}>", f"</{name}>", f"<{name} x='1'>", f"<{name}\n>", f"</{name} >", f"<{name}/>", f"<{name}",
        f"</{name}", f"<{name}\t/>",
    ):
        assert neutralize(f"a {markup}") == f"a &lt;{markup[1:]}"


@pytest.mark.parametrize("text", [
    "", "plain", "a < b", "<b>bold</b>", "<p/>", "1 <2", "<<", "<!-- -->", "&lt;final>", "<finally>", "<blockquote>",
    "< final>", "<Final>", '<result code="1">ok</result><error/>', "<json>{}</json>",
])  # fmt: skip
def test_other_xml_is_left_unchanged(text: str) -> None:
    assert neutralize(text) == text
    with pytest.raises(TypeError, match="neutralize takes str, got bytes"):
        neutralize(text.encode())  # type: ignore[arg-type]  # the point


PIECES = st.sampled_from([*FRAGMENTS, "<<final>", "<bl", "ock", "<error >"])


@given(st.lists(PIECES, max_size=12).map("".join))
def test_neutralised_text_holds_no_block_that_acts_for_either_parser(text: str) -> None:
    harmless = neutralize(text)
    found = parse(harmless)
    assert {block.type for block in (*found.blocks, found.incomplete) if block is not None} <= {"json", "error"}
    assert {data["type"] for kind, data in events_of(harmless) if kind == "block_start"} <= {"json", "error"}
    assert harmless.replace("&lt;", "<") == text.replace("&lt;", "<")
    assert neutralize(harmless) == harmless


def answer_to(execute: Callable[[], object]) -> Message:
    """The message that a model reads after it has called a skill."""
    agent = Agent(instructions="", skills=[Skill("say", execute=execute)])
    return ByHand(agent, provider=MockProvider(command("say"), "done")).run("Go.").messages[2]


@given(st.lists(PIECES, max_size=12), st.integers(0, 8))
def test_a_result_or_an_error_is_one_block_whatever_was_returned_or_raised(texts: list[str], at: int) -> None:
    def shout() -> None:
        raise RuntimeError(text)

    text = "".join(texts)
    result = Block("result", "say", neutralize(text))
    assert parse(answer_to(lambda: text).text) == ([result], [], None, None)
    error = Block("error", "say", neutralize(text) if text.strip() else "RuntimeError")
    assert parse(answer_to(shout).text) == ([error], [], None, None)
    message = answer_to(lambda: [*texts[:at], PICTURE, *texts[at:]])  # texts that may form a tag together
    assert parse("".join(part for part in message.content if isinstance(part, str))).blocks[:1] == [result]
    assert message.media == (PICTURE,)


def test_blocks_of_the_runtime_are_written_as_the_contract_says() -> None:
    assert result_block("search", "a <b>") == '<block type="result" name="search">a <b></block>'
    assert error_block("search", "no") == '<block type="error" name="search">no</block>'
    assert error_block(None, "no") == '<block type="error">no</block>'
    tag = f'<block type="media" id="{PICTURE.id}" kind="image" mime="image/png"/>'
    assert result_parts("draw", ["a", PICTURE, "b"]) == [result_block("draw", "ab"), tag, PICTURE]


@given(st.text())
def test_an_attribute_is_one_attribute_whatever_the_name(name: str) -> None:
    found = parse(error_block(name, "x") + result_block(name, "x")).blocks
    assert [(block.type, block.content) for block in found] == [("error", "x"), ("result", "x")]
    assert not any(re.search(r'["<>\x00-\x1f]', block.name or "") for block in found)


def test_a_protocol_with_an_odd_name_is_answered_under_it() -> None:
    odd = Protocol("a & b é", lambda *_: "yes")
    agent = Agent(instructions="", protocols=[odd])
    hand = ByHand(agent, provider=MockProvider('<block type="a & b é">x</block>', "done"))
    assert hand.run("Go.").messages[2].text == '<block type="result" name="a & b é">yes</block>'


def noted(error: Exception) -> Exception:
    error.add_note("at most 5")
    error.add_note("see the manual")
    return error


class Silent(Exception):  # noqa: N818 - no error of a program's own
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("error,text", [
    (ValueError("too big"), "too big"), (ValueError(), "ValueError"), (ValueError(" \n"), "ValueError"),
    (KeyError("k"), "KeyError: 'k'"), (Silent(), "Silent"), (OSError(2, "No such file"), "[Errno 2] No such file"),
    (noted(ValueError("too big")), "too big\nat most 5\nsee the manual"), (noted(ValueError()), "ValueError\nat most 5\nsee the manual"),
    (ExceptionGroup("g", [ValueError("a"), ExceptionGroup("h", [KeyError("k"), noted(OSError("c")), Silent()])]),
     "ValueError: a; ExceptionGroup: KeyError: 'k'; OSError: c\nat most 5\nsee the manual; Silent"),
    (ExceptionGroup("g", [OSError("a")] * 5000), "; ".join(["OSError: a"] * 10)),
])  # fmt: skip
def test_an_error_is_shown_by_its_text_or_else_by_its_type(error: Exception, text: str) -> None:
    assert error_text(error) == text
