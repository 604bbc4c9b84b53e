"""The first steps of the README, followed as written: from an empty folder to an answered question.

`python -m tests.support.first_start` installs this clone into an empty environment, in an empty folder and with an
empty HOME, with the newest Python of this machine, which must be 3.12 or newer: DBOS works otherwise there.
"""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.support.child_processes import accept_interrupts, free_port
from tests.support.environments import ROOT, pythons

README: Final = ROOT / "README.md"
PATIENCE: Final = 120.0  # seconds for each step

_ESCAPES: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_META: Final = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "first-start", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
_HEADERS: Final = {
    "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream",
    "MCP-Protocol-Version": "2026-07-28",
    "Mcp-Method": "tools/list",
}

SDK_CLIENT: Final = """
import asyncio, json, sys
from mcp import types
from mcp.client import Client

async def accept(context, params):
    return types.ElicitResult(action="accept", content={})

async def main():
    [server] = json.load(sys.stdin)["mcpServers"].values()
    async with Client(server["url"], elicitation_callback=accept) as client:
        print((await client.call_tool("order", {"order_id": "A-3"})).content[0].text)

asyncio.run(main())
"""
"""A host written with the official SDK; it reads the entry that `connect` prints from standard input."""


class ReadmeError(Exception):
    """A step did something other than the README says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """The installed commands, and the folder and the environment to run them in."""

    folder: Path
    commands: Path  # the folder of the commands
    environment: Mapping[str, str]

    def run(self, *words: str, given: str = "") -> str:
        """Run a command of the README to its end, and return its standard output.

        Raises:
            ReadmeError: it failed.
        """
        command = [str(self.commands / words[0]), *words[1:]]
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            input=given,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        if done.returncode:
            raise ReadmeError(f"{shlex.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout


def blocks(language: str) -> Sequence[str]:
    """Return the fenced blocks of the README in one language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)


def readme_command(beginning: str, port: int) -> Sequence[str]:
    """Return the words of the first shell command of the README that begins so, with this port in place of 8931."""
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    found = next(line for line in lines if line.startswith(beginning))
    return shlex.split(found.replace("8931", str(port)))


def follow(installation: Installation) -> None:
    """Follow the README after its installation.

    Raises:
        ReadmeError: a step did something other than the README says.
    """
    port = free_port()
    (installation.folder / "app.py").write_text(blocks("python")[0])
    with _dev(installation, port):
        call = readme_command("mcp-workflows call", port)
        _expect("A-1", _run_at_terminal(installation, call, answer="y"))
        again = [word.replace("A-1", "A-2") for word in call]
        _expect("A-2", installation.run(*again, "--answer", "accept=true"))
        snippet = installation.run(*readme_command("mcp-workflows connect claude", port))
        _expect("A-3", installation.run("python", "-c", SDK_CLIENT, given=snippet))


def _expect(order: str, shown: str) -> None:
    wanted = f"20 charged for {order}"
    if wanted not in shown:
        raise ReadmeError(f"{wanted!r} is not in {shown!r}")


@contextmanager
def _dev(installation: Installation, port: int) -> Generator[None]:
    """Run `mcp-workflows dev app.py` within this context; stop it as Ctrl-C does, and check that the port is free."""
    words = [*readme_command("mcp-workflows dev", port), "--http", f"127.0.0.1:{port}"]
    with (installation.folder / "dev.log").open("w") as log:
        process = subprocess.Popen(
            [str(installation.commands / words[0]), *words[1:]],
            cwd=installation.folder,
            env=installation.environment,
            stderr=log,
            preexec_fn=accept_interrupts,
        )
    try:
        deadline = time.monotonic() + PATIENCE
        while not _lists_tools(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise ReadmeError(f"nothing is served:\n{(installation.folder / 'dev.log').read_text()}")
            time.sleep(0.01)
        yield
        process.send_signal(signal.SIGINT)
        if code := process.wait(PATIENCE):
            raise ReadmeError(f"Ctrl-C ended it with {code}")
        if _lists_tools(port):
            raise ReadmeError("it is still served after Ctrl-C")
    finally:
        process.terminate()
        process.wait(PATIENCE)


def _lists_tools(port: int) -> bool:
    body: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": _META}}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/mcp", json.dumps(body).encode(), _HEADERS)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as reply:
            return b'"order"' in reply.read()
    except OSError:
        return False


def _run_at_terminal(installation: Installation, words: Sequence[str], answer: str) -> str:
    """Run a command at a terminal, type the answer once it asks its question, and return its output."""
    terminal, other = pty.openpty()
    command = [str(installation.commands / words[0]), *words[1:]]
    environment = {**installation.environment, "TERM": "xterm", "COLUMNS": "200"}
    process = subprocess.Popen(
        command,
        cwd=installation.folder,
        env=environment,
        stdin=other,
        stdout=other,
        stderr=other,
        start_new_session=True,
    )
    os.close(other)
    shown, is_typed, deadline = "", False, time.monotonic() + PATIENCE
    try:
        while time.monotonic() < deadline:
            if not select.select([terminal], [], [], 0.1)[0]:
                continue
            try:
                got = os.read(terminal, 65536)
            except OSError:  # Linux: the command has closed its end
                got = b""
            if not got:
                break
            shown += _ESCAPES.sub("", got.decode(errors="replace"))
            if not is_typed and "Charge 20 for order A-1?" in shown and shown.rstrip().endswith(("]", ":")):
                is_typed = True
                os.write(terminal, f"{answer}\n".encode())
        if process.wait(PATIENCE):
            raise ReadmeError(f"{shlex.join(words)} ended with {process.returncode}:\n{shown}")
    finally:
        os.close(terminal)
        process.kill()
        process.wait()
    return shown


# --- from a clone


def install(folder: Path, environment: Mapping[str, str], python: str) -> Path:
    """Run the README's `pip install` for a clone in an empty environment; return the folder of its commands."""
    venv = folder / ".venv"
    subprocess.run([python, "-m", "venv", str(venv)], check=True, env=environment)
    _, _, *projects = shlex.split(re.findall(r"`(pip install '\.\[.*?)`", README.read_text())[0])
    pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *projects], check=True, env=environment, cwd=ROOT)
    return venv / "bin"


def first_start(python: str = sys.executable) -> None:
    """Install and follow the README in an empty folder with an empty HOME.

    Raises:
        ReadmeError: a step did something other than the README says.
    """
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as home:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
        environment = {**kept, "HOME": home}
        bin_folder = install(Path(folder), environment, python)
        path = f"{bin_folder}{os.pathsep}{environment['PATH']}"
        follow(Installation(folder=Path(folder), commands=bin_folder, environment={**environment, "PATH": path}))


def main() -> None:
    """Follow the README with the newest Python."""
    version, newest = list(pythons().items())[-1]
    if version < (3, 12):
        print("first start: skipped, as this machine has no Python 3.12 or newer")
        return
    first_start(newest)
    print(f"first start: the README's steps work with {newest}")


if __name__ == "__main__":
    main()
