"""mcp-workflows docs: the documentation of the version that is installed.

The wheel holds the pages as `mcp_workflows/docs`; a checkout, and an editable installation of it, reads its own `docs`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markdown import Markdown

from mcp_workflows.cli.app import app
from mcp_workflows.config_problems import did_you_mean, names
from mcp_workflows.errors import OperatorError

_PACKAGE = Path(str(files("mcp_workflows")))
_WIDEST = 120  # columns of a page; longer lines are hard to read
_FENCE = re.compile(r"^(```|~~~)")
_HEADING = re.compile(r"^(#{1,6}) +(.+?) *$")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


def pages() -> Mapping[str, Path]:
    """Where each page is, by name: `gates` for gates.md, and the whole name of a file that is no Markdown."""
    shipped = _PACKAGE / "docs"
    folder = shipped if shipped.is_dir() else _PACKAGE.parent / "docs"
    return {path.name.removesuffix(".md"): path for path in sorted(folder.glob("*.*"))}


def headings(page: str) -> Sequence[tuple[int, int, str, str]]:
    """The headings of a page: the number of the line, the level, the anchor as on GitHub, the text."""
    found: list[tuple[int, int, str, str]] = []
    anchors: dict[str, int] = {}
    for number, level, title in _headings(page):
        plain = re.sub(r"[^\w\- ]", "", _LINK.sub(r"\1", title).lower()).replace(" ", "-")
        seen = anchors[plain] = anchors.get(plain, -1) + 1
        found.append((number, level, f"{plain}-{seen}" if seen else plain, title))
    return found


def _headings(page: str) -> Iterator[tuple[int, int, str]]:
    in_code = False
    for number, line in enumerate(page.splitlines()):
        in_code ^= bool(_FENCE.match(line))
        if not in_code and (match := _HEADING.match(line)):
            yield number, len(match[1]), match[2]


def section(page: str, anchor: str) -> str | None:
    """The part of a page under the heading with this anchor, the parts inside it included; None if there is none."""
    lines, found = page.splitlines(), headings(page)
    for at, (first, level, own, _) in enumerate(found):
        if own == anchor:
            after = (number for number, other, _, _ in found[at + 1 :] if other <= level)
            return "\n".join(lines[first : next(after, len(lines))]).rstrip() + "\n"
    return None


def _names(incomplete: str) -> Sequence[str]:
    """The names of pages that begin like this, for shell completion."""
    return [name for name in pages() if name.startswith(incomplete)]


@app.command()
def docs(
    page: Annotated[
        str | None,
        typer.Argument(
            metavar="[PAGE]",
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
        os.environ.setdefault("LESS", "FRX")  # as git does: colours, and no pager for what fits the screen
        with console.pager(styles=True):
            console.print(Markdown(text, hyperlinks=False), width=min(console.width, _WIDEST))
    else:
        typer.echo(text, nl=False)


def _print_list() -> None:
    found = pages()
    width = max(map(len, found))
    for name, path in found.items():
        if path.suffix == ".md":
            title = next(title for _, _, title in _headings(path.read_text("utf-8")))
            typer.echo(f"{name:<{width}}  {title}")
    others = [name for name, path in found.items() if path.suffix != ".md"]
    typer.echo(f"\nmcp-workflows docs PAGE shows one. Files that pages tell of: {names(others)}")


def _asked(page: str) -> tuple[Path, str]:
    """The page, and the text of it or of one of its sections.

    Raises:
        OperatorError: there is no such page, or it has no such section.
    """
    name, _, anchor = page.partition("#")
    name = name.removeprefix("docs/").removesuffix(".md")  # as pages name each other
    found = pages()
    path = found.get(name)
    if path is None:
        raise OperatorError(f"there is no page {name!r} (`mcp-workflows docs` lists them){did_you_mean(name, found)}")
    text = path.read_text("utf-8")
    if not anchor:
        return path, text
    part = section(text, anchor) if path.suffix == ".md" else None
    if part is None:
        anchors = [anchor for _, _, anchor, _ in headings(text)] if path.suffix == ".md" else []
        known = ", ".join(anchors) or "none"
        raise OperatorError(f"{name} has no section {anchor!r} (it has: {known}){did_you_mean(anchor, anchors)}")
    return path, part
