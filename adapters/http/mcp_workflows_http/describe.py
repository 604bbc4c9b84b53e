"""The state of executions: of one by its own requests, of many by the lists of running ones."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Final

from mcp_workflows.adapter import JSON, Execution, Failure, Status
from mcp_workflows.adapter.redaction import mask
from mcp_workflows.errors import (
    EngineError,
    EngineRefused,
    EngineUnavailable,
    ExecutionNotFound,
    MappingError,
    ResultUnavailable,
)
from mcp_workflows.kit.bulk_status import ListEntry, Listings, RunningNames
from mcp_workflows.kit.definition import word_of
from mcp_workflows.kit.expressions import Scope, as_list, as_object, lenient
from mcp_workflows.kit.reply_reader import (
    AskedQuestion,
    entry_of,
    execution_of,
    is_empty,
    open_questions,
    reading_result,
    status_of,
    text_of,
    with_questions,
)
from mcp_workflows_http.client import ApiClient
from mcp_workflows_http.definition import ApiDefinition, Ask, BatchStatus, DescribeRequest, Log, More
from mcp_workflows_http.errors import describe_error, said
from mcp_workflows_http.handle import Handle, run_of
from mcp_workflows_http.reply import Reply, retry_after
from mcp_workflows_http.settings import HttpSettings

_PLACE_IN_CODE: Final = re.compile(r'Traceback \(most recent call last\)|(^|\s)File "[^"]*", line \d+|^\s+at \S+ ?\(')
_LONGEST_LINE: Final = 2000  # characters of a log line
_MOST_ITEMS: Final = 100  # further requests for the items of one list
_LONGEST_TAIL: Final = 4000  # characters of a log in a failure
_LONGEST_WAIT: Final = 60.0  # maximum `Retry-After` before the next poll, in seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The state of an execution, and the scope of expressions at that point."""

    execution: Execution
    scope: Scope
    reply: Reply
    questions: Mapping[str, AskedQuestion[Ask]] = field(default_factory=dict[str, AskedQuestion[Ask]])
    unmapped: str | None = None  # the status word, if no map contains it
    wait: float = 0.0  # seconds until the API accepts the next poll


async def describe(
    client: ApiClient,
    definition: ApiDefinition,
    handle: Handle,
    options: Mapping[str, JSON],
    *,
    with_log: bool = True,
) -> Observation:
    """Describe an execution with all requests of the definition. `with_log`: a failure includes the end of the log.

    Raises:
        ExecutionNotFound: it does not exist, and is old enough to be visible.
        EngineUnavailable: no answer.
    """
    how, scope = definition.describe, handle.scope(options)
    kept = as_object(handle.reply)
    if kept is None:
        reply = await client.read(how.request, scope)
    else:
        reply = Reply(status=kept["status"], headers={}, content=str(kept["body"]).encode())
    scope |= {"reply": reply.as_json(), "more": {}}
    scope |= {"entry": lenient(partial(entry_of, how, scope))}
    if how.needs_more_for_status and reply.ok:
        scope = await _with_more(client, how, scope)
    if reply.status in how.gone and not reply.is_json and "gone" not in how.model_fields_set:
        raise EngineUnavailable(f"it answered {reply.status} with a page that is not JSON", silent=False)
    is_gone = how.gone_if is not None and bool(lenient(partial(scope.is_true, how.gone_if)))
    if is_gone or (reply.status in how.gone and reply.status not in how.codes):
        settling = definition.settling.total_seconds()
        if not handle.is_younger_than(settling, datetime.now(UTC)):
            raise ExecutionNotFound(said(reply))
        seen = Execution(status=Status.RUNNING, message="the API does not show it yet", execution_id=handle.name)
        return Observation(execution=seen, scope=scope, reply=reply)
    if not reply.ok and reply.status not in how.codes:
        raise describe_error(reply)
    status, strange = _status(how, reply, scope)
    scope |= {"status": status.value}
    failed: list[Reply] = []
    if not how.needs_more_for_status:
        with reading_result(status):
            scope = await _with_more(client, how, scope, failed)
    execution = execution_of(how, status, strange, scope, name=handle.name, has_log=how.log is not None)
    if failed and execution.status is Status.SUCCEEDED and is_empty(execution.output):
        raise ResultUnavailable(str(describe_error(failed[0])))
    if execution.failure is not None and how.log is not None and with_log:
        lines = (await log_end(client, how.log, scope)).splitlines()[-how.log.lines :]
        tail = "\n".join(lines)[-_LONGEST_TAIL:]
        execution = replace(execution, failure=Failure(text=f"{execution.failure.text}\n{tail}".strip()))
    questions = open_questions(definition.asks, execution, scope, definition.settling)
    execution = with_questions(execution, questions)
    wait = min(retry_after(reply, time.time()) or 0.0, _LONGEST_WAIT)
    return Observation(execution=execution, scope=scope, reply=reply, questions=questions, unmapped=strange, wait=wait)


def message_outcome(handle: Handle) -> Execution:
    """Return the outcome of a message, which is in its handle.

    Raises:
        ExecutionNotFound: the handle is of an execution.
    """
    result = as_object(handle.reply)
    if handle.definition or result is None:
        raise ExecutionNotFound("this is no handle of a message")
    if (text := result.get("failure")) is not None:
        failure = Failure(text=text, kind="UndecodableResult")
        return Execution(status=Status.FAILED, execution_id=handle.name, failure=failure)
    return Execution(status=Status.SUCCEEDED, execution_id=handle.name, output=result["output"])


