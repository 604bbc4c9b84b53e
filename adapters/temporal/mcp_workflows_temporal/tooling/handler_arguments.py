"""The arguments that gates send against those that handlers take: by code, by histories, by a failed workflow task.

A Python workflow whose handler gets too few or too many arguments fails its workflow task again and again. Other SDKs
fill in what is missing and ignore the rest.
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
from mcp_workflows_temporal.client import Frontend
from mcp_workflows_temporal.connection import Place
from mcp_workflows_temporal.diagnosis import FAILING_FROM, Trouble
from mcp_workflows_temporal.gate_calls import request_id
from mcp_workflows_temporal.gate_history import Kind, Word
from mcp_workflows_temporal.gate_rules import key_of
from mcp_workflows_temporal.history import SIGNALED, TASK_COMPLETED, TASK_FAILED, UPDATE_ACCEPTED, Tail, read_tail
from mcp_workflows_temporal.labels import mapping
from mcp_workflows_temporal.listing import listed, quoted
from mcp_workflows_temporal.payloads import decode_failure
from mcp_workflows_temporal.report_text import command, counted
from mcp_workflows_temporal.tooling.schema import load_workflow

PARTS = ("send", "decline")
EXECUTIONS = 10  # whose histories are read, one page of each
ENOUGH = 3  # signals or updates of one name

_COMMANDS: Mapping[Kind, tuple[str, str]] = {  # of the CLI: what sends it, and what a reset calls it
    Kind.SIGNAL: ("signal", "Signal"),
    Kind.UPDATE: ("update execute", "Update"),
}
_ANSWER_FIELD = re.compile(r"\{\{\s*answer\.([A-Za-z_][A-Za-z0-9_]*)\s*\}\}")
_WRONG_COUNT = re.compile(
    r"(?P<handler>[\w.<>]+)\(\) (missing \d+ required positional arguments?: .+"
    r"|takes (from \d+ to )?\d+ positional arguments? but \d+ (was|were) given)"
)
_FRAME = re.compile(r'^\s*File "([^"]+)"', re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One way to answer as a gate writes it."""

    gate: str
    part: str  # send or decline
    word: Word
    args: Sequence[JSON]

    @property
    def where(self) -> str:
        """The setting in the tool."""
        return f"gates.{self.gate}.{self.part}.args"


def read_sent(gates: Mapping[str, Mapping[str, JSON]]) -> Sequence[Sent]:
    """What these gates send; what is not written as it should be is left out, and complained of elsewhere."""
    return [sent for gate, words in gates.items() for part in PARTS for sent in _sent(gate, part, words.get(part))]


def _sent(gate: str, part: str, written: JSON) -> Iterator[Sent]:
    found = mapping(written)
    args: JSON = found.get("args", [])
    for kind in Kind:
        name = found.get(kind)
        if isinstance(name, str) and isinstance(args, list):
            yield Sent(gate=gate, part=part, word=Word(kind=kind, name=name), args=cast("Sequence[JSON]", args))


# --- by the workflow's code


def misfits(reference: str, gates: Mapping[str, Mapping[str, JSON]]) -> Mapping[str, str]:
    """What the handlers of `module:WorkflowClass` do not take, by setting.

    Raises:
        ConfigError: the workflow cannot be imported.
    """
    definition = getattr(load_workflow(reference), "__temporal_workflow_definition", None)
    found: dict[str, str] = {}
    for sent in read_sent(gates):
        handlers = {Kind.SIGNAL: "signals", Kind.UPDATE: "updates"}[sent.word.kind]
        handler = getattr(definition, handlers, {}).get(sent.word.name)
        if handler is not None and (wrong := _misfit(sent, mapping(gates[sent.gate].get("ask")), handler)):
            found[f"{sent.gate}.{sent.part}.args"] = wrong
    return found


