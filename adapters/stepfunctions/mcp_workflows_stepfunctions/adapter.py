"""StepFunctionsAdapter: the four verbs, for AWS Step Functions in one account and Region.

Sources: https://docs.aws.amazon.com/step-functions/latest/apireference/API_SendTaskSuccess.html, API_StopExecution.html
and API_ListExecutions.html.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, ClassVar, Final, Self
from urllib.parse import urlsplit

import anyio
from pydantic import BaseModel

from mcp_workflows.adapter import (
    JSON,
    Adapter,
    Allowance,
    EndedExecution,
    Execution,
    Ref,
    Start,
    StartGuarantee,
)
from mcp_workflows.errors import EngineRefused
from mcp_workflows.kit.bulk_status import PAGE, ListEntry, ListingRefusedError, Listings, RunningNames
from mcp_workflows_stepfunctions.arns import ExecutionArn, Machine
from mcp_workflows_stepfunctions.client import Client, ExpectedCodeError, open_client
from mcp_workflows_stepfunctions.describe import (
    CANCELLED,
    Console,
    ExpressExecutions,
    HistoryReader,
    describe_execution,
    is_express,
)
from mcp_workflows_stepfunctions.errors import DENIED, KMS_REFUSES
from mcp_workflows_stepfunctions.gates import AnswerCall, GateSettings, answer_calls
from mcp_workflows_stepfunctions.hints import receive_hints
from mcp_workflows_stepfunctions.settings import StepFunctionsOptions, StepFunctionsSettings
from mcp_workflows_stepfunctions.start import Machines, read_input, start_execution, start_request
from mcp_workflows_stepfunctions.tooling import NO_ROLE, Parts, StepFunctionsTooling
from mcp_workflows_stepfunctions.tooling.discover import TaggedMachines, adopt, list_ended, same_workflow

CANCELLED_BY_US: Final = "cancelled through mcp-workflows"
MAX_CAUSE: Final = 32_768  # characters, of StopExecution
_ANSWERED: Final = "TaskTimedOut"  # AWS knows the token; its task was answered, timed out or was stopped
_CLOSED: Final = frozenset({_ANSWERED, "TaskDoesNotExist", "InvalidToken"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opened:
    """The parts of an entered adapter; all except the Express executions can be lost at any time."""

    client: Client
    machines: Machines
    reader: HistoryReader
    listings: Listings
    express: ExpressExecutions
    console: Console


class StepFunctionsAdapter(Adapter):
    """State machines of AWS Step Functions as workflows.

    It has the capabilities of `mcp_workflows.adapter` that Step Functions supports.
    """

    Settings: ClassVar[type[BaseModel]] = StepFunctionsSettings
    Options: ClassVar[type[BaseModel]] = StepFunctionsOptions
    GateSettings: ClassVar[type[BaseModel] | None] = GateSettings
    starts: ClassVar[StartGuarantee] = StartGuarantee.KEYED
    start_options: ClassVar[frozenset[str]] = frozenset({"express", "timeout"})
    cancels_at_once: ClassVar[bool] = True
    tooling: Any = StepFunctionsTooling  # Any: see `Adapter.tooling`

    def __init__(self, settings: StepFunctionsSettings) -> None:
        self._settings = settings
        self._stack = AsyncExitStack()
        self._entered: _Opened | None = None
        self.tooling = StepFunctionsTooling(settings)

    @property
    def identity(self) -> str:
        """The account and Region, without a call; see `Adapter.identity`.

        The profile replaces an account that no setting names; the host of a custom endpoint replaces both.
        """
        settings, client = self._settings, self._opened.client
        account = settings.known_account or settings.profile or os.environ.get("AWS_PROFILE", "default")
        where = urlsplit(client.endpoint).hostname if client.endpoint_is_custom else account
        return f"stepfunctions:{where}/{client.region}"

    async def __aenter__(self) -> Self:
        """Create all clients, which needs neither the engine nor valid credentials.

        Raises:
            ConfigError: there is no Region, or the profile does not exist.
        """
        settings = self._settings
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(open_client(settings))
            group = await stack.enter_async_context(anyio.create_task_group())
            stack.callback(group.cancel_scope.cancel)
            machines, reader = Machines(client, settings.known_account), HistoryReader(client)
            self._entered = _Opened(
                client=client,
                machines=machines,
                reader=reader,
                listings=listings(client),
                express=ExpressExecutions(client, group),
                console=Console.of_region(
                    client.partition, client.region, url=settings.console_url, custom=client.endpoint_is_custom
                ),
            )
            tagged = TaggedMachines(client, settings.discover)
            self.tooling.parts = Parts(
                client=client, machines=machines, reader=reader, tagged=tagged, describe=self.describe
            )
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the clients. Running Express executions continue on AWS, and their outcome is lost."""
        self._entered = self.tooling.parts = None
        await self._stack.aclose()

    async def start(self, start: Start) -> str:
        """Call StartExecution with a name derived from the key, and return the execution's ARN; see `Adapter.start`."""
        opened, options = self._opened, StepFunctionsOptions.read(start.options)
        text = read_input(start.arguments)  # an invalid input is refused before any call
        caller = self._caller(options)
        machine = await opened.machines.find_startable(start.workflow, express=options.express)
        request = start_request(start, machine, text, caller)
        if options.express:
            return opened.express.start(request, options.express_timeout)
        arn = await start_execution(opened.client, request)
        opened.listings.note_running(arn)
        return arn

    async def describe(self, ref: Ref) -> Execution:
        """Call DescribeExecution, and for a running execution GetExecutionHistory; see `Adapter.describe`."""
        opened = self._opened
        if is_express(ref.handle):
            return opened.express.describe(ref)
        return await describe_execution(opened.client, opened.reader, opened.console, ref)

    async def answer(self, ref: Ref, responses: Mapping[str, JSON]) -> None:
        """Send answers with the task tokens in the history; answers to questions that are not open are ignored.

        Raises:
            EngineRefused: an answer is too large, or the engine does not know the token of an open question.
        """
        opened = self._opened
        if is_express(ref.handle):
            opened.express.describe(ref)  # it asks no questions
            return
        for delivery in answer_calls(await opened.reader.read(ref.handle, ref.gates), ref.gates, responses):
            if await _send(opened.client, delivery):
                continue
            history = await opened.reader.read(ref.handle, ref.gates)  # the wait may have ended meanwhile
            waiting = history.waiting.get(int(delivery.key))
            if waiting is not None and not history.ended:
                raise EngineRefused(
                    f"Step Functions does not know the task token that was found in state {waiting.state}: "
                    "check where the state puts it (for a gate: when.token)"
                )

    async def cancel(self, ref: Ref) -> None:
        """Call StopExecution, which takes effect immediately; an Express execution cannot be stopped."""
        if is_express(ref.handle):
            self._opened.express.describe(ref)
        else:
            await self._stop(ref, CANCELLED_BY_US)

    async def terminate(self, ref: Ref, reason: str) -> None:
        """Cancel with another reason, as Step Functions has only one way to stop; see `Terminates.terminate`."""
        if is_express(ref.handle):
            raise EngineRefused("an Express execution cannot be stopped: it ends within 5 minutes")
        await self._stop(ref, reason)

    async def _stop(self, ref: Ref, reason: str) -> None:
        """Stop an execution in any state; an ended one does not change.

        The reason of an encrypted execution is also encrypted. Without permission for that, none is sent.
        """
        client, caller = self._opened.client, StepFunctionsOptions.read(ref.options).caller
        why = {"error": CANCELLED, "cause": reason[:MAX_CAUSE]}
        try:
            await client.call("stop_execution", known=KMS_REFUSES, caller=caller, executionArn=ref.handle, **why)
        except ExpectedCodeError:
            await client.call("stop_execution", caller=caller, executionArn=ref.handle)

    async def adopt(self, execution_id: str) -> Ref:
        """Return the execution with this ARN; see `Adopts.adopt`."""
        return await adopt(self._opened.client, execution_id)

    async def list_ended(self, workflow: str, since: datetime) -> Sequence[EndedExecution]:
        """Call ListExecutions once per 1,000 later executions; see `ListsEnded.list_ended`."""
        opened = self._opened
        return await list_ended(opened.client, await opened.machines.find(workflow), since)

    @staticmethod
    def same_workflow(written: str, found: str) -> bool:
        """Return True if the machine that `adopt` found is the one that a tool names, by ARN or by name."""
        return same_workflow(written, found)

    @staticmethod
    def fleeting(options: Mapping[str, JSON]) -> bool:
        """Return True for an Express state machine; see `Adapter.fleeting`."""
        return options.get("express") is True

    async def describe_many(self, refs: Sequence[Ref]) -> Mapping[str, Execution]:
        """Return those that still run, from ListExecutions; see `DescribesMany.describe_many`."""
        return await self._opened.listings.describe_many(refs)

    @property
    def allowance(self) -> Allowance:
        """Our share of the quotas; see `Limited.allowance`."""
        return self._opened.client.allowance

    async def hints(self, changed: Callable[[str], None]) -> None:
        """Report the executions that EventBridge events in the queue of `events` name; see `Hints.hints`."""
        await receive_hints(self._opened.client, self._settings, changed)

    def _caller(self, options: StepFunctionsOptions) -> str | None:
        """Return the source identity of a start.

        Raises:
            EngineRefused: there is no role whose session could have it.
        """
        if options.source_identity is not None and self._settings.assume_role is None:
            raise EngineRefused(NO_ROLE, final=True)
        return options.caller

    @property
    def _opened(self) -> _Opened:
        if self._entered is None:
            raise RuntimeError("enter the adapter first: async with StepFunctionsAdapter(settings) as adapter")
        return self._entered


async def _send(client: Client, delivery: AnswerCall) -> bool:
    """Make the call; return False if the engine does not know the token, or no longer."""
    try:
        await client.call(delivery.operation, known=_CLOSED, **delivery.params)
    except ExpectedCodeError as answered:
        return answered.code == _ANSWERED
    return True


def listings(client: Client) -> Listings:
    """Return the lists of running executions by state machine, for a cheap poll of many executions."""

    async def running(machine: str) -> RunningNames:
        params: dict[str, Any] = {"stateMachineArn": machine, "statusFilter": "RUNNING", "maxResults": PAGE}
        try:
            rows = await client.pages("list_executions", "executions", known={DENIED}, **params)
        except ExpectedCodeError:
            raise ListingRefusedError("states:ListExecutions is not allowed") from None
        return RunningNames.in_pages({str(row["executionArn"]) for row in rows})

    def listed(handle: str) -> ListEntry | None:
        try:
            found = ExecutionArn.parse(handle)
        except EngineRefused:
            return None
        if found.express or found.label:  # no list contains these
            return None
        return ListEntry(workflow=Machine(place=found.place, name=found.machine).arn, name=handle)

    return Listings(running, listed, lambda: client.refill("list_executions"))
