"""Whether a workflow has the signals, updates and queries that a tool names: it says so itself, if a worker is up.

It does not say which activities it has: see `activities`.
Source: the query `__temporal_workflow_metadata`, which the SDKs answer for every workflow
(https://github.com/temporalio/api, temporal/api/sdk/v1/workflow_metadata.proto).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from typing import cast

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.query.v1 import WorkflowQuery
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.api.workflowservice.v1 import QueryWorkflowRequest
from temporalio.service import RPCError, RPCStatusCode

from mcp_workflows.adapter import JSON, Finding
from mcp_workflows.errors import EngineError
from mcp_workflows_temporal.client import Frontend
from mcp_workflows_temporal.labels import mapping
from mcp_workflows_temporal.listing import listed, quoted
from mcp_workflows_temporal.payloads import UndecodableError, decode
from mcp_workflows_temporal.tooling.activities import verify_activities

METADATA = "__temporal_workflow_metadata"
METADATA_MESSAGE = (
    WorkflowMetadata.DESCRIPTOR.full_name
)  # decoding needs to know it: it comes as this message, or as JSON
LOOKED_AT = 3  # executions: some set up their handlers only as they go
LISTED = 20
TYPES = 200  # executions whose types are looked at for one that was meant
SHARE, OTHERS_SHARE = 0.5, 0.2  # of the total time, for one answer
OPEN = "{{"


class Kind(StrEnum):
    """What a tool can name in a workflow."""

    SIGNAL = "signal"
    UPDATE = "update"
    QUERY = "query"
    ACTIVITY = "activity"


SENT = (Kind.SIGNAL, Kind.UPDATE, Kind.QUERY)  # what a workflow has handlers for
KEYS: Mapping[Kind, str] = {**{kind: kind.value for kind in SENT}, Kind.ACTIVITY: "after"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """One thing that a tool names."""

    kind: Kind
    name: str
    where: str  # in the tool's settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Handlers:
    """What a workflow says that it takes; a dynamic handler takes whatever comes."""

    names: Mapping[Kind, frozenset[str]]
    dynamic: frozenset[Kind]

    def merged(self, other: Handlers) -> Handlers:
        """What one of both says."""
        names = {kind: self.names[kind] | other.names[kind] for kind in SENT}
        return Handlers(names=names, dynamic=self.dynamic | other.dynamic)

    def missing(self, named: Named) -> bool:
        """Whether certainly nobody listens."""
        return named.name not in self.names[named.kind] and named.kind not in self.dynamic


class Unverifiable(Exception):  # noqa: N818  # it says what happened
    """It cannot be found out now; the message says why."""


def named_in(options: Mapping[str, JSON], gates: Mapping[str, Mapping[str, JSON]]) -> Sequence[Named]:
    """What a tool's `cancel` and gates name, as far as no placeholder hides it."""
    places = {"cancel": options.get("cancel")}
    for gate, words in gates.items():
        places.update({f"gates.{gate}.{word}": value for word, value in words.items()})
    return [named for where, value in places.items() for named in _named(where, value)]


def _named(where: str, value: JSON) -> Iterator[Named]:
    found = mapping(value)
    for kind, key in KEYS.items():
        name = found.get(key)
        if isinstance(name, str) and OPEN not in name:
            yield Named(kind=kind, name=name, where=f"{where}.{key}")


async def verify(frontend: Frontend, workflow: str, queue: str | None, named: Sequence[Named]) -> Sequence[Finding]:
    """Report what is missing as a problem, and what cannot be found out as unknown."""
    awaited = {each.where: each.name for each in named if each.kind is Kind.ACTIVITY}
    sent = [each for each in named if each.kind is not Kind.ACTIVITY]
    activities: Sequence[Finding] = ()
    try:
        async with frontend.call():
            rows = [row async for row in listed(frontend, f"WorkflowType = {quoted(workflow)}", page=LISTED, pages=1)]
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
            handled = await _compare(frontend, workflow, [row.execution for row in latest[:LOOKED_AT]], sent)
            return [*activities, *handled]
    except (Unverifiable, EngineError) as error:
        return [*activities, Finding(ok=None, text=_not_verified(named, str(error)))]


