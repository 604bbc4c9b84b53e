"""Responses to questions: which of them fit."""

from __future__ import annotations

import pytest

from mcp_workflows.adapter import InputRequest
from mcp_workflows.errors import RequestError
from mcp_workflows.tools.dialogue import checked_response

PAGE = InputRequest(
    method="elicitation/create",
    params={"mode": "url", "message": "Sign", "url": "https://example.com", "elicitationId": "1"},
)
FORM = InputRequest(method="elicitation/create", params={"mode": "form", "message": "Sure?", "requestedSchema": {}})


def test_a_page_that_was_visited_is_accepted_without_content() -> None:
    assert checked_response("sign", PAGE, {"action": "accept"}) == {"action": "accept"}


def test_a_form_is_accepted_with_content_only() -> None:
    with pytest.raises(RequestError, match="content must be an object"):
        checked_response("sure", FORM, {"action": "accept"})
    assert checked_response("sure", FORM, {"action": "decline"}) == {"action": "decline"}


@pytest.mark.parametrize("content", [{"ok": False}, {"action": "decline"}, {"approved": "no"}])
def test_a_no_that_a_question_has_no_field_for_is_no_acceptance(content: dict[str, object]) -> None:
    with pytest.raises(RequestError, match=r"it has no field .*; to refuse, send action decline"):
        checked_response("sure", FORM, {"action": "accept", "content": content})
    noted = {"type": "object", "properties": {"note": {"type": "string"}}}
    question = InputRequest(method="elicitation/create", params={"message": "Sure?", "requestedSchema": noted})
    with pytest.raises(RequestError, match="it has no field 'ok'"):
        checked_response("sure", question, {"action": "accept", "content": {"note": "x", "ok": False}})
    assert checked_response("sure", question, {"action": "accept", "content": {"note": "x", "confirm": True}})
    assert checked_response("sure", FORM, {"action": "accept", "content": {"toolCallId": "x", "action": "y"}})
