"""Approvals: decisions and their texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, cast

from mcp_workflows.access import Principal, person_of
from mcp_workflows.access.audit import answer_reason
from mcp_workflows.adapter import JSON, Gate, InputRequest, digest
from mcp_workflows.adapter.display_text import cleaned, is_blank
from mcp_workflows.errors import INVALID_PARAMS, RequestError
from mcp_workflows.task import Decision, Task
from mcp_workflows.tools.dialogue import Action, invalid_response
from mcp_workflows.tools.questions import LONGEST_REASON, REASON, yes_no_field
from mcp_workflows.tools.tool import AnyTool

_UNREAD: Final = frozenset(
    {"description", "title", "annotations", "card", "wait", "listed", "limits", "allow", "model_may_answer"}
)
_UNREAD_BELOW: Final[Mapping[str, Any]] = {  # Any: as pydantic defines it
    "approval": {"notify"},
    "questions": {"__all__": {"approval": {"notify"}}},
}
_NO_GATES: Final[Mapping[str, Gate]] = {}


def tool_digest(tool: AnyTool) -> str:
    """Return a digest of everything that decides what a call of the tool starts."""
    unread = {**dict.fromkeys(_UNREAD, True), **_UNREAD_BELOW}
    return digest(tool.model_dump(mode="json", exclude=unread, exclude_defaults=True))


def decision_of(
    principal: Principal, response: JSON, at: datetime, gate: str = "", gates: Mapping[str, Gate] = _NO_GATES
) -> Decision:
    """Return the decision in a response to the question of a gate.

    If the form only asks for yes or no, a no is a refusal. The reason becomes a single line.
    """
    fields = _members(_members(response).get("content"))
    reason = fields.get(REASON)
    said = " ".join(cleaned(reason, LONGEST_REASON).split()) if isinstance(reason, str) else ""
    yes = yes_no_field(gates[gate].request.params.get("requestedSchema")) if gate in gates else None
    accepts = _members(response).get("action") == Action.ACCEPT and (yes is None or fields.get(yes) is not False)
    return Decision(by=principal.id or None, at=at, is_approved=accepts, reason=said or None, gate=gate)


def decision_text(decision: Decision, named: Callable[[str], str] = str) -> str:
    """Return the decision as text: approver, time and reason. `named` makes a person's name safe to show."""
    verb = "approved" if decision.is_approved else "declined"
    by = "as nobody decided in time" if decision.by is None else f"by {named(person_of(decision.by)[1])}"
    why = f": {decision.reason}" if decision.reason else ""
    return f"{verb} {by} at {decision.at:%Y-%m-%d %H:%M} UTC{why}"


def decided_already(first: Decision) -> RequestError:
    """Return the error for a second decision."""
    return RequestError(INVALID_PARAMS, f"This was {decision_text(first)}; nothing was applied")


def check_reason(key: str, request: InputRequest, response: Mapping[str, JSON]) -> None:
    """Check that an approval that needs a reason has a visible one.

    Raises:
        RequestError: it has none.
    """
    form, fields = _members(request.params.get("requestedSchema")), _members(response.get("content"))
    required = REASON in cast("Sequence[str]", form.get("required", ()))
    if required and response.get("action") == Action.ACCEPT and is_blank(str(fields.get(REASON, ""))):
        raise invalid_response(key, "content does not match the question: it needs a reason, and `reason` is blank")


def refuse_another_decision(task: Task, key: str, response: JSON, principal: Principal) -> None:
    """Refuse a second decision. The same decision by the same principal may be a retry after a lost reply.

    Raises:
        RequestError: another decision was made already.
    """
    first = task.decisions[key]
    again = decision_of(principal, response, first.at, first.gate, task.gates)
    if (again.by, again.is_approved) != (first.by, first.is_approved):
        raise decided_already(first)


def _members(value: JSON) -> Mapping[str, JSON]:
    return cast("Mapping[str, JSON]", value) if isinstance(value, Mapping) else {}


def audited(task: Task, answers: Mapping[str, Mapping[str, JSON]]) -> str:
    """Return the audit log's text for answers: the actions, and for approvals also the arguments and reasons."""
    decisions = [task.decisions[key] for key in answers if key in task.decisions]
    whys = [f"why: {each.reason}" for each in decisions if each.reason]
    return "; ".join([answer_reason(answers), *([f"arguments {task.fingerprint}"] if decisions else []), *whys])