def _misfit(sent: Sent, ask: Mapping[str, JSON], handler: Any) -> str | None:  # Any: the SDK's private definition
    parameters = list(inspect.signature(handler.fn).parameters.values())[1 if handler.is_method else 0 :]
    if not parameters or any(each.kind is each.VAR_POSITIONAL for each in parameters):
        return None  # measured: a handler without parameters runs, whatever it is sent (SDK 1.35)
    positional = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    needed = [each for each in positional if each.default is each.empty]
    optional = _left_empty(sent.args, mapping(ask.get("schema")))
    given, takes = len(sent.args), _takes(len(needed), len(positional))
    named = f"{sent.word.kind} {sent.word.name} takes {takes} ({', '.join(each.name for each in positional)})"
    if not len(needed) <= given <= len(positional):
        return f"{named}, and this gives it {given}"
    if given - len(optional) < len(needed):
        return f"{named}, and {', '.join(optional)} is left out when the person leaves it empty: require it"
    return None


def _takes(least: int, most: int) -> str:
    return counted(most, "argument") if least == most else f"{least} to {counted(most, 'argument')}"


def _left_empty(args: Sequence[JSON], schema: Mapping[str, JSON]) -> Sequence[str]:
    """The fields of the answer at the end of a list that the person may leave empty."""
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
    """Whether gates send as many arguments as the workflow was sent lately; nothing if that is not known."""
    sent = read_sent(gates)
    if not sent:
        return []
    try:
        async with frontend.call():
            counts = await _counts(frontend, workflow, queue, frozenset(each.word for each in sent))
    except EngineError:
        return []  # the other checks say so
    return [_finding(each, counts[each.word]) for each in sent if not _fits(len(each.args), counts[each.word])]


def _fits(given: int, counts: Sequence[int]) -> bool:
    return not counts or min(counts) <= given <= max(counts)


def _finding(sent: Sent, counts: Sequence[int]) -> Finding:
    lately = " or ".join(str(count) for count in sorted(set(counts)))
    text = f"{sent.where}: {sent.word.kind} {sent.word.name} lately came with {lately}, and this gives it"
    hint = (
        f"give {sent.where} as many as the handler takes, null where there is nothing to say: a Python workflow fails"
    )
    return Finding(ok=False, text=f"{text} {counted(len(sent.args), 'argument')}", hint=f"{hint} with any other number")


async def _counts(
    frontend: Frontend, workflow: str, queue: str | None, words: frozenset[Word]
) -> Mapping[Word, Sequence[int]]:
    """The numbers of arguments of what came under these names and was handled, newest first."""
    counts: dict[Word, list[int]] = {word: [] for word in words}
    query = f"WorkflowType = {quoted(workflow)}"
    rows = [row async for row in listed(frontend, query, page=2 * EXECUTIONS, pages=1)]
    rows.sort(key=lambda row: (row.task_queue == queue, row.start_time.ToNanoseconds()), reverse=True)
    for row in rows[:EXECUTIONS]:
        tail = await read_tail(frontend, row.execution)
        for event in _handled(tail):
            word, count = _word(event)
            if word in counts:
                counts[word].append(count)
        if all(len(found) >= ENOUGH for found in counts.values()):
            break
    return counts


def _handled(tail: Tail) -> Iterator[HistoryEvent]:
    """The signals and updates that a workflow task has taken; one that breaks it proves nothing."""
    completed = tail.newest(TASK_COMPLETED)
    for event in tail.events:
        kind = event.WhichOneof("attributes")
        if kind == UPDATE_ACCEPTED or (kind == SIGNALED and completed and event.event_id < completed.event_id):
            yield event


def _word(event: HistoryEvent) -> tuple[Word, int]:
    if event.WhichOneof("attributes") == SIGNALED:
        signaled = event.workflow_execution_signaled_event_attributes
        return Word(kind=Kind.SIGNAL, name=signaled.signal_name), len(signaled.input.payloads)
    given = event.workflow_execution_update_accepted_event_attributes.accepted_request.input
    return Word(kind=Kind.UPDATE, name=given.name), len(given.args.payloads)


# --- by a workflow task that fails


