"""The first block of the README, done as written, and timed: from an empty folder to a question that is answered.

`python -m scripts.first_start UV [--runs N]` builds the wheels and installs them alone into an empty environment, in an
empty folder with an empty HOME. The first run fills the package cache; the other ones are timed.
"""

from __future__ import annotations

import argparse
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from scripts.environments import FASTMCP, ROOT, python_of
from scripts.processes import free_port

README: Final = ROOT / "README.md"
DISTRIBUTIONS: Final = (ROOT, ROOT / "adapters" / "dbos")
TOTAL_GOAL: Final = 60.0  # seconds, with a warm package cache
READY_GOAL: Final = 2.0  # seconds from `dev app.py` to the first answered `tools/list`
PATIENCE: Final = 120.0  # seconds for each step

_SHOWN: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
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
"""A host that is written with the official SDK: it reads the snippet that `connect` prints."""

FASTMCP_CLIENT: Final = """
import asyncio, json, sys
from fastmcp import Client
from fastmcp.client.elicitation import ElicitResult

async def accept(message, response_type, params, context):
    return ElicitResult(action="accept", content={})

async def main():
    async with Client(json.load(sys.stdin), elicitation_handler=accept) as client:
        print((await client.call_tool("order", {"order_id": "A-4"})).content[0].text)

asyncio.run(main())
"""
"""FastMCP's client takes the snippet as it is."""


class WrongError(Exception):
    """A step did something else than the README says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """An empty folder, the commands that are installed, and an empty HOME."""

    folder: Path
    commands: Path
    environment: Mapping[str, str]
    hosts: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])  # further clients, by name

    def run(self, *words: str, given: str = "") -> str:
        """Run a command of the README to its end, and return its standard output."""
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
            raise WrongError(f"{shlex.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout


def blocks(language: str) -> Sequence[str]:
    """The fenced blocks of the README in one language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)


def commands(beginning: str, port: int) -> Sequence[str]:
    """The first command in the README's shell blocks that begins so, on another port than 8931."""
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    found = next(line for line in lines if line.startswith(beginning))
    return shlex.split(found.replace("8931", str(port)))


def follow(place: Place) -> Mapping[str, float]:
    """Do all but the installation; return the seconds of each step.

    Raises:
        WrongError: a step did something else than the README says.
    """
    port = free_port()
    seconds: dict[str, float] = {}
    began = time.monotonic()
    (place.folder / "app.py").write_text(blocks("python")[0])
    with _developing(place, port):
        seconds["ready"] = time.monotonic() - began
        call = commands("mcp-workflows call", port)
        _expect("A-1", _typed(place, call, answer="y"))
        seconds["answered in the terminal"] = time.monotonic() - began
        again = [word.replace("A-1", "A-2") for word in call]
        _expect("A-2", place.run(*again, "--answer", "accept=true"))
        snippet = place.run(*commands("mcp-workflows connect claude", port))
        _expect("A-3", place.run("python", "-c", SDK_CLIENT, given=snippet))
        seconds["answered in a host"] = time.monotonic() - began
        if "fastmcp" in place.hosts:
            command = [*place.hosts["fastmcp"], "-c", FASTMCP_CLIENT]
            done = subprocess.run(command, input=snippet, capture_output=True, text=True, timeout=PATIENCE, check=True)
            _expect("A-4", done.stdout)
    return seconds


def _expect(order: str, shown: str) -> None:
    wanted = f"20 charged for {order}"
    if wanted not in shown:
        raise WrongError(f"{wanted!r} is not in {shown!r}")


