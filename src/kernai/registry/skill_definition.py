"""`Skill`: a function that a model may call, and everything known about it; `AgentSkill`: an agent as a skill."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from kernai._util.api import check_type, first_paragraph, is_async, is_generator, likely
from kernai.blocks.block import escape_attribute
from kernai.inputs.table import InputTable, Repair
from kernai.interrupts import calls_out
from kernai.jsonio.json_data import digest
from kernai.registry.configuration import config
from kernai.registry.skill_context import SkillContext
from kernai.values.media import KINDS, MediaStore
from kernai.values.model import CAPABILITIES

if TYPE_CHECKING:
    from kernai.agents.agent import Agent
    from kernai.inputs.schema import Schema
    from kernai.registry.declarations import Credential, Setting

PRODUCES = (*KINDS, "text")

Params = ParamSpec("Params")
Returned = TypeVar("Returned")


class Skill:
    """A named function with typed inputs. `@skill` makes one from a function; this class makes one without a decorator.

    ``Skill("search", execute=find, description="...", inputs={"query": str, "limit": Input(int, default=10)})``.
    By default, `inputs` are read from the signature of `execute`, and `description` is the first paragraph of its
    docstring. `requires` names capabilities that a model must have (``"vision"``, or several), `produces` the media
    kinds that a call may return, `credentials` and `settings` what the function reads through its `SkillContext`. With
    `approval`, each call waits until somebody has approved it (this needs a store, see docs/durable.md). With
    `idempotent`, a call may be repeated after a crash, with the same ``ctx.idempotency_key``.

    For values that must come from the user (docs/security.md): a skill that `acts` has effects on others. With
    `directory`, the result is a list that outsiders cannot add to, so its values are trusted; with ``("id", "title")``,
    an item's ``id`` is trusted if its ``title`` is in the user's words. `creates` is the key in the result whose value
    is the id of the object that the call created; True means that the whole text of the result is the id.

    Raises a `TypeError` or `ValueError` that names the wrong argument: a blank name, an unknown capability, a type that
    inputs cannot have.
    """

    description: str
    credentials: dict[str, Credential]
    settings: dict[str, Setting]
    __wrapped__: Callable[..., Any]
    #: whether outsiders wrote its description, so that a model which reads it has read untrusted text
    is_foreign = False

    def __init__(
        self,
        name: str,
        *,
        execute: Callable[..., Any],
        description: str | None = None,
        inputs: Mapping[str, Any] | None = None,
        requires: str | Iterable[str] = (),
        produces: str | Iterable[str] = (),
        credentials: Mapping[str, Credential] | None = None,
        settings: Mapping[str, Setting] | None = None,
        approval: bool = False,
        idempotent: bool = False,
        acts: bool = False,
        directory: bool | tuple[str, str] = False,
        creates: str | bool = False,
    ) -> None:
        self.name = name = _checked_name(name)
        self.function = _checked_function(name, execute)
        self.is_async = is_async(execute)
        text = first_paragraph(execute) if description is None else description
        self.description = _checked(name, "description", text, str, "a str").strip()
        self.requires = _words(name, "requires", requires, CAPABILITIES)
        self.produces = _words(name, "produces", produces, PRODUCES)
        self.credentials = _declared(name, "credentials", credentials)
        self.settings = _declared(name, "settings", settings)
        self.approval = _checked(name, "approval", approval, bool, "True or False")
        self.idempotent = _checked(name, "idempotent", idempotent, bool, "True or False")
        self.acts = _checked(name, "acts", acts, bool, "True or False")
        self.directory = _checked_directory(name, directory)
        self.creates = _checked(name, "creates", creates, (bool, str), "a key of the result, or True for its text")
        self._digest: tuple[str, InputTable, str] | None = None
        # the modules that read annotations are a third of the package; the first skill loads them
        from kernai.registry.declarations import read_signature

        if inputs is not None:
            _checked(name, "inputs", inputs, Mapping, "a mapping of names to types")
        #: `table` reads, checks and describes the parameters of a call
        self.table, self._context, self._positional = read_signature(name, execute, inputs)
        self.inputs = self.table.inputs
        #: whether a parameter of the function takes the `SkillContext`
        self.wants_context = self._context is not None
        #: whether `invoke` only calls the function with keyword arguments
        self.takes_keywords = not (self.wants_context or self._positional) and type(self).invoke is Skill.invoke
        # for `help`, `inspect.signature`, and whatever reads the function's annotations
        self.__name__ = self.__qualname__ = name
        update_wrapper(self, execute, updated=())
        with suppress(Exception):  # Python 3.14 evaluates them here
            self.__annotations__ = execute.__annotations__

    def read(self, content: str, *, repair: Repair = True) -> dict[str, object]:
        """The parameters in a command block's text, not yet checked or converted; never fails.

        A JSON object is read as parameters by name. Other text is the value of the only input; with several inputs, it
        is under ``"input"``. With `repair`, JSON with mistakes whose repair loses nothing is read too (see
        docs/models.md).
        """
        return self.table.read(content, repair=repair)

    def bind(
        self, params: Mapping[str, object], media_store: MediaStore | None = None, *, repair: Repair = True
    ) -> dict[str, object]:
        """Checks and converts the parameters, fills in defaults, and drops unknown parameters.

        Raises `SkillInputError`, which lists all faults of the call in `faults` and in its message. The message ends
        with a correct call, which is a block on purpose; values in the message cannot forge markup. With `repair`, a
        number or boolean may be given as a string if the string cannot mean anything else.
        """
        return self.table.bind(params, media_store, repair=repair)

    def rebind(
        self, arguments: Mapping[str, object], changes: Mapping[str, object], media_store: MediaStore | None = None, *,
        repair: Repair = True,
    ) -> dict[str, object]:
        """The result of `bind` with some inputs changed. The changes are checked and converted as by `bind`.

        Raises `ValueError` for a name that is not an input, or a field that does not exist.
        """
        for one, meant in self.table.dropped(changes).items():
            hint = likely(one, self.table.inputs, "it has") if one in changes else likely(one, [meant])
            raise ValueError(f"{one!r} is not an input of {self.name}{hint}")
        if type(self).bind is Skill.bind:
            return self.table.bind(changes, media_store, repair=repair, bound=arguments)
        return self.bind({**arguments, **changes}, media_store, repair=repair)

    @property
    def is_guarded(self) -> bool:
        """Whether calls are checked for values that must come from the user."""
        return self.acts or bool(self.table.trusted)

    @property
    def is_plain(self) -> bool:
        """Whether a call needs only its parameters, and no subclass overrides how a call is made."""
        kind = type(self)
        asks = self.approval or self.is_guarded or self.directory or self.creates
        is_read_here = kind.read is Skill.read and kind.bind is Skill.bind and type(self.table) is InputTable
        return self.takes_keywords and not asks and is_read_here

    @calls_out
    def invoke(self, arguments: Mapping[str, object], context: SkillContext[Any] | None = None) -> Any:
        """Calls the function with the result of `bind`, and with the context if it has a parameter for it."""
        given = dict(arguments)
        if self._context is not None:
            given[self._context] = context
        return self.function(*[given.pop(name) for name in self._positional], **given)

    def call(self, params: Mapping[str, object] | str, run_context: Any = None) -> Any:
        """Calls the skill as a model's command would: `params` by name, or the text of a block.

        Returns what the function returns, a coroutine if it is async. Raises `SkillInputError` for wrong parameters.
        Media ids are looked up in `run_context.media_store`; a `Media` itself is accepted too. A `SkillContext` in
        place of the run's context is passed to the function.
        """
        repair = config.repair
        given = self.read(params, repair=repair) if isinstance(params, str) else params
        check_type(given, Mapping, "params must be a mapping of input names, or text")
        arguments = self.bind(given, getattr(run_context, "media_store", None), repair=repair)
        context = run_context if isinstance(run_context, SkillContext) else SkillContext(self, run_context)
        return self.invoke(arguments, context)

    def usage(self) -> str:
        """A correct call of this skill, as a command block; empty if none is known."""
        return self.table.usage

    @property
    def types(self) -> dict[str, str]:
        """The type of each input, as a listing shows it: ``{"limit": "integer"}``."""
        return {name: kind.label for name, kind in self.table.types.items()}

    def digest(self) -> str:
        """A hash of the description and the schema; it changes when what a model reads about the skill changes."""
        known = self._digest
        if known is None or known[0] != self.description or known[1] is not self.table:
            known = self._digest = self.description, self.table, digest([self.description, self.schema()])
        return known[2]

    def schema(self) -> Schema:
        """The parameters of a call as JSON Schema."""
        return self.table.schema()

    def describe(self) -> str:
        """What a model needs to know to call the skill: description, inputs, what it produces, usage."""
        lines = [f"### {self.name}"]
        if self.description:
            lines.append(self.description)
        inputs = list(self.table.describe())
        lines += ["Inputs:", *inputs] if inputs else ["Inputs: none"]
        if self.produces:
            lines.append(f"Produces: {', '.join(self.produces)}")
        usage = self.usage()
        return "\n".join([*lines, *([f"Usage: {usage}"] if usage else [])])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the plain function; nothing is checked or converted."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, inputs={list(self.inputs)})"


class FunctionSkill(Skill, Generic[Params, Returned]):
    """What `@skill` makes: a `Skill` that a type checker still sees as the function."""

    if TYPE_CHECKING:
        def __call__(self, *args: Params.args, **kwargs: Params.kwargs) -> Returned: ...

    def __reduce__(self) -> str:
        return self.__qualname__  # pickled by name, as the function would be; the name now refers to the skill


class AgentSkill(Skill):
    """A skill with one input, `input: str`. A call within a run is a sub-run; outside a run, `execute` runs it."""

    def __init__(
        self, name: str, agent: Agent[Any], execute: Callable[..., Any], description: str, **flags: Any
    ) -> None:
        super().__init__(name, execute=execute, description=description, inputs={"input": str}, **flags)
        self.agent = agent


def _checked_name(given: object) -> str:
    name: str = check_type(given, str, "a skill's name must be a str", ": give one with name=...")
    if not name or name != name.strip() or name.startswith("/") or escape_attribute(name) != name:
        raise ValueError(
            f"a skill cannot be named {name!r}: it must not be blank, begin with '/' as built-in commands do, have "
            "white space around it, or hold quotes, angle brackets or control characters; choose one with name=..."
        )
    return str.__str__(name)  # of a text that is an enum, f-strings show the member


def _checked_function(name: str, function: object) -> Callable[..., Any]:
    if isinstance(function, Skill):
        raise TypeError(f"skill {name!r}: {function!r} is a Skill already; to make another, pass its .function")
    _checked(name, "execute", function, Callable, "callable")
    if is_generator(function):
        raise TypeError(f"skill {name!r}: a skill returns its result, it does not yield; collect it into a list")
    return function  # type: ignore[return-value]  # it is callable


def _checked(name: str, argument: str, given: Any, kind: Any, wanted: str) -> Any:
    return check_type(given, kind, f"skill {name!r}: {argument} must be {wanted}")


def _checked_directory(name: str, value: Any) -> bool | tuple[str, str]:
    if isinstance(value, bool):
        return value
    if isinstance(value, (list, tuple)) and len(value) == 2 and all(isinstance(one, str) for one in value):  # noqa: PLR2004
        return value[0], value[1]
    raise TypeError(f'skill {name!r}: directory must be True, or two keys such as ("id", "title"), got {value!r}')


def _words(name: str, argument: str, given: str | Iterable[str], vocabulary: tuple[str, ...]) -> tuple[str, ...]:
    given = (given,) if isinstance(given, str) else _checked(name, argument, given, Iterable, "a word or several")
    # sorted, since the order of a set depends on Python's hash seed
    words = tuple(sorted(given) if isinstance(given, (set, frozenset)) else dict.fromkeys(given))
    for word in words:
        if word not in vocabulary:
            raise ValueError(f"skill {name!r}: {argument} has no word {word!r}; it may be {', '.join(vocabulary)}")
    return words


def _declared(name: str, argument: str, given: Mapping[str, Any] | None) -> dict[str, Any]:
    if not given:
        return {}
    from kernai.registry.declarations import Credential, Setting

    kind: type = Credential if argument == "credentials" else Setting
    declared = dict(_checked(name, argument, given, Mapping, "a mapping of keys"))
    for key, one in declared.items():
        _checked(name, f"{argument}[{key!r}]", one, kind, f"a {kind.__name__}")  # the value is never shown
    return declared
