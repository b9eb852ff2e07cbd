"""The ways in which outside text reaches a model, besides a skill's result. Each of them delivers one text."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kernai import Agent, Block, Media, Message, MockProvider, Model, Protocol, Skill, mcp, parse

Answer = Callable[[Sequence[Message], Model], str]

_SERVER = Path(__file__).with_name("framing_server.py")
_TASK = "TASK "


class Brought(NamedTuple):
    """What an agent needs to receive a text from outside, and the response of the model that makes the text arrive."""

    response: str = ""
    skills: Sequence[Skill] = ()
    protocols: Sequence[Protocol] = ()
    workflows: bool = False
    task_says: str = ""

    def around(self, answer: Answer) -> Answer:
        """The model's answers, with `task_says` as the answer of a task of its plan."""
        if not self.task_says:
            return answer
        said = _final(self.task_says)
        return lambda messages, model: said if messages[-1].text == _TASK else answer(messages, model)


Channel = Callable[[str], Brought]


def read_by_model(messages: Sequence[Message]) -> list[str]:
    """The texts in messages: the content of blocks, text in JSON without its quotes, and file names."""
    blocks = [block for message in messages for block in parse(message.text).blocks if block.name != "note"]
    texts = [text for block in blocks for text in _in_json(block.content)]
    return texts + [str(media.data) for message in messages for media in message.media]


def _in_json(text: str) -> list[str]:
    with contextlib.suppress(ValueError):
        value = json.loads(text)
        if isinstance(value, dict):
            return [str(one) for one in value.values()]
    return [text]


@contextlib.contextmanager
def channels() -> Iterator[Mapping[str, Channel]]:
    """The ways by name. The MCP server is a separate process, which ends with the ``with`` block."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "text"
        config = {"servers": {"texts": {"command": sys.executable, "args": [str(_SERVER), str(file)]}}}
        with mcp.setup(config, register=False) as adapter:

            def by_mcp(text: str) -> Brought:
                file.write_text(text, encoding="utf-8")
                asked = {"method": "tools/call", "params": {"name": "read", "arguments": {}}}
                return Brought(str(Block("mcp", None, json.dumps(asked))), protocols=[adapter.protocol])

            yield {
                "MCP": by_mcp, "sub-agent": _by_sub_agent, "task": _by_task, "media name": _by_media_name,
                "exception": _by_exception,
            }  # fmt: skip


def _final(text: str) -> str:
    """An answer with exactly this text: inside the shorthand, other tags are content."""
    return f"<final>{text}</final>"


def _by_sub_agent(text: str) -> Brought:
    answering = Agent(instructions="", provider=MockProvider(_final(text)), protocols=[])
    asked = Block("command", "helper", json.dumps({"input": "Look."}))
    return Brought(str(asked), [answering.as_skill("helper", "looks")])


def _by_task(text: str) -> Brought:
    plan = {"mode": "workflow", "tasks": [{"id": "a", "input": _TASK}]}
    return Brought(str(Block("plan", None, json.dumps(plan))), workflows=True, task_says=text)


def _by_media_name(text: str) -> Brought:
    return _by_skill(lambda: ["One file.", Media.from_file(f"{text}.png")])


def _by_exception(text: str) -> Brought:
    def fails() -> str:
        raise ValueError(text)

    return _by_skill(fails)


def _by_skill(function: Callable[[], Any]) -> Brought:
    return Brought(str(Block("command", "look", "")), [Skill("look", execute=function, inputs={})])
