"""Which values the `Trusted` inputs of a call may contain: those that came from the user or the host.

If a skill needs it, each run and sub-run of a root run has a `Trust`; otherwise none has. It keeps the trusted texts
that are not in the conversation: instructions, `Context.trust`, results of skills with `directory` or `creates`, and
what people wrote with their decisions. Only text that existed when the response was written counts, so the calls of one
response never count for each other. All of this is in the recording, or follows from it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date, time, timedelta
from decimal import Decimal
from math import inf
from typing import TYPE_CHECKING, Any

from kernai.blocks.parser import parse
from kernai.events import ApprovalGivenRow, Row, RunStartRow, SkillResultRow, TrustAddedRow
from kernai.inputs.trusted import Leaf, SourcedText, SourcedTexts, contacts, folded, leaves, number_in
from kernai.jsonio.json_data import jsonable
from kernai.loop.decision import FORGED
from kernai.values.pending_calls import UntrustedValue

if TYPE_CHECKING:
    from kernai.blocks.plan import Task
    from kernai.loop.run_state import Run
    from kernai.registry.skill_definition import Skill
    from kernai.values.message import By, Message

OWN = "which the model made up"
_PASSED_ON = "which is in a text from outside that the user passed on"
_OF_INSTRUCTIONS = "which is in a text from outside in the instructions"
#: sources of trusted values
_INPUT, _EARLIER = "the user's input", "the user's messages in the history"
_INSTRUCTIONS, _CONTEXT = "the instructions", "what `Context.trust` added"


class Trust:
    """The trusted texts of one scope, in addition to those that its parent had when this scope began."""

    def __init__(self, run: Run) -> None:
        self._run = run
        #: of a sub-run: the parent's `Trust`, the workflow's task if it is one, and whether the host wrote that task
        self.parent: tuple[Trust, Task | None, bool] | None = None
        #: the parent's texts; those of a task also from the tasks on which it depends
        self._outer: tuple[SourcedText, ...] = ()
        self._outer_has_read_outside = bool(run.scope)
        #: texts, each with the step after which it counts
        self._added: list[tuple[int, SourcedText]] = []
        #: values in results of skills with `directory` or `creates`, each with its step; and with a key if it only
        #: counts once the user's words have that key
        self._results: list[tuple[int, SourcedText, str | None]] = []
        self._decided: list[ApprovalGivenRow] = []
        #: how many messages the history has
        self._earlier = 0
        self.instructions = ""
        #: texts that tasks of a plan have brought in, by task id, for the tasks that depend on them
        self.of_tasks: dict[str, list[SourcedText]] = {}
        #: the parameters of calls, by call id: as the model sent them, and converted
        self.sent: dict[str, tuple[Mapping[str, object], Mapping[str, object]]] = {}

    # ------------------------------------------------------------------------------------------- what is brought in

    def at_start(self) -> list[str]:
        """Returns the texts that the host trusts at the start, for the `run_start` event; in a replay none.

        A replay restores them from that event.
        """
        if self.parent is not None:  # read only now: somebody may have decided on this sub-run since it was created
            outer, task, is_given = self.parent
            own = [SourcedText(task.input, f"the input of the task {task.id}")] if task is not None and is_given else []
            needed = () if task is None else task.depends_on
            self._outer = (*outer.texts(), *own, *(text for one in needed for text in outer.of_tasks.get(one, ())))
            self._outer_has_read_outside = bool(needed) or outer.has_read_outside()
        self._earlier = len(self._run.messages)
        return [] if self._run.gate.is_on_record() else self._take_from_context()

    def note_instructions(self) -> None:
        """Records instructions that have changed, because they may be different when the run is resumed."""
        text = self._run.system.host_text
        if text != self.instructions and not self._run.gate.is_on_record():
            self.instructions = text
            self._run.write(TrustAddedRow([text], "instructions"))

    def restore(self, rows: Iterable[Row]) -> None:
        """Restores what the host trusted, and what people decided, from a recording."""
        for row in rows:
            if isinstance(row, TrustAddedRow) and row.by == "instructions":
                self.instructions = "\n\n".join(row.texts)
            elif isinstance(row, TrustAddedRow):
                self._add_of_context(row.texts, row.place[0] or 0)
            elif isinstance(row, RunStartRow):
                self._add_of_context(row.trusted or ())
            elif isinstance(row, ApprovalGivenRow) and row.trusted is not False:
                self._decided.append(row)

    def note_host(self, *, before_response: bool = False) -> TrustAddedRow | None:
        """Returns an event with what `Context.trust` has added since the last time, or None if there is nothing.

        The texts count from the next response on. `before_response`: this step has no response yet.
        """
        texts = self._take_from_context(self._run.step - before_response)
        return TrustAddedRow(texts, "context") if texts else None

    def _take_from_context(self, step: int = -1) -> list[str]:
        given, self._run.context.trusted = list(self._run.context.trusted), ()
        self._add_of_context(given, step)
        return given

    def _add_of_context(self, texts: Iterable[str], step: int = -1) -> None:
        """Adds texts of the host, which count after `step`; without one, they count immediately."""
        self._added += [(step, SourcedText(text, _CONTEXT)) for text in texts]

    def add_from_sub_run(self, below: Trust, task_id: str | None) -> None:
        """Adds what a sub-run that has ended brought in. It counts for the parent from the next response on."""
        texts = list(below._brought_in())
        self._added += [(self._run.step, text) for text in texts]
        if task_id is not None:
            self.of_tasks[task_id] = texts

    def add_result(self, skill: Skill, row: SkillResultRow) -> None:
        """Adds the trusted values in a recorded result: only a skill with `directory` or `creates` returns any."""
        if not skill.directory and not skill.creates:
            return
        result = row.result
        data: Any = [one for one in result if isinstance(one, str)] if isinstance(result, list) else None
        if isinstance(result, str):
            with suppress(ValueError, RecursionError):
                data = json.loads(result)
        found: list[tuple[str, str | None]] | None = None  # values, each with its key
        how = ""
        if skill.creates:
            made = result if skill.creates is True else data.get(skill.creates) if isinstance(data, dict) else None
            if isinstance(made, (int, float)) or (isinstance(made, str) and len(made.split()) == 1):
                found, how = [(str(made), None)], "which made it"
        elif isinstance(data, list) and isinstance(skill.directory, tuple):
            found, how = [*_pairs(data, *skill.directory)], f"where the user wrote its {skill.directory[1]}"
        elif isinstance(data, list):
            found, how = [(str(one.value), None) for one in leaves((), data, data)], "a directory"
        if found is None:
            flag = "creates" if skill.creates else "directory"
            reason = f"the result does not have the form that {flag}= declares, so none of it is trusted"
            self._run.root.warn(f"{flag}.unreadable", skill=skill.name, reason=reason)
        else:
            source = f"the result of `{skill.name}`, {how}"
            self._results += [(self._run.step, SourcedText(value, source), key) for value, key in found]

    # --------------------------------------------------------------------------------------------------- what counts

    def texts(self) -> Iterator[SourcedText]:
        """Yields all trusted texts for the response that is being carried out."""
        yield from self._from_user()
        yield from self._brought_in(self._run.step)

    def _from_user(self) -> Iterator[SourcedText]:
        """Yields the user's messages, latest first, then the instructions and what counted when this scope began."""
        for number, message in reversed([*enumerate(self._before())]):
            if message.role == "user" and _author(message) == "user":
                for at, part in enumerate(message.content):
                    if isinstance(part, str) and at not in message.outside:
                        yield SourcedText(part, _EARLIER if number < self._earlier else _INPUT)
        yield SourcedText(self.instructions, _INSTRUCTIONS)
        yield from self._outer

    def _brought_in(self, before: float = inf) -> Iterator[SourcedText]:
        """Yields what was brought into this scope: everything, or only what it had `before` a step."""
        yield from (text for step, text in self._added if step < before)
        for row in self._decided:
            source = f"what {row.by or 'a person'} wrote about call {row.call_id}"
            written = _written_with(row.decision, self.sent.get(row.call_id, ()))
            yield from (SourcedText(text, source) for text in written)
        results = [(text, key) for step, text, key in self._results if step < before]
        words = SourcedTexts(self._from_user() if any(key is not None for _, key in results) else ())
        yield from (text for text, key in results if key is None or words.source_of(key))

    def _before(self) -> list[Message]:
        """Returns the conversation as it was when the response was written."""
        messages = self._run.messages
        last = next((at for at in range(len(messages) - 1, -1, -1) if messages[at].role == "assistant"), len(messages))
        return messages[:last]

    def has_read_outside(self) -> bool:
        outside = self._run.setup.foreign or self._run.system.message.outside
        return self._outer_has_read_outside or bool(outside) or any(
            message.outside or _author(message) == "tool" for message in self._before() if message.role == "user"
        )

    # ------------------------------------------------------------------------------------------------ what is doubted

    def judged(
        self, skill: Skill, call_id: str, arguments: Mapping[str, Any]
    ) -> tuple[list[UntrustedValue], dict[str, str]]:
        """Returns a call's values that a person must agree to, without duplicates; and the others' sources, by path."""
        words = SourcedTexts(self.texts())
        acts = skill.acts and self.has_read_outside()
        doubted: dict[tuple[str, str], UntrustedValue] = {}
        sources: dict[str, dict[str, None]] = {}
        read: SourcedTexts | None = None
        has_trusted = False
        for leaf in leaves([skill.table.whole], self.sent.get(call_id, (arguments,))[0], arguments):
            has_trusted = has_trusted or leaf.trusted
            for value, source in _checked_values(leaf, words, acts=acts):
                if source is None:
                    read = read or SourcedTexts(self.read())
                    found_in = read.source_of_mention(leaf.value if leaf.trusted else value)
                    doubted[leaf.path, value] = UntrustedValue(leaf.path, value, found_in or OWN)
                else:
                    sources.setdefault(leaf.path, {})[source] = None
        if acts and not has_trusted and not skill.table.trusted and not doubted:
            return [UntrustedValue("", "", "it acts on others, and text from outside has been read")], {}
        return list(doubted.values()), {path: " and in ".join(found) for path, found in sources.items()}

    def read(self) -> Iterator[SourcedText]:
        """Yields the untrusted texts that the model has read, the latest first; in a sub-run also its caller's."""
        for message in reversed(self._before()):
            if message.role != "user" or message.by == "runtime":
                continue
            author = _author(message)
            if author == "user":
                for at, part in enumerate(message.content):
                    if isinstance(part, str) and at in message.outside:
                        yield SourcedText(part, _PASSED_ON)
            elif (named := next((one.name for one in parse(message.text).blocks if one.name), None)) is not None:
                yield SourcedText(message.text, f"which is in the result of `{named}`")
            elif author != "model":
                yield SourcedText(message.text, "which is in a result")
        system = self._run.system.message
        if system.outside:
            yield SourcedText(system.text, _OF_INSTRUCTIONS)
        if self.parent is not None:
            yield from self.parent[0].read()


