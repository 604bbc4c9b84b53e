"""Start once per key: the name of the execution is the key, so Step Functions dedupes.

Source: https://docs.aws.amazon.com/step-functions/latest/apireference/API_StartExecution.html
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from mcp_workflows.adapter import JSON, Start
from mcp_workflows.errors import EngineRefused, EngineUnavailable, StartConflict
from mcp_workflows_stepfunctions.arns import Machine
from mcp_workflows_stepfunctions.client import Client, ExpectedCodeError
from mcp_workflows_stepfunctions.payloads import canonical, payload

_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}")  # CloudWatch does not show names with other characters
_EXISTS = "ExecutionAlreadyExists"
_GONE = "ExecutionDoesNotExist"
_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRequest:
    """A start as a call of the API."""

    machine: Machine
    name: str
    input: str = field(repr=False)  # canonical JSON: a retry has the same bytes
    trace: str | None = None  # for AWS X-Ray
    caller: str | None = None  # the source identity

    @property
    def params(self) -> Mapping[str, str]:
        """The parameters of StartExecution."""
        found = {"stateMachineArn": self.machine.arn, "name": self.name, "input": self.input}
        return found if self.trace is None else {**found, "traceHeader": self.trace}


def start_request(start_execution: Start, machine: Machine, text: str, caller: str | None = None) -> StartRequest:
    """Return the request of a start; `text` is the result of `read_input`."""
    return StartRequest(
        machine=machine,
        name=execution_name(start_execution.key),
        input=text,
        trace=_xray(start_execution.context.get("traceparent")),
        caller=caller,
    )


def execution_name(key: str) -> str:
    """Return the key if it can be a name, or else a digest of it."""
    return key if _NAME.fullmatch(key) else f"mcp-{hashlib.sha256(key.encode()).hexdigest()}"


def read_input(arguments: JSON) -> str:
    """Return the input of an execution as canonical JSON.

    Raises:
        EngineRefused: there is more than one argument, or it cannot be written as JSON, or it is too large.
    """
    positional = cast("Sequence[JSON]", arguments) if isinstance(arguments, list) else [arguments]
    if len(positional) > 1:
        raise EngineRefused("a state machine takes one input: write send: {...} instead of a list in args", final=True)
    return payload(positional[0] if positional else {}, "input", "pass a reference to it, such as an S3 key")


async def start_execution(client: Client, request: StartRequest) -> str:
    """Start the execution, or find the one that has its name already, and return its ARN.

    Raises:
        StartConflict: the name belongs to an execution with another input.
        EngineRefused, EngineUnavailable: see `Adapter.start`.
    """
    try:
        reply = await client.call("start_execution", known={_EXISTS}, caller=request.caller, **request.params)
    except ExpectedCodeError:
        return await _existing(client, request)
    return str(reply["executionArn"])


async def _existing(client: Client, request: StartRequest) -> str:
    """Return the ARN of the execution that has the name, in any status, if it has our input."""
    arn = request.machine.execution(request.name)
    try:
        found = await client.call("describe_execution", known={_GONE}, executionArn=arn)
    except ExpectedCodeError:
        text = f"there is an execution named {request.name}, but it does not show yet"
        raise EngineUnavailable(text, silent=False) from None
    if not _same(found, request.input):
        raise StartConflict(f"execution {request.name} was started with another input")
    return str(found["executionArn"])


def _same(found: Mapping[str, Any], text: str) -> bool:
    """Return True if the input is this text; values would not do: `true` equals 1 in Python. Any: a reply of boto3."""
    given = found.get("input")
    try:
        return given is None or canonical(json.loads(given), "input") == text
    except (ValueError, EngineRefused):
        return False


def _xray(traceparent: str | None) -> str | None:
    """Return a W3C trace parent in the format of AWS X-Ray.

    Source: https://docs.aws.amazon.com/xray/latest/devguide/xray-concepts.html#xray-concepts-tracingheader
    """
    found = _TRACEPARENT.fullmatch(traceparent or "")
    if found is None:
        return None
    trace, parent, flags = found.groups()
    return f"Root=1-{trace[:8]}-{trace[8:]};Parent={parent};Sampled={int(flags, 16) & 1}"
