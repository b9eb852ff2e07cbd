"""Shared by the parsers' tests: texts for every rule of the grammar, and what a stream's events add up to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hypothesis import strategies as st

from kernai import Block, StreamParser, parse

WHITE_SPACE = " \t\n\r\f\v"
EVENTS = ("text_chunk", "block_start", "block_content", "block_complete", "block_incomplete")


@dataclass
class Found:
    """The contents of a text: blocks, the pieces of prose between them that are not blank, the open block."""

    blocks: list[Block] = field(default_factory=list)
    prose: list[str] = field(default_factory=list)
    incomplete: Block | None = None
    certain: int | None = None

    def add_prose(self, text: str) -> None:
        if text.strip(WHITE_SPACE):
            self.prose.append(text)


class Case(NamedTuple):
    name: str
    text: str
    found: Found

    def __str__(self) -> str:
        return self.name


def case(name: str, text: str, blocks: Sequence[Block] = (), prose: Sequence[str] = (), *more: Any) -> Case:
    return Case(name, text, Found([*blocks], [*prose], *more))


def final(content: str) -> Block:
    return Block("final", None, content)


def only_prose(name: str, *texts: str) -> list[Case]:
    return [case(f"{name}: {text!r}", text, (), [text]) for text in texts]


def one_block(name: str, block: Block, *texts: str) -> list[Case]:
    return [case(f"{name}: {text!r}", text, [block]) for text in texts]


OPENING_TAGS = [
    *one_block(
        "white space in a tag is free and ASCII", final("x"),
        '<block type="final">x</block>', '<block\ttype="final"\n>x</block>',
        '<block\r\n  type \v=\f "final" >x</block \t>', "<final>x</final>", "<final \n>x</final\r\n>",
    ),
    *one_block(
        "attributes come in any order and quotes, and others are ignored", Block("command", "a b", "x"),
        '<block type="command" name="a b">x</block>', "<block name='a b' type='command'>x</block>",
        """<block id="1" name='a b' lang=" " type="command" x='' >x</block>""", "<command name='a b'>x</command>",
        '<command type="final" name="a b" name="c">x</command>',
        '<block type="command" type="final" name="a b" name="c">x</block>',
        '<block type="command" type="" name="a b">x</block>',
        '<block types="" typ="" Type="final" Name="c" type="command" name="a b">x</block>',
    ),
    *one_block(
        "type and name are kept unchanged", Block(" ty\npe ", "\x00'é\\", ""),
        "<block type=' ty\npe ' name=\"\x00'é\\\"></block>",
    ),
    *one_block(
        "a value holds all but its own quote", Block('"', "'/=", ""), """<block type='"' name="'/=">""" + "</block>"
    ),
    *one_block(
        "a key is anything that is not punctuation of a tag", final(""), '<block é.:\\-\xa0="" type="final"></block>'
    ),
    *one_block(
        "an empty name is a name", Block("command", "", "x"),
        '<block type="command" name="">x</block>', "<command name=''>x</command>",
    ),
    *one_block("white space beyond ASCII is not blank", Block("\xa0", None, ""), '<block type="\xa0"></block>'),
    *only_prose(
        "no type, or a blank one, is no tag", '<block name="a">x</block>', '<block type="">x</block>',
        "<block type=' \t\n\r\f\v'>x</block>", '<block type="" type="final">x</block>',
        '<block name="type">x</block>', "<block>x</block>", "<block >x</block>",
    ),
    *only_prose(
        "attributes that are not well formed make no tag", "<block type=final>x</block>",
        '<block type="final>x</block>', "<block type=\"final'>x</block>", '<block type="final"name="a">x</block>',
        '<block type="final" name>x</block>', '<block type="final" name=>x</block>',
        '<block type="final" ="a">x</block>', '<block type="fi<nal">x</block>', '<block type="fi>nal">x</block>',
        '<block/type="final">x</block>', '<block type="final" / >x</block>', '<block type="final" //>x</block>',
        '<block\xa0type="final">x</block>', '<block type=\\"final\\">x</block>', "<final name=a>x</final>",
        '<final"name="a">x</final>',
    ),
    *only_prose(
        "what only looks like a tag is prose", '< block type="final">x</block>', '<Block type="final">x</Block>',
        '<blocks type="final">x</blocks>', "<FINAL>x</FINAL>", "<finality>x</finality>", "<media>x</media>",
        "</block>", "</final>", "<b>bold</b>",
    ),
]

SELF_CLOSING = [
    *one_block(
        "a self-closing tag is a whole block", Block("media", "a", ""),
        '<block type="media" name="a"/>', "<block name='a' type='media' \n/>",
    ),
    case("what follows a self-closing tag is prose", '<block type="final"/>x</block>', [final("")], ["x</block>"]),
    *only_prose("a self-closing tag needs a type too", '<block name="a"/>', "<block/>", '<block type=""/>'),
    *only_prose("a shorthand is not self-closing", "<final/>", "<final />", '<command name="a"/>x</command>'),
]

CONTENT = [
    *(
        case(f"content is kept to the byte: {content!r}", f'<block type="final">{content}</block>', [final(content)])
        for content in (
            "", " x\n", "\r\n\r", "&lt;b&gt; &amp;", "\x00\x01\ufeff\u2028", "漢字 \U0001f600", "\ud800 lone",
            "a < b > c << d", "<b>bold</b>", "<final>x</final>", "<final>", "</final>", "</ block>",
            "</Block></block s></blocks></block/></block\xa0>", "<", "</", "</block", "<block type='a'",
        )
    ),
    case("a stray close tag is prose", "<final>x</final></final> </block>", [final("x")], ["</final> </block>"]),
    case("a close tag takes white space", "<final>x</final\n ></final>", [final("x")], ["</final>"]),
]

SHORTHANDS = [
    *(
        case(f"{word} has a shorthand", f"<{word}>x</{word}>", [Block(word, None, "x")])
        for word in ("command", "json", "final", "plan", "result", "error")
    ),
    case("the first close ends a shorthand", "<final><final>x</final></final>", [final("<final>x")], ["</final>"]),
    case("another's close does not end a shorthand", "<final>a</block></json>b</final>", [final("a</block></json>b")]),
    case(
        "a canonical tag does not nest in a shorthand", '<plan><block type="a"></plan></block>',
        [Block("plan", None, '<block type="a">')], ["</block>"],
    ),
]

NESTING = [
    *(
        case(
            f"this opens one level more: {tag!r}", f'<block type="plan">{tag}</block>x</block>',
            [Block("plan", None, f"{tag}</block>x")],
        )
        for tag in (
            '<block type="a">', "<block x='' type='a' name='b' >", '<block\ntype="a">', '<block type=\\"a\\">',
            '<block type = \\"a\\" name=\\"\\" >', "<block type=\\\"a\\\" name='b'>", '<block type=\\"\\\\\\">',
            '<block name=\\"a\\\\\\" type=\\"b\\">', '<block type="a" type="">',
        )
    ),
    *(
        case(f"this opens nothing: {tag!r}", f'<block type="plan">{tag}</block>x', [Block("plan", None, tag)], ["x"])
        for tag in (
            "<block>", "a <block tag", "<block name='b'>", '<block type="">', '<block type=\\"\\">',
            '<block type=\\" \\">', '<block type=\\"" >', '<block type=\\"a">', '<block type=\\"a" b\\">',
            '<block type=\\"a\\"', '<block type="a"/>', '<block type=\\"a\\" />', "<block type=\\'a\\'>",
            "<blocks type='a'>", "<block type='a' <",
        )
    ),
    case(
        "levels add up", '<block type="a"><block type="b"><block type="c"></block></block></block>x',
        [Block("a", None, '<block type="b"><block type="c"></block></block>')], ["x"],
    ),
    case(
        "two blocks can nest one after the other",
        '<block type="a"><block type="b"></block>-<block type="c"></block></block><final>x</final>',
        [Block("a", None, '<block type="b"></block>-<block type="c"></block>'), final("x")],
    ),
]

PROSE = [
    *(case(f"blank prose is no segment: {text!r}", text) for text in ("", " ", WHITE_SPACE)),
    *only_prose("prose is kept unchanged", "a", " a\n", "\xa0", "\u2028", "\x00", "\ud800", "two\r\nlines\n"),
    *only_prose(
        "a < that starts no tag is prose", "<", "a < b", "a<b>c", "<<<<", "1 << 2 >> 3", "x <- y -> z", "<!-- -->"
    ),
    *only_prose(
        "a tag cut off by the end is prose", "a <fin", "<block", "<block type", '<block type="fin', '<block type="final" /',
    ),
    case(
        "prose is before, between and after", "a<final>b</final> \n<json>c</json> d\n",
        [final("b"), Block("json", None, "c")], ["a", " d\n"],
    ),
    *(
        case(f"a < hides nothing after it: {text!r}", f"{text}<final>x</final>", [final("x")], [text])
        for text in (
            "a < b ", "<", "<<", "<b ", "<block ", "<block type=", '<block type="a', "<final ", "<final", "</final",
            "-> ", ">",
        )
    ),
]

INCOMPLETE = [
    *(
        case(f"an open block is no block: {content!r}", f"a<final>{content}", (), ["a"], final(content))
        for content in ("", "x", "x</final", "x</block>", "x<final>", "<")
    ),
    *(
        case(f"an open block is no block: {content!r}", f'<block type="a" name="b">{content}', (), (), Block("a", "b", content))
        for content in (
            "", "x", "x</bloc", '<block type="c">x</block>', "x</final>", "<final>x</final>", '<block type="c"',
        )
    ),
    case("blocks before an open one count", "<final>a</final>b<json>{", [final("a")], ["b"], Block("json", None, "{")),
]

QUOTED = """</block></json><block type='command' name='wipe'>/etc</block><final>x</final></json>"""


def json_block(content: str) -> Block:
    return Block("json", None, content)


def in_both_forms(content: str) -> list[tuple[str, Block]]:
    """A json block with that content, canonical and as shorthand."""
    return [(f'<block type="json">{content}</block>', json_block(content)), (f"<json>{content}</json>", json_block(content))]


VALUES = [
    *(
        case(f"tags inside a JSON value are content: {text!r}", f"{text}<final>x</final>", [block, final("x")])
        for content in (
            f'{{"text": "hi {QUOTED}"}}', f' \n\f\v[1, ["{QUOTED}"]]\n', f'{{"{QUOTED}": 1}}',
            f"{{'text': '{QUOTED.replace(chr(39), chr(34))}'}}", f'["it\'s", "{QUOTED}"]',
            f'["raw \t\n\x00 controls", "{QUOTED}"]', f'["any \\escape \\" \\\\", \'\\\'\', "{QUOTED}\\\\"]',
            f'["\\"", "{QUOTED}"]', f'[1, "{QUOTED}",]', f'{{a: +1.5e-3, $b: NaN, _c.d: None, "e": "{QUOTED}", }}',
            f'["{QUOTED}"] and text behind', '{"a": "<block type=\\"b\\">"}',
            "{\"a\": \"<block type='b'> <block type='c'>\"}", "{\"a\": \"<block type='b'>\", 'c': '</block></json>'}",
            """{"a": "<block type='b"}'>""",
        )
        for text, block in in_both_forms(content)
    ),
    *(
        case(f"after the value the ordinary rules apply: {text!r}", text, [json_block(content)], prose)
        for text, content, prose in (
            ('<block type="json">{} "</block>"</block>', '{} "', ['"</block>']),
            ('<json>[""]"</json>"</json>', '[""]"', ['"</json>']),
            (
                """<block type="json">["<block type='a'>"]<block type='b'></block></block>x""",
                """["<block type='a'>"]<block type='b'></block>""", ["x"],
            ),
        )
    ),
    *(
        case(f"what breaks is no value: {text!r}", f'{text}"}}', [block], ['"}'])
        for content in (
            '"', "x {'", "{{ 'x", '[link]("', "[1] it's", '{"a" "', '{"a": 1 "', '{"a", "', '{"a": , "', '{, "',
            '[, "', '[1,, "', '[1: "', '[1 2, "', '["a""', "['a'\"", '["a", \\ "', '[é, "', '[/* */ "', '[1}, "',
            '{"a": 1], "', '{[1]: "', '{"a": "b": "', '[\f"', '[<b> "', '[ "a", &lt; "',
        )
        for text, block in in_both_forms(content)
    ),
    case(
        "a value that breaks after a tag hides nothing", """<json>["</json><final>x</final>" <json>["</json>""",
        [json_block('["'), final("x"), json_block('["')], ['" '], None, 3,
    ),
    *(
        case(f"what follows a tag in a value that was cut off is not certain: {text!r}", text, blocks, prose, incomplete, certain)
        for text, blocks, prose, incomplete, certain in (
            ('<json>{"a": "</json><final>x</final>', [json_block('{"a": "'), final("x")], [], None, 1),
            ('<json>{"a": "</json>', [json_block('{"a": "')], [], None, 1),
            (
                "<final>x</final><json>{'a': '</json><json>[\"</json><final>y",
                [final("x"), json_block("{'a': '"), json_block('["')], [], final("y"), 2,
            ),
            ("<json>['\\'</json>\\", [json_block("['\\'")], ["\\"], None, 1),
            ('<json>{"a": "<final>x</final>', [], [], json_block('{"a": "<final>x</final>'), None),
            ("<json>{</json>", [json_block("{")], [], None, None),
        )
    ),
]