async def argument_trouble(
    frontend: Frontend, gates: Mapping[str, Gate], found: Described, tail: Tail
) -> Trouble | None:
    """The gate whose signal or update a handler cannot take, if that is why the workflow task fails."""
    failed, completed = tail.newest(TASK_FAILED), tail.newest(TASK_COMPLETED)
    if found.pending_workflow_task.attempt < FAILING_FROM or failed is None or completed is None:
        return None
    if failed.event_id < completed.event_id:
        return None
    failure = FailureMessage()
    failure.CopyFrom(failed.workflow_task_failed_event_attributes.failure)
    workflow_id = found.workflow_execution_info.execution.workflow_id
    await decode_failure(frontend.converter(workflow_id), failure)  # in place
    wrong = _WRONG_COUNT.fullmatch(failure.message)
    if failure.application_failure_info.type != TypeError.__name__ or wrong is None or not _by_the_sdk(failure):
        return None
    blamed = _blamed(gates, found, tail, completed.event_id, wrong["handler"].rpartition(".")[2])
    if blamed is None:
        return None
    sent, given = blamed
    with_what = "" if given is None else f" with {counted(given, 'argument')}"
    text = (
        f"{sent.where}: gate {sent.gate} sent {sent.word.kind} {sent.word.name}{with_what}, which its handler does not"
    )
    its_self = " (self is one of them)" if " takes " in failure.message else ""
    advice = _advice(sent, workflow_id, frontend.place, completed.event_id)
    return Trouble(text=f"{text} take: {failure.message}{its_self}", advice=advice)


def _advice(sent: Sent, workflow_id: str, place: Place, completed: int) -> str:
    """How to get the execution going again: a reset that leaves out what was sent, and the answer by hand."""
    again, kind = _COMMANDS[sent.word.kind]
    named = ("--workflow-id", workflow_id)
    since = ("--event-id", str(completed), "--reapply-exclude", kind, "--reason", "wrong-arguments")
    reset = command(place, "workflow", "reset", *named, *since)
    answer = command(place, "workflow", *again.split(), *named, "--name", sent.word.name)
    lost = f"other {sent.word.kind}s since event {completed} are taken back too, and steps begun since then run again"
    return (
        f"correct {sent.where} for tasks to come; take back what was sent: {reset} ({lost}); then send the answer "
        f"yourself, as this task keeps the gate it started with: {answer}, with one --input, in JSON, for each argument"
    )


def _by_the_sdk(failure: FailureMessage) -> bool:
    """Whether the SDK called what could not be called, and not the workflow's own code."""
    frames = _FRAME.findall(failure.stack_trace)
    return bool(frames) and "temporalio" in re.split(r"[/\\]", frames[-1])


def _blamed(
    gates: Mapping[str, Gate], found: Described, tail: Tail, completed: int, handler: str
) -> tuple[Sent, int | None] | None:
    """What a gate sent after the last completed workflow task, and with how many arguments if the history says so.

    An update that breaks its workflow task is in no history: there it is told by the name of its handler.
    """
    sent = read_sent({name: {"send": gate.send, "decline": gate.decline} for name, gate in gates.items()})
    fresh = [event for event in reversed(tail.events) if event.event_id > completed]
    signals = [(each, _word(event)[1]) for event in fresh for each in _ours(sent, found, event)]
    updates = [(each, None) for each in sent if each.word.kind is Kind.UPDATE and each.word.name == handler]
    named = [(each, given) for each, given in signals if each.word.name == handler]
    return next(iter((*named, *updates, *signals)), None)


def _ours(sent: Sequence[Sent], found: Described, event: HistoryEvent) -> Iterator[Sent]:
    """The gate that sent this signal: its request id is made of the key of a question."""
    if event.WhichOneof("attributes") != SIGNALED:
        return
    execution, first = found.workflow_execution_info.execution, found.workflow_execution_info.first_run_id
    signaled = event.workflow_execution_signaled_event_attributes
    for each in sent:
        if each.word == Word(kind=Kind.SIGNAL, name=signaled.signal_name):
            keys = (key_of(each.gate, opened, execution.run_id, first) for opened in range(1, event.event_id))
            if any(request_id(execution, key) == signaled.request_id for key in keys):
                yield each
