"""`Server`: a PostgreSQL server in a temporary folder, to be killed and started again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

FOLDERS = [*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True), *map(Path, os.environ["PATH"].split(os.pathsep))]
#: settings of a small server for tests
SETTINGS = {"listen_addresses": "", "max_connections": "200", "log_min_messages": "fatal", "shared_buffers": "64MB"}
PATIENCE = 60.0


class Server:
    """A context manager. `dsn` is its address; with `durable` it waits for the disk, as it does by default."""

    def __init__(self, *, durable: bool = False, **settings: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="kernai-pg-", dir="/tmp"))  # a socket's path must be short
        self._settings = {**SETTINGS, **settings}
        if not durable:
            self._settings |= {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
        self.dsn = f"postgresql://kernai@/postgres?host={self.folder}"
        self._changing = threading.Lock()  # a test may kill a server that another thread is still starting

    @staticmethod
    def why_not() -> str | None:
        """Return why no server can be started here, or None if one can."""
        if program("initdb") is None:
            return "initdb is not installed (apt-get install postgresql)"
        if os.name != "posix":
            return "it is for POSIX alone"
        if os.geteuid() == 0 and (shutil.which("setpriv") is None or user() is None):
            return "it refuses to run as root, and there is no user `postgres` to run it as"
        return None

    def __enter__(self) -> Self:
        if os.geteuid() == 0:
            shutil.chown(self.folder, "postgres", "postgres")
        self.folder.chmod(0o755)
        self._run("initdb", "-D", str(self.folder / "data"), "-U", "kernai", "--auth=trust", "--no-sync", "-E", "UTF8", "--locale=C")
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self) -> None:
        settings = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        command = command_of("postgres", "-D", str(self.folder / "data"), "-k", str(self.folder), *settings)
        until = time.monotonic() + PATIENCE
        ready = [str(program("pg_isready")), "-q", "-h", str(self.folder), "-U", "kernai"]
        with self._changing:
            self._process = _begun(command)
            while subprocess.run(ready, check=False).returncode:
                if time.monotonic() > until:
                    raise RuntimeError(f"PostgreSQL does not start: {' '.join(command)}")
                if self._process.poll() is not None:  # processes of the killed server have not ended yet
                    self._process = _begun(command)
                time.sleep(0.02)

    def kill(self) -> None:
        """Kill the server and the processes that serve connections."""
        with self._changing:
            self._kill()

    def _kill(self) -> None:
        server = self._process.pid
        serving: list[str] = []
        with suppress(FileNotFoundError):  # the server has ended
            serving = Path(f"/proc/{server}/task/{server}/children").read_text(encoding="ascii").split()
        for process in (server, *map(int, serving)):  # each has a process group of its own
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self._process.wait(PATIENCE)
        (self.folder / "data" / "postmaster.pid").unlink(missing_ok=True)

    def _run(self, name: str, *arguments: str) -> None:
        done = subprocess.run(command_of(name, *arguments), capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{name}: {done.stdout}{done.stderr}")


def _begun(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)


def program(name: str) -> Path | None:
    """Return the path of a PostgreSQL program of the newest installed version."""
    return next((folder / name for folder in FOLDERS if (folder / name).exists()), None)


def user() -> str | None:
    import pwd

    with suppress(KeyError):
        return pwd.getpwnam("postgres").pw_name
    return None


def command_of(name: str, *arguments: str) -> list[str]:
    """Return a command line. As root it changes the user, because PostgreSQL refuses to run as root."""
    command = [str(program(name)), *arguments]
    if os.geteuid() != 0:
        return command
    return ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", *command]
