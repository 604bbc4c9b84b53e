"""MemoryAdapter: a whole workflow engine in memory, for tests and for trying things out.

It is driven by the clock and by answers, not by background work: `describe` is a pure look. All adapters with one
`Settings.name` in a process share one engine, as replicas do.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import TracebackType
from typing import Final, Self, TypeAlias, cast

import anyio
from pydantic import BaseModel, ConfigDict, Field

from mcp_workflows.adapter.boundary import (
    JSON,
    Adapter,
    Execution,
    Failure,
    Gate,
    InputRequest,
    Progress,
    Ref,
    Start,
    StartGuarantee,
    Status,
)
from mcp_workflows.adapter.capabilities import Finding
from mcp_workflows.errors import EngineRefused, EngineUnavailable, ExecutionNotFound, StartConflict


class MemorySettings(BaseModel):
    """Which engine in memory; `unreachable` is one that never answers."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = "memory"
    unreachable: bool = False


class MemoryOptions(BaseModel):
    """Nothing can be set per tool."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class MemoryAfter(BaseModel):
    """When a gate is open."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    after_seconds: float = Field(ge=0, description="So long after the start.")


class MemoryGate(BaseModel):
    """A gate of the workflow `gated`: it ends when all of its gates have what they were sent, which is its output."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    when: MemoryAfter
    send: JSON
    decline: JSON = None


@dataclass(slots=True, kw_only=True)
class Faults:
    """What goes wrong next; tests set these while the engine is in use, which is why this is not frozen."""

    unavailable: frozenset[str] = frozenset()  # verbs that never reach the engine
    silent: frozenset[str] = frozenset()  # verbs that get no answer, ever
    refused_starts: int = 0  # so many of the next starts get a definite no
    lost_start_replies: int = 0  # so many of the next starts take effect, and the reply is lost
    lag: float = 0.0  # seconds for which a new execution is not found by its key; only where they are looked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One execution as the engine keeps it."""

    start: Start
    began: float  # of the monotonic clock, in seconds
    answers: Mapping[str, JSON] = field(default_factory=dict[str, JSON])
    cancel_requested: bool = False
    terminated: str | None = None  # why

    @property
    def argument(self) -> JSON:
        """The one argument of these workflows: the first positional one, or all there is."""
        arguments = self.start.arguments
        if not isinstance(arguments, list):
            return arguments
        return next(iter(cast("Sequence[JSON]", arguments)), dict[str, JSON]())

    def seconds(self, default: float) -> float:
        """How long it takes, by its argument: `{"seconds": 0.5}` or just `0.5`."""
        argument = self.argument
        if isinstance(argument, Mapping):
            argument = cast("Mapping[str, JSON]", argument).get("seconds", default)
        return int(argument) if isinstance(argument, int) else float(argument)

    @property
    def age(self) -> float:
        """In seconds."""
        return time.monotonic() - self.began


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEngine:
    """What all adapters of one name share."""

    records: dict[str, Record] = field(default_factory=dict[str, Record])
    calls: Counter[str] = field(default_factory=Counter[str])
    faults: Faults = field(default_factory=Faults)


_ENGINES: Final[dict[str, MemoryEngine]] = {}  # as long as the process: a real engine outlives its clients too


def _succeeded(output: JSON) -> Execution:
    return Execution(status=Status.SUCCEEDED, output=output)


def _question(message: str) -> InputRequest:
    schema = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
    return InputRequest(
        method="elicitation/create", params={"mode": "form", "message": message, "requestedSchema": schema}
    )


def _sleep(record: Record) -> Execution:
    total = record.seconds(1)
    if record.age >= total:
        return _succeeded({"slept": total})
    return Execution(status=Status.RUNNING, message="sleeping", progress=Progress(value=int(record.age), total=total))


def _stubborn(record: Record) -> Execution:
    seen = _sleep(record)
    return replace(seen, cancel_requested=record.cancel_requested and not seen.terminal)


def _asking(*keys: str, in_turn: bool = False) -> Callable[[Record], Execution]:
    """A workflow that asks these questions, at once or one after the other, and returns what was answered."""

    def workflow(record: Record) -> Execution:
        missing = [key for key in keys if key not in record.answers]
        if not missing:
            given = {key: response.get("content", response) for key, response in record.answers.items()}
            return _succeeded(given if len(keys) > 1 else next(iter(given.values())))
        shown = missing[:1] if in_turn else missing
        requests = {key: _question(f"{key}?") for key in shown}
        return Execution(status=Status.INPUT_REQUIRED, message="waiting for an answer", requests=requests)

    return workflow


