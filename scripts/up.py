"""`make up`: serve a sample in the foreground until somebody stops us."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from scripts.card_host import card_host
from scripts.lifeline import CutError, Lifeline
from scripts.processes import ChildDiedError, free_port, is_taken
from scripts.stack import ROOT, Plan, Stack, UnusableError, shown


def main() -> int:
    """Exit code 0 when asked to stop, 1 when something went wrong."""
    arguments = _arguments()
    name = f"{arguments.engine}-{arguments.sample}-{arguments.port}"
    state = ROOT / ".cache" / "up" / name
    lifeline = Lifeline()
    try:
        plan = Plan(engine=arguments.engine, sample=arguments.sample, port=arguments.port, state=state)
        with Stack(plan, pause=lifeline.wait) as stack, _cards(stack, state, lifeline) as cards:
            _announce(stack, plan.engine, state, cards)
            while True:
                stack.check()
                lifeline.wait(0.25)
    except CutError:
        print("stopped", flush=True)
        return 0
    except (UnusableError, ChildDiedError) as problem:
        print(f"make up: {problem}", file=sys.stderr, flush=True)
        return 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make up", description=__doc__)
    parser.add_argument("--engine", default="temporal")
    parser.add_argument("--sample", default="orders")
    parser.add_argument("--port", type=int, default=8931)
    return parser.parse_args()


@contextmanager
def _cards(stack: Stack, state: Path, lifeline: Lifeline) -> Generator[str | None]:
    """Serve a host that shows run cards in a browser; it has no token, so not where callers need one."""
    if any(state.glob("*.token")):
        yield None
        return
    port = next(filter(lambda port: not is_taken(port), (stack.port + 1, free_port())))
    with card_host(stack.url, state / "card_host.log", port=port, pause=lifeline.wait) as origin:
        yield origin


def _announce(stack: Stack, engine: str, state: Path, cards: str | None) -> None:
    tokens = [f"token    {shown(file)}" for file in sorted(state.glob("*.token"))]
    lines = [
        f"engine   {engine} at {stack.engine.address}" + (f", its UI at {stack.engine.ui}" if stack.engine.ui else ""),
        f"logs     {shown(state)}/*.log",
        f"connect  .venv/bin/mcp-workflows connect claude --url {stack.url}   (or vscode, cursor, codex, inspector)",
        *([f"cards    {cards}/   (a host in your browser: call a tool, and see its run card)"] if cards else []),
        *tokens,
        "stop     Ctrl-C",
        f"ready: {stack.url}",
    ]
    print("\n".join(lines), flush=True)


if __name__ == "__main__":
    sys.exit(main())
