"""The verification that a workflow has the signals, updates, queries and activities that a tool names.

A worker reports its handlers; its activities are found in histories, see `activities`.
Source: the query `__temporal_workflow_metadata`, which the SDKs answer for every workflow
(https://github.com/temporalio/api, temporal/api/sdk/v1/workflow_metadata.proto).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import cast

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.query.v1 import WorkflowQuery
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.api.workflowservice.v1 import QueryWorkflowRequest
from temporalio.service import RPCError, RPCStatusCode

from mcp_workflows.adapter import JSON, Finding, closest
from mcp_workflows.errors import EngineError
from mcp_workflows_temporal.client import Frontend, quoted
from mcp_workflows_temporal.labels import as_mapping
from mcp_workflows_temporal.payloads import UndecodableError, decode
from mcp_workflows_temporal.tooling.activities import verify_activities

METADATA = "__temporal_workflow_metadata"
METADATA_MESSAGE = WorkflowMetadata.DESCRIPTOR.full_name  # imported, as decoding needs its descriptor
ASKED = 3  # executions: some register handlers only as they run
LISTED = 20
TYPES = 200  # executions whose types are suggested instead of an unknown one
SHARE, OTHERS_SHARE = 0.5, 0.2  # of the total time, for one answer
OPEN = "{{"


class ReferenceKind(StrEnum):
    """The kinds of names that the configuration of a tool refers to."""

    SIGNAL = "signal"
    UPDATE = "update"
    QUERY = "query"
    ACTIVITY = "activity"


HANDLED = (ReferenceKind.SIGNAL, ReferenceKind.UPDATE, ReferenceKind.QUERY)  # by handlers of the workflow
KEYS: Mapping[ReferenceKind, str] = {**{kind: kind.value for kind in HANDLED}, ReferenceKind.ACTIVITY: "after"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """One name in the configuration of a tool."""

    kind: ReferenceKind
    name: str
    where: str  # in the tool's settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Handlers:
    """The handlers of a workflow; a dynamic one takes every name."""

    names: Mapping[ReferenceKind, frozenset[str]]
    dynamic: frozenset[ReferenceKind]

    def merged(self, other: Handlers) -> Handlers:
        """Return the handlers of both."""
        names = {kind: self.names[kind] | other.names[kind] for kind in HANDLED}
        return Handlers(names=names, dynamic=self.dynamic | other.dynamic)

    def lacks(self, named: Reference) -> bool:
        """Return whether there is certainly no handler."""
        return named.name not in self.names[named.kind] and named.kind not in self.dynamic


class Unverifiable(Exception):  # noqa: N818  # the condition, not an error
    """The verification is not possible now; the message says why."""


def read_references(options: Mapping[str, JSON], gates: Mapping[str, Mapping[str, JSON]]) -> Sequence[Reference]:
    """Return the names in a tool's `cancel` and gates, except those with placeholders."""
    places = {"cancel": options.get("cancel")}
    for gate, words in gates.items():
        places.update({f"gates.{gate}.{word}": value for word, value in words.items()})
    return [named for where, value in places.items() for named in _references(where, value)]


def _references(where: str, value: JSON) -> Iterator[Reference]:
    found = as_mapping(value)
    for kind, key in KEYS.items():
        name = found.get(key)
        if isinstance(name, str) and OPEN not in name:
            yield Reference(kind=kind, name=name, where=f"{where}.{key}")


async def verify(frontend: Frontend, workflow: str, queue: str | None, named: Sequence[Reference]) -> Sequence[Finding]:
    """Report a missing name as a problem, and one that cannot be verified as unknown."""
    awaited = {each.where: each.name for each in named if each.kind is ReferenceKind.ACTIVITY}
    sent = [each for each in named if each.kind is not ReferenceKind.ACTIVITY]
    activities: Sequence[Finding] = ()
    try:
        async with frontend.call():
            rows = [
                row
                async for row in frontend.list_executions(f"WorkflowType = {quoted(workflow)}", page=LISTED, pages=1)
            ]
            if not rows:
                return [await _never_seen(frontend, workflow, named)]
            latest = sorted(
                rows, key=lambda row: (row.task_queue == queue, row.start_time.ToNanoseconds()), reverse=True
            )
            if awaited:
                activities = await verify_activities(frontend, workflow, latest, awaited)
                named = sent
            if not sent:
                return activities
            handled = await _compare(frontend, workflow, [row.execution for row in latest[:ASKED]], sent)
            return [*activities, *handled]
    except (Unverifiable, EngineError) as error:
        return [*activities, Finding(ok=None, text=_not_verified(named, str(error)))]