def _gated(record: Record, gates: Mapping[str, Gate]) -> Execution:
    """What a person is to be asked for a workflow that asks nothing itself."""
    sent = {gate: record.answers.get(f"{gate}.1", {}).get("send") for gate in gates}
    missing = [gate for gate in gates if f"{gate}.1" not in record.answers]
    if not missing:
        return _succeeded(sent)
    due = [gate for gate in missing if record.age >= gates[gate].when["after_seconds"]]
    requests = {f"{gate}.1": replace(gates[gate].request, gate=gate) for gate in due}
    return Execution(status=Status.INPUT_REQUIRED if due else Status.RUNNING, message="working", requests=requests)


def _failing(failure: Failure) -> Callable[[Record], Execution]:
    return lambda record: Execution(status=Status.FAILED, message=failure.text, failure=failure)


Workflow: TypeAlias = Callable[[Record], Execution]

WORKFLOWS: Final[Mapping[str, Workflow]] = {
    "echo": lambda record: _succeeded(record.argument),
    "sleep": _sleep,
    "gated": lambda record: _gated(record, {}),
    "forever": lambda record: Execution(status=Status.RUNNING, message="working"),
    "stubborn": _stubborn,  # sleeps, and does not listen when it is asked to cancel
    "ask": _asking("question"),
    "ask_two": _asking("first", "second"),
    "ask_in_turn": _asking("first", "second", in_turn=True),
    "fail": _failing(Failure(text="the card was declined", kind="CardError")),
    "protocol_error": _failing(Failure(text="no such order", kind="McpError", code=-32602, data={"order": "o-1"})),
}
"""What it can do, by workflow name. Each is a pure function of what has happened so far and of the clock."""


class MemoryAdapter(Adapter):
    """A workflow engine in memory; `calls` counts the calls of all its adapters by verb, `faults` makes it fail."""

    Settings = MemorySettings
    Options = MemoryOptions
    GateSettings = MemoryGate
    starts = StartGuarantee.KEYED

    def __init__(self, settings: MemorySettings) -> None:
        """Join the engine of that name, or found it."""
        self._settings = settings
        self._engine = _ENGINES.setdefault(settings.name, MemoryEngine())
        self.calls = self._engine.calls
        self.faults = self._engine.faults

    async def __aenter__(self) -> Self:
        """There is nothing to open."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The engine lives on, as engines do."""

    async def start(self, start: Start) -> str:
        """Start an execution; its handle is made of its key."""
        await self._call("start")
        self._refuse(start)
        handle = f"memory-{start.key}"
        known = self._engine.records.setdefault(handle, Record(start=start, began=time.monotonic()))
        if (known.start.workflow, known.start.arguments) != (start.workflow, start.arguments):
            raise StartConflict("this key belongs to an execution with another workflow or input")
        self._lose_reply()
        return handle

    async def describe(self, ref: Ref) -> Execution:
        """One look."""
        await self._call("describe")
        return self._look(ref)

    async def answer(self, ref: Ref, responses: Mapping[str, JSON]) -> None:
        """Take in what answers an open question; the rest is ignored."""
        await self._call("answer")
        known = self._look(ref).requests
        taken = {key: response for key, response in responses.items() if key in known}
        record = self._engine.records[ref.handle]
        self._engine.records[ref.handle] = replace(record, answers={**record.answers, **taken})

    async def cancel(self, ref: Ref) -> None:
        """Cancelled at once, unless it has ended or does not listen."""
        await self._call("cancel")
        if not self._look(ref).terminal:
            self._engine.records[ref.handle] = replace(self._engine.records[ref.handle], cancel_requested=True)

    async def terminate(self, ref: Ref, reason: str) -> None:
        """Ended at once, whether it listens or not."""
        await self._call("terminate")
        if not self._look(ref).terminal:
            self._engine.records[ref.handle] = replace(self._engine.records[ref.handle], terminated=reason)

    async def adopt(self, execution_id: str) -> Ref:
        """The execution of this handle."""
        await self._call("adopt")
        ref = Ref(workflow="", handle=execution_id)
        self._look(ref)
        return replace(ref, workflow=self._engine.records[execution_id].start.workflow)

    async def check_engine(self) -> Finding:
        """Whether `describe` would reach it now."""
        if self._down("describe"):
            return Finding(ok=False, text="does not answer", hint="clear `faults.unavailable`")
        return Finding(ok=True, text=f"engine in memory {self._settings.name!r}")

    async def check(self, workflow: str, options: Mapping[str, JSON]) -> Finding:
        """Whether there is such a workflow."""
        if workflow not in WORKFLOWS:
            return Finding(ok=False, text=f"no workflow named {workflow!r}", hint=f"there are: {_names()}")
        return await self.check_engine()

    @property
    def handles(self) -> Sequence[str]:
        """The handles of all executions the engine has, oldest first."""
        return list(self._engine.records)

    def forget(self, handle: str) -> None:
        """Drop an execution, as an engine does after its retention."""
        self._engine.records.pop(handle, None)

    async def _call(self, verb: str) -> None:
        self.calls[verb] += 1
        if verb in self.faults.silent:
            await anyio.sleep_forever()
        if self._down(verb):
            raise EngineUnavailable("the engine in memory does not answer", sent=False)

    def _down(self, verb: str) -> bool:
        return self._settings.unreachable or verb in self.faults.unavailable

    def _refuse(self, start: Start) -> None:
        if start.workflow not in WORKFLOWS:
            raise EngineRefused(f"no workflow named {start.workflow!r}; there are: {_names()}")
        if self.faults.refused_starts:
            self.faults.refused_starts -= 1
            raise EngineRefused("the engine in memory was told to refuse this")

    def _lose_reply(self) -> None:
        if self.faults.lost_start_replies:
            self.faults.lost_start_replies -= 1
            raise EngineUnavailable("the reply was lost")

    def _look(self, ref: Ref) -> Execution:
        record = self._engine.records.get(ref.handle)
        if record is None:
            raise ExecutionNotFound("the engine in memory has no such execution")
        seen = _gated(record, ref.gates) if ref.gates else WORKFLOWS[record.start.workflow](record)
        if record.cancel_requested and record.start.workflow != "stubborn":
            seen = Execution(status=Status.CANCELLED, message="cancelled on request")
        if record.terminated is not None:
            seen = Execution(status=Status.CANCELLED, message=f"terminated: {record.terminated}")
        return replace(seen, execution_id=ref.handle, url=f"memory:{self._settings.name}/{ref.handle}")


