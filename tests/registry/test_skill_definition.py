"""`@skill` and `Skill`: what is read from a function, the errors for mistakes, and calling a skill."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import enum
import functools
import inspect
import pickle
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, Optional, TypeAlias, TypedDict, get_type_hints

import pydantic
import pytest
from typing_extensions import Doc

import kernai
from kernai import Context, Credential, Input, Media, Setting, Skill, SkillContext, SkillInputError, skill, skills
from kernai.inputs.schema import NO_VALUE, REQUIRED


@skill(register=False)
def search(query: str, limit: int = 10) -> str:
    """Search the knowledge
    base.

    More about it.
    """
    return f"{query}/{limit}"


# ----------------------------------------------------------------------------------------- what is read from a function


def test_name_description_and_inputs_come_from_the_function() -> None:
    assert skills.find("search") is None, "it has register=False"
    assert (search.name, search.description) == ("search", "Search the knowledge base.")
    assert search.inputs == {"query": Input(str), "limit": Input(int, 10)}
    assert [one.required for one in search.inputs.values()] == [True, False]
    assert (search.requires, search.produces, search.credentials, search.settings) == ((), (), {}, {})
    assert (search.is_async, search.wants_context) == (False, False)


def test_options_override_the_name_and_docstring_of_the_function() -> None:
    @skill(name="find it", description=" Finds. ", requires="vision", produces=["image", "text"],
           credentials={"key": Credential()}, settings={"timeout": Setting(int, default=30)})
    def find() -> None:
        """Something else."""

    assert skills.find("find it") is find
    assert (find.name, find.description, find.requires, find.produces) == ("find it", "Finds.", ("vision",), ("image", "text"))
    assert (list(find.credentials), find.settings["timeout"].default) == (["key"], 30)


def test_each_kind_of_parameter_is_an_input_whatever_is_returned() -> None:
    @skill
    def mixed(anything, a: int, ctx: SkillContext[Any], /, b: int, *, c: int = 3) -> Nowhere:  # type: ignore[name-defined, no-untyped-def]  # noqa: F821
        return anything, a, type(ctx).__name__, b, c

    assert mixed.call({"anything": {"x": None}, "a": 1, "b": 2}) == ({"x": None}, 1, "SkillContext", 2, 3)


def test_a_skill_can_still_be_called_like_the_function_and_help_and_inspect_show_it() -> None:
    assert search("a", limit=2) == "a/2"
    assert search("a", "unchecked") == "a/unchecked"  # type: ignore[arg-type]  # and a type checker still looks
    assert (search.__name__, search.__module__) == ("search", __name__)
    assert str(search.__doc__).startswith("Search the knowledge")
    assert (search.__wrapped__("a"), list(inspect.signature(search).parameters)) == ("a/10", ["query", "limit"])
    assert get_type_hints(search).keys() == {"query", "limit", "return"}


def test_a_skill_defined_in_a_module_is_pickled_by_name_and_copied_as_itself() -> None:
    assert copy.deepcopy(search) is copy.copy(search) is search
    assert search.__reduce__() == "search"

    @skill(register=False)
    def local() -> None: ...

    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(local)


def of_a_module(text: str, times: Literal[1, 2] = 2) -> str:
    return text * times


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copied_skill_keeps_its_required_inputs(copied: Callable[[Any], Any]) -> None:
    again = copied(Skill("again", execute=of_a_module))
    assert again.call({"text": "x"}) == "xx"
    with pytest.raises(SkillInputError, match="text: required, but missing"):
        again.call({})
    assert again.usage() == Skill("again", execute=of_a_module).usage()
    for mark in (REQUIRED, NO_VALUE):
        assert copied(mark) is mark
    assert repr(REQUIRED) == "REQUIRED"


def test_a_skill_called_with_a_context_gets_that_context() -> None:
    given: list[SkillContext[Any]] = []

    @skill(register=False, credentials={"key": Credential()})
    def one(ctx: SkillContext[Any]) -> str | None:
        given.append(ctx)
        return ctx.credential("key")

    ctx = SkillContext(one, Context(), credentials={"key": "value"})
    assert (one.call({}, ctx), given) == ("value", [ctx])
    picture = ctx.media_store.put(Media.from_bytes(b"x", mime_type="image/png"))
    assert Skill("look", execute=of_media).call({"image": picture.id}, ctx) == "image"


def of_media(image: Media) -> str:
    return image.kind


class Mine(SkillContext[Any]):
    """A host's own."""


