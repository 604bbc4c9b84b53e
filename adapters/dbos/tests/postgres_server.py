"""A PostgreSQL server for the tests, in a process of its own; the server and its data are removed at the end."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import psycopg

from tests.support.child_processes import free_port

OPTIONS = ("fsync=off", "full_page_writes=off", "shared_buffers=64MB", "max_connections=200", "jit=off")


def binaries() -> Path | None:
    """Return the folder of the server's programs; None: it is not installed here."""
    found = [Path(path).resolve().parent for path in (shutil.which("initdb"),) if path]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return found[-1] if found else None


def _nobody() -> dict[str, Any]:
    """Return the user for the server as arguments of `subprocess`: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


@contextmanager
def postgres(programs: Path) -> Generator[str]:
    """Run a server within this context; yield its URL without a database: `postgresql://postgres@127.0.0.1:PORT`."""
    with tempfile.TemporaryDirectory(prefix="mcp-workflows-pg-") as folder:
        root, port, user = Path(folder), free_port(), _nobody()
        if user:
            os.chown(root, user["user"], user["group"])
        known: dict[str, Any] = {
            "cwd": folder,
            "env": {"PATH": os.defpath, "HOME": folder, "LC_ALL": "C.UTF-8"},
            **user,
        }
        make = [programs / "initdb", "-D", root / "data", "-U", "postgres", "-A", "trust", "-E", "UTF8", "-N"]
        subprocess.run(make, stdout=subprocess.DEVNULL, check=True, **known)
        given = [part for option in (*OPTIONS, "listen_addresses=127.0.0.1", f"port={port}") for part in ("-c", option)]
        with (root / "log").open("w") as log:
            run = [programs / "postgres", "-D", root / "data", "-k", root, *given]
            process = subprocess.Popen(run, stdout=log, stderr=log, **known)
        try:
            ready = [programs / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)]
            while subprocess.call(ready, **known):
                assert process.poll() is None, (root / "log").read_text()
            yield f"postgresql://postgres@127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGQUIT)  # it waits for no client, not even for one that has not logged in
            process.wait()


@contextmanager
def frozen(url: str) -> Generator[None]:
    """Stop all processes of a server within this context, as a machine that hangs does: sockets stay open."""
    with psycopg.connect(f"{url}/postgres") as connection:
        [[folder]] = connection.execute("SHOW data_directory").fetchall()
    server = psutil.Process(int((Path(folder) / "postmaster.pid").read_text().split()[0]))
    server.suspend()  # before its children, so that it makes no more
    stopped = [server, *server.children()]
    try:
        for process in stopped[1:]:
            process.suspend()
        yield
    finally:
        for process in reversed(stopped):
            process.resume()


def new_database(url: str) -> str:
    """Return the URL of a new database on a server."""
    name = f"flows_{uuid.uuid4().hex}"
    with psycopg.connect(f"{url}/postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return f"{url}/{name}"