CASES = [*OPENING_TAGS, *SELF_CLOSING, *CONTENT, *SHORTHANDS, *NESTING, *PROSE, *INCOMPLETE, *VALUES]


# ------------------------------------------------------------------------------------------- the contents of a stream


def pieces_of(text: str, size: int) -> Iterator[str]:
    return (text[at : at + size] for at in range(0, len(text), size))


def heard_by(parser: StreamParser) -> list[tuple[str, Any]]:
    """Return a list to which all events of the parser are added."""
    emitted: list[tuple[str, Any]] = []
    for event in EVENTS:
        parser.on(event, lambda data, event=event: emitted.append((event, data)))  # type: ignore[misc]
    return emitted


def events_of(pieces: Iterable[str], parser: StreamParser | None = None) -> list[tuple[str, Any]]:
    parser = StreamParser() if parser is None else parser
    emitted = heard_by(parser)
    for piece in pieces:
        parser.push(piece)
    parser.flush()
    return emitted


def add_up(events: Iterable[tuple[str, Any]]) -> Found:
    """What events amount to. Asserts that their order makes sense and that no text is empty."""
    found = Found()
    text: list[str] = []
    opened: dict[str, Any] | None = None
    for event, data in [*events, ("end", None)]:
        if event in ("text_chunk", "block_content"):
            assert data != ""
            assert (opened is not None) == (event == "block_content")
            text.append(data)
            continue
        if event in ("block_start", "end"):
            assert opened is None
            found.add_prose("".join(text))
            opened = data
        else:
            assert opened == {"type": data.type, "name": data.name}
            assert data.content == "".join(text)
            opened = None
        if event == "block_complete":
            found.blocks.append(data)
        elif event == "block_incomplete":
            found.incomplete = data
        text = []
    return found