def test_a_bound_method_and_a_partial_can_be_skills() -> None:
    class Tools:
        def double(self, n: int) -> int:
            """Doubles."""
            return 2 * n

    def power(base: int, exponent: int) -> int:
        """Raises."""
        return int(base**exponent)

    assert skill(Tools().double).call({"n": 4}) == 8
    class Name(str, enum.Enum):  # noqa: UP042 - see tests/values/test_json_data.py
        SQUARE = "square"

    square = skill(name=Name.SQUARE)(functools.partial(power, exponent=2))
    assert square.usage() == '<block type="command" name="square">{"base": 1}</block>'
    assert (square.description, square.call({"base": 5})) == ("Raises.", 25)


def test_a_callable_object_can_be_a_skill_if_it_is_given_a_name() -> None:
    Number: TypeAlias = int

    class Counter:
        """Counts. Has the attributes of a `functools.partial`, which say nothing about it."""

        keywords, func = {"n": 1}, None

        async def __call__(self, n: Annotated[Number, "how many"]) -> int:
            """Count to a number."""
            return n

    counter = skill(name="count")(Counter())
    assert (counter.is_async, counter.description) == (True, "Count to a number.")
    assert skill(name="manager")(contextlib.ContextDecorator()).description.startswith("A base class")
    assert skill(name="copy")(functools.update_wrapper(Counter(), copy.copy)).description.startswith("Shallow copy")
    assert asyncio.run(counter.call({"n": 3})) == 3


def test_a_wrapped_function_keeps_its_own_signature() -> None:
    def loud(function: Callable[..., str]) -> Callable[..., str]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> str:
            return function(*args, **kwargs).upper()

        return wrapper

    @skill
    @loud
    def hello(name: str) -> str:
        return f"hello {name}"

    assert hello.call({"name": "ann"}) == "HELLO ANN"
    with pytest.raises(SkillInputError):
        hello.call({"name": 1})


# --------------------------------------------------------------------------------------------- textual annotations


def test_annotations_resolve_types_local_to_the_defining_function() -> None:
    @dataclass
    class Inner:
        n: int

    @dataclass
    class Outer:
        inner: Inner
        also: list[Outer] | None = None

    class Opts(TypedDict):
        inner: NotRequired[Inner]

    def define() -> Any:
        @skill
        def local(x: Outer, y: Opts, z: Optional[Inner] = None) -> Any:  # noqa: UP045
            return x, y, z

        return local

    def called(Inner: object) -> Any:  # noqa: N803 - what a caller means by a name does not matter
        return define()

    local = called(int)
    assert local.call({"x": {"inner": {"n": 1}, "also": []}, "y": {}, "z": {"n": 2}}) == (Outer(Inner(1), []), {}, Inner(2))
    with pytest.raises(SkillInputError, match=r"y\.inner\.n: expected integer"):
        local.call({"x": {"inner": {"n": 1}}, "y": {"inner": {"n": "a"}}})


def test_a_local_type_may_use_names_from_the_functions_around_it() -> None:
    def types() -> type:
        @dataclass
        class Part:
            n: int

        @dataclass
        class Whole:
            part: Part
            again: Whole | None = None

        # while the scope with these types is running, they resolve for functions from anywhere
        Skill("probe", execute=lambda x: x, inputs={"x": Whole}).call({"x": {"part": {"n": 1}, "again": None}})
        return Whole

    with pytest.raises(TypeError, match="the fields of Whole cannot be resolved: name 'Part' is not defined"):
        Skill("probe", execute=lambda x: x, inputs={"x": types()})


