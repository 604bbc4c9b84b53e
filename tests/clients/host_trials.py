"""`make hosts`: third-party hosts, headless and with a scripted model, against our server; writes docs/use/clients.md.

Each trial is a process of its own: `python -m tests.clients.host_trials --alone codex http result` prints it.
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
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeAlias

from tests.clients.client_matrix import HTTP, STDIO
from tests.clients.clients import DOCUMENT, with_regions
from tests.clients.host_matrix import HOSTS, PACKAGES, SITUATIONS, Host, Situation, Target
from tests.clients.host_model import Request, ScriptedModel, prompt_of
from tests.support.child_processes import Child, Command, free_port, stop_all
from tests.support.environments import NODE, npm_packages
from tests.support.local_engines import BIN

TRANSPORTS: Final = (HTTP, STDIO)
_LONG: Final = frozenset({"minutes", "at_once"})
PATIENCE: Final = 420.0  # seconds for one prompt; a call of three minutes is tried more than once by some
AT_ONCE: Final = 6  # trials; they wait most of the time
_OPENING: Final = re.compile(r'"(?:initialize|server/discover)"')
_NO_MESSAGE: Final[Mapping[str, Any]] = {}
_WORDS: Final[Mapping[str, str]] = {
    "list": r'newest first|"tasks":',
    "handle": r'continues by itself|"status": ?"working"',
    "question": r'questions? for the user|"status": ?"input_required"',
    "cancelled": r'was cancelled|"status": ?"cancelled"',
    "declined": r'"answer": ?"(?:decline|cancel)"',
    "result": r'"greeting":|"built":|"(?:ordered|shipped)": ?"tea"|^line 1 of',
    "no approval": r"requires approval",
    "time-out": r"(?i)timed? ?out|deadline",
    "closed": r"Connection closed",
}
"""The words of a cell, each with the pattern of its tool results; the first match counts, and `?` means none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The outcome of a trial: the cell of the table, the facts of the connection, and the messages behind them."""

    cell: str
    revision: str = ""
    declares: Sequence[str] = ()
    calls: str = ""  # the name of `greet`, with its namespace
    seconds: float = 0.0  # of the longest call
    results: Sequence[str] = ()
    sent: Sequence[str] = ()
    shown: str = ""


Job: TypeAlias = tuple[str, str, str]
"""A host, a transport and a situation."""


# --- one situation


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A host over a transport in a situation, with a folder of its own for its home and our server."""

    host: Host
    transport: str
    situation: Situation
    folder: Path

    @property
    def sent(self) -> Path:
        """The file of the messages that the host sent to our server, one a line."""
        return self.folder / "sent.jsonl"

    def run(self) -> Observation:
        """Run the host through the situation."""
        for name in ("flows.py", "workflows.yaml"):
            shutil.copy(PACKAGES / name, self.folder)
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
            requests, shown = self._converse(model, target)
        return self._observation(requests, shown)

    def _serve(self, port: int) -> Child:
        log = self.folder / "server.log"
        words = (str(BIN / "mcp-workflows"), "serve", "-c", "workflows.yaml", "--http", f"127.0.0.1:{port}")
        server = Child(Command(name="server", argv=words, cwd=self.folder, env={}), log)
        until(lambda: "ready: http" in log.read_text(), server.check)
        return server

    def _target(self, model: ScriptedModel) -> Target:
        if self.transport == HTTP:
            return Target(model=model.url, url=f"{model.url}/relay")
        served = f"exec {shlex.quote(str(BIN / 'mcp-workflows'))} serve -c workflows.yaml 2>>server.log"
        script = f"cd {shlex.quote(str(self.folder))} && tee -a sent.jsonl | {served}"
        return Target(model=model.url, command=("/bin/sh", "-c", script))

    def _converse(self, model: ScriptedModel, target: Target) -> tuple[Sequence[Request], Sequence[str]]:
        requests: list[Request] = []
        shown: list[str] = []
        for number, play in enumerate(self.situation.plays):
            before = len(model.requests)
            log = self.folder / f"shown-{number}.log"
            host = Child(self._command(target, number, prompt_of(play)), log)
            try:
                if number == 0 and self.situation.signal:
                    until((self.folder / "running").exists, host.check)
                    host.ask_to_stop()
                until(partial(_has_ended, host))
            finally:
                stop_all([host])
            shown.append(log.read_text(errors="replace"))
            requests += [request for request in model.requests[before:] if request.prompt and request.tools]
        return requests, shown

    def _command(self, target: Target, number: int, prompt: str) -> Command:
        packages = npm_packages(f"host-{self.host.folder}", PACKAGES / self.host.folder / "package.json")
        program = min(packages.glob(self.host.program))
        home = {"PATH": f"{NODE.parent}:/usr/bin:/bin", "HOME": str(self.folder / "home")}
        variables = (f"{name}={value}" for name, value in {**home, **self.host.environment(target)}.items())
        words = self.host.resume if number else self.host.run
        argv = ("/usr/bin/env", "-i", *variables, str(program), *words, prompt)
        stop = {"stop": self.situation.signal} if self.situation.signal and not number else {}
        return Command(name=self.host.title, argv=argv, cwd=self.folder / "work", env={}, **stop)

    def _observation(self, requests: Sequence[Request], shown: Sequence[str]) -> Observation:
        sent = self.sent.read_text().splitlines()
        revision, declares = _initialization(sent)
        ends = [
            request for request, after in zip(requests, [*requests[1:], None], strict=True) if _is_last(request, after)
        ]
        results = [text for request in ends for text in request.results]
        waits = [after.at - request.at for request, after in pairwise(requests)]
        return Observation(
            cell=self._cell(results, sent),
            revision=revision,
            declares=declares,
            calls=next(
                (
                    "/".join(filter(None, name))
                    for name in (requests[0].tools if requests else ())
                    if name[1].endswith("greet")
                ),
                "?",
            ),
            seconds=round(max(waits, default=0.0), 1),
            results=[text if len(text) < 3000 else f"{text[:1500]} [...] {text[-500:]}" for text in results],
            sent=[line[:600] for line in sent],
            shown="\n---\n".join(shown),
        )

    def _cell(self, results: Sequence[str], sent: Sequence[str]) -> str:
        words = [_word_for(text) for text in results]
        if self.situation is SITUATIONS["length"]:
            words = [f"{round(len(results[-1]) / 1000)} kB"] if results else []
        if "question" in words:  # after the answer it goes on, or has ended already
            words = [word for word in words if word != "handle"]
        words = [word for word in words if word != "closed"]  # by chance: did the server on stdio end before the host?
        cancelled = any('"notifications/cancelled"' in line for line in self._before_resumption(sent))
        if self.situation.signal and cancelled and words[:1] == ["list"]:  # some send it after an ended call, too
            words.insert(0, "notified")
        return ", ".join(word for place, word in enumerate(words) if word not in words[max(0, place - 1) : place])

    @staticmethod
    def _before_resumption(sent: Sequence[str]) -> Sequence[str]:
        opened = [place for place, line in enumerate(sent) if _OPENING.search(line)]
        return sent[: opened[1]] if len(opened) > 1 else sent


