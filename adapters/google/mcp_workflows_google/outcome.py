"""Results, errors and progress of executions, as texts for people.

A workflow may raise any text or map; Google's own errors are maps with `tags` and a `message`. HTTP headers and bodies
and the URLs of callbacks are omitted, as clients must not see them.

Source: https://cloud.google.com/workflows/docs/reference/syntax/error-types
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from mcp_workflows.adapter import JSON, Execution, ExecutionStep, Failure, Status
from mcp_workflows.adapter.redaction import mask
from mcp_workflows_google.resources import ExecutionResource, Step

PROTOCOL_ERROR: Final = "mcp_error"  # `raise: {mcp_error: {code, message, data}}`
_LARGEST_CODE: Final = 2**31 - 1  # the largest that all clients can read
_DEEPEST: Final = 4  # levels of nested errors: of a branch, of a child execution, a text that is JSON
_MESSAGES: Final = ("message", "error", "reason", "detail", "description")
_SECRET: Final = frozenset({"headers", "body", "auth", "authorization", "request", "response", "query"})

_Object = Mapping[str, Any]  # Any: JSON


LONGEST: Final = 500  # characters of a text of unknown content
_WORD: Final = re.compile(r"[^\s\"'<>]+")  # a word that may contain a URL; matching takes linear time
_CALLBACK: Final = re.compile(r"/executions/[^/]+/callbacks?/")


def redact(text: str | None) -> str:
    """Replace callback URLs and credentials in a text."""
    return mask(_WORD.sub(lambda word: "[callback URL]" if _CALLBACK.search(word[0]) else word[0], text or ""))


def redact_json(value: JSON) -> JSON:
    """Redact all texts and names in JSON."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {redact(name): redact_json(item) for name, item in cast("_Object", value).items()}
    if isinstance(value, list):
        return [redact_json(item) for item in cast("list[object]", value)]
    return value


def shorten(text: str) -> str:
    """Truncate a long text."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorText:
    """An error as text; `own` is true if the text is the workflow's own."""

    text: str = ""
    kind: str | None = None
    own: bool = True
    details: JSON = None  # its code and tags
    protocol: Failure | None = None  # the JSON-RPC error that the workflow requests


def read_payload(payload: str | None) -> ErrorText:
    """Read the payload of an error."""
    return ErrorText() if payload is None else _read_value(_read(payload), 0)


def _read(text: str) -> JSON:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _read_value(value: JSON, depth: int) -> ErrorText:
    if isinstance(value, str):
        inner = _read(value) if value.lstrip().startswith("{") and depth < _DEEPEST else None
        return _read_value(inner, depth + 1) if isinstance(inner, dict) else ErrorText(text=redact(value).strip())
    if not isinstance(value, dict):
        return ErrorText() if value is None else ErrorText(text=shorten(redact(_dump(value))))
    found = cast("_Object", value)
    if (protocol := _protocol(found.get(PROTOCOL_ERROR))) is not None:
        return ErrorText(protocol=protocol)
    nested = (_branches(found, depth) or _child(found, depth)) if depth < _DEEPEST else None
    return nested or _of_map(found)


def _protocol(found: JSON) -> Failure | None:
    """Return the JSON-RPC error that the workflow requests; None without an integer code."""
    if not isinstance(found, dict):
        return None
    error = cast("_Object", found)
    code, message = error.get("code"), error.get("message")
    if not isinstance(code, int) or isinstance(code, bool) or abs(code) > _LARGEST_CODE:
        return None
    text = redact(message).strip() if isinstance(message, str) else ""
    try:
        data = redact_json(error.get("data"))
    except RecursionError:
        data = None  # nested too deeply for any client
    return Failure(text=text or PROTOCOL_ERROR, kind=PROTOCOL_ERROR, code=code, data=data)


def _of_map(found: _Object) -> ErrorText:
    """Read the message and the code of a map; without a message, dump all fields that cannot contain secrets."""
    tags = _texts(found.get("tags"))
    kind, code = next((redact(shorten(tag)) for tag in tags), None), found.get("code")
    texts = (found.get(name) for name in _MESSAGES)
    text = next((redact(text).strip() for text in texts if isinstance(text, str) and text.strip()), "")
    if not text:
        left = _without_secrets(found)
        text = shorten(redact(_dump(left))) if left else ""
    words = _joined(kind, text, None if code == text else code)
    if kind is None and isinstance(code, str) and code:
        kind = redact(shorten(code))
    is_known = isinstance(code, int | str) and not isinstance(code, bool)
    details = {name: each for name, each in (("code", is_known and code), ("tags", [*tags])) if each}
    return ErrorText(text=words, kind=kind, own=not tags, details=redact_json(details) or None)


