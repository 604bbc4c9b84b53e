"""Approvals: decisions and their words."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, cast

from mcp_workflows.access import Principal, person_of
from mcp_workflows.access.audit import answer_reason
from mcp_workflows.adapter import JSON, digest
from mcp_workflows.adapter.display_text import cleaned
from mcp_workflows.errors import INVALID_PARAMS, RequestError
from mcp_workflows.task import Decision, Task
from mcp_workflows.tools.dialogue import Action
from mcp_workflows.tools.questions import LONGEST_REASON, REASON
from mcp_workflows.tools.tool import AnyTool

_UNREAD: Final = frozenset({"description", "title", "annotations", "card", "wait", "listed", "limits", "allow"})
_UNREAD_BELOW: Final[Mapping[str, Any]] = {  # Any: as pydantic has it
    "approval": {"notify"},
    "questions": {"__all__": {"approval": {"notify"}}},
}


def tool_digest(tool: AnyTool) -> str:
    """Return a digest of all that decides what a call of the tool starts."""
    unread = {**dict.fromkeys(_UNREAD, True), **_UNREAD_BELOW}
    return digest(tool.model_dump(mode="json", exclude=unread, exclude_defaults=True))


def decision_of(principal: Principal, response: JSON, at: datetime, gate: str = "") -> Decision:
    """Return the decision in a response. A no in its form is a refusal, which may have a reason like an approval."""
    fields = _members(_members(response).get("content"))
    reason = fields.get(REASON)
    said = cleaned(reason, LONGEST_REASON).strip() if isinstance(reason, str) else ""
    accepts = _members(response).get("action") == Action.ACCEPT and all(value is not False for value in fields.values())
    return Decision(by=principal.id or None, at=at, is_approved=accepts, reason=said or None, gate=gate)


def decision_text(decision: Decision) -> str:
    """Return the decision in a sentence: who, when and why."""
    verb = "approved" if decision.is_approved else "declined"
    by = "as nobody decided in time" if decision.by is None else f"by {person_of(decision.by)[1]}"
    why = f": {decision.reason}" if decision.reason else ""
    return f"{verb} {by} at {decision.at:%Y-%m-%d %H:%M} UTC{why}"


def decided_already(first: Decision) -> RequestError:
    """Return the error for a second decision."""
    return RequestError(INVALID_PARAMS, f"This was {decision_text(first)}; nothing was applied")


def refuse_another_decision(first: Decision, response: JSON, principal: Principal) -> None:
    """Refuse a second decision; the same one by the same principal may be a retry after a lost reply.

    Raises:
        RequestError: somebody has decided already.
    """
    again = decision_of(principal, response, first.at)
    if (again.by, again.is_approved) != (first.by, first.is_approved):
        raise decided_already(first)


def _members(value: JSON) -> Mapping[str, JSON]:
    return cast("Mapping[str, JSON]", value) if isinstance(value, Mapping) else {}


def audited(task: Task, answers: Mapping[str, Mapping[str, JSON]]) -> str:
    """Return what the audit log says of answers: the actions, and of approvals what was approved, and why."""
    decisions = [task.decisions[key] for key in answers if key in task.decisions]
    whys = [f"why: {each.reason}" for each in decisions if each.reason]
    return "; ".join([answer_reason(answers), *([f"arguments {task.fingerprint}"] if decisions else []), *whys])
