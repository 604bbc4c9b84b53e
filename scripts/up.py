"""`make up`: serve a sample in the foreground until a signal stops it."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from tests.clients.card_host import card_host
from tests.support.child_processes import ChildDiedError, die_with_parent, free_port, is_taken
from tests.support.environments import ROOT
from tests.support.stack import Plan, Stack, UnusableError, shown

_SIGINT_BIT = 1 << (signal.SIGINT - 1)


class StopRequestedError(Exception):
    """A signal, or the end of make, asks this program to stop."""


class StopSignals:
    """Turn SIGINT, SIGTERM and SIGHUP into an exception. Create it in the main thread.

    GNU make passes SIGTERM to its recipes but not SIGINT. A terminal sends SIGINT to the recipe too; `kill -INT` of
    make does not. Make then waits for its recipe with SIGINT blocked, which /proc shows.
    """

    def __init__(self) -> None:
        self._is_requested = threading.Event()
        self._parent = os.getppid()
        self._seen_blocked = 0
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        die_with_parent(signal.SIGTERM)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._is_requested.set()

    def wait(self, seconds: float) -> None:
        """Wait for this time; raise `StopRequestedError` at the first request to stop."""
        self._is_requested.wait(seconds)
        if self._is_requested.is_set() or os.getppid() != self._parent or self._parent_is_interrupted():
            raise StopRequestedError

    def _parent_is_interrupted(self) -> bool:
        """Return True if make blocks SIGINT twice in a row; it also does for an instant when it starts a recipe."""
        try:
            lines = Path(f"/proc/{self._parent}/status").read_text().splitlines()
        except OSError:
            return False
        is_blocked = any(int(line.split()[1], 16) & _SIGINT_BIT for line in lines if line.startswith("SigBlk:"))
        self._seen_blocked = self._seen_blocked + 1 if is_blocked else 0
        return self._seen_blocked >= 2


def main() -> int:
    """Return 0 after a stop request, 1 after an error."""
    parser = argparse.ArgumentParser(prog="make up", description=__doc__)
    parser.add_argument("--engine", default="temporal")
    parser.add_argument("--sample", default="orders")
    parser.add_argument("--port", type=int, default=8931)
    given = parser.parse_args()
    state = ROOT / ".cache" / "up" / f"{given.engine}-{given.sample}-{given.port}"
    signals = StopSignals()
    try:
        plan = Plan(engine=given.engine, sample=given.sample, port=given.port, state=state)
        with Stack(plan, pause=signals.wait) as stack, _cards(stack, state, signals) as cards:
            _announce(stack, plan.engine, state, cards)
            while True:
                stack.check()
                signals.wait(0.25)
    except StopRequestedError:
        print("stopped", flush=True)
        return 0
    except (UnusableError, ChildDiedError) as problem:
        print(f"make up: {problem}", file=sys.stderr, flush=True)
        return 1


@contextmanager
def _cards(stack: Stack, state: Path, signals: StopSignals) -> Generator[str | None]:
    """Serve a host that shows run cards in a browser; it has no token, so not where callers need one."""
    if any(state.glob("*.token")):
        yield None
        return
    port = next(filter(lambda port: not is_taken(port), (stack.port + 1, free_port())))
    with card_host(stack.url, state / "card_host.log", port=port, pause=signals.wait) as origin:
        yield origin


def _announce(stack: Stack, engine: str, state: Path, cards: str | None) -> None:
    tokens = [f"token    {shown(file)}" for file in sorted(state.glob("*.token"))]
    lines = [
        f"engine   {engine} at {stack.engine.address}" + (f", its UI at {stack.engine.ui}" if stack.engine.ui else ""),
        f"logs     {shown(state)}/*.log",
        f"connect  .venv/bin/mcp-workflows connect claude --url {stack.url}   (or vscode, cursor, codex, inspector)",
        *([f"cards    {cards}/   (a host in your browser: call a tool, and see its run card)"] if cards else []),
        *tokens,
        *(_logins(stack, state) if stack.has_logins else []),
        "stop     Ctrl-C",
        f"ready: {stack.url}",
    ]
    print("\n".join(lines), flush=True)


def _logins(stack: Stack, state: Path) -> list[str]:
    web, token = stack.url.removesuffix("/mcp"), shown(state / "alice.token")
    return [
        f"messages {shown(stack.messages)}   (what Slack would get, with the links to questions)",
        f"approve  {web}/approvals   (log in as bob; everybody's password is: correct horse)",
        f"ask      .venv/bin/mcp-workflows call deploy version=1.4 --url {stack.url} --token-file {token}",
    ]


if __name__ == "__main__":
    sys.exit(main())
