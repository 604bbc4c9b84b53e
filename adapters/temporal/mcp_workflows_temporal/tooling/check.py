"""Checks whether tools can run now, and whether their workflows have the names that the tools use.

A worker reports the handlers of its workflows; activities, and the argument counts of handlers, are read from recent
histories. An activity that runs only sometimes may be missing from them, so its absence alone is not an error. It is
one if there is a name that differs by a typo, or if the activity runs as a local one, which gates cannot see.
Source: the query `__temporal_workflow_metadata`, which the SDKs answer for every workflow
(https://github.com/temporalio/api, temporal/api/sdk/v1/workflow_metadata.proto).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import cast

import anyio
from mcp_workflows_temporal_worker.contract import MEMO_KEY
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.api.workflow.v1 import WorkflowExecutionInfo
from temporalio.converter import DefaultPayloadConverter
from temporalio.service import RPCError, RPCStatusCode

from mcp_workflows.adapter import JSON, Finding, closest, rough_duration
from mcp_workflows.errors import EngineError, EngineUnavailable
from mcp_workflows_temporal.client import Frontend, idle_time, live_pollers, quoted
from mcp_workflows_temporal.codec import RemoteCodec
from mcp_workflows_temporal.diagnosis import command, counted
from mcp_workflows_temporal.errors import REFUSED
from mcp_workflows_temporal.gate_rules import Message
from mcp_workflows_temporal.payloads import UndecodableError, as_mapping, decode
from mcp_workflows_temporal.settings import is_template
from mcp_workflows_temporal.tooling.histories import (
    SIGNALED,
    TASK_COMPLETED,
    UPDATE_ACCEPTED,
    format_names,
    is_typo,
    nearest,
    read_activities,
    read_message,
    read_sent,
    read_tail,
)

CLOSED_EXECUTIONS = 20  # read if the latest executions do not show every name
HISTORY_PAGES = 2  # of 250 events, the newest of each execution
HISTORIES_SHARE = 0.2  # of the time limit, for all histories together
EXECUTIONS = 10  # whose histories are read, one page of each
ENOUGH = 3  # signals or updates of one name
METADATA = "__temporal_workflow_metadata"
METADATA_MESSAGE = WorkflowMetadata.DESCRIPTOR.full_name  # imported, as decoding needs its descriptor
ASKED = 3  # executions: some register handlers only as they run
LISTED = 20
TYPES = 200  # executions whose types are suggested for an unknown one
SHARE, OTHERS_SHARE = 0.5, 0.2  # of the time limit, for one reply
_ENCODINGS = {each.encoding for each in DefaultPayloadConverter.default_encoding_payload_converters}  # without a codec


async def check_engine(frontend: Frontend) -> Finding:
    """Check that the frontend replies and has the namespace."""
    place = frontend.place
    try:
        async with frontend.call():
            await frontend.describe_namespace()
            converter = frontend.client.data_converter
            if isinstance(converter.payload_codec, RemoteCodec):
                await converter.decode(await converter.encode(["mcp-workflows check"]))
    except EngineError as error:
        running = isinstance(error, EngineUnavailable) and REFUSED in str(error)
        advice = "if it is, check address" if running else "check address, namespace, tls, api_key and codec"
        return Finding(ok=False, text=str(error), hint=f"{advice} of this engine")
    return Finding(ok=True, text=f"{place} answers, namespace {place.namespace} is there")


async def check_queue(frontend: Frontend, workflow: str, task_queue: str | None) -> Finding:
    """Check that workers poll the task queue of a workflow."""
    if task_queue is None:
        return Finding(
            ok=False, text=f"{workflow} has no task queue", hint="set task_queue, on the engine or on the tool"
        )
    try:
        async with frontend.call():
            found = await frontend.describe_task_queue(task_queue)
    except EngineError as error:
        return Finding(ok=False, text=str(error), hint="check the engine first")
    if live := live_pollers(found):
        workers = "1 worker polls" if len(live) == 1 else f"{len(live)} workers poll"
        last = rough_duration(min(map(idle_time, live)))
        return Finding(ok=True, text=f"{workers} task queue {task_queue}, last {last} ago")
    latest = min(map(idle_time, found.pollers), default=None)
    text = f"nobody polls task queue {task_queue}" + (
        f", last {rough_duration(latest)} ago" if latest is not None else ""
    )
    if waiting := found.stats.approximate_backlog_count:
        text = f"{text}; {waiting} waiting there"
    hint = f"start a worker on task queue {task_queue} in namespace {frontend.place.namespace}"
    return Finding(ok=False, text=text, hint=hint)


class ReferenceKind(StrEnum):
    """The kinds of names in a tool's configuration."""

    SIGNAL = "signal"
    UPDATE = "update"
    QUERY = "query"
    ACTIVITY = "activity"