def _joined(kind: str | None, text: str, code: JSON) -> str:
    """Join kind, message and code, without repetitions."""
    words = text if not kind or text == kind or text.startswith(f"{kind}:") else f"{kind}: {text}" if text else kind
    known = isinstance(code, int | str) and not isinstance(code, bool) and str(code)
    return f"{words} (code {redact(shorten(str(code)))})" if known and words and str(code) not in words else words


def _without_secrets(value: JSON, depth: int = 0) -> JSON:
    if isinstance(value, dict):
        items = cast("_Object", value).items()
        kept = {name: item for name, item in items if str(name).lower() not in _SECRET | {"tags"}}
        return {name: _without_secrets(item, depth + 1) for name, item in kept.items()} if depth < _DEEPEST else {}
    if isinstance(value, list):
        return [_without_secrets(item, depth + 1) for item in cast("list[object]", value)] if depth < _DEEPEST else []
    return value


def _texts(value: JSON) -> Sequence[str]:
    return [each for each in cast("list[object]", value) if isinstance(each, str)] if isinstance(value, list) else ()


def _dump(value: JSON) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError):
        return ""


def _branches(found: _Object, depth: int) -> ErrorText | None:
    """Read an error of parallel branches.

    Source: https://cloud.google.com/workflows/docs/reference/syntax/parallel-steps, exceptions.
    """
    several = found.get("branches")
    every: Sequence[JSON] = cast("list[object]", several) if isinstance(several, list) else ()
    failed = [cast("_Object", each) for each in every if isinstance(each, dict)]
    if not failed or "UnhandledBranchError" not in _texts(found.get("tags")):
        return None
    more = {1: "", 2: ", and 1 more"}.get(len(failed), f", and {len(failed) - 1} more")
    return _inside(failed[0].get("error"), "a branch failed", more, depth)


def _child(found: _Object, depth: int) -> ErrorText | None:
    """Read an error of the connector `workflowexecutions.executions.run`, which contains the child execution."""
    child = found.get("operation")
    if not isinstance(child, dict) or "OperationError" not in _texts(found.get("tags")):
        return None
    return _inside(cast("_Object", child).get("error"), "a child execution failed", "", depth)


def _inside(error: JSON, what: str, more: str, depth: int) -> ErrorText | None:
    payload = cast("_Object", error).get("payload") if isinstance(error, dict) else None
    inner = _read_value(_read(payload) if isinstance(payload, str) else payload, depth + 1)
    if inner.protocol is not None:
        return inner
    return replace(inner, text=f"{what}: {inner.text}{more}") if inner.text else None


STATES: Final[Mapping[int, Status]] = {
    0: Status.RUNNING,  # STATE_UNSPECIFIED
    1: Status.RUNNING,  # ACTIVE
    2: Status.SUCCEEDED,
    3: Status.FAILED,
    4: Status.CANCELLED,
    5: Status.RUNNING,  # UNAVAILABLE: its data cannot be read now, and may be again
    6: Status.RUNNING,  # QUEUED
}
UNAVAILABLE: Final = 5
QUEUED: Final = 6
ELICIT_ROUTINE: Final = "mcp_elicit"  # our subworkflows, whose steps mean nothing to people
RETRY_ROUTINE: Final = "mcp_retry"
_OURS: Final[Mapping[str, str]] = {
    ELICIT_ROUTINE: "waiting for an answer",
    "mcp_claim": "claiming its key",
    RETRY_ROUTINE: "waiting for the MCP server",
}
_CALLING_US: Final = frozenset({"tell_question", "claim_key"})  # steps of ours that call the MCP server
_NOT_CALLED: Final[Mapping[str, str]] = {  # by the place of a final failure: the operation that failed
    'in step "not_told", routine "mcp_elicit"': "it could not ask the MCP server",
    'in step "claim_key", routine "mcp_claim"': "it could not claim its key at the MCP server",
}
_MOST_STEPS: Final = 4  # parallel branches to name
_NOTHING_SAID: Final = "the execution failed without a reason"
_CONTEXT: Final = re.compile(r'in step "(?P<step>[^"\n]{1,128})", routine "(?P<routine>[^"\n]{1,128})"')