def _names() -> str:
    return ", ".join(sorted(WORKFLOWS))


_ANYTHING: Mapping[str, JSON] = {"type": "object", "properties": {}}


@dataclass(slots=True, kw_only=True)
class Run:
    """One execution under trial; it changes while the test goes on, which is why this is not frozen."""

    start: Start
    answers: dict[str, Mapping[str, JSON]] = field(default_factory=dict[str, Mapping[str, JSON]])
    cancelled: bool = False
    elsewhere: bool = False  # started by somebody else


Step: TypeAlias = Callable[[Run, Ref, Execution], Execution]
"""From what the steps before made of an execution to what it is now; a terminal one ends it, a question holds it."""


class Trial:
    """What every workflow does, told step by step, before the call or while it goes on.

    ```python
    async with workflows.testing() as t:
        t.progress("charging the card", 1, 2)
        t.ask("Ship it?", {"type": "object", "properties": {"ok": {"type": "boolean"}}})
        t.succeed({"shipped": True})
        async with Client(server, elicitation_callback=yes) as client:
            result = await client.call_tool("fulfil_order", {"order_id": "A1"})
    assert t.starts[0].arguments == ["A1"]
    ```

    Every step takes `tool=`: then only executions of that tool do it.
    """

    def __init__(self) -> None:
        self._steps: list[tuple[str | None, Step]] = []
        self._runs: dict[str, Run] = {}
        self._lost_replies = 0
        self._down = False

    # --- what the workflows do

    def progress(
        self, message: str, value: float | None = None, total: float | None = None, *, tool: str | None = None
    ) -> None:
        """It says what it does, and that it did `value` of `total`."""
        done = None if value is None else Progress(value=value, total=total)
        self._then(tool, lambda run, ref, seen: replace(seen, message=message, progress=done))

    def ask(
        self,
        message: str,
        schema: Mapping[str, JSON] = _ANYTHING,
        *,
        key: str | None = None,
        tool: str | None = None,
    ) -> None:
        """It asks a person, and goes on when it has the answer."""
        params: Mapping[str, JSON] = {"mode": "form", "message": message, "requestedSchema": schema}
        request = InputRequest(method="elicitation/create", params=params)
        self._hold(tool, key or f"question-{len(self._steps) + 1}", lambda _: request)

    def open_gate(self, name: str, *, tool: str | None = None) -> None:
        """A gate of the tool opens, and it goes on when it was sent what the gate sends."""
        self._hold(tool, f"{name}.{len(self._steps) + 1}", lambda ref: replace(ref.gates[name].request, gate=name))

    def succeed(self, output: JSON = None, *, tool: str | None = None) -> None:
        """It ends with this result."""
        self._then(tool, lambda run, ref, seen: replace(seen, status=Status.SUCCEEDED, output=output))

    def fail(self, text: str, *, kind: str | None = None, code: int | None = None, tool: str | None = None) -> None:
        """It fails; with a `code`, as a JSON-RPC error."""
        failure = Failure(text=text, kind=kind, code=code)
        self._then(tool, lambda run, ref, seen: replace(seen, status=Status.FAILED, failure=failure))

    def run_elsewhere(self, execution_id: str, workflow: str, *, tool: str | None = None) -> None:
        """An execution that somebody else started, for tools of `kind: watch`; `tool`: whose steps it does."""
        context = {} if tool is None else {"tool": tool}
        start = Start(workflow=workflow, arguments=None, key=execution_id, created=datetime.now(UTC), context=context)
        self._runs[execution_id] = Run(start=start, elsewhere=True)

    # --- what goes wrong

    def lose_reply(self) -> None:
        """The next start takes effect, and its reply is lost."""
        self._lost_replies += 1

    def go_down(self) -> None:
        """The engines do not answer, until `come_back`."""
        self._down = True

    def come_back(self) -> None:
        """They answer again, and have forgotten nothing."""
        self._down = False

    # --- what was seen of it

    @property
    def starts(self) -> Sequence[Start]:
        """What was started, oldest first; a start that was repeated under its key counts once."""
        return [run.start for run in self._runs.values() if not run.elsewhere]

    @property
    def answers(self) -> Sequence[Mapping[str, JSON]]:
        """The responses the workflows got, `{action, content}`, and `send` for gates; oldest execution first."""
        return [response for run in self._runs.values() for response in run.answers.values()]

    @property
    def cancelled(self) -> Sequence[Start]:
        """What was asked to be cancelled; it is, at once, unless it had ended."""
        return [run.start for run in self._runs.values() if run.cancelled]

    # --- the engine's side

    def adapter(self) -> TrialAdapter:
        """An engine that runs these workflows."""
        return TrialAdapter(self)

    def take_start(self, start: Start) -> str:
        """See `Adapter.start`."""
        self.check_up()
        run = self._runs.setdefault(start.key, Run(start=start))
        if (run.start.workflow, run.start.arguments) != (start.workflow, start.arguments):
            raise StartConflict("this key belongs to an execution with another workflow or input")
        if self._lost_replies:
            self._lost_replies -= 1
            raise EngineUnavailable("the reply was lost")
        return start.key

    def run(self, ref: Ref) -> Run:
        """The execution of a handle."""
        self.check_up()
        if ref.handle not in self._runs:
            raise ExecutionNotFound("nothing was started under this handle")
        return self._runs[ref.handle]

    def look(self, ref: Ref) -> Execution:
        """What the steps so far make of it."""
        run = self.run(ref)
        seen = Execution(status=Status.RUNNING, execution_id=ref.handle)
        for tool, step in self._steps:
            if tool in {None, run.start.context.get("tool")}:
                seen = step(run, ref, seen)
            if seen.status is not Status.RUNNING:
                break
        if run.cancelled and not seen.terminal:
            return replace(seen, status=Status.CANCELLED, message="cancelled on request", requests={})
        return seen

    def check_up(self) -> None:
        """Raise `EngineUnavailable` while down."""
        if self._down:
            raise EngineUnavailable("the engine is down, as the test wants it", sent=False)

    def _then(self, tool: str | None, step: Step) -> None:
        self._steps.append((tool, step))

    def _hold(self, tool: str | None, key: str, asked: Callable[[Ref], InputRequest]) -> None:
        def step(run: Run, ref: Ref, seen: Execution) -> Execution:
            if key in run.answers:
                return seen
            return replace(seen, status=Status.INPUT_REQUIRED, requests={key: asked(ref)})

        self._then(tool, step)