HANDLED = (ReferenceKind.SIGNAL, ReferenceKind.UPDATE, ReferenceKind.QUERY)  # by handlers of the workflow
KEYS: Mapping[ReferenceKind, str] = {**{kind: kind.value for kind in HANDLED}, ReferenceKind.ACTIVITY: "after"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A name in a tool's configuration."""

    kind: ReferenceKind
    name: str
    where: str  # in the tool's settings


Handlers = Mapping[ReferenceKind, frozenset[str]]
"""The names of a workflow's handlers; a dynamic handler, which accepts every name, has an empty name."""


class Unverifiable(Exception):  # noqa: N818  # the condition, not an error
    """The verification is not possible now; the message has the reason."""


def read_references(options: Mapping[str, JSON], gates: Mapping[str, Mapping[str, JSON]]) -> Sequence[Reference]:
    """Return the names in a tool's settings, except those with placeholders."""
    places = {"": options, "cancel": options.get("cancel"), "progress": options.get("progress")}
    places |= {f"actions.{name}": each for name, each in as_mapping(options.get("actions")).items()}
    for gate, words in gates.items():
        places.update({f"questions.{gate}.{word}": value for word, value in words.items()})
    return [named for where, value in places.items() for named in _references(where, value)]


def _references(where: str, value: JSON) -> Iterator[Reference]:
    found = as_mapping(value)
    for kind, key in KEYS.items():
        name = found.get(key)
        if isinstance(name, str) and not is_template(name):
            yield Reference(kind=kind, name=name, where=f"{where}.{key}".strip("."))


async def verify(frontend: Frontend, workflow: str, queue: str | None, named: Sequence[Reference]) -> Sequence[Finding]:
    """Report a missing name as a problem, and one that cannot be verified as unknown."""
    awaited = {each.where: each.name for each in named if each.kind is ReferenceKind.ACTIVITY}
    sent = [each for each in named if each.kind is not ReferenceKind.ACTIVITY]
    activities: Sequence[Finding] = ()
    try:
        async with frontend.call():
            latest = await _latest(frontend, workflow, queue)
            if not latest:
                return [await _never_seen(frontend, workflow, named)]
            if awaited:
                activities = await verify_activities(frontend, workflow, latest, awaited)
                named = sent
            if not sent:
                return activities
            handled = await _compare(frontend, workflow, [row.execution for row in latest[:ASKED]], sent)
            return [*activities, *handled]
    except (Unverifiable, EngineError) as error:
        return [*activities, Finding(ok=None, text=_not_verified(named, str(error)))]


async def _latest(frontend: Frontend, workflow: str, queue: str | None) -> Sequence[WorkflowExecutionInfo]:
    """Return the latest executions of a workflow, those on its task queue first."""
    listed = frontend.list_executions(f"WorkflowType = {quoted(workflow)}", page=LISTED, pages=1)
    rows = [row async for row in listed]
    return sorted(rows, key=lambda row: (row.task_queue == queue, row.start_time.ToNanoseconds()), reverse=True)


async def _never_seen(frontend: Frontend, workflow: str, named: Sequence[Reference]) -> Finding:
    text = f"no execution of workflow type {workflow} was seen in namespace {frontend.place.namespace}"
    types = {row.type.name async for row in frontend.list_executions("", page=TYPES, pages=1)}
    text += _did_you_mean(workflow, types)
    return Finding(ok=None, text=f"{_not_verified(named, 'it takes one')}: {text}" if named else text)


def _not_verified(named: Sequence[Reference], why: str) -> str:
    names = ", ".join(dict.fromkeys(f"{each.kind} {each.name}" for each in named)) or "its type"
    return f"could not be verified ({names}): {why}"


async def _compare(
    frontend: Frontend, workflow: str, latest: Sequence[WorkflowExecution], named: Sequence[Reference]
) -> Sequence[Finding]:
    """Compare with the handlers of one execution, and ask others only about names that it lacks."""
    handlers = await _handlers(frontend, latest[0])

    def lacks(each: Reference) -> bool:
        return not {each.name, ""} & handlers[each.kind]

    with suppress(Unverifiable):  # the others are optional
        for execution in latest[1:]:
            if any(map(lacks, named)):
                others = await _handlers(frontend, execution, share=OTHERS_SHARE)
                handlers = {kind: handlers[kind] | others[kind] for kind in HANDLED}
    findings: list[Finding] = []
    for each in filter(lacks, named):
        has = sorted(name for name in handlers[each.kind] if not name.startswith("__"))
        there = f"it has: {', '.join(has)}" if has else "it has none"
        suggestion = _did_you_mean(each.name, has)
        text = f"{each.where}: workflow {workflow} has no {each.kind} {each.name!r}{suggestion} ({there})"
        findings.append(Finding(ok=False, text=text, hint=f"correct {each.where}, or the workflow"))
    for each in named:
        if each.name not in handlers[each.kind] and not lacks(each):
            text = f"could not be verified ({each.kind} {each.name}): a dynamic handler takes every {each.kind}"
            findings.append(Finding(ok=None, text=text))
    return findings


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    meant = closest(name, sorted(known))
    return f"; did you mean {meant!r}?" if meant else ""


async def _handlers(frontend: Frontend, execution: WorkflowExecution, share: float = SHARE) -> Handlers:
    """Return the handlers that the worker reports for this execution, within this share of the time limit.

    Raises:
        Unverifiable: no worker answers, or its SDK does not report handlers.
    """
    try:
        payload = await frontend.query(execution, METADATA, share=share, only_open=False)
        metadata = await decode(frontend.converter(execution.workflow_id), payload) if payload else None
    except RPCError as error:
        raise Unverifiable(NO_ANSWER.get(error.status) or f"the worker does not report it ({error.message})") from None
    except UndecodableError:
        raise Unverifiable("the worker's answer about its handlers cannot be read") from None
    definition = as_mapping(as_mapping(metadata).get("definition"))
    handlers: dict[ReferenceKind, frozenset[str]] = {}
    for kind in HANDLED:
        listed = definition.get(f"{kind}Definitions")
        named = cast("Sequence[JSON]", listed if isinstance(listed, list) else [])
        handlers[kind] = frozenset(str(as_mapping(each).get("name") or "") for each in named)
    if not (any(handlers.values()) or definition.get("type")):
        raise Unverifiable("the worker's SDK says nothing about handlers")
    return handlers


NO_ANSWER: Mapping[RPCStatusCode, str] = {
    RPCStatusCode.CANCELLED: "no worker answers a query",  # the SDK's error when its own time-out passes
    RPCStatusCode.DEADLINE_EXCEEDED: "no worker answers a query",
    RPCStatusCode.FAILED_PRECONDITION: "no worker answers a query",
    RPCStatusCode.NOT_FOUND: "its latest execution is gone",
}


@dataclass(slots=True, kw_only=True)
class _Sample:
    """The activities in the histories that were read."""

    types: dict[str, None]  # in the order of discovery
    local: set[str]
    executions: int = 0


async def verify_activities(
    frontend: Frontend, workflow: str, latest: Sequence[WorkflowExecutionInfo], awaited: Mapping[str, str]
) -> Sequence[Finding]:
    """Search recent histories for the activities that gates wait for: `awaited` has types by settings.

    Reads at most the `latest` executions and `CLOSED_EXECUTIONS` ended ones, `HISTORY_PAGES` pages each.
    """
    names = frozenset(awaited.values())
    sample = _Sample(types={}, local=set())
    with anyio.move_on_after(frontend.timeout.total_seconds() * HISTORIES_SHARE):
        async for execution in _executions(frontend, workflow, latest):
            if names <= sample.types.keys():
                break
            found = read_activities(reversed((await read_tail(frontend, execution, pages=HISTORY_PAGES)).events))
            sample.types.update(dict.fromkeys(found.scheduled))
            sample.local |= found.local
            sample.executions += 1
    return [
        _judge_activity(workflow, where, name, names, sample)
        for where, name in awaited.items()
        if name not in sample.types
    ]


async def _executions(
    frontend: Frontend, workflow: str, latest: Sequence[WorkflowExecutionInfo]
) -> AsyncIterator[WorkflowExecution]:
    """Yield the latest executions, then ended ones, as newly started ones show nothing."""
    for row in latest:
        yield row.execution
    known = {row.execution.run_id for row in latest}
    query = f"WorkflowType = {quoted(workflow)} AND ExecutionStatus != 'Running'"
    async for row in frontend.list_executions(query, page=CLOSED_EXECUTIONS, pages=1):
        if row.execution.run_id not in known:
            yield row.execution


def _judge_activity(workflow: str, where: str, name: str, names: frozenset[str], sample: _Sample) -> Finding:
    """Return the finding for an activity that no history has."""
    if name in sample.local:
        text = f"{where}: {name!r} runs as a local activity, and no gate can see that"
        return Finding(
            ok=False, text=text, hint=f"correct {where}: another activity, or a query; see: docs/use/gates.md"
        )
    names_seen = format_names(sample.types)
    if not sample.executions or not sample.types:
        text = f"no history of workflow {workflow} shows any activity yet"
        return Finding(ok=None, text=f"{where}: could not be verified (activity {name}): {text}")
    number = f"the latest {sample.executions} executions" if sample.executions > 1 else "the latest execution"
    text = f"no activity {name!r} in {number} of workflow {workflow}"
    others = [each for each in sample.types if each not in names]  # not a name that another gate waits for
    near = nearest(name, others)
    suggestion = f"; did you mean {near!r}?" if near else ""
    if near and is_typo(name, near):
        hint = f"correct {where}, or let {name} run once if it is new"
        return Finding(ok=False, text=f"{where}: {text}{suggestion} (seen: {names_seen})", hint=hint)
    return Finding(ok=None, text=f"{where}: could not be verified: {text}{suggestion} (seen: {names_seen})")


async def verify_arguments(
    frontend: Frontend, workflow: str, queue: str | None, gates: Mapping[str, Mapping[str, JSON]]
) -> Sequence[Finding]:
    """Compare the argument counts of gates with those in recent histories; nothing without arguments."""
    sent = read_sent(gates)
    if not sent:
        return []
    try:
        async with frontend.call():
            counts = await _counts(frontend, workflow, queue, frozenset(each.message for each in sent))
    except EngineError:
        return []  # the other checks report it
    findings: list[Finding] = []
    for each in sent:
        seen, given = counts[each.message], len(each.args)
        if seen and not min(seen) <= given <= max(seen):
            lately = " or ".join(map(str, sorted(set(seen))))
            text = f"{each.where}: {each.message.kind} {each.message.name} lately came with {lately}"
            hint = f"give {each.where} as many as the handler takes, null where there is nothing to say"
            findings.append(
                Finding(
                    ok=False,
                    text=f"{text}, and this gives it {counted(given, 'argument')}",
                    hint=f"{hint}: a Python workflow fails with any other number",
                )
            )
    return findings


async def _counts(
    frontend: Frontend, workflow: str, queue: str | None, messages: frozenset[Message]
) -> Mapping[Message, Sequence[int]]:
    """Return the argument counts of the handled messages with these names, newest first."""
    counts: dict[Message, list[int]] = {message: [] for message in messages}
    for row in (await _latest(frontend, workflow, queue))[:EXECUTIONS]:
        tail = await read_tail(frontend, row.execution)
        completed = tail.newest(TASK_COMPLETED)
        taken = completed.event_id if completed else 0  # a signal that no workflow task has taken proves nothing
        for event in tail.events:
            kind = event.WhichOneof("attributes")
            if kind == UPDATE_ACCEPTED or (kind == SIGNALED and event.event_id < taken):
                message, count = read_message(event)
                if message in counts:
                    counts[message].append(count)
        if all(len(found) >= ENOUGH for found in counts.values()):
            break
    return counts


async def verify_search_attributes(frontend: Frontend, written: Mapping[str, JSON]) -> Sequence[Finding]:
    """Report search attributes of a tool that the namespace lacks; `written` are by name."""
    if not written:
        return []
    try:
        async with frontend.call():
            registered = await frontend.search_attributes()
    except EngineError as error:
        names = ", ".join(written)
        return [Finding(ok=None, text=f"search_attributes: could not be verified ({names}): {error}")]
    place, findings = frontend.place, list[Finding]()
    for name in written.keys() - registered:
        create = command(place, "operator", "search-attribute", "create", "--name", name, "--type")
        text = f"search_attributes.{name}: it is not registered in namespace {place.namespace}"
        hint = f"correct search_attributes.{name}, or register it: {create} TYPE"
        findings.append(Finding(ok=False, text=f"{text}{_did_you_mean(name, registered)}", hint=hint))
    return findings


async def verify_codec(frontend: Frontend, workflow: str, queue: str | None) -> Sequence[Finding]:
    """Report recent executions from elsewhere whose inputs are encoded, if no codec is configured."""
    if not frontend.has_shipped_converter:
        return []
    with suppress(EngineError):  # the other checks report it
        async with frontend.call():
            rows = await _latest(frontend, workflow, queue)
            for row in [row for row in rows if MEMO_KEY not in row.memo.fields][:ASKED]:
                for payload in await frontend.read_input(row.execution):
                    encoding = payload.metadata.get("encoding", b"none").decode("ascii", "replace")
                    if encoding not in _ENCODINGS:
                        text = f"the input of its execution {row.execution.workflow_id} is encoded ({encoding})"
                        text = f"{text}, and this engine has no codec: results and messages could not be read"
                        hint = "set `codec` or `data_converter` of the engine as the workers have it"
                        return [Finding(ok=False, text=text, hint=hint)]
    return []
