"""docs/temporal-contract.md and the code blocks on it."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "temporal-contract.md"


def page_block(language: str) -> str:
    """The one code block in this language."""
    [code] = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return str(code)
