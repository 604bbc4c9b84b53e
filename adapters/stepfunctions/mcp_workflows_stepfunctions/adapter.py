"""StepFunctionsAdapter: the four verbs, in front of AWS Step Functions in one account and Region."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from types import TracebackType
from typing import ClassVar, Final, Self

import anyio
from pydantic import BaseModel

from mcp_workflows.adapter import (
    JSON,
    Allowance,
    Discovered,
    Execution,
    Explanation,
    Exposed,
    Finding,
    Gate,
    Ref,
    Replayed,
    Start,
    StartGuarantee,
    Use,
)
from mcp_workflows.adapter.bulk_status import Listings
from mcp_workflows.errors import EngineError, EngineRefused
from mcp_workflows_stepfunctions.adopting import adopt, same_workflow
from mcp_workflows_stepfunctions.answering import answer
from mcp_workflows_stepfunctions.calls import Calls, open_calls
from mcp_workflows_stepfunctions.checks import check_engine, check_machine
from mcp_workflows_stepfunctions.console import Console
from mcp_workflows_stepfunctions.discovering import discover
from mcp_workflows_stepfunctions.embedding import embedded_files
from mcp_workflows_stepfunctions.explaining import explain
from mcp_workflows_stepfunctions.exposing import Exposing
from mcp_workflows_stepfunctions.express import Expresses, is_express
from mcp_workflows_stepfunctions.gate_states import gate_states
from mcp_workflows_stepfunctions.gates import GateSettings
from mcp_workflows_stepfunctions.hints import hints
from mcp_workflows_stepfunctions.iam import permissions
from mcp_workflows_stepfunctions.looking import look
from mcp_workflows_stepfunctions.machines import Machines
from mcp_workflows_stepfunctions.names import CANCELLED
from mcp_workflows_stepfunctions.options import StepFunctionsOptions
from mcp_workflows_stepfunctions.preview import preview
from mcp_workflows_stepfunctions.reading import Histories
from mcp_workflows_stepfunctions.replaying import replay
from mcp_workflows_stepfunctions.settings import StepFunctionsSettings
from mcp_workflows_stepfunctions.starting import one_input, request
from mcp_workflows_stepfunctions.starting import start as start_execution
from mcp_workflows_stepfunctions.stopping import stop
from mcp_workflows_stepfunctions.sweeping import listings
from mcp_workflows_stepfunctions.verifying import verify

NO_ROLE: Final = "source_identity needs assume_role of the engine: a session of that role carries it"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opened:
    """What there is while the adapter is entered; nothing in it must be kept, but for Express executions."""

    calls: Calls
    machines: Machines
    histories: Histories
    listings: Listings
    expresses: Expresses
    console: Console
    exposing: Exposing


class StepFunctionsAdapter:
    """State machines of AWS Step Functions as workflows.

    Satisfies `Adapter`, and of `mcp_workflows.adapter` all that Step Functions is good at.
    """

    Settings: ClassVar[type[BaseModel]] = StepFunctionsSettings
    Options: ClassVar[type[BaseModel]] = StepFunctionsOptions
    GateSettings: ClassVar[type[BaseModel]] = GateSettings
    starts: ClassVar[StartGuarantee] = StartGuarantee.KEYED
    start_options: ClassVar[frozenset[str]] = frozenset({"express", "timeout"})
    first_settings: ClassVar[Mapping[str, str]] = {"region": ""}
    cancels_at_once: ClassVar[bool] = True  # see `capabilities.cancels_at_once`

    def __init__(self, settings: StepFunctionsSettings) -> None:
        self._settings = settings
        self._stack = AsyncExitStack()
        self._entered: _Opened | None = None

    async def __aenter__(self) -> Self:
        """Make all clients, which needs neither the engine nor credentials that work.

        Raises:
            ConfigError: no Region, or a profile that is not there.
        """
        settings = self._settings
        async with AsyncExitStack() as stack:
            calls = await stack.enter_async_context(open_calls(settings))
            group = await stack.enter_async_context(anyio.create_task_group())
            stack.callback(group.cancel_scope.cancel)
            self._entered = _Opened(
                calls=calls,
                machines=Machines(calls, settings.known_account),
                histories=Histories(calls),
                listings=listings(calls),
                expresses=Expresses(calls, group),
                console=Console.of(
                    calls.partition, calls.region, url=settings.console_url, custom=calls.endpoint_is_custom
                ),
                exposing=Exposing(calls, settings.discover),
            )
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let go of the clients; Express executions under way go on at AWS, and nobody hears of their end."""
        self._entered = None
        await self._stack.aclose()

    async def start(self, start: Start) -> str:
        """StartExecution, its name made of the key; see `Adapter.start`. The handle is the execution's ARN."""
        opened, options = self._opened, StepFunctionsOptions.read(start.options)
        text = one_input(start.arguments)  # what is wrong with it is told before anything is called
        caller = self._caller(options)
        order = request(start, await opened.machines.to_start(start.workflow, express=options.express), text, caller)
        if options.express:
            return opened.expresses.start(order, options.patience)
        arn = await start_execution(opened.calls, order)
        opened.listings.started(arn)
        return arn

    def preview(self, start: Start) -> Mapping[str, JSON]:
        """The StartExecution that `start` would send; see `Previews.preview`."""
        return preview(start, self._opened.machines)

    async def describe(self, ref: Ref) -> Execution:
        """DescribeExecution, and while it runs GetExecutionHistory for what is new; see `Adapter.describe`."""
        opened = self._opened
        if is_express(ref.handle):
            return opened.expresses.describe(ref)
        return await look(opened.calls, opened.histories, opened.console, ref)

    async def answer(self, ref: Ref, responses: Mapping[str, JSON]) -> None:
        """Send answers with the task tokens in the history; see `Adapter.answer`."""
        opened = self._opened
        if is_express(ref.handle):
            opened.expresses.describe(ref)  # it asks nothing
        else:
            await answer(opened.calls, opened.histories, ref, responses)

    async def cancel(self, ref: Ref) -> None:
        """StopExecution, which takes effect at once; an Express execution cannot be stopped."""
        opened = self._opened
        if is_express(ref.handle):
            opened.expresses.describe(ref)
        else:
            text, caller = "cancelled through mcp-workflows", StepFunctionsOptions.read(ref.options).caller
            await stop(opened.calls, ref.handle, CANCELLED, text, caller=caller)

    async def terminate(self, ref: Ref, reason: str) -> None:
        """The same with another reason: Step Functions knows no gentler way; see `Terminates.terminate`."""
        if is_express(ref.handle):
            raise EngineRefused("an Express execution cannot be stopped: it ends within 5 minutes")
        caller = StepFunctionsOptions.read(ref.options).caller
        await stop(self._opened.calls, ref.handle, CANCELLED, reason, caller=caller)

    async def adopt(self, execution_id: str) -> Ref:
        """The execution with this ARN; see `Adopts.adopt`."""
        return await adopt(self._opened.calls, execution_id)

    @staticmethod
    def same_workflow(written: str, found: str) -> bool:
        """Whether an ARN that `adopt` found is what a tool names, by ARN or by name."""
        return same_workflow(written, found)

    @staticmethod
    def fleeting(options: Mapping[str, JSON]) -> bool:
        """Whether it is an Express state machine; see `Fleeting.fleeting`."""
        return options.get("express") is True

    async def describe_many(self, refs: Sequence[Ref]) -> Mapping[str, Execution]:
        """Those that still run, by ListExecutions; see `Sweeps.describe_many`."""
        return await self._opened.listings.describe_many(refs)

    @property
    def allowance(self) -> Allowance:
        """Our share of the quotas; see `Limited.allowance`."""
        return self._opened.calls.allowance

    async def hints(self, changed: Callable[[str], None]) -> None:
        """What EventBridge tells through the queue of `events`; see `Hints.hints`."""
        await hints(self._opened.calls, self._settings, changed)

    @property
    def expose_every(self) -> float | None:
        """How often tagged state machines are looked for; see `Exposes.expose_every`."""
        discovery = self._settings.discover
        return None if discovery is None else discovery.every.total_seconds()

    async def exposed(self) -> Sequence[Exposed]:
        """The state machines with the tag of `discover`; see `Exposes.exposed`."""
        return await self._opened.exposing.exposed()

    async def permissions(self, uses: Sequence[Use]) -> Mapping[str, JSON]:
        """An IAM policy document with the least that these tools need; see `Permits.permissions`."""
        return await permissions(self._opened.calls, self._settings, uses)

    async def discover(self) -> Sequence[Discovered]:
        """The state machines there are; see `Discovers.discover`."""
        return await discover(self._opened.calls)

    async def explain(self, ref: Ref) -> Explanation:
        """Why it is where it is, from the newest events of its history; see `Explains.explain`."""
        opened, execution = self._opened, await self.describe(ref)
        found = await explain(opened.calls, ref, execution)
        if execution.terminal or not ref.gates:
            return found
        return replace(found, gates=await gate_states(opened.calls, opened.machines, opened.histories, ref, execution))

    async def check_engine(self) -> Finding:
        """Whether Step Functions answers these credentials, and what keeps `events` from telling anything."""
        return await check_engine(self._opened.calls, self._settings.events)

    async def check(self, workflow: str, options: Mapping[str, JSON]) -> Finding:
        """Whether the state machine is there and of the type that the tool says."""
        opened = self._opened
        try:
            read = StepFunctionsOptions.read(options)
        except EngineRefused as error:
            return Finding(ok=False, text=str(error))
        if read.source_identity is not None and self._settings.assume_role is None:
            return Finding(ok=False, text=NO_ROLE)
        return await check_machine(opened.calls, opened.machines, workflow, read)

    async def verify(
        self, workflow: str, options: Mapping[str, JSON], gates: Mapping[str, Mapping[str, JSON]]
    ) -> Sequence[Finding]:
        """Whether it has the states that the gates name; see `Verifies.verify`."""
        opened = self._opened
        try:
            machine, read = await opened.machines.named(workflow), StepFunctionsOptions.read(options)
        except EngineError as error:
            return [Finding(ok=None, text=f"its states could not be verified: {error}")]
        return await verify(opened.calls, machine, read, gates)

    @staticmethod
    def embeds() -> Mapping[str, str]:
        """States that ask people, to copy into a definition."""
        return embedded_files()

    @staticmethod
    def replay(history: JSON, gates: Mapping[str, Gate]) -> Sequence[Replayed]:
        """What clients would have seen, from `aws stepfunctions get-execution-history`.

        Raises:
            ConfigError: see `Replays.replay`.
        """
        return replay(history, gates)

    def _caller(self, options: StepFunctionsOptions) -> str | None:
        """On whose behalf a start is.

        Raises:
            EngineRefused: AWS could not be told.
        """
        if options.source_identity is not None and self._settings.assume_role is None:
            raise EngineRefused(NO_ROLE, final=True)
        return options.caller

    @property
    def _opened(self) -> _Opened:
        if self._entered is None:
            raise RuntimeError("enter the adapter first: async with StepFunctionsAdapter(settings) as adapter")
        return self._entered
