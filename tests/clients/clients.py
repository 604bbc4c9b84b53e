"""Run every client of the matrix against our sidecar over real workflows, and write docs/use/clients.md."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from tests.clients.client_matrix import CLIENTS, ENGINES, HTTP, SITUATIONS, WORDS, Client, Runtime, Words
from tests.support.environments import FASTMCP, MCP_1X, NODE, ROOT, mcpdo, python_of
from tests.support.local_engines import BIN, SAMPLES
from tests.support.stack import UnusableError

PROGRAMS = Path(__file__).with_name("programs")
DOCUMENT = ROOT / "docs" / "use" / "clients.md"
PATIENCE: Final = 240.0  # seconds for all situations of one client on one transport
NOT_RUN: Final = "-"

Row: TypeAlias = tuple[str, str]
"""A client of the matrix, and a transport."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a client saw of a situation, and the text that came with it."""

    saw: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Our sidecar over the fixtures' workflows: where it listens, and what it takes to start one like it on stdio."""

    url: str
    environment: Mapping[str, str]
    config: Path = SAMPLES / "conformance" / "workflows.yaml"

    def target(self, transport: str) -> Mapping[str, object]:
        """What a client connects to."""
        if transport == HTTP:
            return {"url": self.url}
        words = ["serve", str(self.config)]
        folder = str(self.config.parent)
        return {"command": str(BIN / "mcp-workflows"), "args": words, "cwd": folder, "env": dict(self.environment)}


def environment(engine: Mapping[str, str], store: Path) -> Mapping[str, str]:
    """What the conformance sample's workflows.yaml wants to know."""
    sample = str(SAMPLES / "conformance")
    return {**engine, "MCP_WORKFLOWS_STORE": f"sqlite:///{store}", "PYTHONPATH": sample}


def rows() -> Iterator[Row]:
    """All of them: the matrix."""
    return ((name, transport) for name, client in CLIENTS.items() for transport in client.transports)


def seen_by(client: Client, transport: str, served: Served) -> Mapping[str, Seen]:
    """Run a client through its situations; raises `UnusableError` if it breaks down or cannot be installed."""
    try:
        command = _command(client, transport, served)
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except subprocess.CalledProcessError as problem:
        raise UnusableError(f"{client.title} cannot be installed: {problem}") from problem
    except subprocess.TimeoutExpired as late:
        said = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout
        raise UnusableError(f"{client.script} did not end within {PATIENCE:g} s; it had said:\n{said}") from late
    if done.returncode:
        raise UnusableError(f"{client.script} ended with {done.returncode}:\n{done.stdout}{done.stderr[-3000:]}")
    reports = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {report["situation"]: Seen(saw=report["saw"], text=report["text"]) for report in reports}


def _command(client: Client, transport: str, served: Served) -> Sequence[str]:
    """What runs it; installs it first, if need be."""
    plan = {
        "target": served.target(transport),
        "era": client.era,
        "situations": [_asked(name) for name in client.sees],
        **_for_inspector(client, served),
    }
    return [*_interpreter(client.runtime), str(PROGRAMS / client.script), json.dumps(plan)]


def _asked(name: str) -> Mapping[str, object]:
    situation = SITUATIONS[name]
    return {"name": name, "tool": situation.tool, "arguments": situation.arguments}


def _for_inspector(client: Client, served: Served) -> Mapping[str, object]:
    """Its program, and how to learn the id of a task that it keeps for itself: as the operator does."""
    if client.runtime != Runtime.INSPECTOR:
        return {}
    program = str(BIN / "mcp-workflows")
    words = ["env", *(f"{name}={value}" for name, value in served.environment.items()), program]
    return {"mcpdo": str(mcpdo()), "tasks": [*words, "tasks", "list", "--json", "-c", str(served.config)]}


def _interpreter(runtime: Runtime) -> Sequence[str]:
    match runtime:
        case Runtime.NODE | Runtime.INSPECTOR:
            return [str(NODE)]
        case Runtime.MCP_1X:
            return [str(python_of("mcp-1x", MCP_1X))]
        case Runtime.FASTMCP:
            return [str(python_of("fastmcp", FASTMCP))]
        case Runtime.OURS:
            return [sys.executable]


def complaints(client: Client, seen: Mapping[str, Seen]) -> Sequence[str]:
    """Where a client saw something else than it should have."""
    return [
        f"{name}: {seen.get(name, 'nothing')}, but it should see {wanted!r} and be told {SITUATIONS[name].says!r}"
        for name, wanted in client.sees.items()
        if not _as_declared(wanted, SITUATIONS[name].says, seen.get(name))
    ]


def _as_declared(wanted: str, says: str, seen: Seen | None) -> bool:
    """Whoever looks at two things, as a failed task and its result, is to be told by both."""
    return seen is not None and seen.saw == wanted and all(says in part for part in seen.text.split(" / "))


def shown_by_command(words: Words, era: str, served: Served) -> str:
    """All that `mcp-workflows call` prints of a call, as a client of this revision."""
    command = [str(BIN / "mcp-workflows"), "call", *words.call, "--client", era, "--url", served.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    return done.stdout + done.stderr


# --- the page


Table: TypeAlias = Mapping[Row, Mapping[str, str]]
"""What was seen, by row and situation."""


def declared() -> Table:
    """What the matrix says."""
    return {row: CLIENTS[row[0]].sees for row in rows()}


def written(table: Table) -> str:
    """As Markdown, with the packages and the notes."""
    columns = [name for name in SITUATIONS if any(name in cells for cells in table.values())]
    titles = ["client", "revision", "over", *(SITUATIONS[name].title for name in columns)]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    lines += [_line(row, [cells.get(name, NOT_RUN) for name in columns]) for row, cells in table.items()]
    return "\n".join([*lines, "", *_packages(table)])


def _line(row: Row, cells: Sequence[str]) -> str:
    client = CLIENTS[row[0]]
    return f"| {' | '.join([client.title, client.era, row[1], *cells])} |"


def _packages(table: Table) -> Iterator[str]:
    for name in dict.fromkeys(name for name, _ in table):
        client = CLIENTS[name]
        packages = ", ".join(f"`{package}`" for package in client.packages) or "of this project"
        yield f"- {client.title}, {client.era}: {packages}. {client.note}".rstrip()


def differences() -> str:
    """What is shown of the same calls on each engine."""
    lines = [f"| | {' | '.join(ENGINES.values())} |", "|---" * (1 + len(ENGINES)) + "|"]
    for words in WORDS:
        cells = [f"`{words.shows[engine]}`" for engine in ENGINES]
        lines.append(f"| {words.title}: `{' '.join(words.call)}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def fresh(text: str, table: Table) -> str:
    """The page with this table in its regions: clients that know tasks, those that do not, and the engines."""
    parts = {
        "tasks": written({row: cells for row, cells in table.items() if CLIENTS[row[0]].tasks}),
        "plain": written({row: cells for row, cells in table.items() if not CLIENTS[row[0]].tasks}),
        "engines": differences(),
    }
    return with_regions(text, parts)


def with_regions(text: str, parts: Mapping[str, str]) -> str:
    """The page with these parts between their comments."""
    for region, part in parts.items():
        pattern = re.compile(rf"(<!-- begin {region} -->\n).*?(<!-- end {region} -->)", re.DOTALL)
        found = pattern.search(text)
        if found:
            text = f"{text[: found.start()]}{found[1]}\n{part}\n\n{found[2]}{text[found.end() :]}"
    return text


if __name__ == "__main__":
    DOCUMENT.write_text(fresh(DOCUMENT.read_text(encoding="utf-8"), declared()), encoding="utf-8")
