"""What commands print: each file of `golden/` is a folder, and a session in it.

A line `== NAME` begins a file of the folder, and the last one, `== session`, the commands: `$ check` and what it
prints, standard error behind `!`, and the exit code if it is not 0. TASK is the id of the last task.
`UPDATE_GOLDEN=1 pytest` writes the sessions anew; read the difference.
"""

from __future__ import annotations

import os
import re
import shlex
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sidecar.cli.terminal import Terminal

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.txt"))
COMMAND = str(Path(sysconfig.get_path("scripts")) / "mcp-workflows")
VARYING = {
    r"[0-9a-f]{40}": "TASK",
    r"memory-\w+-[0-9a-f]{32}": "EXECUTION",
    r"[0-9a-f]{12}(?= )": "TASK",
    r"\b\d+ (s|min)(?= ago|  )": "N s",
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC": "TIME",
    r"in (89|90) d": "in 90 d",  # a moment ago it was 90
    r"^│ | *│$": "",  # the frame of an error
    r"(?<=\S) {2,}|^ {20,}": "  ",  # columns are as wide as the folder's name needs
}


@pytest.mark.parametrize("file", GOLDEN, ids=lambda file: file.stem)
def test_a_session_prints_what_it_printed(file: Path, terminal: Terminal) -> None:
    text = file.read_text("utf-8")
    head, _, session = text.partition("== session\n")
    for part in head.split("== ")[1:]:
        name, _, content = part.partition("\n")
        (terminal.folder / name).write_text(content, encoding="utf-8")
    commands = [line.removeprefix("$ ") for line in session.splitlines() if line.startswith("$ ")]
    told = f"{head}== session\n" + "".join(f"{line}\n" for line in played(commands, terminal))
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(told, encoding="utf-8")
    assert told == text


def played(commands: list[str], terminal: Terminal) -> Iterator[str]:
    """Yield a session, line by line."""
    task = "TASK"
    for command in commands:
        ended = terminal.run(*shlex.split(command.replace("TASK", task)))
        task = (re.findall(r"[0-9a-f]{40}", ended.out + ended.err) or [task])[-1]
        yield f"$ {command}"
        yield from plain(ended.out, terminal.folder)
        yield from (f"! {line}".rstrip() for line in plain(ended.err, terminal.folder))
        if ended.code:
            yield f"[{ended.code}]"


def plain(text: str, folder: Path) -> Iterator[str]:
    """Yield the lines without what differs from run to run, such as the states that were seen on the way."""
    text = text.replace(COMMAND, "/bin/mcp-workflows").replace(str(folder), "/here")
    for line in re.sub(r"^([╭╰]|(working|input_required)( {2}.*)?$).*\n", "", text, flags=re.MULTILINE).splitlines():
        for varying, shown in VARYING.items():
            line = re.sub(varying, shown, line)
        yield line.rstrip()