def test_annotations_resolve_types_of_every_enclosing_function_and_in_the_closure_of_one_that_has_returned() -> None:
    @dataclass
    class Far:
        n: int

    def middle() -> tuple[Skill, Callable[..., Any]]:
        Near = Literal["a", "b"]  # noqa: N806 - a type

        @dataclass
        class Kept:
            n: int

        @skill(register=False)
        def deep(x: Far, y: Near) -> Any:
            return x, y

        def take(x: Kept) -> bool:
            return isinstance(x, Kept) or later

        later = True
        return deep, take

    deep, take = middle()
    assert deep.call({"x": {"n": 1}, "y": "b"}) == (Far(1), "b")
    assert skill(register=False)(take).call({"x": {"n": 1}}) is True


def test_a_description_in_an_annotation_describes_the_input() -> None:
    @skill
    def dated(due: Annotated[Annotated[date, "a day"], "when it is due"], n: Annotated[int, "how many"] | None = None, of: Annotated[str, pydantic.Field(description="of what")] = "", to: Annotated[str, Doc("to whom")] = "") -> None: ...

    assert [one.description for one in dated.inputs.values()] == ["when it is due", "how many", "of what", "to whom"]
    assert '- due (date such as "2024-01-31", required): when it is due' in dated.describe()


# --------------------------------------------------------------------------------------------------- the context


@pytest.mark.parametrize("annotation", [
    "SkillContext", "SkillContext[Context]", "SkillContext[Any] | None", "Optional[SkillContext[Any]]",
    "'SkillContext[Any]'", "SkillContext[AppContext]", "kernai.SkillContext[AppContext] | None", "Mine",
])
def test_a_parameter_annotated_with_skill_context_gets_the_context_and_is_no_input(annotation: str) -> None:
    def take(ctx: Any) -> Any:
        return ctx

    take.__annotations__["ctx"] = annotation
    made, context = skill(register=False)(take), Context()
    assert made.wants_context
    assert made.inputs == {}
    given = made.call({}, context)
    assert isinstance(given, SkillContext)
    assert (given.run_context, given.media_store) == (context, context.media_store)


def test_a_called_skill_finds_media_in_the_runs_store() -> None:
    kind, context = Skill("kind", execute=of_media), Context()
    media = context.media_store.put(Media.from_bytes(b"x", mime_type="image/png"))
    for given in ({"image": media.id}, media.id, {"image": media}):
        assert kind.call(given, context) == "image"
    with pytest.raises(SkillInputError, match="image: expected the id of a media"):
        kind.call({"image": "media_000000000000"}, context)


async def test_calling_an_async_skill_returns_its_coroutine() -> None:
    @skill
    async def slow(n: int, ctx: SkillContext[Any]) -> int:
        await asyncio.sleep(0)
        return n + len(ctx.call_id)

    assert slow.is_async
    assert await slow.call({"n": 1}) == 1
    with pytest.raises(SkillInputError):  # raised by the call, not when the coroutine is awaited
        slow.call({"n": "a"})


# ------------------------------------------------------------------------------------------- without a decorator


def test_declared_inputs_are_passed_to_functions_with_kwargs_or_a_context() -> None:
    def free(**given: Any) -> Any:
        return given

    def with_context(ctx: SkillContext[Any], x: Any, spare: int = 1) -> Any:
        return type(ctx), x, spare

    assert Skill("free", execute=free, inputs={"a-b": int}).call({"a-b": 1}) == {"a-b": 1}
    assert Skill("ctx", execute=with_context, inputs={"x": int}).call({"x": 1}) == (SkillContext, 1, 1)


def test_a_function_written_in_c_can_be_a_skill_with_declared_inputs() -> None:
    assert Skill("most", execute=max, inputs={}).name == "most"
    assert Skill("size", execute=len, inputs={"obj": list}).call({"obj": [1, 2]}) == 2


def test_declared_inputs_that_the_function_does_not_accept_are_a_type_error() -> None:
    for function, inputs, said in (
        (search, {"query": str, "y": int}, "its function does not accept these inputs: got an unexpected keyword argument 'y'"),
        (lambda a=0, b=0, /: a, {"b": int}, "takes 'b' by position, after one that is not in inputs"),
        (search, {}, "missing a required argument: 'query'"), (positional, {"args": list}, "unexpected keyword argument 'args'"),
    ):
        with pytest.raises(TypeError, match=said):
            Skill("bad", execute=getattr(function, "function", function), inputs=inputs)


