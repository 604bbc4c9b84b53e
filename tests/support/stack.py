"""A sample, served: the engine, the sample's worker and the sidecar, each a process of its own."""

from __future__ import annotations

import http.client
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.child_processes import Child, Command, free_port, is_taken, stop_all
from tests.support.environments import ROOT
from tests.support.local_engines import BIN, ENGINES, SAMPLES, folder, samples

LOGIN_AUDIENCE = "https://workflows.example.com/mcp"  # tests/support/oidc.py has the same, and imports much
LOGIN_SECRET = "open-sesame"
PATIENCE = 120.0  # seconds for each of the three to serve; a fresh machine reads everything from a cold disk


class UnusableError(Exception):
    """It cannot be started as asked; the message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Which sample on which engine, where, and where to keep what outlives us."""

    engine: str
    sample: str
    port: int
    state: Path
    single_user: bool = False  # everybody on this machine is one identified caller

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise UnusableError(f"no engine {self.engine!r}; there is: {', '.join(sorted(ENGINES))}")
        if self.sample not in samples(self.engine):
            raise UnusableError(f"no sample {self.sample!r}; there is: {', '.join(samples(self.engine))}")

    @property
    def folder(self) -> Path:
        """Where the sample is."""
        return folder(self.engine, self.sample)


class Stack:
    """The processes; `pause` is how to wait (seconds) and may raise to give up. Use it with `with`."""

    def __init__(self, plan: Plan, pause: Callable[[float], None] = time.sleep) -> None:
        self._plan = plan
        self._pause = pause
        self._children: list[Child] = []
        self.engine = ENGINES[plan.engine](plan.state)
        self.port = plan.port
        self._login_port, self._chat_port = free_port(), free_port()
        self.messages = plan.state / "messages.txt"  # of the chat, where the sample has one
        self.url = f"http://127.0.0.1:{plan.port}/mcp"

    def __enter__(self) -> Self:
        if is_taken(self._plan.port):
            raise UnusableError(f"port {self._plan.port} is taken; try another one: PORT={self._plan.port + 1}")
        self._plan.state.mkdir(parents=True, exist_ok=True)
        try:
            self._start()
        except BaseException:  # whatever stops us, nothing stays behind
            self._stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop()

    def check(self) -> None:
        """Raise `ChildDiedError` if one of them has ended."""
        for child in self._children:
            child.check()

    @property
    def has_logins(self) -> bool:
        """True if people log in to the sample's pages, at an identity provider that runs beside it."""
        return "LOGIN_ISSUER" in (self._plan.folder / "workflows.yaml").read_text()

    def _start(self) -> None:
        if (command := self.engine.command()) is not None:
            self._launch(command)
        self._until(self.engine.answers, "the engine does not answer")
        if self.has_logins:
            token = self._plan.state / "alice.token"
            token.unlink(missing_ok=True)
            words = (str(self._login_port), self.url.removesuffix("/mcp"), str(self._plan.state))
            argv = (sys.executable, "-m", "tests.support.oidc", *words)
            self._launch(Command(name="login", argv=argv, cwd=ROOT, env={}))
            self._until(token.exists, "the identity provider does not answer")
            self.messages.unlink(missing_ok=True)
            argv = (sys.executable, "-m", "tests.support.messages", str(self._chat_port), str(self.messages))
            self._launch(Command(name="chat", argv=argv, cwd=ROOT, env={}))
            self._until(self.messages.exists, "the chat does not answer")
        if (self._plan.folder / "worker.py").exists():
            self._launch(self._python("worker", sys.executable, "worker.py"))
        where = f"127.0.0.1:{self._plan.port}"
        serve = (str(BIN / "mcp-workflows"), "serve", "workflows.yaml", "--http", where)
        self._launch(replace(self._python("sidecar", *serve), stop=signal.SIGINT))  # SIGTERM would drain first
        self._until(lambda: self._healthy("/readyz"), "the sidecar is not ready")
        self._until(lambda: self._healthy("/enginez"), "the sidecar does not reach the engine")
        self._until(lambda: self.engine.has_worker(self._plan.sample), "the worker does not poll")

    def _python(self, name: str, *argv: str) -> Command:
        return Command(name=name, argv=argv, cwd=self._plan.folder, env=self.environment())

    def environment(self) -> Mapping[str, str]:
        """The variables of the sample's configuration, worker and modules."""
        return {
            **self.engine.environment(),
            "MCP_WORKFLOWS_STORE": f"sqlite:///{self._plan.state / 'tasks.db'}",
            "MCP_WORKFLOWS_URL": f"http://127.0.0.1:{self._plan.port}/engines/{self._plan.engine}",
            "MCP_WORKFLOWS_AUDIENCE": f"http://127.0.0.1:{self._plan.port}",
            "MCP_WORKFLOWS_SINGLE_USER": str(self._plan.single_user).lower(),
            "LOGIN_ISSUER": f"http://localhost:{self._login_port}",
            "LOGIN_AUDIENCE": LOGIN_AUDIENCE,
            "LOGIN_SECRET": LOGIN_SECRET,
            "SLACK_URL": f"http://127.0.0.1:{self._chat_port}/services/releases",
            "SHOP_FILE": str(self._plan.state / "shop.json"),
            "PYTHONPATH": os.pathsep.join(map(str, (self._plan.folder, SAMPLES / self._plan.sample))),
            "PYTHONUNBUFFERED": "1",
        }

    def _launch(self, command: Command) -> None:
        self._children.append(Child(command, self._plan.state / f"{command.name}.log"))

    def _until(self, condition: Callable[[], bool], complaint: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            self.check()
            if time.monotonic() > deadline:
                raise UnusableError(
                    f"{complaint} after {PATIENCE:g} s; the end of its log:\n{self._children[-1].tail()}"
                )
            self._pause(0.1)

    def _healthy(self, path: str) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._plan.port, timeout=10)
        try:
            connection.request("GET", path)
            return connection.getresponse().status in {200, 404}  # where callers are known, strangers see no /enginez
        except OSError:
            return False
        finally:
            connection.close()

    def _stop(self) -> None:
        """First those who use the engine, then the engine."""
        stop_all(self._children[1:])
        stop_all(self._children[:1])
        self._children.clear()


def shown(path: Path) -> str:
    """A path as one types it from here."""
    return os.path.relpath(path)
