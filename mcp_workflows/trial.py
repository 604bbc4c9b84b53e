"""An engine that does what a test tells it: what `workflows.testing()` puts in the place of the real ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import TracebackType
from typing import TypeAlias

from pydantic import BaseModel, ConfigDict

from mcp_workflows.adapter import (
    JSON,
    Adapter,
    Execution,
    Failure,
    InputRequest,
    Progress,
    Ref,
    Start,
    StartGuarantee,
    Status,
)
from mcp_workflows.errors import EngineUnavailable, ExecutionNotFound, StartConflict

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
