"""How a server is reached: the SDK's transports, set up from a `ServerConfig` and watched by a `Health`."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
from mcp.client.sse import sse_client
from mcp.client.stdio import StdioServerParameters, get_default_environment, stdio_client
from mcp.client.streamable_http import streamable_http_client

from kernai.mcp.configuration import ServerConfig
from kernai.mcp.errors import McpError
from kernai.mcp.health import Health, Watched, hiding, refusals

#: a pair of streams, which the SDK's `Client` takes as a transport
Streams = tuple[Any, Any]

_GUARD = Path(__file__).with_name("guard.py")


@asynccontextmanager
async def opened(config: ServerConfig, health: Health) -> AsyncGenerator[Streams]:
    """The server's streams. `McpError` for a command that does not exist; else what the SDK raises."""
    transport = _TRANSPORTS[config.transport or ""]
    async with transport(config, health) as (incoming, outgoing):
        yield Watched(incoming, health), outgoing


@asynccontextmanager
async def _stdio(config: ServerConfig, health: Health) -> AsyncGenerator[Streams]:
    assert config.command is not None
    command = [config.command, *config.args]
    _check_command(config)
    if can_guard():
        command = [sys.executable, "-I", "-S", str(_GUARD), *command]
    parameters = StdioServerParameters(
        command=command[0],
        args=command[1:],
        env=dict(config.env),  # over the SDK's small default environment, never ours whole
        cwd=config.cwd,
        encoding_error_handler="replace",  # bytes that are no UTF-8 spoil one line, not the connection
    )
    errors = health.stderr.open()
    try:
        async with stdio_client(parameters, errlog=errors) as streams:
            errors.close()
            yield streams
    finally:
        errors.close()
        health.stderr.drain()
        health.stderr.close()


def can_guard() -> bool:
    """Whether a guard can stand beside the server. Elsewhere (Windows) the SDK itself ties processes together."""
    return os.name == "posix" and bool(sys.executable) and not getattr(sys, "frozen", False) and _GUARD.is_file()


def _check_command(config: ServerConfig) -> None:
    """The guard could only say it on the server's standard error, in more words."""
    assert config.command is not None
    if config.cwd is not None and not Path(config.cwd).is_dir():
        raise McpError(f"its cwd is no folder: {config.cwd!r}")
    path = (get_default_environment() | dict(config.env)).get("PATH")
    command = config.command
    if os.path.dirname(command) and config.cwd is not None:  # noqa: PTH120 - as text, as the system reads it
        command = os.path.join(config.cwd, command)  # noqa: PTH118 - as above
    if shutil.which(command, path=path) is None:
        raise McpError(f"its command {config.command!r} is not found or cannot be run; is it installed, and in PATH?")


@asynccontextmanager
async def _sse(config: ServerConfig, _: Health) -> AsyncGenerator[Streams]:
    assert config.url is not None
    begun = False
    try:
        async with sse_client(
            config.url,
            dict(config.headers),
            timeout=config.timeout,
            sse_read_timeout=_NEVER,
            httpx_client_factory=_noticing_client,
        ) as streams:
            begun = True
            yield streams
    except* RuntimeError as errors:  # the SDK's reader of the stream ended without having "started"
        if begun:
            raise
        told = "its stream ended before it had said where messages go; is this an MCP server over SSE?"
        raise McpError(told) from errors


@asynccontextmanager
async def _streamable_http(config: ServerConfig, _: Health) -> AsyncGenerator[Streams]:
    assert config.url is not None
    timeout = httpx2.Timeout(config.timeout, read=_NEVER)
    async with (
        _noticing_client(dict(config.headers), timeout) as client,
        streamable_http_client(config.url, http_client=client) as streams,
    ):
        yield streams


#: each call has its own timeout; a stream that is silent for long is not broken
_NEVER = 7 * 24 * 3600.0


class _WithoutSecrets(logging.Filter):
    """The SDK and its carrier log addresses and what they could not read."""

    def filter(self, record: logging.LogRecord) -> bool:
        hide = hiding.get()
        if hide is not None:
            record.msg, record.args = hide(record.getMessage()), ()
        return True


for _name in ("httpx2", "client", *(f"mcp.client.{each}" for each in ("client", "sse", "stdio", "streamable_http"))):
    logging.getLogger(_name).addFilter(_WithoutSecrets())


async def _notice(response: httpx2.Response) -> None:
    seen = refusals.get()
    if seen is not None and response.status_code >= httpx2.codes.BAD_REQUEST:
        seen.append(response.status_code)


def _noticing_client(
    headers: dict[str, str] | None = None, timeout: httpx2.Timeout | None = None, auth: httpx2.Auth | None = None
) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(headers=headers, timeout=timeout, auth=auth, event_hooks={"response": [_notice]})


_TRANSPORTS = {"stdio": _stdio, "sse": _sse, "streamable_http": _streamable_http}
