"""`ConnectionPool`: idle keep-alive connections, for all threads.

Guarantees: a connection is in use or idle, never both; the one that became idle last is taken first, so that those a
quiet time leaves over grow old and are closed; a connection that the other side has closed, or has spoken on without
being asked, is not handed out; after a fork the child begins with an empty pool and leaves the parent's connections
as they are. No thread: what is too old is closed when somebody next looks.
"""

from __future__ import annotations

import http.client
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from kernai_providers.outgoing import authority
from kernai_providers.patience import Patience
from kernai_providers.patient_socket import PatientSocket, is_readable
from kernai_providers.proxies import Proxy


class Route(NamedTuple):
    """Requests with equal routes may share a connection."""

    scheme: str
    host: str
    port: int
    proxy: Proxy | None

    @property
    def peer(self) -> str:
        """Host and port, for errors."""
        return authority(self.host, self.port)


def connection_class(scheme: str) -> type[http.client.HTTPConnection]:
    """Looked up each time: a recorder of cassettes replaces these classes while it is at work."""
    return http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection


@dataclass(slots=True, eq=False, repr=False)
class Connection:
    """One connection. `sock` outlives ``http.sock``: an answer that is the connection's last takes that one away.

    `patience` is that of the request which it serves now.
    """

    http: http.client.HTTPConnection
    route: Route
    patience: Patience
    sock: Any = None
    idle_since: float = 0.0

    def close(self) -> None:
        """Closes the socket, once the answer's file on it is closed too."""
        self.http.close()

    @property
    def is_stale(self) -> bool:
        """Whether there is something to read although nothing was asked: the end, or nonsense."""
        return isinstance(self.sock, PatientSocket) and (self.sock.has_spoken_on or is_readable(self.sock.sock))


class _Idle:
    """The pool of one process; the one that was given back last stands last."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.lock = threading.Lock()
        self.connections: list[Connection] = []


class ConnectionPool:
    """Keeps up to `max_idle` connections for up to `idle_seconds` each."""

    def __init__(self, max_idle: int, idle_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_idle = max_idle
        self._idle_seconds = idle_seconds
        self._clock = clock
        self._own = _Idle()

    def take(self, route: Route) -> Connection | None:
        """A connection that is ready for a request, or None."""
        wanted = connection_class(route.scheme)
        found: Connection | None = None
        idle = self._idle()
        with idle.lock:
            unfit = self._too_old(idle)
            for connection in [each for each in reversed(idle.connections) if each.route == route]:
                idle.connections.remove(connection)
                # a cassette's connection does not survive the cassette, nor a real one its beginning
                if type(connection.http) is wanted and not connection.is_stale:
                    found = connection
                    break
                unfit.append(connection)
        for connection in unfit:
            connection.close()
        return found

    def give(self, connection: Connection) -> None:
        """A connection that is in order and not used any more."""
        idle = self._idle()
        with idle.lock:
            unfit = self._too_old(idle)
            connection.idle_since = self._clock()
            idle.connections.append(connection)
            while len(idle.connections) > self._max_idle:
                unfit.append(idle.connections.pop(0))
        for old in unfit:
            old.close()

    def close(self) -> None:
        """Closes what is idle."""
        idle = self._idle()
        with idle.lock:
            connections, idle.connections = idle.connections, []
        for connection in connections:
            connection.close()

    def _idle(self) -> _Idle:
        idle = self._own
        if idle.process != os.getpid():
            # the lock may be held for ever by a thread that was not forked; closing ends this process's copies only
            parents, self._own = idle.connections, _Idle()
            for connection in parents:
                connection.close()
        return self._own

    def _too_old(self, idle: _Idle) -> list[Connection]:
        oldest = self._clock() - self._idle_seconds
        unfit = [each for each in idle.connections if each.idle_since <= oldest]
        idle.connections = idle.connections[len(unfit):]
        return unfit