async def _never_seen(frontend: Frontend, workflow: str, named: Sequence[Reference]) -> Finding:
    text = f"no execution of workflow type {workflow} has been seen in namespace {frontend.place.namespace}"
    types = {row.type.name async for row in frontend.list_executions("", page=TYPES, pages=1)}
    text += _did_you_mean(workflow, types)
    return Finding(ok=None, text=f"{_not_verified(named, 'it takes one')}: {text}" if named else text)


def _not_verified(named: Sequence[Reference], why: str) -> str:
    names = ", ".join(dict.fromkeys(f"{each.kind} {each.name}" for each in named)) or "its type"
    return f"could not be verified ({names}): {why}"


async def _compare(
    frontend: Frontend, workflow: str, latest: Sequence[WorkflowExecution], named: Sequence[Reference]
) -> Sequence[Finding]:
    """Compare with the handlers of one execution, and ask others only for names that it lacks."""
    handlers = await _handlers(frontend, latest[0])
    with suppress(Unverifiable):  # the others are optional
        for execution in latest[1:]:
            if any(handlers.lacks(each) for each in named):
                handlers = handlers.merged(await _handlers(frontend, execution, patience=OTHERS_SHARE))
    return [*_missing(handlers, workflow, named), *_taken_by_dynamic(handlers, named)]


def _missing(handlers: Handlers, workflow: str, named: Sequence[Reference]) -> Iterator[Finding]:
    for each in named:
        if handlers.lacks(each):
            has = sorted(name for name in handlers.names[each.kind] if not name.startswith("__"))
            there = f"it has: {', '.join(has)}" if has else "it has none"
            suggestion = _did_you_mean(each.name, has)
            text = f"{each.where}: workflow {workflow} has no {each.kind} {each.name!r}{suggestion} ({there})"
            yield Finding(ok=False, text=text, hint=f"correct {each.where}, or the workflow")


def _taken_by_dynamic(handlers: Handlers, named: Sequence[Reference]) -> Iterator[Finding]:
    for each in named:
        if each.name not in handlers.names[each.kind] and each.kind in handlers.dynamic:
            text = f"could not be verified ({each.kind} {each.name}): a dynamic handler takes every {each.kind}"
            yield Finding(ok=None, text=text)


def _did_you_mean(name: str, known: Sequence[str] | set[str]) -> str:
    meant = closest(name, sorted(known))
    return f"; did you mean {meant!r}?" if meant else ""


async def _handlers(frontend: Frontend, execution: WorkflowExecution, patience: float = SHARE) -> Handlers:
    """Return the handlers that the worker reports for this execution.

    Raises:
        Unverifiable: no worker answers, or its SDK does not report handlers.
    """
    request = QueryWorkflowRequest(
        namespace=frontend.client.namespace, execution=execution, query=WorkflowQuery(query_type=METADATA)
    )
    try:
        answer = await frontend.client.workflow_service.query_workflow(request, timeout=frontend.timeout * patience)
        [payload] = answer.query_result.payloads
        metadata = await decode(frontend.converter(execution.workflow_id), payload)
    except RPCError as error:
        raise Unverifiable(NO_ANSWER.get(error.status) or f"the worker does not tell ({error.message})") from None
    except (ValueError, UndecodableError):
        raise Unverifiable("the worker's answer about its handlers cannot be read") from None
    definition = as_mapping(as_mapping(metadata).get("definition"))
    names = {kind: frozenset(_names(definition.get(f"{kind}Definitions"))) for kind in HANDLED}
    if not (any(names.values()) or definition.get("type")):
        raise Unverifiable("the worker's SDK says nothing about handlers")
    return Handlers(names=names, dynamic=frozenset(kind for kind in HANDLED if "" in names[kind]))


NO_ANSWER: Mapping[RPCStatusCode, str] = {
    RPCStatusCode.CANCELLED: "no worker answers a query",  # the SDK's error when its own time-out passes
    RPCStatusCode.DEADLINE_EXCEEDED: "no worker answers a query",
    RPCStatusCode.FAILED_PRECONDITION: "no worker answers a query",
    RPCStatusCode.NOT_FOUND: "its latest execution is gone",
}


def _names(definitions: JSON) -> Iterator[str]:
    for definition in cast("Sequence[JSON]", definitions if isinstance(definitions, list) else []):
        yield str(as_mapping(definition).get("name") or "")  # without a name it is dynamic