def test_a_subclass_of_skill_may_parse_and_bind_parameters_in_its_own_way() -> None:
    class Shouted(Skill):
        def read(self, content: str, **options: Any) -> dict[str, object]:
            return super().read(content.upper(), **options)

        def bind(self, params: Mapping[str, object], *given: Any, **options: Any) -> dict[str, object]:
            return super().bind({name: f"{text}!" for name, text in params.items()}, *given, **options)

    def say(text: str) -> str:
        return text

    provider = kernai.MockProvider('<command name="say">hello</command>', "<final>done</final>")
    result = kernai.execute(kernai.Agent(instructions="x", skills=[Shouted("say", execute=say)], provider=provider), "go")
    assert ">HELLO!<" in result.messages[2].text
    assert Shouted("say", execute=say).rebind({"text": "a"}, {"text": "b"}) == {"text": "b!"}


# ----------------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize("name, error, said", [
    *((wrong, ValueError, "cannot be named .*: it must not be blank, begin with '/' .*; choose one with name=")
      for wrong in ("", " \n", " search", "search\n", "/skills", "<lambda>", *(f"a{sign}b" for sign in '"<>\n\t\x00\x85'))),
    (5, TypeError, "must be a str, got int: give one with name="),
])
def test_a_name_that_cannot_be_written_in_a_call_is_refused(name: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        Skill(name, execute=lambda: None)


@pytest.mark.parametrize("name", ["find it", "a/b", "o'clock", "é🙂", "search-2"])
def test_any_other_name_is_accepted(name: str) -> None:
    one = Skill(name, execute=lambda: None)
    [block] = kernai.parse(one.usage()).blocks
    assert block.name == one.name == name


OPTIONS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"requires": "sight"}, ValueError, "requires has no word 'sight'; it may be text, vision"),
    ({"requires": 5}, TypeError, "requires must be a word or several"),
    ({"produces": "vision"}, ValueError, "produces has no word 'vision'; it may be image"),
    ({"description": 5}, TypeError, "description must be a str"),
    ({"execute": 5}, TypeError, "execute must be callable, got int"),
    ({"execute": search}, TypeError, "is a Skill already; to make another, pass its .function"), ({"directory": ["id"]}, TypeError, "directory must be True, or two keys"),
    ({"execute": max}, TypeError, r"the signature of <built-in function max> cannot be read; pass inputs=\{...\}"),
    ({"execute": lambda ctx: ctx}, TypeError, "'ctx' would be an input; write ctx: SkillContext"),
    ({"inputs": ["x"]}, TypeError, "inputs must be a mapping"),
    ({"credentials": ["key"]}, TypeError, "credentials must be a mapping"),
    ({"credentials": {"key": Setting()}}, TypeError, r"credentials\['key'\] must be a Credential, got Setting"),
    ({"credentials": {"key": "hunter2"}}, TypeError, r"credentials\['key'\] must be a Credential, got str"),
    ({"settings": {"key": 5}}, TypeError, r"settings\['key'\] must be a Setting, got int"),
]


@pytest.mark.parametrize("options, error, said", OPTIONS)
def test_a_wrong_option_of_a_skill_is_an_error_that_names_it(options: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=f"skill 'x': .*{said}") as caught:
        Skill("x", **{"execute": lambda: None, **options})
    assert "hunter2" not in str(caught.value)


