"""The arguments of gates compared with those that handlers take: by code, by histories, by a failed workflow task.

A Python workflow whose handler gets too few or too many arguments fails its workflow task again and again. Other SDKs
fill in missing arguments and ignore additional ones.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from temporalio.api.failure.v1 import Failure as FailureMessage
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionResponse as Described

from mcp_workflows.adapter import JSON, Finding, Gate
from mcp_workflows.errors import EngineError
from mcp_workflows_temporal.client import Frontend, quoted
from mcp_workflows_temporal.connection import Place
from mcp_workflows_temporal.diagnosis import FAILING_FROM, Problem
from mcp_workflows_temporal.gate_history import Message, MessageKind
from mcp_workflows_temporal.gate_rules import key_of
from mcp_workflows_temporal.gates import signal_request_id
from mcp_workflows_temporal.history import SIGNALED, TASK_COMPLETED, TASK_FAILED, UPDATE_ACCEPTED, Tail, read_tail
from mcp_workflows_temporal.labels import as_mapping
from mcp_workflows_temporal.payloads import decode_failure
from mcp_workflows_temporal.report_text import command, counted
from mcp_workflows_temporal.tooling.schema import load_workflow

PARTS = ("send", "decline")
EXECUTIONS = 10  # whose histories are read, one page of each
ENOUGH = 3  # signals or updates of one name

_COMMANDS: Mapping[MessageKind, tuple[str, str]] = {  # of the CLI: the command that sends it, and its type in a reset
    MessageKind.SIGNAL: ("signal", "Signal"),
    MessageKind.UPDATE: ("update execute", "Update"),
}
_ANSWER_FIELD = re.compile(r"\{\{\s*answer\.([A-Za-z_][A-Za-z0-9_]*)\s*\}\}")
_WRONG_COUNT = re.compile(
    r"(?P<handler>[\w.<>]+)\(\) (missing \d+ required positional arguments?: .+"
    r"|takes (from \d+ to )?\d+ positional arguments? but \d+ (was|were) given)"
)
_FRAME = re.compile(r'^\s*File "([^"]+)"', re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One message of a gate, as it is configured."""

    gate: str
    part: str  # send or decline
    message: Message
    args: Sequence[JSON]

    @property
    def where(self) -> str:
        """The setting in the tool."""
        return f"gates.{self.gate}.{self.part}.args"


def read_sent(gates: Mapping[str, Mapping[str, JSON]]) -> Sequence[Sent]:
    """Return the messages of these gates; leave out invalid ones, which other checks report."""
    return [sent for gate, words in gates.items() for part in PARTS for sent in _sent(gate, part, words.get(part))]


def _sent(gate: str, part: str, written: JSON) -> Iterator[Sent]:
    found = as_mapping(written)
    args: JSON = found.get("args", [])
    for kind in MessageKind:
        name = found.get(kind)
        if isinstance(name, str) and isinstance(args, list):
            yield Sent(gate=gate, part=part, message=Message(kind=kind, name=name), args=cast("Sequence[JSON]", args))


# --- by the workflow's code


def misfits(reference: str, gates: Mapping[str, Mapping[str, JSON]]) -> Mapping[str, str]:
    """Return the arguments that the handlers of `module:WorkflowClass` do not take, by setting.

    Raises:
        ConfigError: the workflow cannot be imported.
    """
    definition = getattr(load_workflow(reference), "__temporal_workflow_definition", None)
    found: dict[str, str] = {}
    for sent in read_sent(gates):
        handlers = {MessageKind.SIGNAL: "signals", MessageKind.UPDATE: "updates"}[sent.message.kind]
        handler = getattr(definition, handlers, {}).get(sent.message.name)
        if handler is not None and (mismatch := _mismatch(sent, as_mapping(gates[sent.gate].get("ask")), handler)):
            found[f"{sent.gate}.{sent.part}.args"] = mismatch
    return found


