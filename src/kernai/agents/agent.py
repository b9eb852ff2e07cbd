"""`Agent`: configuration. It has no state of a run, so one agent serves any number of runs at once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any, Generic, Literal, Never, TypeVar, get_args, overload

from kernai._util.api import annotated_names, check_function, check_type, closest, likely, signature_of
from kernai.agents.setup import Revision, Setup
from kernai.registry.configuration import config
from kernai.registry.protocol_registry import REGISTRY as PROTOCOLS
from kernai.registry.protocol_registry import Protocol
from kernai.registry.provider import Provider, check_provider
from kernai.registry.registry import CHANGES
from kernai.registry.skill_definition import AgentSkill, Skill
from kernai.registry.skill_registry import REGISTRY as SKILLS
from kernai.values.context import Context
from kernai.values.limits import MAX_TASKS, MODEL_MAX_TASKS, Limits, check_number
from kernai.values.message import Outside, instruction_parts
from kernai.values.model import GenerationOptions, Model, Models
from kernai.values.result import Output_co

if TYPE_CHECKING:
    import os
    from types import UnionType
    from typing import Self, TypedDict, Unpack
    from typing import _SpecialForm as SpecialForm

    if sys.version_info >= (3, 12):
        from typing import TypeAliasType
    else:
        from typing_extensions import TypeAliasType

    from kernai.agents.setup import Key
    from kernai.inputs.answer_type import AnswerType
    from kernai.middleware.chain import Middleware
    from kernai.values.pending_calls import PendingCall
    from kernai.values.result import Result

    class AgentChanges(TypedDict, total=False):
        """What `Agent.replace` takes besides `output`. Only type checkers see this class, which is slow to create."""

        instructions: Instructions
        provider: Provider | None
        model: Model
        max_steps: int
        skills: Literal["all"] | Iterable[str | Skill] | None
        protocols: Iterable[str | Protocol] | None
        generation: GenerationOptions | Mapping[str, Any] | None
        on_prose: OnProse
        on_truncated: OnTruncated
        parallel_skills: bool
        list_skills: bool | None
        workflows: bool
        max_tasks: int
        middleware: Iterable[Middleware] | None
        approve: Callable[[PendingCall], Any] | None
        constrain: bool
        calls: Calls
        quoted_calls: OnQuotedCalls
        dialects: OnDialects
        know_how: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None
        name: str | None
        output_check: Callable[[Any, Any], str | None] | None
        output_retries: int

Text = str | Sequence[str | Outside]
Instructions = Text | Callable[[], Text] | Callable[[Any], Text]
OnProse = Literal["accept", "correct", "correct_once"]
OnTruncated = Literal["accept", "continue", "fail"]
OnQuotedCalls = Literal["confirm", "refuse", "run"]
OnDialects = Literal["correct", "run"]
Calls = Literal["blocks", "native"]
Answer = TypeVar("Answer")
if TYPE_CHECKING:
    NoClass = UnionType | SpecialForm | TypeAliasType  #: types such as `int | None`, which are not classes


class Agent(Generic[Output_co]):
    """Configuration: who answers, with what, under which rules.

    - `instructions`: text, or a list of texts of which some may be marked with `outside`; or a callable that returns
      them, called once per step with no argument or one (the run's `Context`).
    - `provider`: None uses the run's argument or `config.default_provider`.
    - `model`: a `Model`.
    - `max_steps`: how many model calls a run may make.
    - `skills`: None for none, ``"all"`` for every registered one, or a list of names and `Skill` objects.
    - `protocols`: None for every registered one except MCP servers, ``[]`` for none, or names and `Protocol` objects.
    - `generation`: `GenerationOptions` or a dict of them.
    - `on_prose`: what to do with a response without a block, if the agent can call something: ``"correct_once"`` (the
      model is corrected, and a second such response in a row is the answer), ``"correct"`` (it is corrected each time)
      or ``"accept"`` (it is the answer).
    - `on_truncated`: what to do with an answer that the vendor cut off: ``"accept"`` it (`Result.truncated` says so),
      ``"continue"`` (if it reached a token limit, the model is asked for the rest) or ``"fail"`` (`ProviderError`).
    - `max_tasks`: how many tasks a plan of the model may have, 1,000 at most.
    - `workflows`: whether the model's plans are run. If False, plans are only notes, and the system message does not
      explain them.
    - `parallel_skills`: whether the calls of one response run concurrently, in threads or asyncio tasks.
    - `list_skills`: True lists the skills in the system message, False has the model ask for the listing; None lists
      them if the listing has at most 8,000 characters.
    - `middleware`: what the agent's calls pass through, outermost first. With None, a sub-agent uses the caller's. See
      docs/middleware.md.
    - `approve`: a function that is asked before each call of a skill, agent or protocol, with a `PendingCall`. It
      returns True, False, a text that says why not, or a `Pause` to have somebody else decide later (which needs a
      store), also for skills with `approval=True`. A sub-agent does not take it from its caller.
    - `constrain`: whether the model's server restricts the model to finals and valid calls, see `grammar`. If so, a run
      with a provider that takes no grammar raises `ValueError`.
    - `calls`: how the model calls: ``"blocks"``, in its text, or ``"native"``, in its vendor's own format. With
      ``"native"``, a run with a provider without native calls raises `ValueError`. See docs/models.md.
    - `quoted_calls`: what to do if the model makes a call that is quoted from a result: ``"confirm"`` (the model is
      asked to send it again, alone), ``"refuse"``, or ``"run"``. See docs/models.md.
    - `dialects`: what to do with calls in another protocol's format: ``"correct"`` (the model is shown them as blocks)
      or ``"run"``.
    - `know_how`: folders of instructions in the Agent Skills format, which the model reads with `/read`. See
      docs/skills.md.
    - `name`: for recordings.
    - `output`: the type of the answers, any that an input can have; None is text. See docs/answers.md.
    - `output_check`: a function of an answer's value and the run's `Context`. It returns None to accept the answer, or
      a text that says what is wrong, so that the model corrects it. See docs/answers.md.
    - `output_retries`: how many rejected answers the model may correct before the run stops with ``"output"``.

    An invalid value raises a `TypeError` or `ValueError` that names the argument, here, in `replace` and on assignment.
    An unknown option raises `TypeError`, on assignment `AttributeError`. A subclass must declare its own attributes in
    its body.
    """

    provider: Provider | None
    model: Model
    max_steps: int
    skills: Literal["all"] | tuple[str | Skill, ...] | None
    protocols: tuple[str | Protocol, ...] | None
    generation: GenerationOptions
    on_prose: OnProse
    on_truncated: OnTruncated
    quoted_calls: OnQuotedCalls
    dialects: OnDialects
    parallel_skills: bool
    list_skills: bool | None
    workflows: bool
    max_tasks: int
    middleware: tuple[Middleware, ...] | None
    approve: Callable[[PendingCall], Any] | None
    constrain: bool
    calls: Calls
    know_how: Any
    name: str | None
    output: Any
    output_check: Callable[[Any, Any], str | None] | None
    output_retries: int
    #: the instructions, and how many arguments they take: one attribute, so that no run sees one without the other
    instructions_read: tuple[Any, int]
    answer_type: AnswerType | None
    _setup: Setup | None

    #: a default for subclasses that set an attribute before they call `Agent.__init__`
    revision = Revision()

    def __init__(
        self,
        *,
        instructions: Instructions,
        provider: Provider | None = None,
        model: Model = Models.TEXT_ONLY,
        max_steps: int = 10,
        skills: Literal["all"] | Iterable[str | Skill] | None = None,
        protocols: Iterable[str | Protocol] | None = None,
        generation: GenerationOptions | Mapping[str, Any] | None = None,
        on_prose: OnProse = "correct_once",
        on_truncated: OnTruncated = "accept",
        parallel_skills: bool = False,
        list_skills: bool | None = None,
        workflows: bool = True,
        max_tasks: int = MODEL_MAX_TASKS,
        middleware: Iterable[Middleware] | None = None,
        approve: Callable[[PendingCall], Any] | None = None,
        constrain: bool = False,
        calls: Calls = "blocks",
        quoted_calls: OnQuotedCalls = "confirm",
        dialects: OnDialects = "correct",
        know_how: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
        name: str | None = None,
        output: type[Output_co] | NoClass | None = None,
        output_check: Callable[[Output_co, Any], str | None] | None = None,
        output_retries: int = 2,
        **unknown: Never,
    ) -> None:
        options = locals()
        if unknown:
            raise TypeError(_no_option(next(iter(unknown))))
        changed = [name for name, default in _DEFAULTS.items() if options[name] is not default]
        given = {name: _CHECKS[name](name, options[name]) for name in changed}
        vars(self).update(
            _CHECKED_DEFAULTS | given, instructions_read=_read_instructions(instructions),
            answer_type=_answer_type(output), revision=Revision(), _setup=None,
        )

    @property
    def instructions(self) -> Instructions:
        return self.instructions_read[0]  # type: ignore[no-any-return] # the first of the pair

    @instructions.setter
    def instructions(self, instructions: Instructions) -> None:
        self.instructions_read = _read_instructions(instructions)

    def update_instructions(self, instructions: Instructions) -> None:
        """Sets other instructions, from the next step on, also for runs in progress."""
        self.instructions = instructions

    def system_prompt(self, context: Context | None = None) -> str:
        """Returns the text of the system message as a run with this context would send it now."""
        context = Context() if context is None else check_type(context, Context, "context must be a Context")
        setup = self.setup_now(workflows=self.workflows and context.is_root)
        return setup.read_system(self.instructions_read, context).message.text

    def grammar(self) -> str:
        """Returns a GBNF grammar of what the model may write in a run now: a final, or calls of skills and protocols.

        llama.cpp reads GBNF, and so does xgrammar, which vLLM and SGLang use.
        """
        return self.setup_now(workflows=self.workflows).grammar

    def setup_now(self, *, workflows: bool) -> Setup:
        """Returns the setup of a run that begins now, with the registries and the configuration of the process."""
        return self.setup_for(self.model, SKILLS, PROTOCOLS, config.allowed_skills, workflows, self.answer_type)

    def setup_for(self, *key: *Key) -> Setup:
        """Returns the setup of a run with this key. The latest one is kept for reuse."""
        latest = self._setup
        if latest is None or latest.key != key or not latest.is_current():
            latest = self._setup = Setup(self, key)
        return latest

    def check_provider(self, provider: Provider | None) -> None:
        """Raises `ValueError` if the provider lacks what the agent needs: native calls, or a grammar."""
        if self.calls == "native" and provider is not None:
            if not provider.calls_natively:
                raise ValueError(
                    f'Agent(calls="native") needs a provider with native calls, and {type(provider).__name__} does not '
                    'have them; leave out calls="native", and the model calls in its text'
                )
            return
        if self.constrain and provider is not None and provider.grammar_field is None:
            raise ValueError(
                f"Agent(constrain=True) needs a provider that accepts a grammar, and {type(provider).__name__} does "
                "not: for a server of your own write resolve('local/MODEL', grammar='llamacpp'), or 'vllm', or 'sglang'"
            )

    def model_under(self, callers: Model) -> Model:
        """Returns the model of a sub-run: the caller's if the agent has neither a provider nor a model of its own."""
        return callers if self.provider is None and self.model == Models.TEXT_ONLY else self.model

    def answer_text(self, result: Result[Any]) -> str:
        """Returns a run's answer as text for another agent: JSON if the answer is typed."""
        if self.answer_type is None or not result.ok:
            return result.text or ""
        return self.answer_type.text_of(result.output)

    @overload
    def replace(self, *, output: type[Answer], **changes: Unpack[AgentChanges]) -> Agent[Answer]: ...
    @overload
    def replace(self, *, output: NoClass | None, **changes: Unpack[AgentChanges]) -> Agent[Any]: ...
    @overload
    def replace(self, **changes: Unpack[AgentChanges]) -> Self: ...
    def replace(self, **changes: Any) -> Agent[Any]:
        """Returns a copy with some options changed. Raises `TypeError` for an unknown option."""
        unknown = [key for key in changes if key not in OPTIONS]
        if unknown:
            raise TypeError(_no_option(unknown[0]))
        made = object.__new__(type(self))
        vars(made).update(vars(self), revision=Revision(), _setup=None)
        for name, value in changes.items():
            setattr(made, name, value)
        return made

    def options(self) -> dict[str, Any]:
        """Returns the options by name, as `replace` takes them."""
        return {name: getattr(self, name) for name in OPTIONS}

    __replace__ = replace

    def as_skill(self, name: str, description: str, *, acts: bool = False) -> Skill:
        """Returns this agent as a skill with one input, `input: str`. `acts` is as in `Skill`.

        Within a run, a call is a sub-run one level deeper, without history. It shares the caller's context, media
        store, limits and cancellation. If it fails, the call is a `skill_error`.
        """
        return AgentSkill(name, self, self._answer, description, acts=acts)

    def _answer(self, input: str) -> str:
        # calls the skill outside of a run; not a docstring, which would be its description if that is None
        from kernai.runs.running import execute  # imported here because `runs` is built on agents

        result = execute(self, input)
        result.unwrap()
        return self.answer_text(result)

    if not TYPE_CHECKING:  # otherwise a type checker would accept every name

        def __setattr__(self, name: str, value: object) -> None:
            check = _CHECKS.get(name)
            if check is not None:
                value = check(name, value)
            elif not (name.startswith("_") or hasattr(type(self), name)
                      or any(name in annotated_names(one) for one in type(self).__mro__)):
                raise AttributeError(_no_option(name))
            if name == "output":  # first, since it may raise
                object.__setattr__(self, "answer_type", _answer_type(value))
            object.__setattr__(self, name, value)
            if not name.startswith("_"):
                self.revision.version += 1
                CHANGES.latest = object()

        def __getattr__(self, name: str) -> Any:
            is_call = name in ("run", "execute", "stream", "arun", "aexecute", "astream")  # methods in other libraries
            hint = f"; write kernai.{name}(agent, ...)" if is_call else likely(name, (*OPTIONS, *_METHODS))
            if name in OPTIONS:
                hint = ": the class has an __init__ of its own that does not call Agent.__init__"
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}", name=name, obj=self)

    def __repr__(self) -> str:
        return f"Agent(name={self.name!r}, model={self.model.id!r}, max_steps={self.max_steps})"


