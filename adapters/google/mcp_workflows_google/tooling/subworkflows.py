"""Subworkflows that authors append to their workflows, to ask people and to claim keys.

See `docs/engines/google-contract.md`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources
from typing import Final

FILES: Final[Mapping[str, str]] = {"google": "google.yaml"}
ROUTINES: Final = ("mcp_elicit", "mcp_claim")  # called by workflows


def embedded_files() -> Mapping[str, str]:
    """Return the text of each file, by language."""
    folder = resources.files("mcp_workflows_google") / "embedded"
    return {language: (folder / name).read_text("utf-8") for language, name in FILES.items()}


def add_subworkflows(source: str) -> str:
    """Append our subworkflows to a YAML source that calls but does not contain them."""
    if not any(_calls(source, name) for name in ROUTINES) or any(_has(source, name) for name in ROUTINES):
        return source
    return f"{source.rstrip()}\n\n{embedded_files()['google']}"


def _calls(source: str, name: str) -> bool:
    return re.search(rf"^[^#\n]*\bcall:\s*[\"']?{name}\b", source, re.MULTILINE) is not None


def _has(source: str, name: str) -> bool:
    return re.search(rf"^{name}\s*:", source, re.MULTILINE) is not None
