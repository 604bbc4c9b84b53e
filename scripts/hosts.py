"""`make hosts`: hosts of others, headless and with a scripted model, against our server; writes docs/clients.md.

A situation of a host is a process of its own: `python -m scripts.hosts --alone codex http result` prints what was seen.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, TypeAlias

from scripts.client_matrix import HTTP, STDIO
from scripts.clients import DOCUMENT, with_regions
from scripts.engines import BIN
from scripts.environments import NODE, npm_packages
from scripts.host_matrix import HOSTS, PACKAGES, SITUATIONS, Host, Situation, Target
from scripts.host_model import Request, ScriptedModel, prompt_of
from scripts.processes import Child, Command, free_port, stop_all

TRANSPORTS: Final = (HTTP, STDIO)
_LONG: Final = frozenset({"minutes", "at_once"})
PATIENCE: Final = 420.0  # seconds for one prompt; a call of three minutes is tried more than once by some
AT_ONCE: Final = 4  # most of the time they wait
_CUT: Final = 200_000  # characters; the long result has more
_SAID: Final[Mapping[str, str]] = {
    "handle": r"goes on by itself",
    "question": r"has \d questions? for the user",
    "cancelled": r"was cancelled",
    "declined": r'"answer": ?"(?:decline|cancel)"',
    "result": r'"greeting":|"built":|"(?:ordered|shipped)": ?"tea"|^line 1 of',
    "no approval": r"requires approval",
    "time-out": r"(?i)timed? ?out|deadline",
    "stopped": r"(?i)abort|interrupt|cancel",
}
"""The words of a cell, each by what a result of a tool then says; the first that fits, and `?` if none does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What came of a situation: the cell, the facts of the connection, and all that was seen."""

    cell: str
    revision: str = ""
    declares: Sequence[str] = ()
    tools: Sequence[str] = ()
    seconds: float = 0.0  # of the longest call
    results: Sequence[str] = ()
    sent: Sequence[str] = ()
    shown: str = ""


Job: TypeAlias = tuple[str, str, str]
"""A host, a transport and a situation."""


# --- one situation


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A host over a transport in a situation, with a folder of its own."""

    host: Host
    transport: str
    situation: Situation
    folder: Path

    @property
    def sent(self) -> Path:
        """What the host sent to our server, a message a line."""
        return self.folder / "sent.jsonl"

    def run(self) -> Seen:
        """Play the situation."""
        for file in ("flows.py", "workflows.yaml"):
            shutil.copy(PACKAGES / file, self.folder)
        self.sent.touch()
        (self.folder / "work").mkdir()
        port = free_port()
        with ExitStack() as stack:
            if self.transport == HTTP:
                stack.callback(stop_all, [self._serve(port)])
            model = stack.enter_context(ScriptedModel(free_port(), f"http://127.0.0.1:{port}/mcp", self.sent))
            target = self._target(model)
            for path, text in self.host.files(target).items():
                file = self.folder / "home" / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
            requests, shown = self._played(model, target)
        return self._seen(requests, shown)

    def _serve(self, port: int) -> Child:
        log = self.folder / "server.log"
        words = (str(BIN / "mcp-workflows"), "serve", "-c", "workflows.yaml", "--http", f"127.0.0.1:{port}")
        server = Child(Command(name="server", argv=words, cwd=self.folder, env={}), log)
        _until(lambda: "ready: http" in log.read_text(), server.check)
        return server

    def _target(self, model: ScriptedModel) -> Target:
        if self.transport == HTTP:
            return Target(model=model.url, url=f"{model.url}/relay")
        served = f"exec {shlex.quote(str(BIN / 'mcp-workflows'))} serve -c workflows.yaml 2>>server.log"
        script = f"cd {shlex.quote(str(self.folder))} && tee -a sent.jsonl | {served}"
        return Target(model=model.url, command=("/bin/sh", "-c", script))

    def _played(self, model: ScriptedModel, target: Target) -> tuple[Sequence[Request], Sequence[str]]:
        last: list[Request] = []
        shown: list[str] = []
        for number, play in enumerate(self.situation.plays):
            before = len(model.requests)
            log = self.folder / f"shown-{number}.log"
            host = Child(self._command(target, number, prompt_of(play)), log)
            try:
                if number == 0 and self.situation.signal:
                    _until(self._works, host.check)
                    host.ask_to_stop()
                _until(lambda host=host: host.ended)
            finally:
                stop_all([host])
            shown.append(log.read_text(errors="replace"))
            last += [request for request in model.requests[before:] if request.prompt and request.tools]
        return last, shown

    def _command(self, target: Target, number: int, prompt: str) -> Command:
        packages = npm_packages(f"host-{self.host.folder}", PACKAGES / self.host.folder / "package.json")
        program = min(packages.glob(self.host.program))
        home = {"PATH": f"{NODE.parent}:/usr/bin:/bin", "HOME": str(self.folder / "home")}
        variables = (f"{name}={value}" for name, value in {**home, **self.host.environment(target)}.items())
        words = self.host.resume if number else self.host.run
        argv = ("/usr/bin/env", "-i", *variables, str(program), *words, prompt)
        stop = {"stop": self.situation.signal} if self.situation.signal and not number else {}
        return Command(name=self.host.title, argv=argv, cwd=self.folder / "work", env={}, **stop)

    def _works(self) -> bool:
        """Whether the workflow runs: its task has a step to tell."""
        if '"tools/call"' not in self.sent.read_text():
            return False
        words = (str(BIN / "mcp-workflows"), "tasks", "list", "--json", "-c", "workflows.yaml")
        done = subprocess.run(words, cwd=self.folder, capture_output=True, text=True, check=False)
        return '"working"' in done.stdout

    def _seen(self, requests: Sequence[Request], shown: Sequence[str]) -> Seen:
        sent = self.sent.read_text().splitlines()
        opened = next((json.loads(line)["params"] for line in sent if '"initialize"' in line), {})
        ends = [
            request for request, after in zip(requests, [*requests[1:], None], strict=True) if _last(request, after)
        ]
        results = [text for request in ends for text in request.results]
        waits = [after.at - request.at for request, after in zip(requests, requests[1:], strict=False)]
        return Seen(
            cell=self._cell(results, sent),
            revision=opened.get("protocolVersion", "?"),
            declares=sorted(opened.get("capabilities", {})),
            tools=["/".join(filter(None, name)) for name in requests[0].tools if name[1].endswith("build_soon")],
            seconds=round(max(waits, default=0.0), 1),
            results=[text if len(text) < 3000 else f"{text[:1500]} [...] {text[-500:]}" for text in results],
            sent=[line[:600] for line in sent if '"notifications/' in line or '"tools/call"' in line],
            shown="\n---\n".join(shown),
        )

    def _cell(self, results: Sequence[str], sent: Sequence[str]) -> str:
        words = [_word(text) for text in results]
        if self.situation is SITUATIONS["length"]:
            words = [f"{round(len(results[-1]) / 1000)} kB"] if results else []
        return ", ".join(word for place, word in enumerate(words) if word not in words[max(0, place - 1) : place])


