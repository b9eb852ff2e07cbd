"""What a `Trusted` input of a call may hold: values that the user or the host brought into the run.

One `Trust` belongs to each run and sub-run of a root in which some skill asks for it; other runs have none. It keeps
what cannot be read from the conversation: instructions, `Context.trust`, results of skills that vouch for theirs, and
what people wrote when they decided. What counts is what was there when the response was written, so calls of one
response never count for each other. All of it is on record, or follows from what is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from kernai.blocks.parser import parse
from kernai.events import ApprovalGivenRow, RunStartRow, SkillResultRow, TrustAddedRow
from kernai.inputs.trusted import Leaf, Words, contacts, folded, leaves
from kernai.loop.decision import FORGED
from kernai.values.result import UntrustedValue

if TYPE_CHECKING:
    from kernai.blocks.plan import Task
    from kernai.events import Row
    from kernai.loop.run_state import Run
    from kernai.registry.skill_definition import Skill
    from kernai.values.message import Message

OWN = "which the model made up"
_PASSED_ON = "which is in a text from outside that the user passed on"
_OF_INSTRUCTIONS = "which is in a text from outside in the instructions"


@dataclass(slots=True)
class _Vouched:
    """A result of a skill that vouches for its values; those of `field` only where `key` occurs in the user's words."""

    step: int
    values: list[str]
    pairs: list[tuple[str, str]]  # of a key and what it vouches for


class Trust:
    """What one scope may trust, on top of `outer`: what its parent had when this scope began."""

    __slots__ = (
        "_added", "_decided", "_outer", "_outer_outside", "_run", "_vouched", "instructions", "of_tasks", "sent",
    )

    def __init__(self, run: Run, *, has_read_outside: bool = False) -> None:
        self._run = run
        self._outer: tuple[str, ...] = ()
        self._outer_outside = has_read_outside
        #: texts with the step from whose end on they count
        self._added: list[tuple[int, str]] = []
        self._vouched: list[_Vouched] = []
        self._decided: list[ApprovalGivenRow] = []
        self.instructions = ""
        #: what tasks of a plan have brought in, for those that depend on them
        self.of_tasks: dict[str, list[str]] = {}
        #: the parameters of calls as the model sent them, by call id
        self.sent: dict[str, Mapping[str, object]] = {}

    # ------------------------------------------------------------------------------------------- what is brought in

    def begin_below(self, outer: Trust, task: Task | None = None, *, is_said: bool = False) -> None:
        """A sub-run begins with what its parent has; a task also with what the tasks that it depends on brought in.

        `is_said`: the host wrote the task.
        """
        own = [task.input] if task is not None and is_said else []
        needed = () if task is None else task.depends_on
        self._outer = (*outer.texts(), *own, *(text for one in needed for text in outer.of_tasks.get(one, ())))
        self._outer_outside = bool(needed) or outer.has_read_outside()

    def at_start(self) -> list[str]:
        """What the host trusts before the run has begun, for its `run_start`; of a run on record, that is there."""
        texts = [] if self._run.gate.is_on_record() else self._of_host()
        self.add(texts)
        return texts

    def note_instructions(self) -> None:
        """Records instructions that have changed: a run that is resumed tomorrow may have others."""
        said = self._run.instructions
        if said != self.instructions:
            self.instructions = said
            self._run.write(TrustAddedRow([said], "instructions"))

    def restore(self, rows: Iterable[Row]) -> None:
        """What is on record: of the host, and of people who decided."""
        for row in rows:
            if isinstance(row, TrustAddedRow) and row.by == "instructions":
                self.instructions = "\n\n".join(row.texts)
            elif isinstance(row, TrustAddedRow):
                self.add(row.texts, row.place[0] or 0)
            elif isinstance(row, RunStartRow):
                self.add(row.trusted or ())
            elif isinstance(row, ApprovalGivenRow) and row.trusted is not False:
                self._decided.append(row)

    def note_host(self, *, before_response: bool = False) -> TrustAddedRow | None:
        """What `Context.trust` has added since the last time; it counts from the next response on.

        `before_response`: this step has none yet.
        """
        texts = self._of_host()
        if not texts:
            return None
        self.add(texts, self._run.step - before_response)
        return TrustAddedRow(texts, "context")

    def _of_host(self) -> list[str]:
        given, self._run.context.trusted = self._run.context.trusted, ()
        return list(given)

    def add(self, texts: Iterable[str], step: int = -1) -> None:
        """What the host or a person brings in; without a `step` it counts at once."""
        self._added += [(step, text) for text in texts]

    def take_back(self, below: Trust, task_id: str | None) -> None:
        """What a sub-run that has ended brought in counts for its parent from the next response on."""
        texts = list(below._own())
        self.add(texts, self._run.step)
        if task_id is not None:
            self.of_tasks[task_id] = texts

    def vouch(self, skill: Skill, row: SkillResultRow) -> None:
        """Reads the recorded result of a skill with `directory` or `creates`."""
        step, result = self._run.step, row.result
        data: Any = [one for one in result if isinstance(one, str)] if isinstance(result, list) else None
        if isinstance(result, str):
            with suppress(ValueError, RecursionError):
                data = json.loads(result)
        if skill.creates:
            made = result if skill.creates is True else data.get(skill.creates) if isinstance(data, dict) else None
            if isinstance(made, (int, float)) or (isinstance(made, str) and len(made.split()) == 1):
                self._vouched.append(_Vouched(step, [str(made)], []))
                return
        elif isinstance(data, list) and skill.directory is True:
            self._vouched.append(_Vouched(step, [str(one.value) for one in leaves({}, data, data)], []))
            return
        elif isinstance(data, list):
            value_of, key = skill.directory if isinstance(skill.directory, tuple) else ("", "")
            self._vouched.append(_Vouched(step, [], list(_pairs(data, value_of, key))))
            return
        run = self._run
        flag = "creates" if skill.creates else "directory"
        run.root.warn(f"{flag}.unreadable", run_id=run.root.run_id, skill=skill.name,
                      reason=f"the result has not the form that {flag}= announces: nothing of it is trusted")

    # --------------------------------------------------------------------------------------------------- what counts

    def texts(self) -> Iterator[str]:
        """All that counts for the response that is being carried out."""
        said = [*self._outer, self.instructions, *self._said()]
        yield from said
        yield from self._own(self._run.step, said)

    def _said(self) -> Iterator[str]:
        """What the user wrote in this conversation."""
        for message in self._before():
            if message.role == "user" and message.by in ("user", None) and not _holds_results(message):
                for at, part in enumerate(message.content):
                    if isinstance(part, str) and at not in message.outside:
                        yield part

    def _own(self, before: int | None = None, said: Iterable[str] | None = None) -> Iterator[str]:
        """What was brought in here; `before` a step, or all of it."""
        yield from (text for step, text in self._added if before is None or step < before)
        for row in self._decided:
            yield from _said_in(row.decision, self.sent.get(row.call_id))
        words = None
        for one in self._vouched:
            if before is not None and one.step >= before:
                continue
            yield from one.values
            if one.pairs:
                words = words or Words([*self._outer, self.instructions, *self._said()] if said is None else said)
                yield from (value for key, value in one.pairs if words.hold(key))

    def _before(self) -> list[Message]:
        """The conversation as it was when the response was written."""
        messages = self._run.conversation.messages
        last = next((at for at in range(len(messages) - 1, -1, -1) if messages[at].role == "assistant"), len(messages))
        return messages[:last]

    def has_read_outside(self) -> bool:
        """Whether the model had read text from outside."""
        system, foreign = self._run.system, self._run.setup.foreign()
        return self._outer_outside or bool(foreign or (system and system.outside)) or any(
            message.by == "tool" or message.outside or (message.by is None and _holds_results(message))
            for message in self._before() if message.role == "user"
        )

    # ------------------------------------------------------------------------------------------------ what is doubted

    def untrusted(self, skill: Skill, call_id: str, arguments: Mapping[str, Any]) -> list[UntrustedValue]:
        """The values of a call that a person must agree to, each once."""
        words = Words(self.texts())
        acts = skill.acts and self.has_read_outside()
        found: dict[tuple[str, str], UntrustedValue] = {}
        has_trusted = False
        for leaf in leaves(skill.table.whole, self.sent.get(call_id, arguments), arguments):
            has_trusted = has_trusted or leaf.trusted
            for value in _doubted(leaf, words, acts=acts):
                found[leaf.path, value] = UntrustedValue(leaf.path, value, self._source(value))
        if acts and not has_trusted and not skill.table.is_marked and not found:
            return [UntrustedValue("", "", "it acts on others, and text from outside has been read")]
        return list(found.values())

    def _source(self, value: str) -> str:
        wanted = folded(value)
        for message in reversed(self._before()):
            if message.role == "user" and wanted and wanted in folded(message.text):
                if message.by == "user":
                    return _PASSED_ON if message.outside else OWN
                named = next((one.name for one in parse(message.text).blocks if one.name), None)
                return f"which is in the result of `{named}`" if named else "which is in a result"
        system = self._run.system
        return _OF_INSTRUCTIONS if system and system.outside and wanted in folded(system.text) else OWN


