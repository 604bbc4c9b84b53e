"""The state of an execution: DescribeExecution, and for a running one its history; and a text about its end.

Histories are read incrementally: each poll reads only new events. A forgotten history is read again. Express executions
run within one call of at most 5 minutes, and cannot be looked up later. So the adapter keeps them in memory: a handle
is valid only in this process, and a start is made once.
Sources: https://docs.aws.amazon.com/step-functions/latest/apireference/API_DescribeExecution.html,
https://docs.aws.amazon.com/step-functions/latest/apireference/API_StartSyncExecution.html
"""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, cast
from urllib.parse import quote

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from mcp_workflows.adapter import TERMINAL, Execution, Failure, Gate, Ref, Status
from mcp_workflows.adapter.display_text import without_trace
from mcp_workflows.errors import EngineError, EngineRefused, EngineUnavailable
from mcp_workflows_stepfunctions.client import Client, ExpectedCodeError
from mcp_workflows_stepfunctions.definition import states
from mcp_workflows_stepfunctions.errors import DENIED, KMS_REFUSES
from mcp_workflows_stepfunctions.gates import needs_definition, problems, requests
from mcp_workflows_stepfunctions.history import History
from mcp_workflows_stepfunctions.settings import StepFunctionsOptions
from mcp_workflows_stepfunctions.start import StartRequest

CANCELLED: Final = "Mcp.Cancelled"  # the error of an execution that we stopped
PROTOCOL_ERROR: Final = "McpError"  # the error of a Fail state whose Cause is {"code", "message", "data"}

STATUSES: Final[Mapping[str, Status]] = {
    "RUNNING": Status.RUNNING,
    "PENDING_REDRIVE": Status.RUNNING,  # a child of a Map run, before it is redriven
    "SUCCEEDED": Status.SUCCEEDED,
    "FAILED": Status.FAILED,
    "TIMED_OUT": Status.FAILED,
    "ABORTED": Status.CANCELLED,
}


def running_execution(history: History, gates: Mapping[str, Gate]) -> Execution:
    """Return a running execution: its state, problems of its questions, and the questions that can be answered."""
    asked = requests(history, gates)
    parts = [text for text in (history.state, *problems(history, gates)) if text]
    status = Status.INPUT_REQUIRED if asked else Status.RUNNING
    return Execution(
        status=status,
        message="; ".join(parts) or None,
        progress=history.progress,
        requests=asked,
        steps=history.steps,
    )


def ended_execution(status: str, reply: Mapping[str, Any]) -> Execution:
    """Return an ended execution from the API's fields; `output`, `error` and `cause` may all be missing."""
    error, cause = (text if isinstance(text := reply.get(name), str) else None for name in ("error", "cause"))
    if STATUSES[status] is Status.CANCELLED:
        return Execution(status=Status.CANCELLED, message=describe_stop(error, cause))
    if STATUSES[status] is not Status.SUCCEEDED:
        return Execution(status=Status.FAILED, failure=read_failure(status, error, cause))
    output = reply.get("output")
    try:
        return Execution(status=Status.SUCCEEDED, output=json.loads(output) if isinstance(output, str) else output)
    except RecursionError:
        return _failed("the execution succeeded, but its output is nested too deeply", "UndecodableResult")
    except ValueError:
        return _failed("the execution succeeded, but its output is no JSON", "UndecodableResult")


def _failed(text: str, kind: str) -> Execution:
    return Execution(status=Status.FAILED, failure=Failure(text=text, kind=kind))


async def describe_execution(client: Client, reader: HistoryReader, console: Console, ref: Ref) -> Execution:
    """Describe an execution: one call if it has ended or its tool reads no history, otherwise two."""
    found = await client.call("describe_execution", executionArn=ref.handle)
    if STATUSES.get(found["status"]) in TERMINAL:
        reader.forget(ref.handle)
        seen = ended_execution(found["status"], found)
    elif not StepFunctionsOptions.read(ref.options).history:
        seen = Execution(status=Status.RUNNING)
    else:  # the next poll shows an end since the call above
        seen = running_execution(await reader.read(ref.handle, ref.gates), ref.gates)
    return replace(seen, execution_id=ref.handle, url=console.page(ref.handle))


