"""Check names and docstrings against docs/decisions/0021: `python -m scripts.check_names` prints each violation."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("mcp_workflows", "conformance/mcp_tasks_conformance", "adapters/*/mcp_workflows_*")

OPENERS = re.compile(r"(what|whatever|who|whom|whose|whoever|whether|how)\b", re.IGNORECASE)

PARTICIPLE = re.compile(r"_?([a-z]+_)*[a-z]{2,}(ing|ed)$")
NOUNS: Mapping[str, str] = {
    "embed": "a verb, as the names of the other tools: check, discover, verify",
    "embedded": "the folder of source files that authors embed; its name is part of their paths",
    "polling": "the field's word for asking again and again",
    "settings": "a plural, no participle",
    "testing": "the field's word for what proves an adapter; public",
    "tooling": "a noun; a folder of the same name in each adapter",
}
"""Module names that look like participles, and the reason for each."""


def modules() -> Iterator[tuple[Path, ast.Module]]:
    """Every module that we ship, parsed."""
    for package in PACKAGES:
        for folder in sorted(ROOT.glob(package)):
            for path in sorted(folder.rglob("*.py")):
                yield path, ast.parse(path.read_text("utf-8"), str(path))


def place(path: Path) -> str:
    """The path of a file as a message names it."""
    return str(path.relative_to(ROOT))


def wrong_openers(path: Path, tree: ast.Module) -> Iterator[str]:
    """Docstrings, those of attributes too, that begin with a pronoun instead of a subject or a verb."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))) if found := OPENERS.match(text.lstrip()):
                yield f"{place(path)}:{node.lineno}: a docstring opens with {found[0]!r}: begin with a noun or a verb"
            case _:
                pass


def participles(path: Path) -> Iterator[str]:
    """Modules and packages whose names are participles."""
    name = path.parent.name if path.name == "__init__.py" else path.stem
    if PARTICIPLE.match(name) and name not in NOUNS:
        yield f"{place(path)}:1: the module name {name!r} is a participle: take a noun for what it holds"


def duplicates() -> Iterator[str]:
    """Public classes that are defined more than once in a distribution; two adapters may use the same class name."""
    places: dict[tuple[str, str], list[str]] = {}
    for path, tree in modules():
        package = next(part for part in path.parts if part.startswith("mcp_"))
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault((package, node.name), []).append(f"{place(path)}:{node.lineno}")
    for (_, name), found in sorted(places.items()):
        if len(found) > 1:
            yield f"{found[0]}: the class {name} is defined {len(found)} times, also in {', '.join(found[1:])}"


def problems() -> Iterator[str]:
    """Yield every violation, one line each."""
    for path, tree in modules():
        yield from wrong_openers(path, tree)
        yield from participles(path)
    yield from duplicates()


if __name__ == "__main__":
    found = list(problems())
    print(*found, sep="\n", file=sys.stderr)
    sys.exit(1 if found else 0)
