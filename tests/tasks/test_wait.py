"""How long a call waits for its workflow."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import anyio
import pytest

from mcp_workflows import Fallback, TaskSupport, Tool
from mcp_workflows.tasks.service import CARD_WAIT, time_left
from mcp_workflows.tools.hosts import LONGEST_WAIT
from mcp_workflows.wire.commands import Call

pytestmark = pytest.mark.anyio

TOOL = Tool(name="order", engine="memory", workflow="order")
CALL = Call(tool="order", arguments={}, takes_tasks=False, takes_questions=True, host="cursor-vscode")


async def test_the_time_since_the_request_arrived_counts() -> None:
    """A slow start must not be followed by the whole wait: the host would have given up."""
    left = time_left(TOOL, replace(CALL, began=anyio.current_time() - 10))
    assert left is not None
    assert timedelta() < left <= timedelta(seconds=35)
    assert time_left(TOOL, replace(CALL, began=anyio.current_time() - 60)) == timedelta()


async def test_a_person_gets_time_to_answer_even_in_an_unknown_host() -> None:
    assert time_left(TOOL, replace(CALL, host=None)) == timedelta(seconds=4)
    assert time_left(TOOL, replace(CALL, host=None, asked=True)) == LONGEST_WAIT


@pytest.mark.parametrize(
    ("settings", "card", "left"),
    [
        ({"wait": timedelta(minutes=2)}, False, timedelta(minutes=2)),
        ({"wait": timedelta(minutes=2)}, True, CARD_WAIT),
        ({}, True, CARD_WAIT),
        ({"fallback": Fallback.WAIT}, False, None),
        ({"tasks": TaskSupport.FORBIDDEN}, False, None),
    ],
)
async def test_the_tool_has_the_last_word(settings: dict[str, object], card: bool, left: timedelta | None) -> None:
    assert time_left(TOOL.model_copy(update=settings), replace(CALL, shows_card=card)) == left