class TrialSettings(BaseModel):
    """Nothing can be set."""

    model_config = ConfigDict(extra="allow", frozen=True)


class TrialAdapter(Adapter):
    """The four verbs in front of a `Trial`."""

    Settings = TrialSettings
    Options = TrialSettings
    starts = StartGuarantee.KEYED

    def __init__(self, settings: Trial) -> None:
        self._trial = settings

    async def __aenter__(self) -> TrialAdapter:
        """There is nothing to open."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The trial goes on as long as the test."""

    async def start(self, start: Start) -> str:
        """See `Adapter.start`."""
        return self._trial.take_start(start)

    async def describe(self, ref: Ref) -> Execution:
        """See `Adapter.describe`."""
        return self._trial.look(ref)

    async def answer(self, ref: Ref, responses: Mapping[str, JSON]) -> None:
        """See `Adapter.answer`."""
        asked = self._trial.look(ref).requests
        self._trial.run(ref).answers.update({key: found for key, found in responses.items() if key in asked})

    async def cancel(self, ref: Ref) -> None:
        """See `Adapter.cancel`."""
        if not self._trial.look(ref).terminal:
            self._trial.run(ref).cancelled = True

    async def adopt(self, execution_id: str) -> Ref:
        """See `Adopts.adopt`."""
        ref = Ref(workflow="", handle=execution_id)
        return replace(ref, workflow=self._trial.run(ref).start.workflow)
