"""Everything that can happen in a run: one class for each kind of row, and `Event`, a row as readers see it.

The loop writes rows (`Run.write`); all other code reads them. Whatever other code needs to know about a kind is an
attribute of its class, given in the class statement, so a new kind is one class here, written in one place:

- `role` says what a replay does with the row. ``outcome``: it is fed to the loop. ``decision``: it is compared with the
  loop's decision. ``aside``: it is neither fed nor compared, since a replay may not write it again. ``live``: it is
  shown, but never recorded.
- `stored_first`: the row must be in the run's store before anything else is performed.
- `uncompared` names the fields that a replay does not compare. Fields that may hold more than a text or a number are
  converted by `json`; `seal` copies those that other code may still change (`shared_fields`; by default all of them).
  `usage` returns the usage of the model call that the row records.
- `is_warning` says whether the log warns of the row. `group` is its category for a person, and its colour in the
  viewer. ``problem`` means that the model must be corrected, or that something failed.

The fields are the parameters of `__init__`, except keyword-only ones. Fields without a default are always in the data;
those with a default only if they are not None. Names that Python or this module already uses end in ``_``. Annotations
are checked when a recording is read (`read`). The classes are written by hand, with positional parameters: five rows
are created in each step, a dataclass would take three times as long, and keyword-only parameters are slower too. To
save memory, the kinds of which a run has many have slots.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from kernai._util.api import Replaceable, read_only
from kernai.jsonio.json_data import copied, jsonable
from kernai.values.message import ConversationView, MessageDicts
from kernai.values.result import Usage

if TYPE_CHECKING:
    from typing import Self, TypedDict, Unpack

    from kernai.values.message import Message

    class Kind(TypedDict, total=False):
        """What the class statement of a row says about the kind. Only type checkers see this class."""

        type: str
        group: Group
        role: Role
        stored_first: bool
        is_warning: bool

#: the version of the recording format, recorded in each `run_start`; increased if older recordings would be misread
RECORDING_FORMAT = 2

Role = Literal["outcome", "decision", "aside", "live"]
Group = Literal["run", "model", "answer", "call", "flow", "problem", "other"]

#: step, depth, task_id, scope, run_id, and the stop reason if the row is written only because the whole run stops
Place = tuple[int | None, int, str | None, str, str, str | None]

_NONE = type(None)
_Types = tuple[type, ...]
#: the accepted types of values, by the words of their annotation; types that JSON data has come first
_TYPES: dict[str, _Types] = {
    "Any": (object,), "None": (_NONE,), "str": (str,), "int": (int,), "float": (float, int), "bool": (bool,),
    "Mapping[str, Any]": (dict, Mapping), "Sequence[Any]": (list, tuple), "Decided": (bool, str, dict, Mapping),
}
Decided = bool | str | Mapping[str, Any]
_SCALARS = frozenset({str, int, float, bool, _NONE})
_DURATION = frozenset({"duration_ms"})


class Row:
    """One event in a run: `place` says where it happened, `at` when (seconds since 1970, or the recording's text)."""

    __slots__ = ("at", "place")

    type: ClassVar[str] = ""
    role: ClassVar[Role] = "decision"
    stored_first: ClassVar[bool] = True
    uncompared: ClassVar[frozenset[str]] = _DURATION
    shared_fields: ClassVar[tuple[str, ...]] = ()
    is_warning: ClassVar[bool] = False
    group: ClassVar[Group] = "other"
    #: for a live row of a block: the block's number in the response, counted from 0
    block: int | None = None
    #: the slots by their names in `data`; the names that are always in it, the others are left out if they are None
    _slots: ClassVar[Mapping[str, str]] = {}
    _always: ClassVar[frozenset[str]] = frozenset()
    #: what reads all slots
    _values: ClassVar[Any]
    #: each name, its slot, and the accepted types; the names that may hold more than a text or a number
    _checks: ClassVar[Sequence[tuple[str, str, _Types]]] = ()
    _open: ClassVar[Sequence[str]] = ()

    place: Place
    at: float | str

    def __init_subclass__(cls, **kind: Unpack[Kind]) -> None:
        for attribute, value in kind.items():
            setattr(cls, attribute, value)
        if not isinstance(cls.type, str) or not cls.type:
            return  # a base class, or `CustomRow`, where each row has its own type
        code, optional = cls.__init__.__code__, len(cls.__init__.__defaults__ or ())
        cls._slots = {name.rstrip("_"): name for name in code.co_varnames[1:code.co_argcount]}
        cls._always = frozenset(list(cls._slots)[:len(cls._slots) - optional])
        cls._values = attrgetter(*cls._slots.values(), "type")  # one more, since it returns no tuple for a single name
        if cls.read.__func__ is Row.read.__func__:  # type: ignore[attr-defined]  # the data is an object
            annotated = cls.__init__.__annotations__
            cls._checks = [(name, slot, _types(annotated[slot])) for name, slot in cls._slots.items()]
            cls._open = [name for name, _, types in cls._checks if not _SCALARS.issuperset(types)]
            if "shared_fields" not in vars(cls):
                cls.shared_fields = tuple([cls._slots[name] for name in cls._open])
        KINDS[cls.type] = cls

    @classmethod
    def is_problem(cls) -> bool:
        """Whether views of a run show the row as something that went wrong."""
        return cls.is_warning or cls.group == "problem"

    def fields(self) -> Any:
        """The row's data, for kernai's own readers, who must not change it."""
        found, always = zip(self._slots, self._values(self)), self._always  # noqa: B905 - the extra value has no name
        return {name: value for name, value in found if value is not None or name in always}

    def json(self) -> Any:
        """The row's data as JSON data."""
        data = self.fields()
        for name in self._open:
            value = data.get(name)
            if value is not None and type(value) is not str:
                data[name] = jsonable(value)
        return data

    def entry(self) -> dict[str, Any]:
        """The row as JSON data, as `Event.to_dict` returns it."""
        step, depth, task_id, scope, run_id, stop = self.place
        entry: dict[str, Any] = {
            "event": self.type,
            "step": step,
            "depth": depth,
            "task_id": task_id,
            "scope": scope,
            "run_id": run_id,
            "timestamp": stamp(self.at),
        }
        if self.block is not None:
            entry["block"] = self.block
        if stop is not None:
            entry["stop"] = stop
        entry["data"] = self.json()
        return entry

    def seal(self) -> None:
        """Copies values that other code may still change."""
        for slot in self.shared_fields:
            setattr(self, slot, copied(getattr(self, slot)))

    def usage(self) -> Usage | None:
        """The usage of the model call whose end this row records; None for other rows."""
        return self.usage_in(self.fields())

    @staticmethod
    def usage_in(data: Any) -> Usage | None:  # noqa: ARG004 - for two kinds
        """Like `usage`, from the row's data."""
        return None

    @classmethod
    def read(cls, data: Any) -> Self:
        """Creates a row from recorded data. Raises `ValueError` if the data does not match the fields."""
        if not isinstance(data, Mapping):
            raise ValueError(f"its data is a {type(data).__name__}, not an object")  # noqa: TRY004 - the data is at fault
        if not cls._always <= data.keys() <= cls._slots.keys():
            missing = [name for name in cls._slots if name in cls._always and name not in data]
            unknown = [name for name in data if name not in cls._slots]
            raise ValueError(f"it has no {missing[0]!r}" if missing else f"it has an unknown field {unknown[0]!r}")
        given: dict[str, Any] = {}
        for name, slot, types in cls._checks:
            given[slot] = value = data.get(name)
            if type(value) not in types and not _fits(value, types):
                raise ValueError(f"its {name!r} is a {type(value).__name__}")
        return cls(**given)


@cache
def _types(annotation: str) -> _Types:
    return tuple([one for word in annotation.split(" | ") for one in _TYPES[word]])


def _fits(value: object, types: _Types) -> bool:
    return isinstance(value, types) and (type(value) is not bool or int not in types)  # bool is a subclass of int


#: all kinds of rows that this version of kernai writes, by type
KINDS: dict[str, type[Row]] = {}


class _TextRow(Row):
    """A row whose data is only a text."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def fields(self) -> Any:
        return self.text

    @classmethod
    def read(cls, data: Any) -> Self:
        if not isinstance(data, str):
            raise ValueError(f"its data is a {type(data).__name__}, not text")  # noqa: TRY004 - the data is at fault
        return cls(data)


class _ValueRow(Row):
    """A row whose data is any value."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def fields(self) -> Any:
        return self.value

    def json(self) -> Any:
        return jsonable(self.value)

    @classmethod
    def read(cls, data: Any) -> Self:
        return cls(data)


# ------------------------------------------------------------------------------------------ the run and its end


class RunStartRow(Row, type="run_start", group="run"):
    """A run or sub-run begins. `format` is the version of the recording's format. If the caller [supplied the
    plan](workflows.md#a-workflow-of-your-own), it is in `plan`, and `agents` lists the tasks that had an agent
    of their own. `rules` are the options for checking responses; a resume checks the recorded responses with these,
    even if the options have changed. `trusted` are values from `Context.trust`. A root run has the [agent's
    `definition`](replay.md).

    Example: {"run_id": "5f1c", "input": "Where is order 7?", "history": [], "model": "text-only", "agent": "clerk",
    "metadata": {}, "format": 2}
    """

    __slots__ = (
        "agent", "agents", "definition", "format", "history", "input", "metadata", "model", "plan", "rules", "run_id",
        "trusted",
    )
    uncompared = frozenset({"model", "agent", "agents", "metadata", "format", "rules", "definition", "trusted"})
    shared_fields = ("metadata",)

    def __init__(  # noqa: PLR0917 - see the top
        self, run_id: str, input: str | Sequence[Any], history: Sequence[Any], model: str, agent: str | None,
        metadata: Mapping[str, Any] | None, format: int | None = None, plan: Mapping[str, Any] | None = None,
        agents: Sequence[Any] | None = None, rules: Mapping[str, Any] | None = None,
        trusted: Sequence[Any] | None = None, definition: Mapping[str, Any] | None = None,
    ) -> None:
        self.run_id, self.input, self.history, self.model, self.agent = run_id, input, history, model, agent
        self.metadata, self.format, self.plan, self.agents, self.rules = metadata, format, plan, agents, rules
        self.trusted, self.definition = trusted, definition


class InputAddedRow(Row, type="input_added", group="run"):
    """The user's next message in a run that had ended.

    Example: {"input": "Thank you!"}
    """

    def __init__(self, input: str | Sequence[Any]) -> None:
        self.input = input


class FinalRow(_TextRow, type="final", group="answer"):
    """The text of an answer in a `final` block. An answer in prose is only in `result`.

    Example: "Found."
    """


class AnswerRejectedRow(Row, type="answer_rejected", group="problem", is_warning=True):
    """An answer that does not match the [agent's type](answers.md): what is wrong with it, and how many answers have
    been rejected so far.

    Example: {"error": "price: required, but missing: expected number, received nothing", "attempt": 1}
    """

    def __init__(self, error: str, attempt: int) -> None:
        self.error, self.attempt = error, attempt


class StrayCloseRow(Row, type="stray_close", group="problem", is_warning=True):
    """An answer that contains its own closing tag, and therefore ends there. `text` has the first 400 characters after
    the tag. The model is asked to write the answer without that tag.

    Example: {"text": "</code> to close.</block>"}
    """

    def __init__(self, text: str) -> None:
        self.text = text


class ResultRow(Row, type="result", group="run"):
    """The end of a run or sub-run; its last event. `truncated`: the vendor cut the answer off. `repaired`:
    mistakes that were fixed in a typed answer's JSON, and its unknown fields. `raised`: a `Stop` ended the run.

    Example: {"text": "Found.", "stop_reason": "final", "steps": 2, "usage": {"prompt_tokens": 200,
    "completion_tokens": 20, "total_tokens": 220, "cost": null, "model_calls": 2}, "error": null}
    """

    __slots__ = ("error", "raised", "repaired", "steps", "stop_reason", "text", "truncated", "usage_")

    def __init__(
        self, text: str | None, stop_reason: str, steps: int, usage_: Mapping[str, Any], error: str | None,
        truncated: bool | None = None, repaired: Sequence[Any] | None = None, raised: bool | None = None,
    ) -> None:
        self.text, self.stop_reason, self.steps, self.usage_, self.error = text, stop_reason, steps, usage_, error
        self.truncated, self.repaired, self.raised = truncated, repaired, raised


# ------------------------------------------------------------------------------------------------- the model


class MessagesSentRow(Row, type="messages_sent", group="model"):
    """The conversation as it is sent to the model: one dict per message, the system message first.

    Example: [{"role": "system", "content": "…"}, {"role": "user", "content": "Look up tea."}]
    """

    __slots__ = ("_length", "_messages", "_system", "since")

    def __init__(self, messages: ConversationView | Sequence[Any]) -> None:
        # keep the view's contents, not the view: each step would keep another one
        if isinstance(messages, ConversationView):
            self._system: Message | None = messages.system
            self._messages: Sequence[Any] = messages.messages
            self._length = messages.length
        else:
            self._system, self._messages, self._length = None, messages, 0
        #: in a row that was read: how many messages come before these; None if these are all messages
        self.since: int | None = None

    @property
    def messages(self) -> Sequence[Any]:
        """The messages as dicts, created when they are accessed."""
        if self._system is None:
            return self._messages
        return MessageDicts(self._system, self._messages, self._length)

    @property
    def conversation(self) -> object:
        """The run's own list of messages; None in a row that was read."""
        return None if self._system is None else self._messages

    def fields(self) -> Any:
        return self.messages

    def json(self) -> Any:
        return list(map(jsonable, self.messages))

    def entry(self) -> dict[str, Any]:
        entry = super().entry()
        return entry if self.since is None else {**entry, "since": self.since}

    def delta(self, since: int, begin: Sequence[Any]) -> MessagesSentRow:
        """Returns a row with only the messages after the first `since`, and `begin` before them."""
        if self._system is None:
            new = self._messages[since:]
        else:
            new = [message.as_sent() for message in self._messages[since - 1:self._length]]
        short = MessagesSentRow([*begin, *new])
        short.place, short.at, short.since = self.place, self.at, since
        return short

    @classmethod
    def read(cls, data: Any) -> Self:
        if not isinstance(data, (MessageDicts, list, tuple)) or not all(isinstance(one, Mapping) for one in data):
            raise ValueError("its data is not a list of messages")
        return cls(data)


class TextChunkRow(_TextRow, type="text_chunk", role="live"):
    """A piece of prose.

    Example: "One mo"
    """

    __slots__ = ()


class _BlockTagRow(Row, role="live"):
    __slots__ = ("block", "name", "type_")  # `block` instead of the class attribute None

    def __init__(self, type_: str, name: str | None, *, block: int | None = None) -> None:
        self.type_, self.name, self.block = type_, name, block


class BlockStartRow(_BlockTagRow, type="block_start"):
    """A block opens.

    Example: {"type": "final", "name": null}
    """

    __slots__ = ()


class BlockContentRow(_TextRow, type="block_content", role="live"):
    """A piece of a block's content.

    Example: "Foun"
    """

    __slots__ = ("block",)  # instead of the class attribute None

    def __init__(self, text: str, *, block: int | None = None) -> None:
        super().__init__(text)
        self.block = block


class BlockEndRow(_BlockTagRow, type="block_end"):
    """A block was closed. A block that stays open gets a `block_incomplete` instead.

    Example: {"type": "final", "name": null}
    """

    __slots__ = ()


class ModelRestartedRow(Row, type="model_restarted", group="problem", role="aside", is_warning=True):
    """The model started its response again: discard the pieces of this step shown so far.

    Example: {"reason": "the final content differs from what was streamed"}
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason


class ModelWaitingRow(Row, type="model_waiting", group="model", role="live", is_warning=True):
    """A model call failed and is made again after `seconds`. `attempt` counts the retries from 1.

    Example: {"seconds": 20.0, "reason": "openai: HTTP 429 rate_limit_exceeded: slow down", "attempt": 1}
    """

    def __init__(self, seconds: float, reason: str, attempt: int) -> None:
        self.seconds, self.reason, self.attempt = seconds, reason, attempt


class ModelFailedRow(Row, type="model_failed", group="problem", role="outcome", is_warning=True):
    """A model call that failed or was interrupted: the error, the exception's class, the text streamed before
    it, and the usage if the vendor reported it. `model_calls`: how often it was made, if more than once.
    `stop_reason`: the call raised a `Stop`.

    Example: {"error": "overloaded", "exception": "ProviderError", "content": "One mo", "prompt_tokens": null,
    "completion_tokens": null}
    """

    def __init__(  # noqa: PLR0917 - see the top
        self, error: str, exception: str | None, content: str, prompt_tokens: int | None, completion_tokens: int | None,
        cached_tokens: int | None = None, cache_write_tokens: int | None = None, cost: float | None = None,
        model_calls: int | None = None, stop_reason: str | None = None,
    ) -> None:
        self.error, self.exception, self.content, self.prompt_tokens = error, exception, content, prompt_tokens
        self.completion_tokens, self.cached_tokens = completion_tokens, cached_tokens
        self.cache_write_tokens, self.cost, self.model_calls = cache_write_tokens, cost, model_calls
        self.stop_reason = stop_reason

    @property
    def is_broken_off(self) -> bool:
        """Whether the run was stopped during the call."""
        return self.exception is None

    @staticmethod
    def usage_in(data: Any) -> Usage | None:
        return Usage.of_failed(data)


_NO_METADATA: dict[str, Any] = {}  # shared: readers who could change a row's data get a copy


class LlmResponseRow(Row, type="llm_response", group="model", role="outcome"):
    """The model's response. Token counts are the vendor's, null if unknown. `cost` is in dollars, if the
    response reports it or the price and both counts are known. `given_up`: the usage of earlier attempts that
    failed. `model`: the model that responded, if it is not the run's. `blocks`: [native calls](models.md#native-calls);
    `ends_turn`: whether the model ended its turn with them.

    Example: {"content": "<final>Found.</final>", "latency_ms": 840, "prompt_tokens": 100, "completion_tokens": 10,
    "total_tokens": 110, "finish_reason": "stop", "metadata": {}}
    """

    __slots__ = (
        "blocks", "cache_write_tokens", "cached_tokens", "completion_tokens", "content", "cost", "ends_turn",
        "finish_reason", "given_up", "latency_ms", "metadata", "model", "prompt_tokens", "total_tokens",
    )
    uncompared = frozenset({"latency_ms"})
    shared_fields = ("metadata",)

    def __init__(  # noqa: PLR0917 - see the top
        self, content: str, latency_ms: int, prompt_tokens: int | None, completion_tokens: int | None,
        total_tokens: int | None, finish_reason: str | None, metadata: Mapping[str, Any],
        cached_tokens: int | None = None, cache_write_tokens: int | None = None, cost: float | None = None,
        model: str | None = None, given_up: Mapping[str, Any] | None = None, blocks: Sequence[Any] | None = None,
        ends_turn: bool | None = None,
    ) -> None:
        self.content = content
        self.latency_ms = latency_ms
        self.prompt_tokens = prompt_tokens
        self.completion_tokens = completion_tokens
        self.total_tokens = total_tokens
        self.finish_reason = finish_reason
        self.metadata = metadata or _NO_METADATA
        self.cached_tokens = cached_tokens
        self.cache_write_tokens = cache_write_tokens
        self.cost = cost
        self.model = model
        self.given_up = given_up
        self.blocks, self.ends_turn = blocks, ends_turn

    @staticmethod
    def usage_in(data: Any) -> Usage | None:
        used = Usage(
            data["prompt_tokens"], data["completion_tokens"], data["total_tokens"], data.get("cost"), 1,
            data.get("cached_tokens"), data.get("cache_write_tokens"),
        )
        return used + Usage(**data["given_up"]) if data.get("given_up") else used


class BlocksParsedRow(Row, type="blocks_parsed", group="model"):
    """The blocks of the response, each with its `type name content`.

    Example: [{"type": "final", "name": null, "content": "Found."}]
    """

    __slots__ = ("_blocks",)

    def __init__(self, blocks: Sequence[Any]) -> None:
        #: For a single block, as in most responses, its type, name and content: the garbage collector does not track a
        #: tuple of texts, and one is kept for each step. Otherwise the blocks, or dicts in a row that was read.
        self._blocks: Sequence[Any] = blocks
        if len(blocks) == 1 and type(blocks[0]) is not dict:
            [block] = blocks
            self._blocks = block._type, block._name, block._content  # noqa: SLF001 - faster than the properties

    def fields(self) -> Any:
        blocks = self._blocks
        if blocks and isinstance(blocks[0], str):
            return [dict(zip(("type", "name", "content"), blocks, strict=True))]
        return [
            copied(one) if type(one) is dict else {"type": one.type, "name": one.name, "content": one.content}
            for one in blocks
        ]

    @classmethod
    def read(cls, data: Any) -> Self:
        if not isinstance(data, (list, tuple)) or not all(isinstance(one, dict) for one in data):
            raise ValueError("its data is not a list of blocks")
        return cls(data)


# -------------------------------------------------------------------------------------- what else a response holds


class PlanRow(_TextRow, type="plan", group="flow"):
    """The text of a plan that is not a workflow.

    Example: "First the index, then the shelf."
    """


class JsonRow(_TextRow, type="json", group="model"):
    r"""The text of a `json` block.

    Example: "{\"hits\": 3}"
    """


class PlanRejectedRow(Row, type="plan_rejected", group="problem"):
    """A plan that was not run; the reasons are listed in [workflows.md](workflows.md#when-a-plan-is-not-a-workflow).

    Example: {"reason": "invalid_json", "raw": "First the index"}
    """

    def __init__(self, reason: str, raw: str) -> None:
        self.reason, self.raw = reason, raw


class _BlockRow(Row, group="problem", is_warning=True):
    def __init__(self, type_: str, name: str | None, content: str) -> None:
        self.type_, self.name, self.content = type_, name, content


class BlockIncompleteRow(_BlockRow, type="block_incomplete"):
    """A block that was still open at the end of the response.

    Example: {"type": "final", "name": null, "content": "The ans"}
    """


class ForgedBlockRow(_BlockRow, type="forged_block"):
    """A block that only the runtime may write; it was ignored.

    Example: {"type": "result", "name": "search", "content": "9 hits"}
    """


class DialectCallRow(Row, type="dialect_call"):
    """A call written in [another format](models.md#calls-in-another-format); kernai makes it.

    Example: {"dialect": "hermes", "name": "search"}
    """

    def __init__(self, dialect: str | None, name: str | None) -> None:
        self.dialect, self.name = dialect, name


class QuotedCallRow(Row, type="quoted_call", group="problem", is_warning=True):
    """A call, a plan or a `final` that did not count because it [is quoted from a
    result](models.md#calls-that-a-result-quotes); `source` says whose result it was.

    Example: {"call_id": "1.0", "type": "command", "name": "wipe", "source": "search"}
    """

    def __init__(self, call_id: str | None, type_: str, name: str | None, source: str) -> None:
        self.call_id, self.type_, self.name, self.source = call_id, type_, name, source


class InformationalOnlyRow(Row, type="informational_only", group="problem"):
    """A response with no block that runs anything. `kinds` are the types of its blocks.

    Example: {"kinds": ["plan", "json"]}
    """

    def __init__(self, kinds: Sequence[Any]) -> None:
        self.kinds = kinds


class NoBlocksStallRow(Row, type="no_blocks_stall", group="problem", is_warning=True):
    """A response without any block, from an agent that must use blocks; its first 400 characters.

    Example: {"prose_preview": "I will look that up."}
    """

    def __init__(self, prose_preview: str) -> None:
        self.prose_preview = prose_preview


# ------------------------------------------------------------------------------------------------------- calls


class CallBegunRow(Row, group="call"):
    """A skill or a protocol is about to be called."""

    __slots__ = ()
    call_id: str


class _OutcomeRow(Row, role="outcome"):
    __slots__ = ()
    not_run: bool | None = None
    interrupted: bool | None = None

    @property
    def is_broken_off(self) -> bool:
        """Whether the call or task has no outcome because the run was stopped."""
        return bool(self.interrupted or self.not_run)


class CallEndedRow(_OutcomeRow, group="call"):
    """The outcome of a call of a skill or a protocol."""

    __slots__ = ()
    call_id: str


class SkillExecuteRow(CallBegunRow, type="skill_execute"):
    """A skill is about to be called. `params` are the parameters as the model sent them, before validation.
    `dropped`: parameters that the skill does not take, and fields in them that do not exist. `repaired`: mistakes in
    their JSON that [were fixed](models.md#json-with-mistakes).

    Example: {"call_id": "0.0", "skill": "search", "params": {"query": "tea"}}
    """

    __slots__ = ("call_id", "dropped", "params", "repaired", "skill")
    shared_fields = ("params",)
    uncompared = frozenset({"dropped"})  # follows from the parameters; older recordings have no fields in it

    def __init__(
        self, call_id: str, skill: str, params: Mapping[str, Any], dropped: Sequence[Any] | None = None,
        repaired: Sequence[Any] | None = None,
    ) -> None:
        self.call_id = call_id
        self.skill = skill
        self.params = params
        self.dropped = dropped
        self.repaired = repaired


class ProgressRow(Row, type="progress", group="call", role="aside", stored_first=False):
    """What a call reported with `ctx.emit` while it ran.

    Example: {"call_id": "0.0", "data": {"done": 1}}
    """

    def __init__(self, call_id: str, data_: Any) -> None:
        # recorded as "data", so in the data of the event: ``event.data["data"]``
        self.call_id, self.data_ = call_id, data_


class SkillResultRow(CallEndedRow, type="skill_result"):
    """What a skill returned: a text or, if there is media, a list of texts and media references. `metadata` comes
    from the skill.

    Example: {"call_id": "0.0", "skill": "search", "result": "3 hits", "duration_ms": 12}
    """

    __slots__ = ("call_id", "duration_ms", "metadata", "result", "skill")

    def __init__(
        self, call_id: str, skill: str, result: Any, duration_ms: int, metadata: Mapping[str, Any] | None = None
    ) -> None:
        self.call_id = call_id
        self.skill = skill
        self.result = result
        self.duration_ms = duration_ms
        self.metadata = metadata


class SkillErrorRow(CallEndedRow, type="skill_error", is_warning=True):
    """A skill's call that failed or was refused; `exception` is the exception's class, if there was one.
    `interrupted`: the call was cut short, and whether it took effect is unknown. `not_run`: it was never made.
    `stop_reason`: it raised a `Stop`.

    Example: {"call_id": "0.0", "skill": "serch", "error": "Skill 'serch' not found", "exception": null}
    """

    uncompared = frozenset({"stop_reason"})  # missing if the run was resumed after the `Stop`

    def __init__(
        self, call_id: str, skill: str | None, error: str, exception: str | None, not_run: bool | None = None,
        interrupted: bool | None = None, stop_reason: str | None = None,
    ) -> None:
        self.call_id, self.skill, self.error, self.exception, self.not_run = call_id, skill, error, exception, not_run
        self.interrupted, self.stop_reason = interrupted, stop_reason


class ProtocolExecuteRow(CallBegunRow, type="protocol_execute"):
    """A protocol is about to be called with a block.

    Example: {"call_id": "0.1", "protocol": "sql", "request": "SELECT 1"}
    """

    def __init__(self, call_id: str, protocol: str, request: str) -> None:
        self.call_id, self.protocol, self.request = call_id, protocol, request


class ProtocolResultRow(CallEndedRow, type="protocol_result"):
    """What a protocol's handler returned; a `Message` is a dict here.

    Example: {"call_id": "0.1", "protocol": "sql", "result": "[[1]]", "duration_ms": 2}
    """

    def __init__(
        self, call_id: str, protocol: str, result: Any, duration_ms: int, metadata: Mapping[str, Any] | None = None
    ) -> None:
        self.call_id, self.protocol, self.result, self.duration_ms = call_id, protocol, result, duration_ms
        self.metadata = metadata


class ProtocolErrorRow(CallEndedRow, type="protocol_error", is_warning=True):
    """A protocol's call that failed or was refused; the fields are as in `skill_error`.

    Example: {"call_id": "0.1", "protocol": "sql", "error": "no such table", "exception": "ValueError", "duration_ms":
    1}
    """

    uncompared = frozenset({"duration_ms", "stop_reason"})

    def __init__(
        self, call_id: str, protocol: str, error: str, exception: str | None, duration_ms: int,
        not_run: bool | None = None, interrupted: bool | None = None, stop_reason: str | None = None,
    ) -> None:
        self.call_id, self.protocol, self.error, self.exception = call_id, protocol, error, exception
        self.duration_ms, self.not_run, self.interrupted = duration_ms, not_run, interrupted
        self.stop_reason = stop_reason


class BuiltinResultRow(Row, type="builtin_result", group="call", role="outcome"):
    """What a built-in command returned.

    Example: {"command": "/skills", "result": "Available skills…"}
    """

    def __init__(self, command: str, result: str) -> None:
        self.command, self.result = command, result


class BuiltinErrorRow(Row, type="builtin_error", group="call", is_warning=True):
    """A built-in command that does not exist.

    Example: {"command": "/help", "error": "Unknown command '/help'"}
    """

    def __init__(self, command: str, error: str) -> None:
        self.command, self.error = command, error


# --------------------------------------------------------------------------------------------------- workflows


class WorkflowStartRow(Row, type="workflow_start", group="flow"):
    """A workflow begins. The data is its plan.

    Example: {"goal": "", "strategy": "mixed", "tasks": [{"id": "a", "input": "x", "parallel": false, "depends_on":
    []}]}
    """

    def __init__(self, goal: str | None, strategy: str, tasks: Sequence[Any]) -> None:
        self.goal, self.strategy, self.tasks = goal, strategy, tasks


class TaskStartRow(Row, type="task_start", group="flow"):
    """A task begins. The events of its start and end belong to the scope of the parent.

    Example: {"task_id": "a", "input": "x", "depends_on": []}
    """

    def __init__(self, task_id: str, input: str, depends_on: Sequence[Any]) -> None:
        self.task_id, self.input, self.depends_on = task_id, input, depends_on


class TaskEndedRow(_OutcomeRow, group="flow"):
    """How a task ended."""

    uncompared = frozenset({"duration_ms", "drained"})
    task_id: str
    #: the task's text, for `on_task_complete`; not recorded
    input: str
    drained: bool | None


class TaskCompleteRow(TaskEndedRow, type="task_complete"):
    """A task's answer. `drained` occurs only in recordings of format 1: the run was being stopped.

    Example: {"task_id": "a", "result": "done", "duration_ms": 900}
    """

    def __init__(self, task_id: str, result: str, duration_ms: int, drained: bool | None = None) -> None:
        self.task_id, self.result, self.duration_ms, self.drained = task_id, result, duration_ms, drained


class TaskErrorRow(TaskEndedRow, type="task_error", is_warning=True):
    """A task that failed. `not_run`: the run was stopped before the task began; `interrupted`: while it ran;
    `drained` as in `task_complete`.

    Example: {"task_id": "a", "error": "down", "duration_ms": 5}
    """

    def __init__(
        self, task_id: str, error: str, duration_ms: int, drained: bool | None = None, not_run: bool | None = None,
        interrupted: bool | None = None,
    ) -> None:
        self.task_id, self.error, self.duration_ms, self.drained = task_id, error, duration_ms, drained
        self.not_run, self.interrupted = not_run, interrupted


class WorkflowCompleteRow(Row, type="workflow_complete", group="flow"):
    """A workflow ended; a reached limit or a cancellation ends its open tasks with an error. `results` has the results
    by task.

    Example: {"results": {"a": "done"}, "duration_ms": 901}
    """

    def __init__(self, results: Mapping[str, Any], duration_ms: int) -> None:
        self.results, self.duration_ms = results, duration_ms


class WorkflowErrorRow(Row, type="workflow_error", group="flow", is_warning=True):
    """A workflow was broken off: by Ctrl-C, a cancelled asyncio task or a failed append.

    Example: {"error": "KeyboardInterrupt", "duration_ms": 40}
    """

    def __init__(self, error: str, duration_ms: int) -> None:
        self.error, self.duration_ms = error, duration_ms


# ------------------------------------------------------------------------------------------------ durable runs


class ApprovalRequestedRow(Row, type="approval_requested", group="call", role="aside"):
    """A call that [waits for a person](durable.md#a-person-in-the-loop). `until`: if nobody has decided by then, the
    call is made again. `untrusted`: its values that [must come from the user](security.md), but did not.

    Example: {"call_id": "1.0", "skill": "refund", "params": {"amount": 30}, "reason": "", "metadata": {}}
    """

    def __init__(
        self, call_id: str, skill: str | None, params: Any, reason: str, metadata: Mapping[str, Any],
        until: str | None = None, untrusted: Sequence[Any] | None = None,
    ) -> None:
        self.call_id, self.skill, self.params, self.reason, self.metadata = call_id, skill, params, reason, metadata
        self.until, self.untrusted = until, untrusted


class UntrustedValueRow(Row, type="untrusted_value", group="call", role="aside"):
    """A value in a model's call that [must come from the user](security.md), but did not. The call waits for a person,
    or is refused.

    Example: {"call_id": "1.0", "skill": "pay", "path": "recipient", "source": "which is in the result of `read_mail`"}
    """

    def __init__(self, call_id: str, skill: str, path: str, source: str) -> None:
        self.call_id, self.skill, self.path, self.source = call_id, skill, path, source


class TrustedValuesRow(Row, type="trusted_values", group="call", role="aside"):
    """The values in a call that [must come from the user](security.md). `sources` says by input where the user or the
    host has mentioned each value.

    Example: {"call_id": "1.0", "skill": "pay", "sources": {"recipient": "the user's input"}}
    """

    def __init__(self, call_id: str, skill: str, sources: Mapping[str, Any]) -> None:
        self.call_id, self.skill, self.sources = call_id, skill, sources


class TrustAddedRow(Row, type="trust_added", role="aside"):
    """More texts from which [trusted inputs](security.md) may take their values: new `instructions`, or texts added
    with `Context.trust`.

    Example: {"texts": ["DE89 3704 0044 0532 0130 00"], "by": "context"}
    """

    def __init__(self, texts: Sequence[Any], by: str) -> None:
        self.texts, self.by = texts, by


class ApprovalGivenRow(Row, type="approval_given", group="call", role="aside"):
    """The decision on a call, and who made it. With `trusted` False, [trusted inputs](security.md) may not take values
    from its text: it came from a function, which may have quoted the model.

    Example: {"call_id": "1.0", "decision": true, "by": "ann"}
    """

    def __init__(self, call_id: str, decision: Decided, by: str | None, trusted: bool | None = None) -> None:
        self.call_id, self.decision, self.by, self.trusted = call_id, decision, by, trusted


class InFlightRow(Row, type="in_flight", group="call", role="aside"):
    """The decision on a call whose outcome was lost in a crash: `skip` or `retry`. If a person made it, `by` says who,
    and `reason` why.

    Example: {"call_id": "1.0", "decision": "retry"}
    """

    def __init__(self, call_id: str, decision: str, reason: str | None = None, by: str | None = None) -> None:
        self.call_id, self.decision, self.reason, self.by = call_id, decision, reason, by


class ContextSavedRow(_ValueRow, type="context_saved", role="aside"):
    """What your `Context.save()` returned.

    Example: {"items": ["lamp"]}
    """

    #: for a sub-run's context, the attributes that it shares with its parent's
    shared: Sequence[str] | None = None
    #: of two new states of one scope, the later has the greater number
    number: int = 0

    def entry(self) -> dict[str, Any]:
        return {**super().entry(), "shared": list(self.shared)} if self.shared else super().entry()


class RunResumedRow(Row, type="run_resumed", group="run", role="aside"):
    """A run was resumed. `from_seq` is the number of this entry; `dropped` are the numbers of entries that no
    longer count; `format` is the format's version from here on. `metadata` was passed to the resume. If they have
    changed, `rules` has the new rules for checking responses, by scope, and `definition` is the agent's new definition.
    `model` and `agent` are those of the rest of the run.

    Example: {"from_seq": 27, "dropped": [25, 26], "format": 2, "model": "text-only", "agent": "clerk"}
    """

    def __init__(
        self, from_seq: int, dropped: Sequence[Any], format: int | None = None,
        rules: Mapping[str, Any] | None = None, definition: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None, model: str | None = None, agent: str | None = None,
    ) -> None:
        self.from_seq, self.dropped, self.format, self.rules = from_seq, dropped, format, rules
        self.definition, self.metadata, self.model, self.agent = definition, metadata, model, agent


#: rows that a run no longer writes once it has to stop
BEGUN = (InputAddedRow, MessagesSentRow, CallBegunRow)

# ------------------------------------------------------------------------------------- not in the table


class CustomRow(_ValueRow, role="aside"):
    """An event of another kind: from the host, from a newer kernai, or with data that does not match its kind."""

    def __init__(self, type: str, value: Any, block: int | None = None) -> None:
        super().__init__(value)
        self.type: str = type  # type: ignore[misc]  # each instance has its own
        self.block = block


#: the keys of an entry that make up a row's place, in order, and the types of their values
_PLACE = {"step": int | None, "depth": int, "task_id": str | None, "scope": str, "run_id": str, "stop": str | None}


def _place_of(entry: Mapping[str, Any]) -> Place:
    return (
        entry.get("step"), entry.get("depth") or 0, entry.get("task_id"), entry.get("scope") or "",
        entry.get("run_id") or "", entry.get("stop"),
    )


def row_of(entry: Mapping[str, Any]) -> Row:
    """Creates an entry's row. Raises `ValueError` if the kind is known but the entry does not match it."""
    kind = KINDS.get(entry["event"])
    data = entry.get("data")
    row = CustomRow(entry["event"], data) if kind is None else kind.read(data)
    row.place = _place_of(entry)
    if not all(map(isinstance, row.place, _PLACE.values())):
        wrong = [key for key, one in zip(_PLACE, row.place, strict=True) if not isinstance(one, _PLACE[key])]
        raise ValueError(f"its {wrong[0]!r} has the wrong type")
    row.at = entry.get("timestamp") or time.time()
    if isinstance(row, MessagesSentRow):
        row.since = entry.get("since")
        if not isinstance(row.since, int | None):
            raise ValueError("its 'since' is not a number")  # noqa: TRY004 - the data is at fault
    elif isinstance(row, ContextSavedRow):
        row.shared = entry.get("shared")
        if not isinstance(row.shared, list | None) or not all(isinstance(name, str) for name in row.shared or ()):
            raise ValueError("its 'shared' is not a list of names")
    elif isinstance(row, (_BlockTagRow, BlockContentRow, CustomRow)):
        row.block = entry.get("block")
    return row


def stamp(at: float | str) -> str:
    """A time as ISO 8601 in UTC with milliseconds: ``2026-11-20T18:41:00.250Z``."""
    if isinstance(at, str):
        return at
    seconds, millis = divmod(int(at * 1000), 1000)
    return f"{_second(seconds)}.{millis:03d}Z"


@lru_cache(maxsize=8)  # entries written together have the same second
def _second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


def _placed(key: str) -> Any:
    """A property of an event that reads an item of its row's place."""
    at = [*_PLACE].index(key)
    return property(lambda event: event.row.place[at])


class Event(Replaceable):
    """One event in a run. Read-only; the log, the recorder and the live callback all get the same events.

    docs/recording.md has a table of the `data` of each `type`; each access returns a copy. `step` counts from 0 within
    the scope; `depth` is 0 in the root run; `task_id` is the workflow task that the event belongs to; `scope` is the
    path of the sub-run, ``""`` for the root; `run_id` is the root's. For a live event, `block` is the number of the
    block in the response, counted from 0; otherwise None. If the event was written only because the whole run stopped,
    `stop` is the stop reason, and a resume leaves the event out; otherwise None. Events are compared by their contents.
    """

    __slots__ = ("_row",)
    _FIELDS = ("type", "data", "step", "depth", "task_id", "scope", "run_id", "timestamp", "block", "stop")
    #: the row, for kernai's own readers, which must not change it
    row: Final[Row] = read_only("_row")
    type: Final[str] = read_only("_row.type")
    step: Final[int | None] = _placed("step")
    depth: Final[int] = _placed("depth")
    task_id: Final[str | None] = _placed("task_id")
    scope: Final[str] = _placed("scope")
    run_id: Final[str] = _placed("run_id")
    block: Final[int | None] = read_only("_row.block")
    stop: Final[str | None] = _placed("stop")

    def __init__(
        self,
        type: str,
        data: Any = None,
        step: int | None = None,
        depth: int = 0,
        task_id: str | None = None,
        scope: str = "",
        run_id: str = "",
        timestamp: float | str | None = None,
        *,
        block: int | None = None,
        stop: str | None = None,
    ) -> None:
        row = _fitting({"event": type, "data": data, "block": block})
        row.place = (step, depth, task_id, scope, run_id, stop)
        row.at = time.time() if timestamp is None else timestamp
        self._row = row

    @classmethod
    def of(cls, row: Row) -> Event:
        """Wraps a row."""
        event = cls.__new__(cls)
        event._row = row  # noqa: SLF001 - its own
        return event

    @property
    def data(self) -> Any:
        return copied(self._row.fields())

    @property
    def timestamp(self) -> str:
        """ISO 8601 in UTC with milliseconds: ``2026-11-20T18:41:00.250Z``."""
        return stamp(self._row.at)

    def to_dict(self) -> dict[str, Any]:
        """The event as JSON data. The type is under ``event``."""
        return self._row.entry()

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> Event:
        """The inverse of `to_dict`."""
        return cls.of(_fitting(entry))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Event):
            return NotImplemented
        return self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]  # data may be a dict

    def __repr__(self) -> str:
        return f"Event({self.type!r}, step={self.step}, scope={self.scope!r}, data={self.data!r})"


def _fitting(entry: Mapping[str, Any]) -> Row:
    """Creates the row of an entry whose data may not match its kind: then it is a `CustomRow`."""
    data, block = copied(entry.get("data")), entry.get("block")
    custom = CustomRow(entry["event"], data, block)
    custom.place, custom.at = _place_of(entry), entry.get("timestamp") or time.time()
    try:
        row = row_of({**entry, "data": data})
    except (ValueError, TypeError):
        return custom
    # different for example because a None field is left out
    return row if row.json() == jsonable(data) and row.block == block else custom
