"""Questions that executions ask people, and the answers to them."""

from __future__ import annotations

from mcp_workflows.adapter import JSON
from mcp_workflows.errors import EngineRefused
from mcp_workflows.kit.definition import AnsweredAt
from mcp_workflows.kit.expressions import as_object
from mcp_workflows.kit.http_errors import MAX_BODY, reason_in
from mcp_workflows.kit.reply_reader import AskedQuestion, answer_scope
from mcp_workflows_http.client import ApiClient
from mcp_workflows_http.definition import Ask
from mcp_workflows_http.error_translation import change_error


async def send_answer(client: ApiClient, question: AskedQuestion[Ask], response: JSON, principal: JSON) -> None:
    """Deliver the response of this principal to an open question; one that was answered meanwhile is ignored.

    Raises:
        EngineRefused: the API does not take it, or the question cannot be declined.
        EngineUnavailable: it may not have arrived.
    """
    how = question.how
    if how.at is AnsweredAt.ENGINE:
        return  # the person went to the page, or did not; a look tells
    given = as_object(response) or {}
    accepted = given.get("action") == "accept"
    request = how.send if accepted else how.decline
    if request is None:
        raise EngineRefused("this question cannot be declined: cancel the task in its place")
    scope = answer_scope(how, question.scope, as_object(given.get("content")) or {}, principal)
    reply = await client.send(request, scope, changes=True)
    if reply.status in how.late:
        return
    if not reply.ok:
        raise change_error(reply)
    if how.refused is not None and (scope | {"reply": reply.as_json()}).is_true(how.refused):
        reason = reason_in(reply.content[:MAX_BODY])
        raise EngineRefused(f"the API refused the answer{f': {reason}' if reason else ''}")