def positional(*args: Any) -> None: ...
def keywords(**kwargs: Any) -> None: ...
def mixed(a: Any, *args: int) -> None: ...
def lost(x: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821
def numbers() -> Iterator[int]: yield 1
async def more() -> AsyncIterator[int]: yield 1
def method(self, n: int) -> None: ...  # type: ignore[no-untyped-def]
def fielded(n: int = pydantic.Field(ge=1)) -> None: ...


@pytest.mark.parametrize("given, said", [
    *((one, rf"skill '{one.__name__}': parameter '\*+\w+' cannot be an input") for one in (positional, keywords, mixed)),
    (lost, "skill 'lost': parameter 'x': the annotation 'Nowhere' cannot be resolved"),
    (numbers, "does not yield"), (more, "does not yield"), (fielded, "'n': its default, a FieldInfo, is not a value"),
    (method, r"make a skill of the bound method: skill\(instance.method\)"),
    (functools.partial(of_a_module), "name must be a str, got NoneType: give one with name="),
    ("search", r"a name is given as @skill\(name="),
])
def test_a_function_that_cannot_be_a_skill_is_a_type_error_with_the_fix(given: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        skill(given)


def test_wrong_options_and_parameters_are_a_type_error() -> None:
    for wrong in ("requires_approval", "aproval"):
        with pytest.raises(TypeError, match=f"@skill has no option '{wrong}'; did you mean 'approval'"):
            skill(**{wrong: True})  # type: ignore[call-overload]
    for params in (None, 5, ["x"]):
        with pytest.raises(TypeError, match="params must be a mapping"):
            search.call(params)  # type: ignore[arg-type]  # the point


# -------------------------------------------------------------------------------------------------- the description


@dataclass
class Ticket:
    title: Annotated[str, "one line"]
    priority: Literal["low", "high"] = "low"
    parent: Ticket | None = None


def test_nested_fields_are_listed_with_their_paths_and_records_once_each() -> None:
    @skill(produces=("document", "image"))
    def file_tickets(
        project: Annotated[str, "its key"],
        tickets: list[Ticket],
        by_day: dict[str, Ticket],
        when: date = date(2024, 1, 2),
    ) -> None:
        """Files tickets."""

    assert file_tickets.describe().splitlines() == [
        "### file_tickets", "Files tickets.", "Inputs:", "- project (string, required): its key",
        "- tickets (list of Ticket object, required)", "  - tickets[].title (string, required): one line",
        '  - tickets[].priority (one of "low", "high", default "low")',
        "  - tickets[].parent (Ticket object or null, default null)",
        "- by_day (object with values of type Ticket object, required)",
        "  - by_day.*.title (string, required): one line",
        '  - by_day.*.priority (one of "low", "high", default "low")',
        "  - by_day.*.parent (Ticket object or null, default null)",
        '- when (date such as "2024-01-31", default "2024-01-02")', "Produces: document, image",
        f"Usage: {file_tickets.usage()}",
    ]
    assert file_tickets.usage() == (
        '<block type="command" name="file_tickets">{"project": "...", "tickets": [{"title": "..."}], '
        '"by_day": {"key": {"title": "..."}}, "when": "2024-01-02"}</block>'
    )


def test_a_skill_without_inputs_says_so_and_is_called_with_nothing() -> None:
    @skill(credentials={"api_key": Credential(default="hunter2")}, settings={"zone": Setting(default="eu")})
    def now() -> None: ...

    assert now.describe().splitlines() == ["### now", "Inputs: none", f"Usage: {now.usage()}"]
    assert now.usage() == '<block type="command" name="now"></block>'


def test_a_default_that_the_type_would_reject_is_left_out_of_the_usage_line() -> None:
    @skill
    def lenient(q: str, tag: str = 5, n: int | None = None) -> None: ...  # type: ignore[assignment]

    assert '>{"q": "...", "n": null}<' in lenient.usage()


@pytest.mark.parametrize("given, expected", [({"a": None}, "None"), ({}, "None"), ({"a": 5}, "5")])
def test_an_input_whose_default_is_none_accepts_none(given: dict[str, Any], expected: str) -> None:
    @skill(register=False)
    def show(a: int = None) -> str:  # type: ignore[assignment]  # noqa: RUF013
        return repr(a)

    @dataclass
    class Record:
        a: int = None  # type: ignore[assignment]

    class Row(NamedTuple):
        a: int = None  # type: ignore[assignment]

    @skill(register=False)
    def show_records(record: Record, row: Row) -> str:
        return f"{record.a} {row.a}"

    assert show.call(given) == expected
    assert show_records.call({"record": given, "row": given}) == f"{expected} {expected}"
    assert "record.a (integer or null, default null)" in show_records.describe()
