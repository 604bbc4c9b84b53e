"""Build the site of the documentation into site/: `make docs`, or `python -m scripts.site ZENSICAL`.

The pages are those of docs/ with four changes: links to files outside of docs/ lead to the repository, diagrams are
drawn, pages from the root of the repository join them, and the decisions get a list.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final, cast

from ruamel.yaml import YAML

from mcp_workflows.sidecar.config.json_schema import config_schema
from scripts.diagrams import draw

ROOT: Final = Path(__file__).parent.parent
WORK: Final = ROOT / ".cache" / "site"
SITE: Final = ROOT / "site"
FROM_ROOT: Final = {
    "CHANGELOG.md": "reference/changelog.md",
    "CONTRIBUTING.md": "extend/contributing.md",
    "MAINTAINING.md": "reference/support.md",
    "SECURITY.md": "secure/reporting.md",
}
_LINK_OR_CODE: Final = re.compile(
    r"(?ms)^```.*?^```$|^~~~.*?^~~~$|`[^`\n]+`|(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)"
)
_MERMAID: Final = re.compile(r"(?ms)^```mermaid\n(.*?)^```$")
_IMAGE: Final = re.compile(r'(<img src=")([^"]+)')
_TITLE: Final = re.compile(r"(?m)^# (.+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """The addresses of the repository and of the site; empty before the first publication."""

    repository: str
    site: str

    @classmethod
    def read(cls) -> Addresses:
        """Read `[tool.publication]` of pyproject.toml, the one place of both."""
        found = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["publication"]
        return cls(**{name: address.rstrip("/") for name, address in found.items()})

    def of_file(self, path: Path) -> str | None:
        """Return the address of a file of the repository; None before the publication."""
        kind = "tree" if path.is_dir() else "raw" if path.suffix in {".gif", ".png", ".svg"} else "blob"
        return f"{self.repository}/{kind}/main/{path.relative_to(ROOT).as_posix()}" if self.repository else None


def relink(text: str, page: Path, place: Path | None, addresses: Addresses) -> str:
    """Rewrite the links of a page for the site, where it is `place`; without a place, make all links absolute."""

    def link(target: str) -> str | None:
        if re.match(r"[a-z]+:|#|//", target):
            return target
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve()
        if place is None:
            return f"{addresses.of_file(path)}{target[len(name) :]}"
        inside = FROM_ROOT.get(path.relative_to(ROOT).as_posix())
        if inside is None and (ROOT / "docs") in path.parents and path.is_file():
            inside = path.relative_to(ROOT / "docs").as_posix()
        if inside is None and path == ROOT / "docs" / "decisions":
            inside = "decisions/index.md"
        if inside is None and path == ROOT / "README.md":
            inside = "index.md"
        to = os.path.relpath(inside, place.parent) if inside is not None else addresses.of_file(path)
        return to and f"{to}#{anchor}" if anchor else to

    return _with_links(text, link)


def _with_links(text: str, link: Callable[[str], str | None]) -> str:
    """Return a page whose links lead to what `link` returns for them; None: no link, only its text."""

    def replaced(found: re.Match[str]) -> str:
        if found[3] is None:
            return found[0]  # code
        target = link(found[3])
        return found[2] if target is None else f"{found[1]}[{found[2]}]({target})"

    return _LINK_OR_CODE.sub(replaced, text)


def write_pages(addresses: Addresses) -> None:
    """Write the pages of the site to WORK/docs."""
    pages = WORK / "docs"
    shutil.rmtree(WORK, ignore_errors=True)
    shutil.copytree(ROOT / "docs", pages)
    sources = {path.relative_to(pages): ROOT / "docs" / path.relative_to(pages) for path in pages.rglob("*.md")}
    sources |= {Path(place): ROOT / name for name, place in FROM_ROOT.items()}
    for place, source in sorted(sources.items()):
        text = relink(source.read_text("utf-8"), source, place, addresses)
        (pages / place).write_text(_drawn(text, pages / place), encoding="utf-8")
    decisions = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    titles = [f"- [{title(path.read_text('utf-8'))}]({path.name})" for path in decisions]
    head = "# Decisions\n\nEach page records one decision: its context, the decision, and what was rejected.\n\n"
    (pages / "decisions" / "index.md").write_text(head + "\n".join(titles) + "\n", encoding="utf-8")


def _drawn(text: str, page: Path) -> str:
    """Return the page with pictures of its diagrams, each described by its section and the sentence before it."""
    numbers = count(1)

    def drawn(found: re.Match[str]) -> str:
        drawing = page.with_name(f"{page.stem}-{next(numbers)}.svg")
        drawing.write_text(draw(found[1]), encoding="utf-8")
        heading, *paragraphs = re.split(r"\n\s*\n", text[: found.start()].rpartition("\n#")[2].lstrip("# ").strip())
        sentence = _first_sentence(paragraphs[-1]) if paragraphs else ""
        return f"![Diagram: {heading}. {sentence}]({drawing.name})"

    return _MERMAID.sub(drawn, text)


def title(text: str) -> str:
    """Return the title of a page."""
    found = _TITLE.search(text)
    return found[1] if found else "mcp-workflows"


def summary(text: str) -> str:
    """Return the first sentence below the title, without markup."""
    paragraphs = re.split(r"\n\s*\n", _TITLE.sub("", text, count=1).strip())
    first = next((each for each in paragraphs if not re.match(r"[|!<`#-]", each)), "")
    return _first_sentence(first)


def _first_sentence(paragraph: str) -> str:
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(paragraph.split())).replace("**", "")
    return re.split(r"(?<=[.?!])\s", plain)[0]


def in_order(nav: Any) -> Iterator[str]:  # Any: a page, a list, or a mapping from titles
    """Yield the pages of a `nav` in their order."""
    if isinstance(nav, str):
        yield nav
    else:
        for entry in cast("Mapping[str, Any]", nav).values() if isinstance(nav, dict) else nav:
            yield from in_order(entry)


def write_texts_for_models(nav: Any, addresses: Addresses) -> None:  # Any: see `in_order`
    """Write llms.txt, a line for each page, and llms-full.txt, all pages in one."""
    texts = {name: (WORK / "docs" / name).read_text("utf-8") for name in in_order(nav)}
    lines = [f"- [{title(text)}]({_address(name, addresses)}): {summary(text)}" for name, text in texts.items()]
    head = f"# mcp-workflows\n\n> {summary(texts['index.md'])}\n\n"
    (SITE / "llms.txt").write_text(head + "\n".join(lines) + "\n", encoding="utf-8")
    whole = list[str]()
    for name, text in texts.items():
        link = partial(_from_root, name, addresses)
        whole.append(_IMAGE.sub(lambda found, link=link: f"{found[1]}{link(found[2])}", _with_links(text, link)))
    (SITE / "llms-full.txt").write_text("\n\n".join(whole), encoding="utf-8")


def _from_root(name: str, addresses: Addresses, target: str) -> str:
    """Return the address of what a link of a page leads to."""
    if re.match(r"[a-z]+:|//", target):
        return target
    path, hash_sign, anchor = target.partition("#")
    place = os.path.normpath(Path(name).parent / path) if path else name
    return f"{_address(place, addresses)}{hash_sign}{anchor}"


def _address(name: str, addresses: Addresses) -> str:
    """Return the address of a file of the site, from the root of the site before the publication."""
    place = re.sub(r"(^|/)index/$", r"\1", f"{name.removesuffix('.md')}/") if name.endswith(".md") else name
    return f"{addresses.site}/{place}" if addresses.site else place or "./"


def main(zensical: str) -> int:
    """Build the site with this program; return 1 if a link or an anchor is wrong."""
    return build(zensical, Addresses.read())


def build(zensical: str, addresses: Addresses) -> int:
    """Build the site for these addresses; see `main`."""
    write_pages(addresses)
    yaml = YAML()
    settings: Any = yaml.load((ROOT / "mkdocs.yml").read_text("utf-8"))  # pyright: ignore[reportUnknownMemberType]
    settings |= {"site_url": f"{addresses.site}/"} if addresses.site else {}
    # not `repo_url`: pages would ask GitHub for its stars
    link = {"icon": "fontawesome/brands/github", "link": addresses.repository, "name": "Repository"}
    settings |= {"extra": {"social": [link]}} if addresses.repository else {}
    with (WORK / "mkdocs.yml").open("w", encoding="utf-8") as file:
        yaml.dump(settings, file)  # pyright: ignore[reportUnknownMemberType]
    done = subprocess.run(
        [str(Path(zensical).resolve()), "build", "--strict", "--clean"],
        cwd=WORK,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        print(done.stdout, done.stderr.partition("Traceback")[0], file=sys.stderr)
        return 1
    shutil.rmtree(SITE, ignore_errors=True)
    shutil.copytree(WORK / "site", SITE)
    write_texts_for_models(settings["nav"], addresses)
    schema = config_schema() | ({"$id": f"{addresses.site}/workflows.schema.json"} if addresses.site else {})
    (SITE / "workflows.schema.json").write_text(json.dumps(schema, indent=2) + "\n", encoding="utf-8")
    print(f"built: {os.path.relpath(SITE, ROOT)}/, {sum(1 for _ in SITE.rglob('*.html'))} pages")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
