"""The state of an execution, read with the tools of the definition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from mcp_workflows.adapter import JSON, Execution, Status
from mcp_workflows.errors import EngineUnavailable, ExecutionNotFound, MappingError, ResultUnavailable
from mcp_workflows.kit.expressions import Scope, lenient, names_in
from mcp_workflows.kit.reply_reader import (
    AskedQuestion,
    entry_of,
    execution_of,
    is_empty,
    open_questions,
    reading_result,
    status_of,
    with_questions,
)
from mcp_workflows_mcp.client import Upstream
from mcp_workflows_mcp.definition import Ask, DescribeCall, ToolsDefinition
from mcp_workflows_mcp.errors import describe_error
from mcp_workflows_mcp.handle import Handle
from mcp_workflows_mcp.reply import Reply


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The state of an execution, and the scope of expressions at that point."""

    execution: Execution
    scope: Scope
    questions: Mapping[str, AskedQuestion[Ask]] = field(default_factory=dict[str, AskedQuestion[Ask]])
    unmapped: str | None = None  # the status word, if no map contains it


async def describe(
    upstream: Upstream, definition: ToolsDefinition, handle: Handle, options: Mapping[str, JSON]
) -> Observation:
    """Poll once, with all calls of the definition.

    Raises:
        ExecutionNotFound: it does not exist, and is old enough to be visible.
        EngineUnavailable: no answer, or one without the status.
    """
    how, scope = definition.describe, handle.scope(options)
    if how is None:
        raise EngineUnavailable("the engine's settings have no `describe` any more", silent=False)
    if handle.reply is None:
        reply = await upstream.read(how, scope)
        if reply.is_error and not names_in([how.status, how.gone_if]) & {"error"}:
            raise describe_error(reply)
    else:
        reply = Reply(data=handle.reply, text="", is_error=False)
    scope = reply.within(scope) | {"more": {}}
    scope |= {"entry": lenient(partial(entry_of, how, scope))}
    needs_more_for_status = "more" in names_in([how.status, how.gone_if])
    if needs_more_for_status:
        scope = await _with_more(upstream, how, scope, [], required=True)
    if _is_gone(how, scope):
        if not handle.is_younger_than(definition.settling.total_seconds()):
            raise ExecutionNotFound(f"the server does not know {handle.shown}")
        seen = Execution(status=Status.RUNNING, message="the server does not show it yet", execution_id=handle.shown)
        return Observation(execution=seen, scope=scope)
    if reply.is_error and "error" not in names_in(how.status):
        raise describe_error(reply)
    _check_id(how, handle, scope)
    status, unmapped = _status(how, reply, scope)
    scope |= {"status": status.value}
    further: list[Reply] = []
    if not needs_more_for_status:
        with reading_result(status):
            scope = await _with_more(upstream, how, scope, further, required=status is Status.SUCCEEDED)
    execution = execution_of(how, status, unmapped, scope, name=handle.shown)
    if execution.status is Status.SUCCEEDED:
        proses = [each.prose for each in further if each.is_prose]
        if proses and is_empty(execution.output):
            raise ResultUnavailable(proses[0])
        whole = [each.whole for each in (reply, *further) if each.whole and each.data == execution.output]
        execution = replace(execution, output=whole[0]) if whole else execution
    questions = open_questions(definition.asks, execution, scope, definition.settling)
    execution = with_questions(execution, questions)
    return Observation(execution=execution, scope=scope, questions=questions, unmapped=unmapped)


def _is_gone(how: DescribeCall, scope: Scope) -> bool:
    if how.gone_if is not None:
        return bool(lenient(partial(scope.is_true, how.gone_if)))
    return how.entry is not None and scope.names["error"] is None and scope.names["entry"] is None


def _check_id(how: DescribeCall, handle: Handle, scope: Scope) -> None:
    """Check that the reply is about this execution, if the definition says how.

    Raises:
        EngineUnavailable: the reply is about another execution.
    """
    if how.id is not None and lenient(partial(scope.text, how.id)) != handle.name:
        raise EngineUnavailable(f"its tool was asked about {handle.shown}, and told of another one", silent=False)


def _status(how: DescribeCall, reply: Reply, scope: Scope) -> tuple[Status, str | None]:
    try:
        return status_of(how, how.status or "", scope)
    except EngineUnavailable:
        if not reply.is_prose:
            raise
        text = f"{reply.prose}: its status is not known (describe.extract finds parts of a text)"
        raise EngineUnavailable(text, silent=False) from None


async def _with_more(
    upstream: Upstream, how: DescribeCall, scope: Scope, replies: list[Reply], *, required: bool
) -> Scope:
    """Make the further calls that are due; `required`: an error of one leaves the status or the result unknown.

    The replies are added to `replies`.
    """
    more: dict[str, JSON] = {}
    for name, each in how.more.items():
        try:
            is_due = each.when is None or scope.is_true(each.when)
        except MappingError:
            is_due = False
        if not is_due:
            continue
        reply = await upstream.read(each, scope)
        if reply.is_error and required:
            raise describe_error(reply)
        replies.append(reply)
        more = {**more, name: None if reply.is_error else reply.data}
        scope |= {"more": more}
    return scope
