"""A workflow engine in memory, for tests and experiments; its workflows are built in or scripted by a test.

Only the clock and the answers advance it, without background work: `describe` only reads. All adapters with the same
`Settings.name` in a process share one engine, as replicas do.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, ClassVar, Final, Self, TypeAlias, cast

import anyio
from pydantic import BaseModel, ConfigDict, Field

from mcp_workflows.adapter.boundary import (
    JSON,
    Adapter,
    Execution,
    Failure,
    Gate,
    InputRequest,
    Message,
    Nothing,
    Progress,
    Ref,
    Start,
    StartGuarantee,
    Status,
)
from mcp_workflows.adapter.capabilities import MOST_ENDED, EndedExecution, Finding, Fixtures, MessageRole, Role
from mcp_workflows.errors import EngineRefused, EngineUnavailable, ExecutionNotFound, StartConflict


class MemorySettings(BaseModel):
    """The name of the engine in memory; an `unreachable` one never answers."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = "memory"
    unreachable: bool = False


class MemoryAction(BaseModel):
    """A message to an execution. It is only recorded, and its result repeats it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    event: str = Field(min_length=1, description="The name of the message.")


class MemoryOptions(BaseModel):
    """The options of a tool that sends a message; a tool that starts a workflow has none."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    event: str | None = Field(default=None, min_length=1, description="A message instead of a workflow.")
    execution: str | None = Field(default=None, description="With `event`: the handle of the execution.")


class MemoryAfter(BaseModel):
    """The time at which a gate opens."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    after_seconds: float = Field(ge=0, description="The delay after the start, in seconds.")


class MemoryGate(BaseModel):
    """A gate of the workflow `gated`, which ends once each of its gates was sent a value, and returns all values."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    when: MemoryAfter
    send: JSON
    decline: JSON = None


