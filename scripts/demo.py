"""`make demo`: serve the order sample, let its demo client show what happens, say how to go on."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from scripts.processes import ChildDiedError, free_port
from scripts.stack import SAMPLES, Plan, Stack, UnusableError

PATIENCE = 240.0  # seconds for the whole story; it takes half a minute

console = Console(soft_wrap=True, highlight=False)


def main() -> int:
    """Exit code 0 if the story came to its end."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--engine", default="temporal")
    engine = parser.parse_args().engine
    console.print(f"starting {engine}, a worker with the order workflows, and the sidecar ...")
    with tempfile.TemporaryDirectory() as folder:
        try:
            plan = Plan(engine=engine, sample="orders", port=free_port(), state=Path(folder))
            with Stack(plan) as stack:
                code = _show(stack)
        except (UnusableError, ChildDiedError, subprocess.TimeoutExpired) as problem:
            console.print(f"make demo: {problem}", markup=False)
            return 1
    if code == 0:
        _how_to_go_on()
    return code


def _show(stack: Stack) -> int:
    """The demo client, in a process of its own as any host is; a person may then look around."""
    argv = [sys.executable, str(SAMPLES / "orders" / "demo.py"), stack.url]
    code = subprocess.run(argv, check=False, timeout=PATIENCE, stdin=subprocess.DEVNULL).returncode
    if sys.stdin.isatty() and sys.stdout.isatty():
        console.input(f"everything still runs, Temporal's UI at {stack.engine.ui}; press Enter to stop it ")
    return code


def _how_to_go_on() -> None:
    console.rule("now with your own host")
    console.print(
        "make up                                    [dim]# serves this sample at http://127.0.0.1:8931/mcp[/]"
    )
    for host in ("claude", "vscode", "cursor", "codex", "inspector"):
        console.print(f".venv/bin/mcp-workflows connect {host:<10} --url http://127.0.0.1:8931/mcp")


if __name__ == "__main__":
    sys.exit(main())
