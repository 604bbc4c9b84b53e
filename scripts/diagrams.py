"""Draw the sequence diagrams of docs/pictures: NAME.mmd (Mermaid) becomes NAME.svg, by Chromium, offline.

Part of `make pictures`.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.support.environments import ROOT, chromium, npm_packages

FOLDER: Final = ROOT / "docs" / "pictures"
_PACKAGE: Final = Path(__file__).parent / "mermaid" / "package.json"
_CONFIG: Final[Mapping[str, Any]] = {
    "startOnLoad": False,
    "securityLevel": "strict",
    "deterministicIds": True,
    "theme": "base",
    "themeVariables": {
        "fontFamily": "sans-serif",
        "fontSize": "15px",
        "primaryColor": "#ddf4ff",
        "primaryBorderColor": "#0969da",
        "noteBkgColor": "#fff8c5",
        "noteBorderColor": "#d4a72c",
    },
    "htmlLabels": False,  # HTML inside of SVG is no XML
    "flowchart": {"htmlLabels": False},
    "sequence": {"useMaxWidth": False, "mirrorActors": False, "wrap": True, "width": 190, "height": 44},
}
_PAGE: Final = """<!DOCTYPE html><meta charset="utf-8"><body><script src="{mermaid}"></script><script>
mermaid.initialize({config});
mermaid.render("diagram", {text}).then(
  (drawn) => {{ document.body.innerHTML = drawn.svg; }},
  (error) => {{ document.body.textContent = error; }},
);
</script>"""
_ARGUMENTS: Final = ("--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=30000", "--dump-dom")
_DIGEST: Final = re.compile(r"<!-- of a text with SHA-256 (\w+) -->")


def digest(text: str) -> str:
    """Return the SHA-256 of a diagram's text, which its drawing contains."""
    return hashlib.sha256(text.encode()).hexdigest()


def digest_in(drawing: str) -> str | None:
    """Return the SHA-256 that a drawing contains, or None."""
    found = _DIGEST.search(drawing)
    return found[1] if found else None


def main() -> None:
    """Draw all diagrams."""
    for source in sorted(FOLDER.glob("*.mmd")):
        text = source.read_text()
        drawing = draw(text)
        source.with_suffix(".svg").write_text(f"{drawing}\n<!-- of a text with SHA-256 {digest(text)} -->\n")
        print(f"drawn: {source.with_suffix('.svg').relative_to(ROOT)}")


def draw(text: str) -> str:
    """Return the drawing of a diagram as SVG.

    Raises:
        SystemExit: Chromium is missing, or Mermaid cannot draw the diagram.
    """
    browser = chromium()
    if browser is None:
        raise SystemExit("there is no Chromium: run scripts/install-browser")
    mermaid = npm_packages("mermaid", _PACKAGE) / "mermaid" / "dist" / "mermaid.min.js"
    page = _PAGE.format(mermaid=mermaid.as_uri(), config=json.dumps(_CONFIG), text=json.dumps(text))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "page.html"
        file.write_text(page)
        command = [browser, *_ARGUMENTS, file.as_uri()]
        document = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
    found = re.search(r"<svg.*</svg>", document, re.DOTALL)
    if found is None:
        raise SystemExit(f"Mermaid cannot draw it: {re.sub('<[^>]*>', '', document).strip()[-500:]}")
    head, end, rest = found[0].partition(">")
    return re.sub(r' style="[^"]*"', "", head).replace("<svg ", '<svg style="background: white" ', 1) + end + rest


if __name__ == "__main__":
    main()
