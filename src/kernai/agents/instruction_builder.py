"""The text of the system message: the agent's own instructions, then what the protocol needs, and no more.

The wording suits small models, too: short sentences, one rule per line, every rule with an example. A section is only
included if it applies. For an agent without skills and protocols, the instructions are the whole message.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernai.agents.setup import Setup
    from kernai.values.model import Model

FORMAT = """\
## How to act: blocks

You act by writing blocks. A program reads them, runs them and sends you the results. Text outside blocks does nothing.

<block type="command" name="SKILL">PARAMETERS</block>   runs a skill; PARAMETERS is a JSON object
<block type="final">ANSWER</block>   gives your answer and ends the task
<block type="plan">TEXT</block>   your own notes on what to do next; runs nothing
<block type="json">DATA</block>   structured data for the program; runs nothing

Rules:
1. Every response must contain at least one block that does something: a command or the final block.
2. Never announce what you are about to do. Do it in the same response. Wrong: "I will look that up." Right: the \
command block itself.
3. Blocks run in the order in which you write them. You may write several commands in one response.
4. After a command, stop and wait. The next message contains <block type="result" name="SKILL">…</block>, or \
<block type="error" name="SKILL">…</block>, which says what was wrong: correct it and try again.
5. Only the program writes results, errors and media. Never write such blocks yourself or invent what is in them.
6. Write the final block only when you have what you need, in a response without commands. Put the whole answer in it.
7. Write both tags of every block, even with nothing between them. Do not put blocks in code fences.
8. Use only skills that exist. Do not guess names or parameters: """
ASK = "run /skills."
LOOK = "they are listed below."

EXAMPLE = """\
Example:
<block type="command" name="weather">{"city": "Lyon"}</block>
Next message: <block type="result" name="weather">18 °C, rain</block>
<block type="final">It is 18 °C in Lyon, and it rains.</block>"""

BUILTINS = """\
Built-in commands, with nothing between the tags:
<block type="command" name="/skills"></block>   lists the skills, their parameters and how to call them"""
PROTOCOLS_BUILTIN = '<block type="command" name="/protocols"></block>   explains the protocols'
WORKFLOW_BUILTINS = """\
<block type="command" name="/workflow"></block>   explains how to give tasks to sub-agents
<block type="command" name="/tasks"></block>   shows the tasks and their results"""

PROTOCOLS = """\
## Protocols

Besides skills, you can use these protocols: {names}. A request is a block whose type is the protocol's name; the \
answer comes back as a result block. Run /protocols before you use one for the first time.
<block type="{example}">REQUEST</block>"""

WORKFLOW = """\
## Workflows

For work that can be split into independent parts, write one plan block with JSON, and nothing else in that response. \
Each task goes to a sub-agent with your skills; the results come back together. Run /workflow for the details.
<block type="plan">{"goal": "…", "strategy": "parallel", "tasks": [{"id": "a", "input": "what to do"}]}</block>"""

READ = '<block type="command" name="/read">NAME</block>, or NAME FILE for a file that they mention.'

MEDIA_INPUT = """\
## Media you can perceive

You perceive {kinds} content directly. In a result, {reference}. To give it to a {skill}, pass that id."""
REFERENCE = 'a tag with its id comes before it: <block type="media" id="media_…" kind="{first}" mime="…"/>'
NATIVE_REFERENCE = "its id comes before it: [media_…: {first}]"

MEDIA_OUTPUT = """\
## Media you can produce

You can produce {kinds} output yourself. Do so when the task asks for it, and say in {answer} what you made."""

WORKFLOW_HELP = """\
A workflow gives tasks to sub-agents that work for you. Write one plan block whose content is a JSON object:

<block type="plan">{"goal": "compare two suppliers", "strategy": "mixed", "tasks": [
  {"id": "a", "input": "Find the prices of supplier A", "parallel": true},
  {"id": "b", "input": "Find the prices of supplier B", "parallel": true},
  {"id": "compare", "input": "Compare the prices and name the cheaper one", "depends_on": ["a", "b"]}]}</block>

- tasks: at least one. Each needs an id (text, used once) and an input (text: everything the sub-agent is told).
- depends_on: ids of tasks whose results this one needs; they are put before its input. No cycles.
- parallel: true if the task may run at the same time as others (for strategy mixed).
- strategy: parallel (all at once), sequential (one by one), mixed (each task's own flag; the default).

Each sub-agent has your skills and cannot start workflows itself. All results come back in one message:
<block type="result" name="tasks">{"a": "…", "b": "…", "compare": "…"}</block>
The result of a task that failed begins with "error:"; the others continue. In the response with the plan, write no \
command and no final."""


def system_text(setup: Setup, instructions: str, *, native: bool = False) -> str:
    """The text of the system message. A model that calls natively gets its tools and the answer's type elsewhere."""
    answer = "" if native or setup.answer_type is None else setup.answer_type.section()
    if not setup.can_call:
        return f"{instructions}\n\n{answer}" if answer else instructions
    if native:
        sections = [
            instructions,
            *_media(setup.model, NATIVE_REFERENCE, "tool", "your answer"),
            setup.know_how.section("call the tool read with its name.") if setup.know_how else "",
        ]
    else:
        names = [protocol.name for protocol in setup.protocols.visible()]
        builtins = [BUILTINS, PROTOCOLS_BUILTIN if names else "", WORKFLOW_BUILTINS if setup.workflows else ""]
        sections = [
            instructions,
            FORMAT + (LOOK if setup.listing else ASK),
            "\n".join(filter(None, builtins)),
            EXAMPLE,
            PROTOCOLS.format(names=", ".join(names), example=names[0]) if names else "",
            WORKFLOW if setup.workflows else "",
            *_media(setup.model, REFERENCE, "skill", "the final block"),
            f"## Skills\n\n{setup.listing}" if setup.listing else "",
            setup.know_how.section(READ) if setup.know_how else "",
            answer,
        ]
    return "\n\n".join(filter(None, sections))


def _media(model: Model, reference: str, skill: str, answer: str) -> Iterator[str]:
    for section, kinds in (MEDIA_INPUT, model.supported_media_inputs), (MEDIA_OUTPUT, model.supported_media_outputs):
        if kinds:
            named = " and ".join(filter(None, [", ".join(kinds[:-1]), kinds[-1]]))
            yield section.format(kinds=named, reference=reference.format(first=kinds[0]), skill=skill, answer=answer)