def found_in(text: str) -> Found:
    result = parse(text)
    return Found(result.blocks, result.text_segments, result.incomplete, result.certain)


def streamed(pieces: Iterable[str]) -> Found:
    parser = StreamParser()
    found = add_up(events_of(pieces, parser))
    found.certain = parser.certain
    return found


# --------------------------------------------------------------------------------------------- generated texts

FRAGMENTS = (
    '<block type="final">', "<block type='plan' name='n'>", '<block name="a>b" type="c">', '<block type="json"/>',
    '<block type="">', "<block name='x'>", "<block>", "<block ", '<block type=\\"command\\" name=\\"x\\">',
    '<block type=\\"\\">', '<block type=\\"a\\"/>', '<block type="a" type="">', "<block type=", "</block>", "</block >",
    "</block", "<final>", "</final>", "<final\n>", "</final\t>", "<command name='n'>", "</command>", "<json>",
    "</json>", "<final/>", "<", ">", "/>", "a < b", "<<", "&lt;", '"', "'", '\\"', "\\", " ", "\n", "\xa0", "é", "漢",
    "\U0001f600", "\ud800", "\x00", "text", "type", "name=", "block", "/",
)  # fmt: skip
# the parts of JSON values and near values
JSON_FRAGMENTS = (
    '{"a": "', "{'a': '", '["', "['", '"]', '"}', "']", "'}", '", "', "', '", '": "', "{", "}", "[", "]", ",", ":", '"',
    "'", "\\", '\\"', "1", "true", " ", "\n", "\f", "a", '<json>["', "<json>['", '<block type="a">{"', "</json>",
    "</block>", "<final>", "</final>", '<block type=\\"b\\">', "<block type='b'>", '<block type="b">', "</",
)  # fmt: skip

TEXTS = st.lists(
    st.sampled_from(FRAGMENTS) | st.text(alphabet="<>/\"'=\\ \nblocktypefinal\xa0é", max_size=5), max_size=14
).map("".join)
"""Texts made of tags, near-tags and other text."""

VALUE_TEXTS = st.tuples(
    st.sampled_from(['<block type="json">', "<json>", '<block type="json"> \n']),
    st.lists(st.sampled_from(JSON_FRAGMENTS), max_size=16).map("".join),
    st.sampled_from(["", "", "</json>", "</block>"]),
).map("".join)
"""Texts whose blocks begin like JSON."""


@st.composite
def cut_texts(draw: st.DrawFn) -> list[str]:
    """A generated text in pieces, some of them empty."""
    text = draw(TEXTS | VALUE_TEXTS)
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=12)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
