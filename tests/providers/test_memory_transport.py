"""The transport for users' own tests."""

from __future__ import annotations

from typing import Any

import pytest

from kernai.testing.contracts import at_once
from kernai_providers.memory_transport import MemoryReply, MemoryTransport
from kernai_providers.transport import Request, TransportError
from transport_clients import read

REQUEST = Request("POST", "https://vendor.test/v1/chat", {"Authorization": "Bearer key"}, b"{}")


def test_replies_come_in_their_order_and_the_last_one_again_and_again() -> None:
    transport = MemoryTransport(MemoryReply(429), MemoryReply(200, pieces=[b"a", b"", b"b"]))
    assert [read(transport, REQUEST) for _ in range(3)] == [(429, b""), (200, b"ab"), (200, b"ab")]


def test_requests_are_recorded_as_they_were_sent() -> None:
    transport = MemoryTransport(MemoryReply())
    transport.send(REQUEST).close()
    assert transport.requests == (REQUEST,)


def test_an_exception_among_the_replies_is_raised_instead_of_an_answer() -> None:
    transport = MemoryTransport(TransportError("refused", "connect"), MemoryReply(pieces=b"there"))
    with pytest.raises(TransportError, match="refused"):
        transport.send(REQUEST)
    assert read(transport, REQUEST) == (200, b"there")
    assert len(transport.requests) == 2


def test_an_exception_among_the_pieces_is_raised_in_its_place() -> None:
    broken = TransportError("cut", "closed")
    response = MemoryTransport(MemoryReply(pieces=[b"one", broken, b"never"])).send(REQUEST)
    body = iter(response)
    assert next(body) == b"one"
    with pytest.raises(TransportError) as caught:
        next(body)
    assert caught.value is broken


def test_a_function_answers_what_it_is_asked() -> None:
    transport = MemoryTransport(lambda request: MemoryReply(201, [("X", request.method)], request.body))
    response = transport.send(REQUEST)
    assert (response.status, response.headers, list(response)) == (201, {"x": "POST"}, [b"{}"])
    response.finish()


def test_pieces_may_be_made_while_they_are_read() -> None:
    made: list[int] = []

    def pieces() -> Any:
        for number in range(3):
            made.append(number)
            yield b"%d" % number

    response = MemoryTransport(lambda request: MemoryReply(pieces=pieces())).send(REQUEST)
    body = iter(response)
    assert (next(body), made) == (b"0", [0])
    response.close()


async def test_asyncio_gets_the_same_answers() -> None:
    transport = MemoryTransport(MemoryReply(200, {"A": "b"}, [b"one", b"two"]))
    response = await transport.asend(REQUEST)
    assert (response.status, response.headers) == (200, {"a": "b"})
    assert [piece async for piece in response] == [b"one", b"two"]
    assert transport.open_responses == 1
    await response.finish()
    assert transport.open_responses == 0


def test_answers_that_were_neither_finished_nor_closed_are_counted() -> None:
    transport = MemoryTransport(MemoryReply(pieces=[b"one"]))
    first, second = transport.send(REQUEST), transport.send(REQUEST)
    assert transport.open_responses == 2
    first.close()
    first.close()
    second.finish()
    assert transport.open_responses == 0


def test_many_threads_lose_no_request() -> None:
    transport = MemoryTransport(MemoryReply(pieces=b"x"))

    def work(_: int) -> None:
        for _ in range(50):
            assert read(transport, REQUEST) == (200, b"x")

    assert at_once(work, 16) == []
    assert (len(transport.requests), transport.open_responses) == (800, 0)


@pytest.mark.parametrize(
    "replies, error",
    [
        ((), ValueError), ((200,), TypeError), ((b"body",), TypeError),
        ((MemoryReply(), lambda request: MemoryReply()), TypeError), ((lambda r: MemoryReply(), lambda r: MemoryReply()), TypeError),
    ],
)  # fmt: skip
def test_what_is_no_reply_is_refused_at_once(replies: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"MemoryReply|function"):
        MemoryTransport(*replies)
