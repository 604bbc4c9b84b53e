"""The state machines that tools name, and their starts. The execution's name is the key, so AWS deduplicates.

Source: https://docs.aws.amazon.com/step-functions/latest/apireference/API_StartExecution.html
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast
from weakref import WeakValueDictionary

import anyio

from mcp_workflows.adapter import JSON, Start
from mcp_workflows.errors import EngineRefused, EngineUnavailable, StartConflict
from mcp_workflows_stepfunctions.arns import Machine, Place, is_machine_arn, machine_by_name, parse_machine
from mcp_workflows_stepfunctions.client import Client, ExpectedCodeError

EXPRESS: Final = "EXPRESS"
_UNKNOWN_ACCOUNT: Final = "ACCOUNT"
MAX_PAYLOAD: Final = 262_144  # bytes (UTF-8) of an input, an output, an answer
_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}")  # CloudWatch does not show names with other characters
_EXISTS = "ExecutionAlreadyExists"
_GONE = "ExecutionDoesNotExist"
_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


class Machines:
    """Machines by workflow. The type of each is requested once: it cannot change unless the machine is replaced."""

    def __init__(self, client: Client, account: str | None) -> None:
        self._client = client
        self._account = account
        self._types: dict[str, str] = {}  # by unqualified ARN
        self._locks: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()

    async def find(self, workflow: str) -> Machine:
        """Return the machine that a tool names by ARN, or by its name in the engine's account and Region.

        Raises:
            EngineRefused: the name is not valid, or the machine is in another Region or account.
            EngineUnavailable: the account cannot be determined now.
        """
        if is_machine_arn(workflow):
            return self._by_arn(workflow)
        return machine_by_name(workflow, await self._client.place())

    def find_offline(self, workflow: str) -> Machine:
        """Return the machine without any call; the account of a bare name may remain unknown.

        Raises:
            EngineRefused: see `find`.
        """
        if is_machine_arn(workflow):
            return self._by_arn(workflow)
        place = Place(
            partition=self._client.partition, region=self._client.region, account=self._account or _UNKNOWN_ACCOUNT
        )
        return machine_by_name(workflow, place)

    async def find_startable(self, workflow: str, *, express: bool) -> Machine:
        """Return the machine that a tool names, after a check of its type.

        Raises:
            EngineRefused: it does not exist, belongs to another place, or has the other type.
            EngineUnavailable: it cannot be described now; nothing was started.
        """
        try:
            machine = await self.find(workflow)
            await self.check_type(machine, express=express)
        except EngineUnavailable as error:
            raise EngineUnavailable(str(error), sent=False, throttled=error.throttled) from None
        return machine

    async def check_type(self, machine: Machine, *, express: bool) -> None:
        """Check that the machine has the type that its tool sets.

        Raises:
            EngineRefused: it has the other type, or does not exist.
            EngineUnavailable: no reply.
        """
        found = await self.machine_type(machine)
        if (found == EXPRESS) is express:
            return
        if express:
            raise EngineRefused(f"{machine.name} is a Standard state machine: leave out express: true", final=True)
        raise EngineRefused(
            f"{machine.name} is an Express state machine, whose executions can be no tasks: set express: true, "
            "or start it from a Standard one (see: docs/engines/stepfunctions.md#express)",
            final=True,
        )

    async def machine_type(self, machine: Machine) -> str:
        """Return STANDARD or EXPRESS, with one DescribeStateMachine per process."""
        arn = machine.unqualified
        async with self._locks.setdefault(arn, anyio.Lock()):
            if arn not in self._types:
                found = await self._client.call(
                    "describe_state_machine", stateMachineArn=arn, includedData="METADATA_ONLY"
                )
                self._types[arn] = str(found["type"])
        return self._types[arn]

    def forget(self, machine: Machine) -> None:
        """Request the type again next time: the machine may have been replaced."""
        self._types.pop(machine.unqualified, None)

    def _by_arn(self, arn: str) -> Machine:
        machine, client = parse_machine(arn), self._client
        place = machine.place
        if (place.region, place.partition) != (client.region, client.partition):
            where, ours, remedy = place.region, client.region, "give the other Region an engine of its own"
        elif self._account not in (None, place.account):
            where, ours = f"account {place.account}", self._account
            remedy = "give the other account an engine of its own, with assume_role"
        else:
            return machine
        text = f"the state machine is in {where}, this engine is set up for {ours}: {remedy}"
        raise EngineRefused(text, final=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRequest:
    """A start as an API call."""

    machine: Machine
    name: str
    input: str = field(repr=False)  # canonical JSON: a retry sends the same bytes
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
    """Return the key if it is a valid name, else a digest of it."""
    return key if _NAME.fullmatch(key) else f"mcp-{hashlib.sha256(key.encode()).hexdigest()}"


def read_input(arguments: JSON) -> str:
    """Return the input of an execution as canonical JSON.

    Raises:
        EngineRefused: there are several arguments, or the input is too large or cannot be written as JSON.
    """
    positional = cast("Sequence[JSON]", arguments) if isinstance(arguments, list) else [arguments]
    if len(positional) > 1:
        raise EngineRefused("a state machine takes one input: write args: [{...}], a list of one", final=True)
    return payload(positional[0] if positional else {}, "input", "pass a reference to it, such as an S3 key")


async def start_execution(client: Client, request: StartRequest) -> str:
    """Start the execution, or find the one that already has its name; return its ARN.

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
    """True if the input equals this text; values do not compare well: `true` equals 1 in Python. Any: a reply of
    boto3."""
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


def payload(value: JSON, what: str, if_larger: str) -> str:
    """Return the text to send. `what` names the value and `if_larger` is a remedy, both for messages.

    Raises:
        EngineRefused: it cannot be written as JSON, or is too large.
    """
    text = canonical(value, what)
    if (size := len(text.encode())) > MAX_PAYLOAD:
        message = f"the {what} is {size} bytes of JSON, Step Functions takes {MAX_PAYLOAD}: {if_larger}"
        raise EngineRefused(message, final=True)
    return text


def canonical(value: JSON, what: str) -> str:
    """Return a canonical text for a JSON value.

    Raises:
        EngineRefused: it contains NaN or half a surrogate pair.
    """
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        text.encode()
    except (ValueError, RecursionError):
        raise EngineRefused(f"the {what} cannot be written as JSON", final=True) from None
    return text