def _has_ended(host: Child) -> bool:
    return host.ended


def _initialization(sent: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Return the revision and the capabilities of the first `initialize` or `server/discover`."""
    opening: Mapping[str, Any] = next(
        (json.loads(line)["params"] for line in sent if _OPENING.search(line)), _NO_MESSAGE
    )
    said = {key.removeprefix("io.modelcontextprotocol/"): value for key, value in opening.get("_meta", {}).items()}
    capabilities = opening.get("capabilities", said.get("clientCapabilities", {}))
    return opening.get("protocolVersion", said.get("protocolVersion", "?")), sorted(capabilities)


def _is_last(request: Request, after: Request | None) -> bool:
    return after is None or after.prompt != request.prompt or len(after.results) < len(request.results)


def _word_for(text: str) -> str:
    return next((word for word, sign in _WORDS.items() if re.search(sign, text, re.MULTILINE)), "?")


def until(condition: Callable[[], bool], check: Callable[[], None] = lambda: None) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        check()
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {PATIENCE:g} s")
        time.sleep(0.1)


def _run_alone(name: str, transport: str, situation: str) -> Observation:
    with tempfile.TemporaryDirectory(prefix="host-", ignore_cleanup_errors=True) as folder:
        return Trial(
            host=HOSTS[name], transport=transport, situation=SITUATIONS[situation], folder=Path(folder).resolve()
        ).run()


def complaints(job: Job, observed: Mapping[str, object]) -> Sequence[str]:
    """Return the differences between an observation and the matrix."""
    name, transport, situation = job
    host = HOSTS[name]
    revision = (host.revision_on_stdio if transport == STDIO else "") or host.revision
    declares = [*host.declares, *(host.declares_on_stdio if transport == STDIO else ())]
    wanted = {
        "cell": cells(host, transport)[situation],
        "revision": revision,
        "declares": declares,
        "calls": host.calls,
    }
    return [f"{part}: {observed[part]!r}, not {value!r}" for part, value in wanted.items() if observed[part] != value]


# --- the page


def cells(host: Host, transport: str) -> Mapping[str, str]:
    """Return the cells of a host over this transport, by situation."""
    return {**host.sees, **(host.sees_on_stdio if transport == STDIO else {})}


def fresh(text: str) -> str:
    """Return docs/use/clients.md with its part on hosts written from the matrix."""
    titles = ["host", "over", *(situation.title for situation in SITUATIONS.values())]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for host in HOSTS.values():
        for transport in TRANSPORTS:
            seen = cells(host, transport)
            lines.append(f"| {' | '.join([host.title, transport, *(seen.get(name, '-') for name in SITUATIONS)])} |")
    lines.append("")
    for host in HOSTS.values():
        declared = " and ".join(f"`{each}`" for each in host.declares)
        declared += "".join(f", over stdio also `{each}`" for each in host.declares_on_stdio)
        revision = host.revision + (f" (over stdio {host.revision_on_stdio})" if host.revision_on_stdio else "")
        facts = f"`{host.pinned}`, MCP {revision}, declares {declared}"
        lines.append(f"- {host.title}: {facts}; its model calls `greet` as `{host.calls}`.")
    return with_regions(text, {"hosts": "\n".join(lines)})


# --- the run


def main() -> int:
    """Return exit code 0 if every observation is as the matrix says."""
    parser = argparse.ArgumentParser(prog="make hosts", description=__doc__)
    parser.add_argument("--only", choices=sorted(HOSTS), help="this host alone, and write nothing")
    parser.add_argument("--situation", choices=sorted(SITUATIONS), help="this one alone, and write nothing")
    parser.add_argument("--alone", nargs=3, metavar=("HOST", "TRANSPORT", "SITUATION"), help="print the observation")
    parser.add_argument("--keep", type=Path, help="a folder for all observations")
    given = parser.parse_args()
    if given.alone:
        print(json.dumps(asdict(_run_alone(*given.alone)), indent=1))
        return 0
    jobs: list[Job] = [
        (name, transport, situation)
        for situation in sorted(SITUATIONS, key=lambda name: name not in _LONG)
        for name, host in HOSTS.items()
        for transport in TRANSPORTS
        if situation in host.sees and given.only in (None, name) and given.situation in (None, situation)
    ]
    for name in dict.fromkeys(HOSTS[job[0]].folder for job in jobs):
        npm_packages(f"host-{name}", PACKAGES / name / "package.json")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        as_declared = list(pool.map(partial(_is_as_declared, keep=given.keep), jobs))
    if not all(as_declared):
        return 1
    if not given.only and not given.situation:
        DOCUMENT.write_text(fresh(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


def _is_as_declared(job: Job, keep: Path | None) -> bool:
    """Run a trial in a process of its own; return True if its observation is as the matrix says."""
    words = [sys.executable, "-m", "tests.clients.host_trials", "--alone", *job]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if keep:
        keep.mkdir(exist_ok=True)
        (keep / "-".join(job)).write_text(done.stdout + done.stderr)
    found = complaints(job, json.loads(done.stdout)) if not done.returncode else [done.stderr[-2000:]]
    print(f"{' '.join(job)}: {'as declared' if not found else '; '.join(found)}", flush=True)
    return not found


if __name__ == "__main__":
    sys.exit(main())