def _last(request: Request, after: Request | None) -> bool:
    return after is None or after.prompt != request.prompt or len(after.results) < len(request.results)


def _word(text: str) -> str:
    return next((word for word, sign in _SAID.items() if re.search(sign, text, re.MULTILINE)), "?")


def _until(condition: Callable[[], bool], check: Callable[[], None] = lambda: None) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        check()
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {PATIENCE:g} s")
        time.sleep(0.1)


def _alone(name: str, transport: str, situation: str) -> Seen:
    with tempfile.TemporaryDirectory(prefix="host-", ignore_cleanup_errors=True) as folder:
        return Row(
            host=HOSTS[name], transport=transport, situation=SITUATIONS[situation], folder=Path(folder).resolve()
        ).run()


def complaints(job: Job, seen: Mapping[str, object]) -> Sequence[str]:
    """Where a host saw, or said of itself, something else than the matrix says."""
    name, transport, situation = job
    host = HOSTS[name]
    wanted = {"cell": cells(host, transport)[situation], "revision": host.revision, "declares": list(host.declares)}
    return [f"{part}: {seen[part]!r}, not {value!r}" for part, value in wanted.items() if seen[part] != value]


# --- the page


def cells(host: Host, transport: str) -> Mapping[str, str]:
    """What a host sees, by situation."""
    return {**host.sees, **(host.sees_on_stdio if transport == STDIO else {})}


def fresh(text: str) -> str:
    """The page of the clients with what the matrix says of hosts."""
    titles = ["host", "over", *(situation.title for situation in SITUATIONS.values())]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for host in HOSTS.values():
        for transport in TRANSPORTS:
            seen = cells(host, transport)
            lines.append(f"| {' | '.join([host.title, transport, *(seen.get(name, '-') for name in SITUATIONS)])} |")
    lines.append("")
    for host in HOSTS.values():
        facts = f"`{host.pinned}`, MCP {host.revision}, declares {', '.join(f'`{each}`' for each in host.declares)}"
        lines.append(" ".join([f"- {host.title}: {facts}; calls `greet` as `{host.calls}`.", *host.notes]))
    return with_regions(text, {"hosts": "\n".join(lines)})


# --- the run


def main() -> int:
    """Exit code 0 if every host saw in every situation what the matrix says."""
    parser = argparse.ArgumentParser(prog="make hosts", description=__doc__)
    parser.add_argument("--only", choices=sorted(HOSTS), help="this host alone, and write nothing")
    parser.add_argument("--situation", choices=sorted(SITUATIONS), help="this one alone, and write nothing")
    parser.add_argument("--alone", nargs=3, metavar=("HOST", "TRANSPORT", "SITUATION"), help="print what is seen")
    parser.add_argument("--keep", type=Path, help="a folder for all that was seen")
    given = parser.parse_args()
    if given.alone:
        print(json.dumps(asdict(_alone(*given.alone)), indent=1))
        return 0
    jobs = [
        (name, transport, situation)
        for situation in sorted(SITUATIONS, key=lambda name: name not in _LONG)
        for name, host in HOSTS.items()
        for transport in TRANSPORTS
        if situation in host.sees and given.only in (None, name) and given.situation in (None, situation)
    ]
    for name in dict.fromkeys(HOSTS[job[0]].folder for job in jobs):
        npm_packages(f"host-{name}", PACKAGES / name / "package.json")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        seen = dict(zip(jobs, pool.map(lambda job: _tried(job, given.keep), jobs), strict=True))
    if not all(seen.values()):
        return 1
    if not given.only and not given.situation:
        DOCUMENT.write_text(fresh(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


def _tried(job: Job, keep: Path | None) -> bool:
    """Whether all was as declared."""
    words = [sys.executable, "-m", "scripts.hosts", "--alone", *job]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if keep:
        keep.mkdir(exist_ok=True)
        (keep / "-".join(job)).write_text(done.stdout + done.stderr)
    found = complaints(job, json.loads(done.stdout)) if not done.returncode else [done.stderr[-2000:]]
    print(f"{' '.join(job)}: {'as declared' if not found else '; '.join(found)}", flush=True)
    return not found


if __name__ == "__main__":
    sys.exit(main())
