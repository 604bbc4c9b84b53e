"""The files that authors of other languages copy into their workflows: see `mcp-workflows docs temporal-contract`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources

FILES: Mapping[str, str] = {"go": "mcpwf.go", "typescript": "mcpwf.ts"}


def embedded_files() -> Mapping[str, str]:
    """The text of each, by language."""
    folder = resources.files("mcp_workflows_temporal") / "embedded"
    return {language: (folder / name).read_text("utf-8") for language, name in FILES.items()}
