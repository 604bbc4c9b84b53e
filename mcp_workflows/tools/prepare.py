"""The preparation of a call, in one pass and without side effects: answers, sizes, schema, questions and templates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from mcp_workflows.access import Principal
from mcp_workflows.access.limit_settings import MAX_JSON_VALUES, Limits
from mcp_workflows.adapter import JSON, Gate, InputRequest, digest
from mcp_workflows.tools.dialogue import Confirmation, Declined, Dialogue, confirmation, questions, still_to_ask, take
from mcp_workflows.tools.idempotency import Idempotency, idempotency_of
from mcp_workflows.tools.json_schema import check_size
from mcp_workflows.tools.tool import AnyTool, on_behalf_of


@dataclass(frozen=True, slots=True, kw_only=True)
class NotReady:
    """A call that cannot start, for this reason; if there are questions, their answers are missing."""

    reason: str  # with questions: the names of what is missing
    dialogue: Dialogue
    requests: Mapping[str, InputRequest] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """The templates of a tool, filled in for one call."""

    input: Any  # any JSON value
    options: Mapping[str, Any]  # likewise
    gates: Mapping[str, Gate]
    context: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A call that is ready to start, once it is authorized and confirmed."""

    arguments: Mapping[str, JSON]
    fingerprint: str  # of the arguments
    filled: Filled
    same: Idempotency
    dialogue: Dialogue
    confirmation: Confirmation | None


Preparation: TypeAlias = Prepared | NotReady


def prepare(
    tool: AnyTool,
    given: Mapping[str, JSON],
    responses: Mapping[str, JSON],
    dialogue: Dialogue,
    *,
    principal: Principal,
    limits: Limits,
    task_id: str,
) -> Preparation:
    """Prepare a call with these arguments, and responses to the questions of its dialogue so far.

    Raises:
        LimitReached: the arguments are too large.
        MappingError: a template does not work on these arguments.
        RequestError: a response does not fit its question.
    """
    taken = take(tool, responses, dialogue)
    if isinstance(taken, Declined):
        return NotReady(reason=f"{taken.name}: answered with {taken.action}; nothing was started", dialogue=dialogue)
    arguments = {**given, **taken.arguments}
    asking = still_to_ask(tool, arguments, taken)
    check_size(f"Arguments of {tool.name}", arguments, limits.max_arguments, MAX_JSON_VALUES)
    to_come: frozenset[str] = frozenset()
    if asking:
        to_come = frozenset(name for question in asking for name in tool.ask[question].answers(question))
    if wrong := tool.complaints(arguments, to_be_asked=to_come):
        return NotReady(reason=f"Wrong arguments for {tool.name}: " + "; ".join(wrong), dialogue=taken)
    scope: Mapping[str, JSON] = {"args": arguments, **principal.scope}
    if asking:
        missing = ", ".join(sorted(to_come))
        return NotReady(reason=missing, requests=questions(tool, asking, scope), dialogue=taken)
    task_scope = {**scope, "task": {"id": task_id}}
    return Prepared(
        arguments=arguments,
        fingerprint=digest(arguments),
        filled=fill_templates(tool, task_scope, principal),
        same=idempotency_of(tool, taken, arguments, principal),
        dialogue=taken,
        confirmation=confirmation(tool, scope),
    )


def fill_templates(tool: AnyTool, scope: Mapping[str, JSON], principal: Principal) -> Filled:
    """Return the templates of a tool, filled in from the scope of one task.

    Raises:
        MappingError: a template does not work on these arguments.
    """
    return Filled(
        input=tool.map(scope),
        options=tool.frozen_options(scope),
        gates=tool.frozen_gates(scope),
        context=on_behalf_of(tool, principal, scope),
    )