def _status(how: DescribeRequest, reply: Reply, scope: Scope) -> tuple[Status, str | None]:
    """Return the status, and the status word if no map contains it; an unknown word counts as running.

    Raises:
        EngineUnavailable: the reply has no status.
    """
    written = how.codes.get(reply.status, how.status)
    if written is None:
        raise describe_error(reply)
    if "{{" not in written:
        return Status(written), None
    try:
        return status_of(how, written, scope)
    except EngineUnavailable:
        if reply.body is not None:
            raise
        text = f"it answered {reply.status} with no JSON, so that its status is not known"
        raise EngineUnavailable(text, silent=False) from None


async def _with_more(client: ApiClient, how: DescribeRequest, scope: Scope, failed: list[Reply] | None = None) -> Scope:
    """Send the further requests that are due; if one is refused, the state of the execution stays as read.

    Replies that are refusals or not JSON are added to `failed`.
    """
    failed = [] if failed is None else failed
    more: dict[str, JSON] = {}
    for name, each in how.more.items():
        if each.each is not None:
            listed = (as_list(lenient(partial(scope.value, each.each))) or ())[:_MOST_ITEMS]
            found = [await _one_more(client, how, each, scope | {"item": item}, failed) for item in listed]
            more = {**more, name: [reply for reply in found if reply is not None]}
        else:
            more = {**more, name: await _one_more(client, how, each, scope, failed)}
        scope |= {"more": more}
    return scope


async def _one_more(client: ApiClient, how: DescribeRequest, further: More, scope: Scope, failed: list[Reply]) -> JSON:
    """Send a further request if it is due; return its reply, or None."""
    if further.when is not None and not lenient(partial(scope.is_true, further.when)):
        return None
    reply = await client.read(further.request, scope)
    has_result = how.needs_more_for_output and scope.names.get("status") == Status.SUCCEEDED
    unknown = how.needs_more_for_status or (has_result and (reply.is_unauthorized or reply.is_server_error))
    if reply.is_throttled or (unknown and not reply.ok and reply.status not in how.gone):
        raise describe_error(reply)
    if not reply.ok or not reply.is_json:
        failed.append(reply)
    return reply.as_json() if reply.ok else None


async def log_end(client: ApiClient, log: Log, scope: Scope) -> str:
    """Return the end of the log, or an empty text if it cannot be read: the failure is known without it."""
    try:
        reply = await client.log(log.request, scope, log.follow)
        text = reply.text if log.text is None else (scope | {"reply": reply.as_json()}).text(log.text)
    except (EngineError, MappingError):
        return ""
    if not reply.ok:
        return ""
    written = text.splitlines() if log.line is None else _json_lines(text, log.line, scope)
    return mask("\n".join(_without_stack_traces(written)))


def _json_lines(text: str, line: str, scope: Scope) -> Iterator[str]:
    """Yield the texts of a log with JSON lines; the first line may be cut."""
    for each in text.split("\n"):
        try:
            item: JSON = json.loads(each)
        except ValueError:
            continue
        yield from (text_of(line, scope | {"item": item}) or "").splitlines()


def _without_stack_traces(lines: Iterable[str]) -> Sequence[str]:
    """Return the lines without stack traces, which help only the authors of the workflow."""
    found: list[str] = []
    is_code = False  # this line follows the place in a Python stack trace
    for line in (each[:_LONGEST_LINE] for each in lines):
        is_place = _PLACE_IN_CODE.search(line) is not None
        if line.strip() and not is_place and not is_code:
            found.append(line.rstrip())
        is_code = is_place and "File " in line
    return found


def listings(
    client: ApiClient, settings: HttpSettings, batch_status: BatchStatus, calls_per_second: Callable[[], float]
) -> Listings:
    """Return the lists of running executions by workflow; `calls_per_second` is their share of the rate limit."""

    async def lister(workflow: str) -> RunningNames:
        scope = Scope(names={"workflow": workflow, "vars": settings.vars, "options": {}})
        names, asking, calls = set[str](), dict[str, str](), 0
        try:
            for value in batch_status.values or (None,):
                async for page in client.pages(batch_status, scope | {"value": value}):
                    calls += 1
                    for each in (scope | {"item": item} for item in page):
                        asks = None if batch_status.asking is None else each.value(batch_status.asking)
                        name = Handle.name_of(run_of(each.value(batch_status.handle)))
                        if isinstance(asks, str) and asks:
                            asking[name] = asks
                        if not asks and _runs(settings, batch_status, each):
                            names.add(name)
        except MappingError as error:
            raise EngineRefused(f"its list cannot be read: {error}") from None
        except EngineUnavailable as error:
            if error.silent or error.throttled:
                raise
            raise EngineRefused(str(error)) from None  # only of this workflow
        return RunningNames(names=names | asking.keys(), calls=calls, asking=asking)

    return Listings(lister, _entry, calls_per_second)


def _entry(handle: str) -> ListEntry | None:
    try:
        found = Handle.parse(handle)
    except ExecutionNotFound:
        return None
    return ListEntry(workflow=found.workflow, name=found.name)


def _runs(settings: HttpSettings, batch_status: BatchStatus, scope: Scope) -> bool:
    """Return True if an item of the list still runs; an unmapped word counts as running."""
    if batch_status.status is None:
        return True
    return settings.describe.map.status(word_of(scope.value(batch_status.status))) in {None, Status.RUNNING}
