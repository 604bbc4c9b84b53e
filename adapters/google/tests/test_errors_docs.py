"""docs/google-errors.md: what it quotes is what is said."""

from __future__ import annotations

import re
from pathlib import Path

import mcp_workflows_google
import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "google-errors.md").read_text(encoding="utf-8")
MESSAGES = re.findall(r"^\| `([^`]+)` \|", PAGE, re.MULTILINE)


def said() -> str:
    """All that the adapter's code can say, with literals that go over two lines made one."""
    files = Path(mcp_workflows_google.__file__).parent.glob("*.py")
    code = "\n".join(file.read_text(encoding="utf-8") for file in files)
    return re.sub(r'"\n\s*f?"', "", code)


@pytest.mark.parametrize("message", MESSAGES)
def test_the_message_is_one_of_ours(message: str) -> None:
    assert message in said()


def test_there_are_messages() -> None:
    assert len(MESSAGES) > 25