async def _never_seen(frontend: Frontend, workflow: str, named: Sequence[Named]) -> Finding:
    text = f"no execution of workflow type {workflow} has been seen in namespace {frontend.place.namespace}"
    types = {row.type.name async for row in listed(frontend, "", page=TYPES, pages=1)}
    text += _did_you_mean(workflow, types)
    return Finding(ok=None, text=f"{_not_verified(named, 'it takes one')}: {text}" if named else text)


def _not_verified(named: Sequence[Named], why: str) -> str:
    what = ", ".join(dict.fromkeys(f"{each.kind} {each.name}" for each in named)) or "its type"
    return f"could not be verified ({what}): {why}"


async def _compare(
    frontend: Frontend, workflow: str, latest: Sequence[WorkflowExecution], named: Sequence[Named]
) -> Sequence[Finding]:
    """One execution tells, mostly; others are asked about what is missing in it."""
    handlers = await _handlers(frontend, latest[0])
    with suppress(Unverifiable):  # that one of them does not tell changes nothing
        for execution in latest[1:]:
            if any(handlers.missing(each) for each in named):
                handlers = handlers.merged(await _handlers(frontend, execution, patience=OTHERS_SHARE))
    return [*_missing(handlers, workflow, named), *_taken_by_dynamic(handlers, named)]


def _missing(handlers: Handlers, workflow: str, named: Sequence[Named]) -> Iterator[Finding]:
    for each in named:
        if handlers.missing(each):
            has = sorted(name for name in handlers.names[each.kind] if not name.startswith("__"))
            there = f"it has: {', '.join(has)}" if has else "it has none"
            meant = _did_you_mean(each.name, has)
            text = f"{each.where}: workflow {workflow} has no {each.kind} {each.name!r}{meant} ({there})"
            yield Finding(ok=False, text=text, hint=f"correct {each.where}, or the workflow")


def _taken_by_dynamic(handlers: Handlers, named: Sequence[Named]) -> Iterator[Finding]:
    for each in named:
        if each.name not in handlers.names[each.kind] and each.kind in handlers.dynamic:
            text = f"could not be verified ({each.kind} {each.name}): a dynamic handler takes every {each.kind}"
            yield Finding(ok=None, text=text)


def _did_you_mean(name: str, known: Sequence[str] | set[str]) -> str:
    close = get_close_matches(name, sorted(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


async def _handlers(frontend: Frontend, execution: WorkflowExecution, patience: float = SHARE) -> Handlers:
    """What the worker says of this execution.

    Raises:
        Unverifiable: no worker answers, or it cannot tell.
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
    definition = mapping(mapping(metadata).get("definition"))
    names = {kind: frozenset(_names(definition.get(f"{kind}Definitions"))) for kind in SENT}
    if not (any(names.values()) or definition.get("type")):
        raise Unverifiable("the worker's SDK says nothing about handlers")
    return Handlers(names=names, dynamic=frozenset(kind for kind in SENT if "" in names[kind]))


NO_ANSWER: Mapping[RPCStatusCode, str] = {
    RPCStatusCode.CANCELLED: "no worker answers a query",  # how the SDK says that its own time-out passed
    RPCStatusCode.DEADLINE_EXCEEDED: "no worker answers a query",
    RPCStatusCode.FAILED_PRECONDITION: "no worker answers a query",
    RPCStatusCode.NOT_FOUND: "its latest execution is gone",
}


def _names(definitions: JSON) -> Iterator[str]:
    for definition in cast("Sequence[JSON]", definitions if isinstance(definitions, list) else []):
        yield str(mapping(definition).get("name") or "")  # without a name it is dynamic