def _read_instructions(instructions: object) -> tuple[Any, int]:
    return (instructions, _arguments(instructions)) if callable(instructions) else (instruction_parts(instructions), 0)


def _arguments(instructions: Callable[..., Any]) -> int:
    """Returns how many arguments a callable that returns instructions takes: 0 or 1."""
    from inspect import Parameter

    parameters = signature_of(instructions).parameters.values()
    positional = [p for p in parameters if p.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)]
    is_meant = any(p.default is Parameter.empty or p.name in ("context", "ctx") for p in positional[:1])
    count = 1 if is_meant or any(p.kind is Parameter.VAR_POSITIONAL for p in parameters) else 0
    check_function("instructions", instructions, "no argument or one, the run's Context", *[None] * count)
    return count


def check_model(model: object) -> Model:
    """Returns the model itself, or raises a `TypeError`; for a text, that says what to write instead."""
    if isinstance(model, str):
        how = f"provider, model = kernai_providers.resolve({model!r})" if "/" in model else f"Model({model!r})"
        raise TypeError(f"model must be a Model, not text: write {how}, or take one of Models")
    if not isinstance(model, Model):
        raise TypeError(f"model must be a Model, got {type(model).__name__}")
    return model


def _answer_type(output: object) -> AnswerType | None:
    if output is None or output is str:
        return None
    from kernai.inputs.answer_type import AnswerType  # most agents answer with text

    return AnswerType(output)


