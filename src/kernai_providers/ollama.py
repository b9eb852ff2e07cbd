"""`OllamaProvider`: models on your own machine, with Ollama's own API.

https://github.com/ollama/ollama/blob/main/docs/api.md
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from kernai import GenerationOptions, Media, Message, Model
from kernai.jsonio.json_data import loads
from kernai_providers.failures import objects
from kernai_providers.http_provider import SAMPLING, SVG, HttpProvider
from kernai_providers.native import AssistantTurn, Toolbox, UserTurn, json_or_text
from kernai_providers.reader import LineReader, count_of
from kernai_providers.request_checks import checked_base_url, setting

DEFAULT_PORT = 11434
#: the type of thinking in a message's reasoning
THOUGHT = "thinking_text"
#: scheme, name, port and path of a host; a name that contains ":" but no "@" is an IPv6 address, or wrong
_HOST = re.compile(r"(?s)(?:(.*?)://)?(\[[^]]*\]|[^:/]*|[^/]*)(?::(\d*))?(/.*)?")
_THIS_MACHINE = {"": "localhost", "0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104 - not to listen there


class OllamaProvider(HttpProvider):
    """Ollama's `/api/chat`.

    Needs no key. A key in `OLLAMA_API_KEY`, for a server behind a gateway, is sent as a bearer token. `base_url`: by
    default `OLLAMA_HOST`, else ``http://localhost:11434``. Takes images from files or bytes, if the model declares
    them. For everything else see `HttpProvider`.
    """

    vendor = "ollama"
    default_base_url = "http://localhost:11434"
    key_variables: tuple[str, ...] = ("OLLAMA_API_KEY",)
    needs_key = False
    endpoint = "/api/chat"
    calls_natively = True
    enforces = "without tools"  # a model that is restricted to a schema calls nothing

    def body(self, messages: Sequence[Message], model: Model, generation: GenerationOptions) -> dict[str, Any]:
        body = self.chat(messages, model, _message)
        if options := self.options(generation, **SAMPLING, max_tokens="num_predict", stop="stop"):
            body["options"] = options
        if generation.thinking is not None:
            how = generation.thinking.get("effort", generation.thinking.get("budget") != 0)
            body["think"] = how if how != "none" else False
        return body

    def native_body(
        self, messages: Sequence[Message], model: Model, generation: GenerationOptions, box: Toolbox
    ) -> dict[str, Any]:
        """Returns the body. A constrained agent's system text also explains how to write a call in JSON."""
        explained = [*messages, Message("system", _json_instructions(box))] if box.constrained else messages
        return super().native_body(explained, model, generation, box)

    def offer(self, box: Toolbox, body: dict[str, Any]) -> None:
        """Adds a schema or tools. A constrained agent has one schema for calls and answers."""
        if box.constrained:
            body["format"] = _constrained_schema(box)
        elif box.answer is not None:
            body["format"] = box.answer
        elif box.tools:
            body["tools"] = [{"type": "function", "function": box.function(name)} for name in box.tools]

    def native_messages(self, turn: AssistantTurn | UserTurn, model: Model) -> Iterator[dict[str, Any]]:
        if isinstance(turn, AssistantTurn):
            message: dict[str, Any] = {"role": "assistant", "content": turn.text}
            if turn.calls:
                called = [{"name": call.name, "arguments": call.arguments} for call in turn.calls]
                message["tool_calls"] = [{"function": function} for function in called]
                for item in turn.thoughts(0, THOUGHT):
                    message["thinking"] = item["text"]
            yield message
            return
        for result in turn.results:
            yield {"role": "tool", "tool_name": result.name, "content": result.marked}
        if parts := self.parts_after_results(turn):
            yield _message("user", self.encode(parts, model))

    def encode_part(self, part: str | Media, model: Model) -> Any:
        """Encodes text and images; a URL is not fetched, so it becomes its placeholder."""
        if isinstance(part, str):
            return {"text": part}
        accepts = part.kind == "image" and part.mime_type != SVG and model.supports("vision") and not part.is_url
        return {"image": part.to_base64()} if accepts else None

    def reader(self) -> OllamaReader:
        return OllamaReader(self.vendor, self.secrets)

    def _default_base_url(self) -> str:
        host, where = setting("OLLAMA_HOST")
        return checked_base_url(_url_of(host), where) if host else self.default_base_url


