"""Answers to the questions that the tools of a definition tell."""

from __future__ import annotations

from mcp_workflows.adapter import JSON
from mcp_workflows.errors import EngineRefused
from mcp_workflows.kit.definition import AnsweredAt
from mcp_workflows.kit.expressions import as_object
from mcp_workflows.kit.reply_reader import AskedQuestion, answer_scope
from mcp_workflows_mcp.definition import Ask
from mcp_workflows_mcp.error_translation import change_error, holds
from mcp_workflows_mcp.upstream import Upstream


async def send_answer(upstream: Upstream, question: AskedQuestion[Ask], response: JSON, principal: JSON) -> None:
    """Deliver the response of this principal to an open question; one that was answered meanwhile is ignored.

    Raises:
        EngineRefused: the server does not take it, or the question cannot be declined.
        EngineUnavailable: it may not have arrived.
    """
    how = question.how
    if how.at is AnsweredAt.ENGINE:
        return  # the person went to the page, or did not; a look tells
    given = as_object(response) or {}
    call = how.send if given.get("action") == "accept" else how.decline
    if call is None:
        raise EngineRefused("this question cannot be declined: cancel the task in its place")
    scope = answer_scope(how, question.scope, as_object(given.get("content")) or {}, principal)
    reply = await upstream.call(call, scope)
    if reply.is_error and not holds(how.late_if, reply.within(scope)):
        raise change_error(reply)
