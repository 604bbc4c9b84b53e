"""Check the prose of pages, docstrings and comments: `python -m scripts.check_prose [FILE ...]` prints bad habits.

A line reads `FILE:LINE: habit: the text`. Code, links and generated tables are not checked.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
PAGES: Final = ("*.md", "docs/**/*.md", "adapters/*/README.md", "samples/**/README.md")
CODE: Final = ("mcp_workflows/**/*.py", "adapters/*/mcp_workflows_*/**/*.py", "scripts/*.py", "benchmarks/*.py")
HISTORY: Final = ROOT / "docs" / "decisions"
LONGEST: Final = 40  # words of a sentence

HABITS: Final = {
    "begin with a noun": re.compile(r"^(?:Who|Whoever|Whose|Whatever|What)\b.*[^?]$"),
    "name the actor": re.compile(
        r"\b(?:is|are|was|were) told\b|\b(?:it|that) is said\b|\bis to be\b|\bare to be\b", re.I
    ),
    "use a verb of the field": re.compile(
        r"\b(?:hears?|heard|tells? of|says? no|says? so|is gone|goes on|is good for|has it that|takes? over)\b", re.I
    ),
    "say it in fewer words": re.compile(
        r"\b(?:all that|as far as|as it is|as they are|in (?:its|their|the) place|of which|likewise|nothing of|"
        r"of (?:its|their|our) own|no matter|anew|beforehand|for ever|whosoever|thereby|therein)\b",
        re.I,
    ),
    "a sentence of more than 40 words": re.compile(rf"^(?:\S+ ){{{LONGEST},}}"),
}

_PRAGMA: Final = re.compile(r"#\s*(?:noqa|type:|pyright:|pragma).*")
_FENCE: Final = re.compile(r"^\s*(?:```|~~~)")
_SKIPPED: Final = re.compile(r"<!-- begin .*? -->.*?<!-- end .*? -->|<!--.*?-->|<[^>]+>", re.DOTALL)
_LINK: Final = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_CODE: Final = re.compile(r"``.+?``|`[^`]*`")
_SENTENCE: Final = re.compile(r"(?<=[.?!:;])\s+(?=[A-Z`\[*])")


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """Yield the sentences of a page with the line on which their paragraph, item or cell begins."""
    text = _SKIPPED.sub(lambda found: "\n" * found[0].count("\n"), text)
    begun, paragraph, in_code = 0, list[str](), False
    for number, line in enumerate([*text.split("\n"), ""], 1):
        if _FENCE.match(line):
            in_code = not in_code
        is_text = not in_code and not _FENCE.match(line) and line.strip()
        if not is_text or re.match(r"\s*(?:[-*|#>]|\d+\.) ?", line):
            yield from ((begun, each) for each in _split(" ".join(paragraph)))
            paragraph = []
        if is_text:
            begun = begun if paragraph else number
            if line.lstrip().startswith("|"):
                yield from ((number, each) for cell in line.strip(" |").split(" | ") for each in _split(cell))
            elif not line.startswith("#"):
                paragraph.append(re.sub(r"^\s*(?:[-*>]|\d+\.) ", "", line).strip())


def _split(text: str) -> Sequence[str]:
    plain = _CODE.sub("X", _LINK.sub(r"\1", text)).replace("**", "")
    return [each for each in _SENTENCE.split(plain) if each]


def words_in_code(source: str) -> str:
    """Return the docstrings and comments of a Python file, each on its line."""
    lines = [""] * (source.count("\n") + 2)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            beside_code = token.line[: token.start[1]].strip()
            lines[token.start[0] - 1] = "- " * bool(beside_code) + _PRAGMA.sub("", token.string).lstrip("#! ")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            for number, line in enumerate(node.value.value.splitlines(), node.lineno - 1):
                lines[number] = line.strip()
    return "\n".join(lines)


def habits(page: str, text: str) -> Iterator[str]:
    """Yield the bad habits of a page, a line each."""
    for line, sentence in sentences(text):
        for habit, pattern in HABITS.items():
            if pattern.search(sentence):
                yield f"{page}:{line}: {habit}: {sentence}"


def main(arguments: Sequence[str]) -> int:
    """Check the given pages, or all; return 1 if one has a bad habit."""
    paths = [Path(each).resolve() for each in arguments] or [
        each for name in (*PAGES, *CODE) for each in ROOT.glob(name)
    ]
    pages = [each for each in paths if HISTORY not in each.parents]
    found = list[str]()
    for each in pages:
        text = each.read_text(encoding="utf-8")
        text = words_in_code(text) if each.suffix == ".py" else text
        found += habits(str(each.relative_to(ROOT)), text)
    print("\n".join(found), file=sys.stderr) if found else None
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