def _check_middleware(_: str, middleware: object) -> tuple[Middleware, ...]:
    if callable(middleware) or not isinstance(middleware, Iterable):
        raise TypeError(f"middleware must be a list or None, got {type(middleware).__name__}")
    given = tuple(middleware)
    for one in given:
        if isinstance(one, type):
            raise TypeError(f"middleware must hold instances: write {one.__name__}()")
        # what the included functions return is a middleware, and has a dot in its `__qualname__`
        is_included = isinstance(one, FunctionType) and one.__module__ == "kernai.middleware.bundled"
        if is_included and "." not in one.__qualname__:
            raise TypeError(f"{one.__name__} makes a middleware: write {one.__name__}(...)")
        check_function("a middleware", one, "the effect (a plain generator, also under asyncio)", None, may_yield=True)
    return given


def _named(argument: str, given: object, kind: type[Any], others: str) -> tuple[Any, ...]:
    """Checks names and objects of a `kind`, and returns them as a tuple."""
    if isinstance(given, (str, kind, Mapping)) or not isinstance(given, Iterable):
        got = repr(given) if isinstance(given, str) else type(given).__name__
        raise TypeError(f"{argument} must be {others} or a list of names and {kind.__name__}s, got {got}")
    # the order of a set depends on Python's hash seed
    in_order = isinstance(given, (set, frozenset))
    named = tuple(sorted(given, key=lambda one: str(getattr(one, "name", one))) if in_order else given)
    for one in named:
        if not isinstance(one, (str, kind)):
            got = f"{type(one).__name__}{_instead(one, kind)}"
            raise TypeError(f"{argument} may hold names and {kind.__name__}s, not {got}")
    names = [one if isinstance(one, str) else one.name for one in named]
    twice = [name for name in names if names.count(name) > 1] if len(set(names)) < len(names) else []
    if twice:
        raise ValueError(f"{argument} holds {twice[0]!r} twice")
    return named