_DOMAINS: Final[Mapping[str, str]] = {
    "aws": "console.aws.amazon.com",
    "aws-cn": "console.amazonaws.cn",
    "aws-us-gov": "console.amazonaws-us-gov.com",
    "aws-eusc": "console.amazonaws-eusc.eu",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Console:
    """The address of the AWS console of a Region; `root` is None for other engines and partitions without a console."""

    root: str | None
    region: str

    @classmethod
    def of_region(cls, partition: str, region: str, *, url: str | None, custom: bool) -> Console:
        """Return the configured console (`url`), or AWS's own unless the endpoint is custom."""
        domain = None if custom else _DOMAINS.get(partition)
        own = f"https://{region}.{domain}" if domain else None
        return cls(root=url.rstrip("/") if url else own, region=region)

    def page(self, execution: str) -> str | None:
        """Return the page of an execution ARN."""
        if self.root is None:
            return None
        return f"{self.root}/states/home?region={self.region}#/v2/executions/details/{quote(execution, safe=':')}"


TIMEOUT: Final = "States.Timeout"
TASK_FAILED: Final = "States.TaskFailed"  # carries no information

_Object = Mapping[str, Any]  # Any: JSON

_NOTHING_SAID: Final = "the execution failed without a reason"
_CHILD_STATUS: Final[Mapping[str, str]] = {
    "FAILED": "a child execution failed",
    "TIMED_OUT": "a child execution timed out",
    "ABORTED": "a child execution was stopped",
}
_MESSAGES: Final = ("errorMessage", "ErrorMessage", "message", "Message", "StatusReason", "StoppedReason", "Cause")
_LARGEST_CODE: Final = 2**31 - 1  # the largest integer that all clients can read
_DEEPEST: Final = 3  # causes in causes
_LONGEST: Final = 500  # characters of a JSON cause of unknown form


def read_failure(status: str, error: str | None, cause: str | None) -> Failure:
    """Return the failure of an execution with this status; error and cause may both be missing."""
    error = error or (TIMEOUT if status == "TIMED_OUT" else None)
    if error == PROTOCOL_ERROR and (details := _protocol_error(error, _object(cause))):
        return details
    return Failure(text=_words(error, cause) or _NOTHING_SAID, kind=error, details=_details(cause))


def describe_stop(error: str | None, cause: str | None) -> str:
    """Return the message for a stopped execution; error and cause may both be missing."""
    if error == CANCELLED:
        return _words(None, cause) or "cancelled"
    words = _words(error, cause)
    return f"aborted: {words}" if words else "aborted"


def _protocol_error(error: str, found: _Object | None) -> Failure | None:
    """Return the JSON-RPC error that a Fail state requests; without an integer code None, for an ordinary failure."""
    code = found.get("code") if found else None
    if found is None or not isinstance(code, int) or isinstance(code, bool) or abs(code) > _LARGEST_CODE:
        return None
    message = found.get("message")
    text = without_trace(message) if isinstance(message, str) else ""
    return Failure(text=text or error, kind=error, code=code, data=found.get("data"))


def _words(error: str | None, cause: str | None, depth: int = 0) -> str:
    """Return error and cause in one sentence, without repetition."""
    message = _cause(cause, depth)
    return message if error == TASK_FAILED and message else _joined(error, message)


def _joined(kind: object, message: str) -> str:
    if not isinstance(kind, str) or not kind or message == kind or message.startswith(f"{kind}:"):
        return message
    return f"{kind}: {message}" if message else kind


def _cause(cause: str | None, depth: int) -> str:
    """Return the message in a cause: plain text, or the JSON of services.

    Lambda's source: https://docs.aws.amazon.com/lambda/latest/dg/python-exceptions.html, the same in all runtimes.
    The cause of a failed child of `startExecution.sync` is the reply of DescribeExecution.
    """
    found = _object(cause)
    if found is None:
        return without_trace(cause or "")
    if "errorType" in found or "errorMessage" in found:
        message = found.get("errorMessage")
        return _joined(found.get("errorType"), without_trace(message) if isinstance(message, str) else "")
    if "ExecutionArn" in found and depth < _DEEPEST:
        what = _CHILD_STATUS.get(str(found.get("Status")), "a child execution did not succeed")
        error, inner = (text if isinstance(text := found.get(name), str) else None for name in ("Error", "Cause"))
        message = _words(error, inner, depth + 1)
        return f"{what}: {message}" if message else what
    texts = (found.get(name) for name in _MESSAGES)
    message = next((text for text in texts if isinstance(text, str) and text.strip()), None)
    if message:
        return without_trace(message)
    whole = json.dumps(found, ensure_ascii=False)
    return whole if len(whole) <= _LONGEST else f"{whole[:_LONGEST]}..."


def _details(cause: str | None, depth: int = 0) -> _Object | None:
    """Return a cause that is JSON, or that of a failed child execution.

    The reply of another service, whose names begin with capital letters, is omitted: it repeats the input of the
    service, including environment variables.
    """
    found = _object(cause) or {}
    if "ExecutionArn" in found and depth < _DEEPEST:
        return _details(inner if isinstance(inner := found.get("Cause"), str) else None, depth + 1)
    return found if found and not all(name[:1].isupper() for name in found) else None


def _object(text: str | None) -> _Object | None:
    if not text or not text.lstrip().startswith("{"):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return cast("_Object", found) if isinstance(found, dict) else None


KEPT_HISTORIES: Final = 5_000  # executions
_SMALL_PAGE, _LARGE_PAGE = 100, 1000  # events of one page
_FEED_SECONDS: Final = 0.01  # seconds
_LATE_EVENT_SECONDS: Final = 5.0  # seconds to wait for a missing event after its successor
_RETRY_SECONDS: Final = 60.0  # seconds
_NO_GATES: Final[Mapping[str, Gate]] = {}


class HistoryReader:
    """The histories read so far, by ARN."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._histories: OrderedDict[str, History] = OrderedDict()
        self._missing: dict[str, tuple[int, float]] = {}  # by ARN: the missing event, and when it was first missed
        self._located: dict[str, float] = {}  # by ARN: the time when its definition may be read again

    async def read(self, arn: str, gates: Mapping[str, Gate] = _NO_GATES) -> History:
        """Return the current history, and read the definition if these gates need it.

        Raises:
            ExecutionNotFound, EngineUnavailable: see `Adapter.describe`.
        """
        history = self._histories.setdefault(arn, History())
        self._histories.move_to_end(arn)
        while len(self._histories) > KEPT_HISTORIES:
            self.forget(next(iter(self._histories)))
        known = history.last_id
        await _feed(history, self._without_gaps(arn, known, await self._new_events(arn, known)))
        if history.token_places is None and needs_definition(history, gates):
            await self.locate(arn, history)
        return history

    async def locate(self, arn: str, history: History) -> None:
        """Read the token places from the definition of this execution, once; after a failure, again some time later.

        The machine may now have another definition; that of an execution does not change.
        """
        now = time.monotonic()
        if history.token_places is not None or now < self._located.get(arn, 0.0):
            return
        self._located[arn] = now + _RETRY_SECONDS
        try:
            found = await self._client.call(
                "describe_state_machine_for_execution", known=KMS_REFUSES | {DENIED}, executionArn=arn
            )
        except ExpectedCodeError as answered:
            denied = "may not be read (states:DescribeStateMachineForExecution)"
            history.unread = f"its definition {denied if answered.code == DENIED else 'is encrypted'}"
        except EngineError:
            history.unread = "its definition cannot be read now"
        else:
            history.unread = None
            there = states(str(found.get("definition", ""))).values()
            history.token_places = {state.name: state.token_places for state in there if state.waits_for_token}

    def forget(self, arn: str) -> None:
        """Forget an ended execution."""
        self._histories.pop(arn, None)
        self._missing.pop(arn, None)
        self._located.pop(arn, None)

    def _without_gaps(self, arn: str, known: int, events: Sequence[Any]) -> Sequence[Any]:  # Any: events of boto3
        """Return the events before the first missing id: branches write concurrently, and an event may be late."""
        missing = next((number for number, event in enumerate(events, known + 1) if event["id"] != number), None)
        if missing is None:
            self._missing.pop(arn, None)
            return events
        now = time.monotonic()
        before, since = self._missing.get(arn, (missing, now))
        self._missing[arn] = missing, (since if before == missing else now)
        return events if now - self._missing[arn][1] > _LATE_EVENT_SECONDS else events[: missing - known - 1]

    async def _new_events(self, arn: str, known: int) -> list[Any]:  # Any: events of boto3
        events: list[Any] = []
        page: dict[str, Any] = {
            "executionArn": arn,
            "reverseOrder": True,
            "maxResults": _SMALL_PAGE if known else _LARGE_PAGE,
        }
        while True:
            found = await self._client.call("get_execution_history", **page)
            fresh = [event for event in found["events"] if event["id"] > known]
            events += fresh
            if not found.get("nextToken") or len(fresh) < len(found["events"]):
                return sorted(
                    events, key=lambda event: event["id"]
                )  # AWS sorts by time, which several events may share
            page["nextToken"] = found["nextToken"]


async def _feed(history: History, events: Sequence[Any]) -> None:  # Any: events of boto3
    """Feed events to a history, and regularly yield to other tasks, as a long history takes time.

    Two tasks may feed one history: both feed in ascending id order, and the history skips known events.
    """
    began = time.monotonic()
    for event in events:
        history.feed((event,))
        if time.monotonic() - began > _FEED_SECONDS:
            await anyio.lowlevel.checkpoint()
            began = time.monotonic()


KEPT_EXPRESS: Final = 1_000  # ended executions; a waiting call polls within seconds
_PREFIX: Final = "express:"
_GRACE: Final = 10.0  # seconds between the end and the stored outcome


class ExpressExecutions:
    """The Express executions that this process started."""

    def __init__(self, client: Client, group: TaskGroup) -> None:
        self._client = client
        self._group = group
        self._executions: OrderedDict[str, Execution] = OrderedDict()

    def start(self, request: StartRequest, time_limit: timedelta) -> str:
        """Start an execution, and return its handle, from which another process can read only the start time."""
        handle = f"{_PREFIX}{time.time():.0f}:{request.name}"
        self._executions[handle] = Execution(status=Status.RUNNING, execution_id=request.name)
        self._group.start_soon(self._run, handle, request, time_limit.total_seconds())
        return handle

    def describe(self, ref: Ref) -> Execution:
        """Return the known state of an execution.

        Raises:
            EngineUnavailable: another process started it, and may still wait for it.
        """
        found = self._executions.get(ref.handle)
        if found is not None:
            return found
        time_limit = StepFunctionsOptions.read(ref.options).express_timeout.total_seconds()
        began, _, _ = ref.handle.removeprefix(_PREFIX).partition(":")
        if time.time() < (float(began) if began.isdigit() else 0.0) + time_limit + _GRACE:
            text = "only the process that started an Express execution hears how it ends"
            raise EngineUnavailable(text, silent=False)
        text = "its outcome is not known, and it is not started again: the process that waited for it is gone"
        return _failed(text, "OutcomeUnknown")

    async def _run(self, handle: str, request: StartRequest, time_limit: float) -> None:
        """Run an execution to its end; a started call is never stopped."""
        seen = _failed(f"it did not end within {time_limit:g} s, and may still go on", "States.Timeout")
        with anyio.move_on_after(time_limit):
            try:
                reply = await self._client.run_sync(caller=request.caller, **request.params)
                seen = replace(ended_execution(reply["status"], reply), execution_id=str(reply["executionArn"]))
            except EngineRefused as error:
                seen = _failed(f"Step Functions refused to run it: {error}", "Refused")
            except EngineError as error:
                seen = _failed(f"its outcome is not known, and it is not started again: {error}", "OutcomeUnknown")
        self._executions[handle] = seen
        self._executions.move_to_end(handle)
        ended = [handle for handle, seen in self._executions.items() if seen.terminal]
        for handle in ended[: max(0, len(ended) - KEPT_EXPRESS)]:
            del self._executions[handle]


def is_express(handle: str) -> bool:
    """Return True for the handle of an Express execution."""
    return handle.startswith(_PREFIX)