class OllamaReader(LineReader):
    """Lines of `/api/chat`, up to ``"done": true``."""

    terminal = '"done": true'

    def on_object(self, found: dict[str, Any]) -> None:
        self.note(found, model="model")
        message = found.get("message")
        if isinstance(message, dict):
            if self.box is not None and self.box.constrained:
                self._pieces["json"].append(str(message.get("content") or ""))
            else:
                self.say(message.get("content"))
            self.think(message.get("thinking"))
            for call in objects(message.get("tool_calls")):
                self._on_call(call.get("function"))
        if found.get("done") is not True:
            return
        reason = found.get("done_reason")
        self.end_with(reason if isinstance(reason, str) and reason else "stop")
        self._read_json("".join(self._pieces["json"]))
        if self.box is not None and self.called_tool and self._reasoning:
            self.keep({"type": THOUGHT, "text": "".join(self._reasoning)}, 0)
        self.prompt_tokens = count_of(found.get("prompt_eval_count"))
        self.completion_tokens = count_of(found.get("eval_count"))
        self.complete = True

    def _on_call(self, function: object) -> None:
        if isinstance(function, dict):
            self.call(len(self._calls), name=function.get("name"), text=function.get("arguments") or {})

    def _read_json(self, text: str) -> None:
        """Reads a constrained model's JSON: a call or an answer. Other text, such as JSON cut off, is the answer."""
        data = json_or_text(text)
        if isinstance(data, dict) and "tool" in data:
            self._on_call({"name": data["tool"], "arguments": data.get("arguments")})
        elif isinstance(data, dict) and "answer" in data:
            answer = data["answer"]
            self.say(answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False))
        else:
            self.say(text)


def _constrained_schema(box: Toolbox) -> dict[str, Any]:
    """Returns the schema of everything that a constrained model may write: one call, or an answer."""
    ways = [{"tool": {"const": name}, "arguments": tool.schema} for name, tool in box.tools.items()]
    if box.output is None or box.answer is not None:
        ways.append({"answer": box.answer or {"type": "string"}})
    # references start at the root, so the definitions have to be there; two tools may have different ones of one name
    definitions, objects = dict[str, Any](), []
    for number, way in enumerate(ways):
        *before, (last, schema) = loads(json.dumps(way).replace('"#/$defs/', f'"#/$defs/{number}.')).items()
        definitions |= {f"{number}.{name}": one for name, one in schema.pop("$defs", {}).items()}
        inside = {**dict(before), last: schema}
        shape = {"type": "object", "properties": inside, "required": list(inside), "additionalProperties": False}
        objects.append(shape)
    return {"anyOf": objects, "$defs": definitions}


def _json_instructions(box: Toolbox) -> str:
    tools = [f"- {name}: {' '.join(tool.description.split())}" for name, tool in box.tools.items()]
    how = ['{"tool": NAME, "arguments": {...}} calls a tool'] if tools else []
    how += [] if box.output is not None and box.answer is None else ['{"answer": ...} gives your answer']
    return "\n".join([f"Write one JSON object: {'; '.join(how)}.", *(["Tools:", *tools] if tools else [])])


def _message(role: str, parts: list[Any]) -> dict[str, Any]:
    """Returns a message with one text, and images in a field of their own: in this API, content is only text."""
    message: dict[str, Any] = {"role": role, "content": "".join(part.get("text", "") for part in parts)}
    images = [part["image"] for part in parts if "image" in part]
    return message | ({"images": images} if images else {})


def _url_of(host: str) -> str:
    """`OLLAMA_HOST` as Ollama's own programs read it: a host, host:port or URL.

    Without a scheme the port is 11434, with one it is the scheme's own. The addresses 0.0.0.0 and [::], on which a
    server listens, mean this machine; ollama.com alone means https.
    """
    host = host.strip("\"'")
    found = _HOST.fullmatch("https://ollama.com" if host == "ollama.com" else host)
    assert found is not None  # the pattern matches any text
    scheme, name, port, path = found.groups("")
    name = f"[{name}]" if ":" in name and not name.startswith("[") and "@" not in name else name
    port = port or ("" if scheme else str(DEFAULT_PORT))
    return f"{scheme or 'http'}://{_THIS_MACHINE.get(name, name)}{port and ':' + port}{path}"