@dataclass(slots=True, kw_only=True)
class Faults:
    """Faults of the next calls. Not frozen, because tests set them while the engine is in use."""

    unavailable: frozenset[str] = frozenset()  # verbs that fail before they reach the engine
    silent: frozenset[str] = frozenset()  # verbs that never answer
    refused_starts: int = 0  # the number of next starts that are refused
    lost_start_replies: int = 0  # the number of next starts that succeed but lose the reply
    lag: float = 0.0  # seconds for which a new execution is not found by its key; only for adapters that search


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryExecution:
    """An execution as the engine stores it."""

    start: Start
    began: float = field(default_factory=time.monotonic)
    answers: Mapping[str, JSON] = field(default_factory=dict[str, JSON])
    cancel_requested: bool = False
    terminated: str | None = None  # the reason
    started_elsewhere: bool = False

    @property
    def argument(self) -> JSON:
        """The single argument of these workflows: the first positional one, or else all arguments."""
        arguments = self.start.arguments
        if not isinstance(arguments, list):
            return arguments
        return next(iter(cast("Sequence[JSON]", arguments)), dict[str, JSON]())

    def seconds(self, default: float) -> float:
        """Return the duration in the argument: `{"seconds": 0.5}` or just `0.5`."""
        argument = self.argument
        if isinstance(argument, Mapping):
            argument = cast("Mapping[str, JSON]", argument).get("seconds", default)
        return int(argument) if isinstance(argument, int) else float(argument)

    @property
    def age(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.began


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEngine:
    """The state that all adapters of one name share."""

    executions: dict[str, MemoryExecution] = field(default_factory=dict[str, MemoryExecution])  # by handle
    ended: dict[str, EndedExecution] = field(default_factory=dict[str, EndedExecution])  # by handle, as first seen
    calls: Counter[str] = field(default_factory=Counter[str])
    faults: Faults = field(default_factory=Faults)


_ENGINES: Final[dict[str, MemoryEngine]] = {}  # for the life of the process: a real engine outlives its clients, too


def _succeeded(output: JSON) -> Execution:
    return Execution(status=Status.SUCCEEDED, output=output)


def _question(message: str) -> InputRequest:
    schema = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
    return InputRequest(
        method="elicitation/create", params={"mode": "form", "message": message, "requestedSchema": schema}
    )


def _sleep(execution: MemoryExecution) -> Execution:
    total = execution.seconds(1)
    if execution.age >= total:
        return _succeeded({"slept": total})
    return Execution(
        status=Status.RUNNING, message="sleeping", progress=Progress(value=int(execution.age), total=total)
    )


def _stubborn(execution: MemoryExecution) -> Execution:
    seen = _sleep(execution)
    return replace(seen, cancel_requested=execution.cancel_requested and not seen.terminal)


def _asking(*keys: str, in_turn: bool = False) -> Callable[[MemoryExecution], Execution]:
    """Return a workflow that asks these questions, at once or in turn, and returns the answers."""

    def workflow(execution: MemoryExecution) -> Execution:
        missing = [key for key in keys if key not in execution.answers]
        if not missing:
            given = {key: response.get("content", response) for key, response in execution.answers.items()}
            return _succeeded(given if len(keys) > 1 else next(iter(given.values())))
        shown = missing[:1] if in_turn else missing
        requests = {key: _question(f"{key}?") for key in shown}
        return Execution(status=Status.INPUT_REQUIRED, message="waiting for an answer", requests=requests)

    return workflow


def _gated(execution: MemoryExecution, gates: Mapping[str, Gate]) -> Execution:
    """Ask the questions of the gates for a workflow that asks none itself."""
    sent = {gate: execution.answers.get(f"{gate}.1", {}).get("send") for gate in gates}
    missing = [gate for gate in gates if f"{gate}.1" not in execution.answers]
    if not missing:
        return _succeeded(sent)
    due = [gate for gate in missing if execution.age >= gates[gate].when["after_seconds"]]
    requests = {f"{gate}.1": replace(gates[gate].request, gate=gate) for gate in due}
    return Execution(status=Status.INPUT_REQUIRED if due else Status.RUNNING, message="working", requests=requests)


def _failing(failure: Failure) -> Callable[[MemoryExecution], Execution]:
    return lambda execution: Execution(status=Status.FAILED, message=failure.text, failure=failure)


Workflow: TypeAlias = Callable[[MemoryExecution], Execution]

WORKFLOWS: Final[Mapping[str, Workflow]] = {
    "echo": lambda execution: _succeeded(execution.argument),
    "sleep": _sleep,
    "gated": lambda execution: Execution(status=Status.RUNNING, message="working"),  # if the caller passes no gates
    "forever": lambda execution: Execution(status=Status.RUNNING, message="working"),
    "stubborn": _stubborn,  # sleeps, and ignores cancellation
    "ask": _asking("question"),
    "ask_two": _asking("first", "second"),
    "ask_in_turn": _asking("first", "second", in_turn=True),
    "fail": _failing(Failure(text="the card was declined", kind="CardError")),
    "protocol_error": _failing(Failure(text="no such order", kind="McpError", code=-32602, data={"order": "o-1"})),
}
"""The built-in workflows by name. Each is a pure function of an execution and the clock."""


class MemoryTooling:
    """The tools of an engine in memory: checks, and fixtures for `mcp-workflows check --live`."""

    def __init__(self, name: str, is_down: Callable[[str], bool], has_workflow: Callable[[str], bool]) -> None:
        """`is_down` takes a verb, `has_workflow` a workflow."""
        self._name = name
        self._is_down = is_down
        self._has_workflow = has_workflow

    async def check_engine(self) -> Finding:
        """Return whether `describe` would reach the engine now."""
        if self._is_down("describe"):
            return Finding(ok=False, text="does not answer", hint="clear `faults.unavailable`")
        return Finding(ok=True, text=f"engine in memory {self._name!r}")

    async def check(self, workflow: str, options: Mapping[str, JSON]) -> Finding:
        """Return whether this workflow exists."""
        if not self._has_workflow(workflow):
            return Finding(ok=False, text=f"no workflow named {workflow!r}", hint=f"there are: {_names()}")
        return await self.check_engine()

    @staticmethod
    def fixture_settings() -> type[BaseModel]:
        """Return the model without settings."""
        return Nothing

    @staticmethod
    def fixtures_notice() -> str:
        """Return the notice that nothing is created."""
        return "They run in memory, and nothing is created."

    @asynccontextmanager
    async def fixtures(self, settings: BaseModel) -> AsyncGenerator[Fixtures]:
        """Yield the built-in workflows with known behaviour."""
        yield Fixtures(
            finishes=Role(workflow="echo", arguments=[{"text": "hi"}]),
            output={"text": "hi"},
            other_arguments=[{"text": "ho"}],
            fails=Role(workflow="fail"),
            failure="declined",
            endless=Role(workflow="forever"),
            asks=Role(workflow="ask"),
            asks_two=Role(workflow="ask_two"),
            refused=Role(workflow="nobody-wrote-this"),
            messages=MESSAGES,
        )


class MemoryAdapter(Adapter):
    """An adapter of an engine in memory.

    `calls` counts the calls of all adapters of this engine by verb; `faults` makes the engine fail.
    """

    Settings: ClassVar[type[BaseModel]] = MemorySettings
    Options: ClassVar[type[BaseModel]] = MemoryOptions
    GateSettings: ClassVar[type[BaseModel] | None] = MemoryGate
    ActionSettings: ClassVar[type[BaseModel] | None] = MemoryAction
    starts: ClassVar[StartGuarantee] = StartGuarantee.KEYED
    tooling: Any = MemoryTooling  # Any: see `Adapter.tooling`

    def __init__(self, settings: MemorySettings, engine: MemoryEngine | None = None) -> None:
        """Use `engine`, or by default the engine of that name, which is created if necessary."""
        self._settings = settings
        self._engine = engine or _ENGINES.setdefault(settings.name, MemoryEngine())
        self.tooling = type(self).tooling(settings.name, self._is_down, self._has_workflow)
        self.calls = self._engine.calls
        self.faults = self._engine.faults

    @property
    def identity(self) -> str:
        """The name of the engine; see `Adapter.identity`."""
        return f"memory:{self._settings.name}"

    async def __aenter__(self) -> Self:
        """Do nothing: there is nothing to open."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Do nothing: the engine keeps running, like a real one."""

    async def start(self, start: Start) -> str:
        """Start an execution; its handle is derived from its key."""
        await self._call("start")
        if start.options.get("event"):
            target = self._engine.executions.get(start.target or start.options.get("execution") or "")
            if target is None:
                raise EngineRefused("there is no such execution")
        else:
            self._refuse(start)
        handle = self._handle(start)
        known = self._engine.executions.setdefault(handle, MemoryExecution(start=start))
        if (known.start.workflow, known.start.arguments) != (start.workflow, start.arguments):
            raise StartConflict("this key belongs to an execution with another workflow or input")
        self._lose_reply()
        return handle

    async def describe(self, ref: Ref) -> Execution:
        """Poll once."""
        await self._call("describe")
        return self._describe(ref)

    async def answer(self, ref: Ref, responses: Mapping[str, JSON]) -> None:
        """Accept the responses to open questions; ignore the rest."""
        await self._call("answer")
        asked = self._describe(ref).requests
        taken = {key: response for key, response in responses.items() if key in asked}
        self._change(ref, answers={**self._engine.executions[ref.handle].answers, **taken})

    async def cancel(self, ref: Ref) -> None:
        """Cancel an execution that has not ended, immediately unless it ignores cancellation."""
        await self._call("cancel")
        if not self._describe(ref).terminal:
            self._change(ref, cancel_requested=True)

    async def terminate(self, ref: Ref, reason: str) -> None:
        """End an execution immediately, even one that ignores cancellation."""
        await self._call("terminate")
        if not self._describe(ref).terminal:
            self._change(ref, terminated=reason)

    async def adopt(self, execution_id: str) -> Ref:
        """Return the execution of this handle."""
        await self._call("adopt")
        return Ref(workflow=self._found(execution_id).start.workflow, handle=execution_id)

    async def list_ended(self, workflow: str, since: datetime) -> Sequence[EndedExecution]:
        """Describe all executions of this workflow. The time of an end is when any verb first observed it."""
        await self._call("list_ended")
        mine = [handle for handle, each in self._engine.executions.items() if each.start.workflow == workflow]
        for handle in mine:
            self._describe(Ref(workflow=workflow, handle=handle))
        ended = [self._engine.ended[handle] for handle in mine if handle in self._engine.ended]
        return sorted((each for each in ended if each.ended >= since), key=lambda each: each.ended)[:MOST_ENDED]

    @staticmethod
    def message(options: Mapping[str, JSON]) -> Message | None:
        """Return the event that a tool sends; see `Adapter.message`."""
        event = options.get("event")
        return Message(name=f"event {event}", address=options.get("execution")) if event else None

    def messages(self, handle: str) -> Sequence[JSON]:
        """Return the messages to an execution, oldest first."""
        return [each.argument for each in self._engine.executions.values() if each.start.target == handle]

    @property
    def handles(self) -> Sequence[str]:
        """The handles of all executions of the engine, oldest first."""
        return list(self._engine.executions)

    def forget(self, handle: str) -> None:
        """Delete an execution, as an engine does after its retention."""
        self._engine.executions.pop(handle, None)

    async def _call(self, verb: str) -> None:
        self.calls[verb] += 1
        if verb in self.faults.silent:
            await anyio.sleep_forever()
        if self._is_down(verb):
            raise EngineUnavailable("the engine in memory does not answer", sent=False)

    def _is_down(self, verb: str) -> bool:
        return self._settings.unreachable or verb in self.faults.unavailable

    def _has_workflow(self, workflow: str) -> bool:
        return workflow in WORKFLOWS

    def _refuse(self, start: Start) -> None:
        if not self._has_workflow(start.workflow):
            raise EngineRefused(f"no workflow named {start.workflow!r}; there are: {_names()}")
        if self.faults.refused_starts:
            self.faults.refused_starts -= 1
            raise EngineRefused("the engine in memory was told to refuse this")

    def _handle(self, start: Start) -> str:
        return f"memory-{start.key}"

    def _lose_reply(self) -> None:
        if self.faults.lost_start_replies:
            self.faults.lost_start_replies -= 1
            raise EngineUnavailable("the reply was lost")

    def _change(self, ref: Ref, **changes: Any) -> None:  # Any: fields of MemoryExecution
        self._engine.executions[ref.handle] = replace(self._engine.executions[ref.handle], **changes)

    def _found(self, handle: str) -> MemoryExecution:
        if handle not in self._engine.executions:
            raise ExecutionNotFound("the engine in memory has no such execution")
        return self._engine.executions[handle]

    def _describe(self, ref: Ref) -> Execution:
        handle, execution = ref.handle, self._found(ref.handle)
        if event := ref.options.get("event"):
            output = {"event": event, "content": execution.argument}
            return Execution(status=Status.SUCCEEDED, output=output, execution_id=handle)
        seen = self._run(execution, ref)
        if seen.terminal:
            end = EndedExecution(handle=handle, execution_id=handle, status=seen.status, ended=datetime.now(UTC))
            self._engine.ended.setdefault(handle, end)
        return replace(seen, execution_id=handle)

    def _run(self, execution: MemoryExecution, ref: Ref) -> Execution:
        workflow = execution.start.workflow
        seen = _gated(execution, ref.gates) if ref.gates else WORKFLOWS[workflow](execution)
        if execution.cancel_requested and workflow != "stubborn":
            seen = Execution(status=Status.CANCELLED, message="cancelled on request")
        if execution.terminated is not None:
            seen = Execution(status=Status.CANCELLED, message=f"terminated: {execution.terminated}")
        return replace(seen, url=f"memory:{self._settings.name}/{ref.handle}")


async def _received(adapter: Adapter, ref: Ref) -> Sequence[JSON]:
    return cast("MemoryAdapter", adapter).messages(ref.handle)


MESSAGES: Final = MessageRole(receiver=Role(workflow="forever"), settings={"event": "put"}, received=_received)


def _names() -> str:
    return ", ".join(sorted(WORKFLOWS))


_ANYTHING: Mapping[str, JSON] = {"type": "object", "properties": {}}

Step: TypeAlias = Callable[[MemoryExecution, Ref, Execution], Execution]
"""A step takes the state so far and returns the next one. A terminal status ends the script; a question pauses it."""


class Script:
    """The steps of every workflow; a test adds them before the call or while it runs.

    ```python
    async with workflows.testing() as t:
        t.progress("charging the card", 1, 2)
        t.ask("Ship it?", {"type": "object", "properties": {"ok": {"type": "boolean"}}})
        t.succeed({"shipped": True})
        async with Client(server, elicitation_callback=yes) as client:
            result = await client.call_tool("fulfil_order", {"order_id": "A1"})
    assert t.starts[0].arguments == ["A1"]
    ```

    With `tool=`, a step applies only to executions of that tool.
    """

    def __init__(self) -> None:
        self._steps: list[tuple[str | None, Step]] = []
        self.engine = MemoryEngine()

    # --- the steps of the workflows

    def progress(
        self, message: str, value: float | None = None, total: float | None = None, *, tool: str | None = None
    ) -> None:
        """Report a message, and progress of `value` out of `total`."""
        done = None if value is None else Progress(value=value, total=total)
        self._then(tool, lambda execution, ref, seen: replace(seen, message=message, progress=done))

    def ask(
        self,
        message: str,
        schema: Mapping[str, JSON] = _ANYTHING,
        *,
        key: str | None = None,
        tool: str | None = None,
    ) -> None:
        """Ask a person, and continue after the answer."""
        params: Mapping[str, JSON] = {"mode": "form", "message": message, "requestedSchema": schema}
        request = InputRequest(method="elicitation/create", params=params)
        self._pause(tool, key or f"question-{len(self._steps) + 1}", lambda _: request)

    def open_gate(self, name: str, *, tool: str | None = None) -> None:
        """Open a gate of the tool, and continue after the gate's `send` has arrived."""

        def asked(ref: Ref) -> InputRequest:  # a list of executions has no gates
            return replace(ref.gates[name].request, gate=name) if ref.gates else _question(name)

        self._pause(tool, f"{name}.{len(self._steps) + 1}", asked)

    def succeed(self, output: JSON = None, *, tool: str | None = None) -> None:
        """Succeed with this result."""
        self._then(tool, lambda execution, ref, seen: replace(seen, status=Status.SUCCEEDED, output=output))

    def fail(self, text: str, *, kind: str | None = None, code: int | None = None, tool: str | None = None) -> None:
        """Fail; with a `code`, as a JSON-RPC error."""
        failure = Failure(text=text, kind=kind, code=code)
        self._then(tool, lambda execution, ref, seen: replace(seen, status=Status.FAILED, failure=failure))

    def run_elsewhere(self, execution_id: str, workflow: str, *, tool: str | None = None) -> None:
        """Add an execution that others started, for tools of `kind: watch`; it runs the steps of `tool`."""
        context = {} if tool is None else {"tool": tool}
        start = Start(workflow=workflow, arguments=None, key=execution_id, created=datetime.now(UTC), context=context)
        self.engine.executions[execution_id] = MemoryExecution(start=start, started_elsewhere=True)

    # --- faults

    def lose_reply(self) -> None:
        """Let the next start succeed but lose its reply."""
        self.engine.faults.lost_start_replies += 1

    def go_down(self) -> None:
        """Make the engines unavailable until `come_back`."""
        verbs = {"start", "describe", "answer", "cancel", "terminate", "adopt", "list_ended"}
        self.engine.faults.unavailable = frozenset(verbs)

    def come_back(self) -> None:
        """Make the engines available again, with their state intact."""
        self.engine.faults.unavailable = frozenset()

    # --- received calls

    @property
    def starts(self) -> Sequence[Start]:
        """All starts, oldest first; a repeated start with the same key counts once."""
        own = (each.start for each in self.engine.executions.values() if not each.started_elsewhere)
        return [start for start in own if start.target is None]

    @property
    def messages(self) -> Sequence[Start]:
        """The received messages of `actions`, oldest first; `target` is the handle of the execution."""
        return [each.start for each in self.engine.executions.values() if each.start.target is not None]

    @property
    def answers(self) -> Sequence[Mapping[str, JSON]]:
        """The received responses, `{action, content}`, and `send` for gates; oldest execution first."""
        return [response for each in self.engine.executions.values() for response in each.answers.values()]

    @property
    def cancelled(self) -> Sequence[Start]:
        """The starts of the executions that were cancelled before they ended."""
        return [each.start for each in self.engine.executions.values() if each.cancel_requested]

    def run(self, execution: MemoryExecution, ref: Ref) -> Execution:
        """Run the steps added so far."""
        seen = Execution(status=Status.RUNNING)
        for tool, step in self._steps:
            if tool in {None, execution.start.context.get("tool")}:
                seen = step(execution, ref, seen)
            if seen.status is not Status.RUNNING:
                break
        if execution.cancel_requested and not seen.terminal:
            return replace(seen, status=Status.CANCELLED, message="cancelled on request", requests={})
        return seen

    def _then(self, tool: str | None, step: Step) -> None:
        self._steps.append((tool, step))

    def _pause(self, tool: str | None, key: str, asked: Callable[[Ref], InputRequest]) -> None:
        def step(execution: MemoryExecution, ref: Ref, seen: Execution) -> Execution:
            if key in execution.answers:
                return seen
            return replace(seen, status=Status.INPUT_REQUIRED, requests={key: asked(ref)})

        self._then(tool, step)


class AnySettings(BaseModel):
    """Settings of any engine; they are ignored."""

    model_config = ConfigDict(extra="allow", frozen=True)


class ScriptedAdapter(MemoryAdapter):
    """An engine in memory whose workflows, of any name, all follow one `Script`."""

    Settings = Options = GateSettings = ActionSettings = AnySettings

    def __init__(self, script: Script) -> None:
        """Use the engine of the script."""
        super().__init__(MemorySettings(), script.engine)
        self._script = script

    async def _call(self, verb: str) -> None:
        if self._is_down(verb):
            raise EngineUnavailable("the engine is down, as the test wants it", sent=False)

    def _has_workflow(self, workflow: str) -> bool:
        return True

    def _handle(self, start: Start) -> str:
        return start.key

    def _run(self, execution: MemoryExecution, ref: Ref) -> Execution:
        return self._script.run(execution, ref)