#: typed amounts and moments: their digits are no account numbers
_NO_CONTACTS = (float, Decimal, date, time, timedelta)


def _doubted(leaf: Leaf, words: Words, *, acts: bool) -> Iterator[str]:
    if leaf.trusted:
        if not words.hold(leaf.value):
            yield str(leaf.value)
    elif acts and not isinstance(leaf.value, _NO_CONTACTS):
        for one in contacts(str(leaf.value)):
            if not words.hold_contact(one):
                yield one.text


def _pairs(items: list[Any], value: str, key: str) -> Iterator[tuple[str, str]]:
    """Of each item its key and value, where no other item has the key."""
    rows = [one for one in items if isinstance(one, dict) and {value, key} <= one.keys()]
    keys = [folded(str(one[key])) for one in rows]
    for one, name in zip(rows, keys, strict=True):
        if keys.count(name) == 1:
            yield name, str(one[value])


def _said_in(decision: bool | str | Mapping[str, Any], sent: Mapping[str, object] | None) -> Iterator[str]:
    """The texts that somebody wrote with a decision: a reason, an answer, parameters that the model had not `sent`."""
    if isinstance(decision, bool):
        return
    params = decision.get("params") if isinstance(decision, Mapping) else None
    given: Any = decision if isinstance(decision, str) else decision.get("answer") if params is None else params
    of_model: set[str] = set()
    if params is not None:
        if sent is None:
            return
        of_model = {folded(str(one.value)) for one in leaves({}, sent, sent)}
    yield from (text for text in (str(one.value) for one in leaves({}, given, given)) if folded(text) not in of_model)


def _holds_results(message: Message) -> bool:
    """Whether a message that nobody has signed has blocks of the runtime in it."""
    return message.by is None and any(one.type in FORGED for one in parse(message.text).blocks)
