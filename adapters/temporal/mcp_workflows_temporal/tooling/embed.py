"""The files that authors of Go and TypeScript workflows copy: see `mcp-workflows docs temporal-contract`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources

FILES: Mapping[str, str] = {"go": "mcpwf.go", "typescript": "mcpwf.ts"}


def embedded_files() -> Mapping[str, str]:
    """Return the text of each file, by language."""
    folder = resources.files("mcp_workflows_temporal") / "embedded"
    return {language: (folder / name).read_text("utf-8") for language, name in FILES.items()}