@contextmanager
def _developing(place: Place, port: int) -> Generator[None]:
    """Run `mcp-workflows dev app.py` until it lists its tools; end it as Ctrl-C does, and see that the port is free."""
    words = [*commands("mcp-workflows dev", port), "--http", f"127.0.0.1:{port}"]
    with (place.folder / "dev.log").open("w") as log:
        process = subprocess.Popen(
            [str(place.commands / words[0]), *words[1:]],
            cwd=place.folder,
            env=place.environment,
            stderr=log,
            preexec_fn=_heed_interrupts,
        )
    try:
        deadline = time.monotonic() + PATIENCE
        while not _lists_tools(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise WrongError(f"nothing is served:\n{(place.folder / 'dev.log').read_text()}")
            time.sleep(0.01)
        yield
        process.send_signal(signal.SIGINT)
        if code := process.wait(PATIENCE):
            raise WrongError(f"Ctrl-C ended it with {code}")
        if _lists_tools(port):
            raise WrongError("it is still served after Ctrl-C")
    finally:
        process.terminate()
        process.wait(PATIENCE)


def _heed_interrupts() -> None:
    """Heed SIGINT: what is started in the background of a shell ignores it, and so would all that it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _lists_tools(port: int) -> bool:
    body: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": _META}}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/mcp", json.dumps(body).encode(), _HEADERS)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as reply:
            return b'"order"' in reply.read()
    except OSError:
        return False


def _typed(place: Place, words: Sequence[str], answer: str) -> str:
    """Run a command at a terminal, type the answer once it is asked, and return all that was shown."""
    terminal, other = pty.openpty()
    command = [str(place.commands / words[0]), *words[1:]]
    environment = {**place.environment, "TERM": "xterm", "COLUMNS": "200"}
    process = subprocess.Popen(
        command, cwd=place.folder, env=environment, stdin=other, stdout=other, stderr=other, start_new_session=True
    )
    os.close(other)
    shown, is_typed, deadline = "", False, time.monotonic() + PATIENCE
    try:
        while time.monotonic() < deadline:
            if not select.select([terminal], [], [], 0.1)[0]:
                continue
            try:
                got = os.read(terminal, 65536)
            except OSError:  # Linux: there is nobody at the other end any more
                got = b""
            if not got:
                break
            shown += _SHOWN.sub("", got.decode(errors="replace"))
            if not is_typed and "Charge 20 for order A-1?" in shown and shown.rstrip().endswith(("]", ":")):
                is_typed = True
                os.write(terminal, f"{answer}\n".encode())
        if process.wait(PATIENCE):
            raise WrongError(f"{shlex.join(words)} ended with {process.returncode}:\n{shown}")
    finally:
        os.close(terminal)
        process.kill()
        process.wait()
    return shown


# --- from wheels


def build(uv: Path, wheels: Path) -> Sequence[Path]:
    """Build the wheels that the README's `pip install` brings of this project."""
    for project in DISTRIBUTIONS:
        subprocess.run([uv, "build", "--quiet", "--wheel", "--out-dir", wheels, project], check=True)
    return sorted(wheels.glob("*.whl"))


def install(folder: Path, wheels: Sequence[Path], environment: Mapping[str, str]) -> Path:
    """Do the README's `pip install` with these wheels in an empty environment; return the folder of its commands."""
    place = folder / ".venv"
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True, env=environment)
    [wanted] = [word for word in commands("pip install", 0) if "mcp-workflows[" in word]
    extra = wanted.removeprefix("mcp-workflows")
    named = [f"{wheel}{extra if wheel.name.startswith('mcp_workflows-') else ''}" for wheel in wheels]
    pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *named], check=True, env=environment, cwd=folder)
    return place / "bin"


def timed(wheels: Sequence[Path], cache: Path) -> Mapping[str, float]:
    """Do all of it in an empty folder with an empty HOME; return the seconds of each step."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as home:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
        environment = {**kept, "HOME": home, "PIP_CACHE_DIR": str(cache)}
        began = time.monotonic()
        bin_folder = install(Path(folder), wheels, environment)
        installed = time.monotonic() - began
        hosts = {"fastmcp": [str(python_of("fastmcp", FASTMCP))]}
        path = f"{bin_folder}{os.pathsep}{environment['PATH']}"
        place = Place(folder=Path(folder), commands=bin_folder, environment={**environment, "PATH": path}, hosts=hosts)
        steps = follow(place)
        return {"install": installed, **steps, "total": installed + steps["answered in a host"]}


def first_start(uv: Path, runs: int) -> Sequence[Mapping[str, float]]:
    """Build the wheels, fill the package cache, and return the seconds of each further run."""
    with tempfile.TemporaryDirectory() as folder:
        wheels, cache = build(uv, Path(folder) / "wheels"), Path(folder) / "cache"
        timed(wheels, cache)
        return [timed(wheels, cache) for _ in range(runs)]


def main() -> int:
    """Exit code 0 if every step did what the README says and both goals are met."""
    parser = argparse.ArgumentParser(prog="python -m scripts.first_start", description=__doc__)
    parser.add_argument("uv", type=Path, help="the program")
    parser.add_argument("--runs", type=int, default=1, help="how often, with a warm package cache")
    given = parser.parse_args()
    found = first_start(given.uv.resolve(), given.runs)
    for steps in found:
        told = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in steps.items())
        print(f"{told}; load {os.getloadavg()[0]:.1f}", flush=True)
    missed = [each for each in found if each["total"] > TOTAL_GOAL or each["ready"] > READY_GOAL]
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
