"""Responses of people, as adapters get them."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_workflows.access import LOCAL
from mcp_workflows.adapter import Execution, InputRequest, Status
from mcp_workflows.tasks.executions import rendered_response
from mcp_workflows.testing import make_task


@pytest.mark.parametrize("action", ["accept", "decline", "cancel"])
@pytest.mark.parametrize("declinable", [None, True, False])
def test_a_question_that_is_put_aside_stays_open_unless_the_workflow_asks_by_itself(
    action: str, declinable: bool | None
) -> None:
    params: dict[str, Any] = {"message": "Sure?", "requestedSchema": {"type": "object", "properties": {}}}
    request = InputRequest(method="elicitation/create", params=params, declinable=declinable)
    task = make_task(execution=Execution(status=Status.INPUT_REQUIRED, requests={"q": request}))
    stays_open = action == "cancel" and declinable is not None
    sent = rendered_response(task, "q", {"action": action}, LOCAL)
    assert sent == (None if stays_open else {"action": action})
