"""Reading configurations; errors in one name the server, the key and the fix."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kernai
from kernai.mcp import Adapter, McpConfigError, load, setup
from kernai.mcp.configuration import read_servers, redactor_of
from kernai.mcp.language import METHODS

STDIO = {"command": "true"}


@pytest.mark.parametrize("entry, transport", [
    ({"command": "npx"}, "stdio"),
    ({"url": "https://host/mcp"}, "streamable_http"),
    ({"url": "https://host/sse"}, "sse"),
    ({"url": "https://host/sse/?key=1"}, "sse"),
    ({"url": "https://host/mcp?at=/sse"}, "streamable_http"),
    ({"url": "https://host/mcp", "transport": "sse"}, "sse"),
    ({"url": "https://host/sse", "type": "streamable-http"}, "streamable_http"),
])
def test_the_transport_is_configured_or_detected(entry: dict[str, Any], transport: str) -> None:
    assert read_servers({"servers": {"it": entry}})["it"].transport == transport


def test_a_whole_entry_is_read(tmp_path: Path) -> None:
    (server,) = read_servers({"servers": {"files": {
        "transport": "stdio", "command": "npx", "args": ["-y", 3], "env": {"PORT": 8080, "KEY": "k"}, "cwd": "/tmp",
        "timeout": "0.5", "tools": ["read"], "roots": [str(tmp_path), "file:///srv", {"uri": "file:///x", "name": "x"}],
    }}}).values()
    assert (server.command, server.args, dict(server.env), server.cwd) == (
        "npx", ("-y", "3"), {"PORT": "8080", "KEY": "k"}, "/tmp"
    )
    assert (server.timeout, server.tools) == (0.5, frozenset({"read"}))
    assert [(one["uri"], one["name"]) for one in server.roots] == [
        (tmp_path.as_uri(), None), ("file:///srv", None), ("file:///x", "x"),
    ]
    assert server.allows("read")
    assert not server.allows("write")


def test_a_desktop_clients_file_is_accepted_with_its_own_keys_and_disabled_servers() -> None:
    servers = read_servers({
        "globalShortcut": "${unfinished",
        "mcpServers": {
            "files": {"command": "npx", "args": [], "alwaysAllow": ["${x}"]},
            "off": {"command": "npx", "disabled": True, "env": {"TOKEN": "${TOKEN_OF_NOBODY}"}},
        },
    })
    assert list(servers) == ["files"]


WRONG = [
    ("mcp.yml", "with the key 'servers', got str; kernai.mcp.load reads a file"),
    (["servers"], "the configuration must be a mapping with the key 'servers', got list"),
    ({"server": {}}, "unknown key 'server': write only {'servers': {'NAME': {'command': ...}}}"),
    *(({"servers": {}, other: {}}, f"unknown key {other!r}: write only {{'servers': ") for other in ("timeout", "mcpServers")),
    ({"servers": []}, "servers must be a mapping from names to servers, got list"),
    *(({"servers": {name: STDIO}}, f"got {name!r}") for name in ("a b", 7)),
    ({"servers": {"it": "npx"}}, "server 'it': must be a mapping such as {'command': ...}, got str"),
    *(({"servers": {"it": entry}}, "server 'it', key 'command': is missing: give a command to start, or a url") for entry in (None, {"command": " "})),
    ({"servers": {"it": {"comand": "npx"}}}, "server 'it', key 'comand': there is no such key; did you mean 'command'?"),
    ({"servers": {"it": {**STDIO, "color": 1}}}, "server 'it', key 'color': there is no such key; remove it"),
    ({"servers": {"it": {"command": "a", "url": "http://h"}}}, "server 'it', key 'command': does not belong to transport streamable_http"),
    ({"servers": {"it": {"transport": "pipe", "command": "a"}}}, "key 'transport': must be stdio, sse or streamable_http, got 'pipe'"),
    ({"servers": {"it": {"transport": "stdio", "url": "http://h"}}}, "key 'command': is missing: transport stdio needs it"),
    ({"servers": {"it": {**STDIO, "args": [True]}}}, "key 'args[0]': must be text, got bool: put it in quotes"),
    ({"servers": {"it": {**STDIO, "env": ["A=b"]}}}, "key 'env': must be a mapping from names to texts, got list"),
    ({"servers": {"it": {**STDIO, "env": {False: "c"}}}}, "key 'env': the name False must be text: put it in quotes"),  # NO, in YAML
    *(({"servers": {"it": {"url": wrong}}}, "key 'url': must begin with http:// or https:// and name a host; a port must be from 1")
      for wrong in ("http://[::1", "http://h:65536/mcp", "http://h:0", "http://h:mcp")),
    ({"servers": {"it": {"url": "http://h", "headers": {"a b": "c"}}}}, "key 'headers': 'a b' is not a valid name for an HTTP header"),
    ({"servers": {"it": {"url": "http://h", "headers": {"A": "b\nc"}}}}, "key 'headers.A': must be printable ASCII on one line"),
    *(({"servers": {"it": {**STDIO, "timeout": wrong}}}, f"key 'timeout': must be a number of seconds, more than 0 and finite, got {got}")
      for wrong, got in ((0, 0), ("soon", "str"), (10**400, 1000))),
    ({"servers": {"it": {**STDIO, "roots": "/"}}}, "key 'roots': must be a list, got str"),
    *(({"servers": {"it": {**STDIO, "roots": [wrong]}}}, "key 'roots[0]': must be a folder, a file:// URI, or {'uri': ")
      for wrong in (" ", {"name": "a"}, {"uri": "a", "title": "b"}, "https://h", "~nobody!/x", "a\0b")),
]


@pytest.mark.parametrize("mapping, complaint", WRONG)
def test_a_wrong_configuration_names_the_server_the_key_and_the_fix(mapping: Any, complaint: str) -> None:
    with pytest.raises(McpConfigError) as caught:
        setup(mapping, register=False)
    assert complaint in str(caught.value)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("text, made", [
    ("${NAME}", "Ada"), ("a-${NAME}-${NAME}", "a-Ada-Ada"), ("${NONE:-x}", "x"), ("${NONE:-}", ""),
    ("${EMPTY:-x}", "x"), ("${EMPTY}", ""), ("${NAME:-x}", "Ada"), ("${NONE:-${NAME}", "${NAME"),
    ("$NAME", "$NAME"), ("$${NAME}", "${NAME}"), ("cost: $5", "cost: $5"), ("${NONE:-a b:c/d}", "a b:c/d"),
    ("${LITERAL}", "${NAME} $${ \\1"),
])
def test_references_to_variables_are_expanded(text: str, made: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"NAME": "Ada", "EMPTY": "", "LITERAL": "${NAME} $${ \\1"}.items():
        monkeypatch.setenv(name, value)
    assert read_servers({"servers": {"it": {**STDIO, "args": [text]}}})["it"].args == (made,)


@pytest.mark.parametrize("text, complaint", [
    ("${MINE}", "the environment variable MINE is not set: set it, or write a default, ${MINE:-default}"),
    *((text, "'${' must begin ${NAME} or ") for text in ("${", "${1X}", "${A B}", "${NAME", "${NAME-x}")),
])
def test_a_reference_that_cannot_be_expanded_is_an_error_that_names_its_location(text: str, complaint: str) -> None:
    for entry, key in (({"args": ["a", text]}, "args[1]"), ({"timeout": text}, "timeout"), ({"roots": [{"uri": text}]}, "roots[0]")):
        with pytest.raises(McpConfigError) as caught:
            read_servers({"servers": {"it": {**STDIO, **entry}}})
        assert str(caught.value).startswith(f"server 'it', key {key!r}: {complaint}")


FILES = {
    "mcp.yml": "servers:\n  files:\n    command: ${MCP_TEST_COMMAND}\n    args: [-y, '${NONE:-x y}']\n    env:\n",
    "mcp.yaml": "mcpServers:\n  files: {command: '${MCP_TEST_COMMAND}'}\n",
    "mcp.json": '\ufeff{"mcpServers": {"files": {"command": "${MCP_TEST_COMMAND}"}}}',
    "mcp.toml": '[servers.files]\ncommand = "${MCP_TEST_COMMAND}"\ntimeout = 5\n',
}


BOMB = "x0: &x0 {command: x}\n" + "".join(f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 9)}]\n" for n in range(1, 10))
MERGED_BOMB = "x0: &x0 {command: x}\n" + "".join(
    f"x{n}: &x{n} {{<<: [{', '.join([f'*x{n - 1}'] * 9)}]}}\n" for n in range(1, 10)
)


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_parsed_according_to_its_extension(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCP_TEST_COMMAND", "npx")
    Path(tmp_path, name).write_text(FILES[name], encoding="utf-8")
    with load(tmp_path / name) as adapter:
        assert adapter.servers == ("files",)
        assert adapter._connections["files"].config.command == "npx"
        assert kernai.protocols.find("mcp") is adapter.protocol


@pytest.mark.parametrize("name, text, complaint", [
    ("mcp.ini", "", "must end in .yml, .yaml, .json or .toml"),
    ("mcp.yml", "servers: [unclosed", "mcp.yml: line 1, column 19: not valid YAML"),
    ("mcp.yml", "a: !!python/object/apply:os.system ['true']", "not valid YAML"),
    ("mcp.yml", "", "must be a mapping with the key 'servers', got NoneType"),
    ("mcp.json", "{", "mcp.json: Expecting property name"),
    ("mcp.toml", "x", "mcp.toml: "),
    ("mcp.yml", "servers:\n  a: {command: x}\n  a: {command: y}\n", "line 3, column 3: not valid YAML: the key 'a' is given twice"),
    ("mcp.yml", "servers:\n  a: {command: x, 'command': y}\n", "line 2, column 19: not valid YAML: the key 'command' is given twice"),
    ("mcp.yml", "servers: {a: &it {command: x, env: *it}}", "mcp.yml: server 'a', key 'env.env': must be text, got dict"),
    ("mcp.yml", f"{BOMB}mcpServers: {{a: {{command: x, args: *x9}}}}", "server 'a', key 'args[0]': must be text, got list"),
    ("mcp.yml", MERGED_BOMB, "unknown key 'x0'"),
    ("mcp.json", '{"servers": {"a": {"command": "x"}, "a": {"command": "y"}}}', 'mcp.json: the key "a" is given twice in one object'),
    ("none.yml", None, "none.yml: [Errno 2] No such file or directory"),
])
def test_a_file_that_cannot_be_used_is_an_error_that_names_it(name: str, text: str | None, complaint: str, tmp_path: Path) -> None:
    if text is not None:
        Path(tmp_path, name).write_text(text, encoding="utf-8")
    tracemalloc.start()
    with pytest.raises(McpConfigError) as caught:
        load(tmp_path / name)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert complaint in str(caught.value)
    assert peak < 20_000_000


def test_aliases_and_merges_of_yaml_save_repetition(tmp_path: Path) -> None:
    file = tmp_path / "mcp.yml"
    file.write_text(
        "x: &env {A: b}\ncommon: &it {command: npx, env: *env}\nmcpServers:\n  one: {<<: *it, command: uvx}\n  two: *it\n"
    )
    with load(file, register=False) as adapter:
        assert [(one.config.command, dict(one.config.env)) for one in adapter._connections.values()] == [("uvx", {"A": "b"}), ("npx", {"A": "b"})]


@pytest.mark.parametrize("entry", [
    {"command": "true", "env": {"TOKEN": "hunter2-hunter2"}, "timeout": "hunter2-hunter2"},
    {"command": "true", "args": ["--key=hunter2-hunter2", None]},
    {"url": "http://user:hunter2-hunter2@host/mcp?key=hunter2-hunter2", "tools": 3},
    {"url": "http://host", "headers": {"A": "hunter2\nhunter2"}},
    {"url": "hunter2-hunter2://host"},
])
def test_no_error_shows_a_secret_value(entry: dict[str, Any]) -> None:
    with pytest.raises(McpConfigError) as caught:
        setup({"servers": {"it": entry}}, register=False)
    assert "hunter2" not in str(caught.value)


def test_secrets_of_the_configuration_are_hidden_in_a_text() -> None:
    url = "https://ada:pa%2Fss@host/mcp?key=k3y%2Bk3y&x=1"
    headers = {"Authorization": "Bearer t0ken\n", "X": "abo"}
    remote, local = read_servers({"servers": {
        "remote": {"url": f"{url}\n", "headers": headers}, "local": {"command": "a", "args": ["--k3y"], "env": {"A": "t0k3"}},
    }}).values()
    assert "k3y" not in repr((remote, local))
    assert "t0ken" not in repr((remote, local))
    hide = redactor_of(remote).text
    assert hide(f"{url}: no k3y+k3y, nor k3y%2bk3y, of pa/ss") == "https://host/mcp: no [url key], nor [url key], of [url password]"
    assert hide("Bearer t0ken and t0ken alone") == "[header Authorization] and [header Authorization] alone"
    assert hide("about") == "about"  # a value of three letters is not hidden, because it may be part of any word
    assert redactor_of(local).text("t0k3") == "[env A]"


def test_a_server_passed_as_an_object_must_not_have_a_command_or_url() -> None:
    with setup({"servers": {"it": {"timeout": 3}}}, {"it": lambda: None}, register=False) as adapter:
        assert adapter._connections["it"].config.timeout == 3
    with pytest.raises(McpConfigError, match="server 'it', key 'command': this server is handed in by client="):
        setup({"servers": {"it": {"command": "true"}}}, {"it": lambda: None})


def test_setup_registers_the_protocol_and_shutdown_removes_only_its_own() -> None:
    one = setup({"servers": {"one": STDIO}})
    assert kernai.protocols.find("mcp") is one.protocol
    two = setup({"servers": {"two": STDIO}}, name="more")
    one.shutdown()
    assert kernai.protocols.find("mcp") is None
    assert kernai.protocols.find("more") is two.protocol
    one = setup({"servers": {"one": STDIO}})
    kernai.protocols.register("mcp", lambda block, ctx: "mine")
    one.shutdown()
    assert kernai.protocols.find("mcp") is not None, "it is somebody else's now"
    kernai.protocols.unregister("mcp")
    kernai.mcp.shutdown()
    assert kernai.protocols.find("more") is None


def test_a_second_adapter_needs_another_name_and_never_replaces_the_first(tmp_path: Path) -> None:
    file = tmp_path / "mcp.yml"
    file.write_text("servers:\n  two: {command: 'true'}\n")
    with setup({"servers": {"one": STDIO}}) as one:
        attempts: list[Callable[[], Adapter]] = [lambda: setup({"servers": {"two": STDIO}}), lambda: load(file)]
        for again in attempts:
            with pytest.raises(McpConfigError, match=r"a protocol 'mcp' already .*name='mcp-2'.*register=False"):
                again()
        assert kernai.protocols.find("mcp") is one.protocol
        with load(file, name="mcp-2") as two:
            assert [each.name for each in kernai.protocols] == ["mcp", "mcp-2"]
            assert '<block type="mcp-2">{"method": "tools/list"' in str(two.protocol.documentation)
            assert 'type="mcp"' not in str(two.protocol.documentation)
        assert [each.name for each in kernai.protocols] == ["mcp"]
    with pytest.raises(ValueError, match="core block type"):
        setup({"servers": {"one": STDIO}}, name="final")
    assert kernai.protocols.names == []


def test_the_documentation_for_models_lists_servers_and_methods_and_shows_examples() -> None:
    with setup({"servers": {"files": STDIO, "web": {"url": "http://host"}}}, register=False) as adapter:
        text = adapter.protocol.documentation
    assert text is not None
    assert "Servers: files, web." in text
    assert [method for method in METHODS if f"- {method} {{" not in text] == []
    for line in text.splitlines():
        if line.startswith(("Right: ", "Wrong: ")):
            content = line.partition('type="mcp">')[2].partition("</block>")[0]
            assert ("tools/call" in json.loads(content)["method"]) == line.startswith("Right")