def _instead(one: object, kind: type[Any]) -> str:
    """What to write instead of an object that is not a `kind`, if its class does not say it."""
    if isinstance(getattr(one, "protocol", None), Protocol):  # an MCP adapter; the core does not import it
        return ": pass its protocol in protocols=, or its tools, skills(server), in skills="
    if isinstance(one, Agent):
        return ": call its as_skill(name, description)"
    return ": decorate it with @skill" if callable(one) and kind is Skill else ""


def _optional(check: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
    return lambda name, value: None if value is None else check(name, value)


def _flag(name: str, value: object) -> Any:
    return check_type(value, bool, f"{name} must be True or False")


def _choice(name: str, given: Any, literal: object) -> Any:
    choices = get_args(literal)
    if given not in choices:
        raise ValueError(f"{name} must be {', '.join(map(repr, choices[:-1]))} or {choices[-1]!r}, got {given!r}")
    return given


def _check_know_how(_: str, know_how: object) -> object:
    from kernai.agents.know_how import KnowHow  # few agents have any

    return KnowHow.of(know_how)


def _no_option(name: str) -> str:
    from kernai.runs.run_request import RunOptions  # only for this error; `runs` is built on agents

    if name in Limits.__dataclass_fields__ and name != "max_tokens":  # an agent has generation.max_tokens
        return f"Agent has no option {name!r}; it is a limit of a run: execute(agent, ..., limits=Limits({name}=...))"
    if closest(name, OPTIONS) is None and (of_a_run := closest(name, RunOptions.__annotations__)) is not None:
        return f"Agent has no option {name!r}; it is one of a run: execute(agent, ..., {of_a_run}=...)"
    return f"Agent has no option {name!r}{likely(name, OPTIONS, 'it has')}"


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "provider": lambda _, provider: check_provider(provider),
    "model": lambda _, model: check_model(model),
    "max_steps": partial(check_number, least=1),
    "skills": _optional(lambda name, skills: "all" if skills == "all" else _named(name, skills, Skill, "None, 'all',")),
    "protocols": _optional(partial(_named, kind=Protocol, others="None, for every registered one,")),
    "generation": lambda _, generation: GenerationOptions.coerce(generation),
    "on_prose": partial(_choice, literal=OnProse),
    "on_truncated": partial(_choice, literal=OnTruncated),
    "parallel_skills": _flag,
    "list_skills": _optional(_flag),
    "workflows": _flag,
    "max_tasks": partial(check_number, least=1, most=MAX_TASKS),
    "middleware": _optional(_check_middleware),
    "approve": _optional(lambda name, approve: check_function(name, approve, "the call", None)),
    "constrain": _flag,
    "calls": partial(_choice, literal=Calls),
    "quoted_calls": partial(_choice, literal=OnQuotedCalls),
    "dialects": partial(_choice, literal=OnDialects),
    "know_how": _optional(_check_know_how),
    "name": lambda name, value: check_type(value, str | None, f"{name} must be text or None"),
    "output": lambda _, output: output,  # `_answer_type` checks it
    "output_check": _optional(lambda name, check: check_function(name, check, "(value, context)", None, None)),
    "output_retries": partial(check_number, least=0),
}
#: the names of all options
OPTIONS = ("instructions", *_CHECKS)
_DEFAULTS: dict[str, Any] = Agent.__init__.__kwdefaults__ or {}
_CHECKED_DEFAULTS = {name: check(name, _DEFAULTS[name]) for name, check in _CHECKS.items()}
_METHODS = ("as_skill", "replace", "update_instructions", "system_prompt", "grammar", "options")
