"""`make up`: serve a sample in the foreground until somebody stops us."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from scripts.lifeline import CutError, Lifeline
from scripts.processes import ChildDiedError
from scripts.stack import ROOT, Plan, Stack, UnusableError, shown


def main() -> int:
    """Exit code 0 when asked to stop, 1 when something went wrong."""
    arguments = _arguments()
    name = f"{arguments.engine}-{arguments.sample}-{arguments.port}"
    state = ROOT / ".cache" / "up" / name
    lifeline = Lifeline()
    try:
        plan = Plan(engine=arguments.engine, sample=arguments.sample, port=arguments.port, state=state)
        with Stack(plan, pause=lifeline.wait) as stack:
            _announce(stack, plan.engine, state)
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


def _announce(stack: Stack, engine: str, state: Path) -> None:
    tokens = [f"token    {shown(file)}" for file in sorted(state.glob("*.token"))]
    lines = [
        f"engine   {engine} at {stack.engine.address}" + (f", its UI at {stack.engine.ui}" if stack.engine.ui else ""),
        f"logs     {shown(state)}/*.log",
        f"connect  .venv/bin/mcp-workflows connect claude --url {stack.url}   (or vscode, cursor, codex, inspector)",
        *tokens,
        "stop     Ctrl-C",
        f"ready: {stack.url}",
    ]
    print("\n".join(lines), flush=True)


if __name__ == "__main__":
    sys.exit(main())
