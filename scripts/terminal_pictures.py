"""Run `call`, `check`, `tasks list` and `tasks why`, and draw their output as SVG.

Part of `make pictures`. Ids and durations are replaced, and intermediate states left out, so each run of one version
draws the same files; `tests/system/test_pictures.py` checks them.
"""

from __future__ import annotations

import os
import pty
import re
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from rich.console import Console
from rich.text import Text

from tests.support.child_processes import Command, free_port, running_server
from tests.support.environments import ROOT
from tests.support.local_engines import BIN

PICTURES: Final = ROOT / "docs" / "pictures"
COLUMNS: Final = 80  # at least
PATIENCE: Final = 60.0  # seconds
_CONFIG: Final = """
store: sqlite:///tasks.db
engines:
  shop: {adapter: dbos, module: shop}
tools:
  fulfil_order: {engine: shop, workflow: fulfil_order, input: "shop:fulfil_order"}
"""
_SHOP: Final = '''
from dbos import DBOS
from mcp_workflows_dbos import ask, progress


@DBOS.step()
async def charge_card(order_id: str) -> str:
    return f"receipt for {order_id}"


@DBOS.workflow()
async def fulfil_order(order_id: str) -> dict[str, object]:
    """Charge the card and ship, once a person agrees."""
    await charge_card(order_id)
    await progress("waiting for approval", 1, 2)
    form = {"type": "object", "properties": {"boxes": {"type": "integer", "minimum": 1}}}
    answer = await ask(f"Ship order {order_id}?", form)
    return {"order_id": order_id, "shipped": answer.accepted, **answer.content}
'''
_STYLES: Final[Mapping[str, str]] = {
    r"^\$ .*$": "bold",
    r"^ +name +what.*$|^ID .*$|^[A-Za-z ]+:(?= )": "bold",
    r"\bok\b|\bcompleted\b": "green",
    r"\binput_required\b": "yellow",
    r"^\? .*$": "bold cyan",
}


def main() -> None:
    """Draw all pictures of the terminal."""
    print(f"drawn: {', '.join(path.name for path in draw(PICTURES))} in docs/pictures")


def draw(target: Path) -> Sequence[Path]:
    """Run the commands, draw their output into this folder, and return the files."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "shop.py").write_text(_SHOP)
        (folder / "workflows.yaml").write_text(_CONFIG)
        shown = {"check": _run(folder, "check")}
        with running_sidecar(folder) as url:
            url_option = ("--url", url)
            shown["call"] = _run(folder, "call", "fulfil_order", "order_id=A-17", hidden=url_option, answers=["3"])
            _run(folder, "call", "fulfil_order", "order_id=A-18", "--no-wait", hidden=url_option)
            shown["tasks-list"] = _run_until(folder, "input_required", "tasks", "list", "--wide")
            task = re.findall(r"^[0-9a-f]{12}", shown["tasks-list"], re.MULTILINE)[0]
            shown["tasks-why"] = _run(folder, "tasks", "why", task)
        return [
            _draw_svg(target / f"terminal-{each}.svg", _without_variation(text, folder)) for each, text in shown.items()
        ]


@contextmanager
def running_sidecar(folder: Path, **variables: str) -> Generator[str]:
    """Serve the workflows.yaml of this folder, with these variables; yield the URL of the MCP endpoint."""
    port = free_port()
    argv = (str(BIN / "mcp-workflows"), "serve", "workflows.yaml", "--http", f"127.0.0.1:{port}")
    with running_server(Command(name="sidecar", argv=argv, cwd=folder, env=variables), folder / "log", port):
        yield f"http://127.0.0.1:{port}/mcp"


def _run_until(folder: Path, pattern: str, *words: str) -> str:
    deadline = time.monotonic() + PATIENCE
    while not re.search(pattern, shown := _run(folder, *words)):
        if time.monotonic() > deadline:
            raise TimeoutError(shown)
    return shown


def _run(folder: Path, *words: str, hidden: Sequence[str] = (), answers: Sequence[str] = ()) -> str:
    """Run one command at a new terminal, type the answers, and return the command and its output.

    The arguments in `hidden` are left out of the returned text.
    """
    left = list(answers)
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(folder)
        wide = {"COLUMNS": "400"}  # no line is wrapped; `_align_columns` sets the widths
        command = str(BIN / "mcp-workflows")
        os.execvpe(command, [command, *words, *hidden], {**os.environ, **wide, "NO_COLOR": "1", "TERM": "xterm"})
    seen = b""
    with suppress(OSError):  # the end
        while part := os.read(terminal, 65536):
            seen += part
            if left and seen.rstrip().endswith(b":") and b"[" in seen.rsplit(b"\n", 1)[-1]:
                os.write(terminal, f"{left.pop(0)}\n".encode())
    os.close(terminal)
    os.waitpid(child, 0)
    return f"$ mcp-workflows {' '.join(words)}\n{_visible_lines(seen.decode())}"


def _visible_lines(output: str) -> str:
    """Return the lines that remain on the screen, without those of the spinner."""
    lines: list[str] = []
    for line in output.replace("\r\n", "\n").split("\n"):
        text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line.rsplit("\r", 1)[-1])
        if not re.search("[\u2800-\u28ff]", text):
            lines.append(text.rstrip())
    return "\n".join(lines).strip()


def _without_variation(text: str, folder: Path) -> str:
    """Return the text with fixed ids, durations and paths, and without the states that a client may miss."""
    text = text.replace(f"{folder.resolve()}/", "").replace(f"{folder}/", "").replace("sqlite:////", "sqlite:///")
    text = re.sub(r"\b\d+ (s|ms|min)\b", "5 s", text)
    text = re.sub(r"^(working|completed)\b.*\n", "", text, flags=re.MULTILINE)  # a client may miss some states
    ids: dict[str, str] = {}

    def replace(found: re.Match[str]) -> str:
        made = ids.setdefault(found[0][:12], sha256(str(len(ids)).encode()).hexdigest())
        return made[: len(found[0])]

    text = re.sub(r"\b[0-9a-f]{12,40}\b", replace, text)
    return _align_columns(text)


def _align_columns(text: str) -> str:
    """Return the text with the columns of a table aligned again."""
    head, *lines = text.split("\n")
    rows = [re.split(r" {2,}", line.strip()) for line in lines]
    count = max(map(len, rows))
    if count < 5:  # no table
        return text
    if len(rows[0]) < count:  # its first column has no name
        rows[0].insert(0, "")
    widths = [max(len(row[at]) for row in rows if len(row) > max(at, 1)) for at in range(count)]
    padded = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip() for row in rows)
    return "\n".join([head, *padded])


def _draw_svg(target: Path, text: str) -> Path:
    width = max(COLUMNS, *map(len, text.split("\n")))
    console = Console(record=True, width=width, file=StringIO(), force_terminal=True, color_system="truecolor")
    shown = Text(text)
    for pattern, style in _STYLES.items():
        shown.highlight_regex(re.compile(pattern, re.MULTILINE), style)
    console.print(shown)
    svg = console.export_svg(title="", unique_id=target.stem.removeprefix("terminal-"))
    # without the rules that name a CDN: a picture fetches nothing
    target.write_text(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL))
    return target


if __name__ == "__main__":
    main()