def _mismatch(sent: Sent, ask: Mapping[str, JSON], handler: Any) -> str | None:  # Any: the SDK's private definition
    parameters = list(inspect.signature(handler.fn).parameters.values())[1 if handler.is_method else 0 :]
    if not parameters or any(each.kind is each.VAR_POSITIONAL for each in parameters):
        return None  # measured: a handler without parameters runs with any arguments (SDK 1.35)
    positional = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    needed = [each for each in positional if each.default is each.empty]
    optional = _left_empty(sent.args, as_mapping(ask.get("schema")))
    given, takes = len(sent.args), _takes(len(needed), len(positional))
    named = f"{sent.message.kind} {sent.message.name} takes {takes} ({', '.join(each.name for each in positional)})"
    if not len(needed) <= given <= len(positional):
        return f"{named}, and this gives it {given}"
    if given - len(optional) < len(needed):
        return f"{named}, and {', '.join(optional)} is left out when the person leaves it empty: require it"
    return None


def _takes(least: int, most: int) -> str:
    return counted(most, "argument") if least == most else f"{least} to {counted(most, 'argument')}"


def _left_empty(args: Sequence[JSON], schema: Mapping[str, JSON]) -> Sequence[str]:
    """Return the fields of the answer at the end of a list that the person may leave empty."""
    required: JSON = schema.get("required")
    needed: Sequence[JSON] = cast("Sequence[JSON]", required) if isinstance(required, list) else ()
    found: list[str] = []
    for value in reversed(args):
        field = _ANSWER_FIELD.fullmatch(value) if isinstance(value, str) else None
        if field is None or field[1] in needed or schema.get("type") != "object":
            break
        found.append(field[1])
    return found


# --- by what came in recent histories


async def verify_arguments(
    frontend: Frontend, workflow: str, queue: str | None, gates: Mapping[str, Mapping[str, JSON]]
) -> Sequence[Finding]:
    """Compare the number of arguments of gates with those in recent histories; nothing if there are none."""
    sent = read_sent(gates)
    if not sent:
        return []
    try:
        async with frontend.call():
            counts = await _counts(frontend, workflow, queue, frozenset(each.message for each in sent))
    except EngineError:
        return []  # the other checks report it
    return [_finding(each, counts[each.message]) for each in sent if not _fits(len(each.args), counts[each.message])]


def _fits(given: int, counts: Sequence[int]) -> bool:
    return not counts or min(counts) <= given <= max(counts)


def _finding(sent: Sent, counts: Sequence[int]) -> Finding:
    lately = " or ".join(str(count) for count in sorted(set(counts)))
    text = f"{sent.where}: {sent.message.kind} {sent.message.name} lately came with {lately}, and this gives it"
    hint = (
        f"give {sent.where} as many as the handler takes, null where there is nothing to say: a Python workflow fails"
    )
    return Finding(ok=False, text=f"{text} {counted(len(sent.args), 'argument')}", hint=f"{hint} with any other number")


async def _counts(
    frontend: Frontend, workflow: str, queue: str | None, messages: frozenset[Message]
) -> Mapping[Message, Sequence[int]]:
    """Return the numbers of arguments of the handled messages with these names, newest first."""
    counts: dict[Message, list[int]] = {message: [] for message in messages}
    query = f"WorkflowType = {quoted(workflow)}"
    rows = [row async for row in frontend.list_executions(query, page=2 * EXECUTIONS, pages=1)]
    rows.sort(key=lambda row: (row.task_queue == queue, row.start_time.ToNanoseconds()), reverse=True)
    for row in rows[:EXECUTIONS]:
        tail = await read_tail(frontend, row.execution)
        for event in _handled(tail):
            message, count = _read_message(event)
            if message in counts:
                counts[message].append(count)
        if all(len(found) >= ENOUGH for found in counts.values()):
            break
    return counts


def _handled(tail: Tail) -> Iterator[HistoryEvent]:
    """Yield the signals and updates that a workflow task has taken; one that breaks it proves nothing."""
    completed = tail.newest(TASK_COMPLETED)
    for event in tail.events:
        kind = event.WhichOneof("attributes")
        if kind == UPDATE_ACCEPTED or (kind == SIGNALED and completed and event.event_id < completed.event_id):
            yield event


def _read_message(event: HistoryEvent) -> tuple[Message, int]:
    if event.WhichOneof("attributes") == SIGNALED:
        signaled = event.workflow_execution_signaled_event_attributes
        return Message(kind=MessageKind.SIGNAL, name=signaled.signal_name), len(signaled.input.payloads)
    given = event.workflow_execution_update_accepted_event_attributes.accepted_request.input
    return Message(kind=MessageKind.UPDATE, name=given.name), len(given.args.payloads)


