"""`make demo`: serve the engine's sample, run its demo client, and print the next steps."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from tests.support.child_processes import ChildDiedError, free_port
from tests.support.local_engines import CI
from tests.support.stack import Plan, Stack, UnusableError

PATIENCE = 240.0  # seconds for the whole story; it takes half a minute
UNDONE_WITHIN = 30.0

SAMPLE_OF: Mapping[str, str] = dict.fromkeys(CI, "release")

UNDONE: Mapping[str, str] = dict.fromkeys(("dbos", "google", "stepfunctions"), "undone: the stock was released")
"""The last log line of the compensation, where a cancelled execution ends at once."""

_OF_WORKFLOWS = " orders: "  # the logger of the sample whose workflows run in the sidecar

console = Console(soft_wrap=True, highlight=False)


def main() -> int:
    """Return 0 if the demo completed."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--engine", default="dbos")
    engine = parser.parse_args().engine
    sample = SAMPLE_OF.get(engine, "orders")
    console.print(f"starting {engine}, a worker with the workflows of the sample {sample}, and the sidecar ...")
    with tempfile.TemporaryDirectory() as folder:
        try:
            plan = Plan(engine=engine, sample=sample, port=free_port(), state=Path(folder))
            with Stack(plan) as stack:
                code = _show(plan, stack)
                code = code or _show_compensation(plan)
                if sys.stdin.isatty() and sys.stdout.isatty():
                    ui = f", the engine's UI at {stack.engine.ui}" if stack.engine.ui else ""
                    console.input(f"everything still runs{ui}; press Enter to stop it ")
        except (UnusableError, ChildDiedError, subprocess.TimeoutExpired) as problem:
            console.print(f"make demo: {problem}", markup=False)
            return 1
    if code == 0:
        console.rule("now with your own host")
        up = "make up" if engine == "temporal" else f"make up ENGINE={engine}"
        up += f" SAMPLE={SAMPLE_OF[engine]}" if engine in SAMPLE_OF else ""
        console.print(f"{up:<42} [dim]# serves this sample at http://127.0.0.1:8931/mcp[/]")
        for host in ("claude", "vscode", "cursor", "codex", "gemini", "opencode", "inspector"):
            console.print(f".venv/bin/mcp-workflows connect {host:<10} --url http://127.0.0.1:8931/mcp")
    return code


def _show(plan: Plan, stack: Stack) -> int:
    """Run the demo client in its own process, as a host would."""
    story = next(file for at in (plan.folder, plan.folder.parent) if (file := at / "demo.py").exists())
    argv = [sys.executable, str(story), stack.url, *map(str, sorted(plan.state.glob("*.token")))]
    return subprocess.run(argv, check=False, timeout=PATIENCE, stdin=subprocess.DEVNULL).returncode


def _show_compensation(plan: Plan) -> int:
    """Print the log lines of the compensation, which runs after the task has ended; return 0 if it ended in time."""
    if (last := UNDONE.get(plan.engine)) is None:
        return 0
    console.print("the execution ended at once; its worker logs the compensation:")
    worker, sidecar = plan.state / "worker.log", plan.state / "sidecar.log"
    log = worker if worker.exists() else sidecar
    deadline = time.monotonic() + UNDONE_WITHIN
    while last not in log.read_text() and time.monotonic() < deadline:
        time.sleep(0.1)
    lines = log.read_text().splitlines()
    said = lines[1:] if log == worker else [line.partition(_OF_WORKFLOWS)[2] for line in lines]  # the first: it works
    for line in filter(None, said):
        console.print(f"  {line}", markup=False)
    if last in log.read_text():
        return 0
    console.print(f"make demo: nothing was undone within {UNDONE_WITHIN:g} s", markup=False)
    return 1


if __name__ == "__main__":
    sys.exit(main())
