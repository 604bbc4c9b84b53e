"""The command `mcp-workflows docs`: the documentation of the installed version.

The wheel holds the pages as `mcp_workflows/docs`; a checkout, and an editable installation of it, reads its own `docs`.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markdown import Markdown

from mcp_workflows.errors import OperatorError
from mcp_workflows.sidecar.cli.app import app
from mcp_workflows.sidecar.config.problems import names
from mcp_workflows.tools.json_schema import did_you_mean

_PACKAGE = Path(str(files("mcp_workflows")))
_WIDEST = 120  # columns of a page; longer lines are hard to read
_FENCE = re.compile(r"^(```|~~~)")
_HEADING = re.compile(r"^(#{1,6}) +(.+?) *$")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


def pages() -> Mapping[str, Path]:
    """Return the path of each page by name: `gates` for gates.md, `presets/buildbot`, and all of a name but `.md`."""
    folder = next(each for each in (_PACKAGE / "docs", _PACKAGE.parent / "docs") if each.is_dir())
    found = sorted((*folder.glob("*.*"), *folder.glob("presets/*.*")))
    return {path.relative_to(folder).as_posix().removesuffix(".md"): path for path in found}


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """A heading of a page."""

    line: int  # its number, from 0
    level: int
    anchor: str  # as GitHub makes it
    title: str


def headings(page: str) -> Sequence[Heading]:
    """Return the headings of a page, in its order."""
    found: list[Heading] = []
    seen: Counter[str] = Counter()
    in_code = False
    for number, line in enumerate(page.splitlines()):
        in_code ^= bool(_FENCE.match(line))
        if not in_code and (match := _HEADING.match(line)):
            plain = re.sub(r"[^\w\- ]", "", _LINK.sub(r"\1", match[2]).lower()).replace(" ", "-")
            seen[plain] += 1
            anchor = f"{plain}-{seen[plain] - 1}" if seen[plain] > 1 else plain
            found.append(Heading(line=number, level=len(match[1]), anchor=anchor, title=match[2]))
    return found


def section(page: str, anchor: str) -> str | None:
    """Return the part of a page under the heading with this anchor, with its subsections; None if there is none."""
    lines, found = page.splitlines(), headings(page)
    for at, heading in enumerate(found):
        if heading.anchor == anchor:
            after = (other.line for other in found[at + 1 :] if other.level <= heading.level)
            return "\n".join(lines[heading.line : next(after, len(lines))]).rstrip() + "\n"
    return None


def _names(incomplete: str) -> Sequence[str]:
    """Return the names of pages with this beginning, for completion in shells."""
    return [name for name in pages() if name.startswith(incomplete)]


@app.command()
def docs(
    page: Annotated[
        str | None,
        typer.Argument(
            metavar="PAGE",
            help="gates, or one of its sections: gates#limits. Without it, the pages that there are.",
            autocompletion=_names,
        ),
    ] = None,
) -> None:
    """Show the documentation of this version: the list of its pages, or one of them. In a pipe it is Markdown."""
    if page is None:
        _print_list()
        return
    path, text = _asked(page)
    console = Console()
    if console.is_terminal and path.suffix == ".md":
        os.environ.setdefault("LESS", "FRX")  # as git does: colours, and no pager for a page that fits the screen
        with console.pager(styles=True):
            console.print(Markdown(text, hyperlinks=False), width=min(console.width, _WIDEST))
    else:
        typer.echo(text, nl=False)


def _print_list() -> None:
    found = pages()
    width = max(map(len, found))
    for name, path in found.items():
        if path.suffix == ".md":
            typer.echo(f"{name:<{width}}  {headings(path.read_text('utf-8'))[0].title}")
    others = [name for name, path in found.items() if path.suffix != ".md"]
    typer.echo(f"\nmcp-workflows docs PAGE shows one. Files that pages tell of: {names(others)}")


def _asked(page: str) -> tuple[Path, str]:
    """Return the path of a page, and the text of it or of one of its sections.

    Raises:
        OperatorError: there is no such page, or it has no such section.
    """
    name, _, anchor = page.partition("#")
    name = name.removeprefix("docs/").removesuffix(".md")  # as links between pages have it
    found = pages()
    path = found.get(name)
    if path is None:
        raise OperatorError(f"there is no page {name!r} (`mcp-workflows docs` lists them){did_you_mean(name, found)}")
    text = path.read_text("utf-8")
    if not anchor:
        return path, text
    part = section(text, anchor) if path.suffix == ".md" else None
    if part is None:
        anchors = [heading.anchor for heading in headings(text)] if path.suffix == ".md" else []
        known = ", ".join(anchors) or "none"
        raise OperatorError(f"{name} has no section {anchor!r} (it has: {known}){did_you_mean(anchor, anchors)}")
    return path, part