# --- by a workflow task that fails


async def argument_problem(
    frontend: Frontend, gates: Mapping[str, Gate], found: Described, tail: Tail
) -> Problem | None:
    """Return the problem if the workflow task fails because a handler cannot take the message of a gate."""
    failed, completed = tail.newest(TASK_FAILED), tail.newest(TASK_COMPLETED)
    if found.pending_workflow_task.attempt < FAILING_FROM or failed is None or completed is None:
        return None
    if failed.event_id < completed.event_id:
        return None
    failure = FailureMessage()
    failure.CopyFrom(failed.workflow_task_failed_event_attributes.failure)
    workflow_id = found.workflow_execution_info.execution.workflow_id
    await decode_failure(frontend.converter(workflow_id), failure)  # in place
    match = _WRONG_COUNT.fullmatch(failure.message)
    if failure.application_failure_info.type != TypeError.__name__ or match is None or not _by_the_sdk(failure):
        return None
    blamed = _blamed(gates, found, tail, completed.event_id, match["handler"].rpartition(".")[2])
    if blamed is None:
        return None
    sent, given = blamed
    with_count = "" if given is None else f" with {counted(given, 'argument')}"
    message = f"{sent.message.kind} {sent.message.name}{with_count}"
    text = f"{sent.where}: gate {sent.gate} sent {message}, which its handler does not"
    its_self = " (self is one of them)" if " takes " in failure.message else ""
    advice = _advice(sent, workflow_id, frontend.place, completed.event_id)
    return Problem(text=f"{text} take: {failure.message}{its_self}", advice=advice)


def _advice(sent: Sent, workflow_id: str, place: Place, completed: int) -> str:
    """Return the advice: a reset that leaves out the message, and then the answer by hand."""
    again, kind = _COMMANDS[sent.message.kind]
    named = ("--workflow-id", workflow_id)
    since = ("--event-id", str(completed), "--reapply-exclude", kind, "--reason", "wrong-arguments")
    reset = command(place, "workflow", "reset", *named, *since)
    answer = command(place, "workflow", *again.split(), *named, "--name", sent.message.name)
    lost = (
        f"other {sent.message.kind}s since event {completed} are taken back too, and steps begun since then run again"
    )
    return (
        f"correct {sent.where} for tasks to come; take back what was sent: {reset} ({lost}); then send the answer "
        f"yourself, as this task keeps the gate it started with: {answer}, with one --input, in JSON, for each argument"
    )


def _by_the_sdk(failure: FailureMessage) -> bool:
    """Return whether the SDK made the failed call, and not the workflow's own code."""
    frames = _FRAME.findall(failure.stack_trace)
    return bool(frames) and "temporalio" in re.split(r"[/\\]", frames[-1])


def _blamed(
    gates: Mapping[str, Gate], found: Described, tail: Tail, completed: int, handler: str
) -> tuple[Sent, int | None] | None:
    """Return the message of a gate after the last completed workflow task, and its number of arguments if known.

    An update that breaks its workflow task is not in the history: the name of its handler identifies it.
    """
    sent = read_sent({name: {"send": gate.send, "decline": gate.decline} for name, gate in gates.items()})
    fresh = [event for event in reversed(tail.events) if event.event_id > completed]
    signals = [(each, _read_message(event)[1]) for event in fresh for each in _ours(sent, found, event)]
    updates = [
        (each, None) for each in sent if each.message.kind is MessageKind.UPDATE and each.message.name == handler
    ]
    named = [(each, given) for each, given in signals if each.message.name == handler]
    return next(iter((*named, *updates, *signals)), None)


def _ours(sent: Sequence[Sent], found: Described, event: HistoryEvent) -> Iterator[Sent]:
    """Yield the gate that sent this signal: its request id is made of the key of a question."""
    if event.WhichOneof("attributes") != SIGNALED:
        return
    execution, first = found.workflow_execution_info.execution, found.workflow_execution_info.first_run_id
    signaled = event.workflow_execution_signaled_event_attributes
    for each in sent:
        if each.message == Message(kind=MessageKind.SIGNAL, name=signaled.signal_name):
            keys = (key_of(each.gate, opened, execution.run_id, first) for opened in range(1, event.event_id))
            if any(signal_request_id(execution, key) == signaled.request_id for key in keys):
                yield each