def status_of(state: int) -> Status:
    """Return our status of one of Google's states; an unknown state counts as running."""
    return STATES.get(state, Status.RUNNING)


def ended_execution(resource: ExecutionResource) -> Execution:
    """Return the outcome of an ended execution, read with the view FULL."""
    match status_of(resource.state):
        case Status.SUCCEEDED:
            try:
                output = json.loads(resource.result) if resource.result else None  # the workflow returned nothing
            except (ValueError, RecursionError) as error:
                what = "is nested too deeply" if isinstance(error, RecursionError) else "is no JSON"
                why = Failure(text=f"the execution succeeded, but its result {what}", kind="UndecodableResult")
                return Execution(status=Status.FAILED, failure=why)
            return Execution(status=Status.SUCCEEDED, output=output)
        case Status.CANCELLED:
            reason = read_payload(resource.payload).text
            return Execution(status=Status.CANCELLED, message=f"cancelled: {reason}" if reason else "cancelled")
        case _:
            return Execution(status=Status.FAILED, failure=read_failure(resource.payload, resource.context))


def running_execution(resource: ExecutionResource) -> Execution:
    """Return the progress of a running execution: its step, or the reason why it does not run."""
    words = _STATE_WORDS.get(resource.state)
    if words is None and resource.state not in STATES:
        words = f"in a state that this version does not know ({resource.state})"
    if words is None:  # Google does not list ended steps
        own = dict.fromkeys(_name(each) for each in resource.steps if each.routine not in _OURS)
        steps = tuple(ExecutionStep(name=name, status=Status.RUNNING) for name in own)
        return Execution(status=Status.RUNNING, message=describe_steps(resource.steps), steps=steps)
    message = f"{words}: {shorten(redact(resource.state_error))}" if resource.state_error else words
    return Execution(status=Status.RUNNING, message=message)


_STATE_WORDS: Final[Mapping[int, str]] = {
    0: "in no state that Google tells",
    UNAVAILABLE: "its data cannot be read now",
    QUEUED: "queued (too many executions run at once)",
}


def describe_steps(steps: Sequence[Step]) -> str | None:
    """Return a short text with the current steps; those of `main` only by their names."""
    own = [each for each in steps if each.routine not in _OURS]
    if not own and steps:
        first = steps[0]
        return _OURS[RETRY_ROUTINE if first.routine == ELICIT_ROUTINE and calls_us(first) else first.routine]
    if not own:
        return None
    names = [*dict.fromkeys(_name(each) for each in own)]
    shown, more = names[:_MOST_STEPS], len(names) - _MOST_STEPS
    return shorten(", ".join(shown)) + (f" and {more} more" if more > 0 else "")


def _name(step: Step) -> str:
    return step.step if step.routine == "main" else f"{step.step} in {step.routine}"


def calls_us(step: Step) -> bool:
    """Return whether a step belongs to our subworkflows and calls the MCP server, or waits to do so again."""
    return step.routine == RETRY_ROUTINE or (step.routine in _OURS and step.step in _CALLING_US)


def read_failure(payload: str | None, context: str | None) -> Failure:
    """Return the reason of a failure, with the failed step unless the text is the workflow's own.

    Payload and context may be missing.
    """
    found, place = read_payload(payload), _CONTEXT.search(context or "")
    if found.protocol is not None:
        return found.protocol
    text = found.text or redact(shorten((context or "").strip().partition("\n")[0])) or _NOTHING_SAID
    if place is not None:
        where = f'in step "{place["step"]}", routine "{place["routine"]}"'
        if (what := _NOT_CALLED.get(where)) is not None:
            text = f"{what} ({text}): that server's log, or `mcp-workflows check`, says why"
        elif where not in text and not (found.own and found.text):
            text = f"{text} ({where})"
    step = _name(Step(**place.groupdict())) if place and place["routine"] not in _OURS else None
    return Failure(text=text, kind=found.kind, details=found.details, step=step)