#: types of amounts and times, whose digits are not account numbers
_NO_CONTACTS = (float, Decimal, date, time, timedelta)


def _checked_values(leaf: Leaf, words: SourcedTexts, *, acts: bool) -> Iterator[tuple[str, str | None]]:
    """Yields the values in a leaf that must be trusted, each with its source; None if no trusted text has the value."""
    if leaf.trusted:
        yield str(leaf.value), words.source_of(leaf.value)
    elif acts and not isinstance(leaf.value, _NO_CONTACTS):
        for one in contacts(str(leaf.value)):
            yield one.text, words.source_of_contact(one)


def _pairs(items: list[Any], value: str, key: str) -> Iterator[tuple[str, str]]:
    """Yields the value and key of each item, unless another item has the same key."""
    rows = [one for one in items if isinstance(one, dict) and {value, key} <= one.keys()]
    keys = [folded(str(one[key])) for one in rows]
    count = Counter(keys)
    for one, name in zip(rows, keys, strict=True):
        if count[name] == 1:
            yield str(one[value]), name


def _written_with(decision: bool | str | Mapping[str, Any], of_model: Sequence[Mapping[str, object]]) -> Iterator[str]:
    """Yields what a person wrote with a decision: a reason, an answer, or parameters that are not the model's."""
    if isinstance(decision, bool):
        return
    params = decision.get("params") if isinstance(decision, Mapping) else None
    given: Any = decision if isinstance(decision, str) else decision.get("answer") if params is None else params
    known: set[str | Decimal] = set()
    if params is not None:
        if not of_model:
            return
        # a form may return a value as the model wrote it, or as the form showed it
        known = {form for each in of_model for one in leaves((), each, each) for form in _forms(one)}
    yield from (str(one.value) for one in leaves((), given, given) if known.isdisjoint(_forms(one)))


def _forms(leaf: Leaf) -> Iterator[str | Decimal]:
    """Yields the value of a leaf in the forms in which it may be returned; a number, such as 50 and 50.0, as one."""
    for text in {folded(str(leaf.value)), folded(str(jsonable(leaf.value)))}:
        number = number_in(text)
        yield text if number is None else number


def _author(message: Message) -> By:
    """Who wrote a user message. If unknown: a tool if it answers a call or has a runtime's block or a part of one."""
    if message.by is not None:
        return message.by
    found = parse(message.text)
    types = {one.type for one in (*found.blocks, found.incomplete) if one is not None}
    is_result = message.answers is not None or types & FORGED or any("</block" in one for one in found.text_segments)
    return "tool" if is_result else "user"
