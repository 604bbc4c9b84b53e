"""What an engine may be able to do beyond the four verbs; without it the core does the plain thing.

Each is a protocol of its own, so that an adapter has exactly those its engine is good at: see docs/decisions/0006.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import ClassVar, Protocol, TypeVar, runtime_checkable

from pydantic import BaseModel, ValidationError

from mcp_workflows.adapter.boundary import JSON, Execution, Gate, InputRequest, Ref, Start
from mcp_workflows.errors import EngineRefused

Options = TypeVar("Options", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a check found out: fine, not fine, or unknown (None), in a sentence, and what to do about it.

    Unknown is what nothing can say now: no permission to look, or an engine that does not know its workflows.
    """

    ok: bool | None
    text: str
    hint: str | None = None


@runtime_checkable
class Checks(Protocol):
    """Optional: can say whether the engine answers and whether a workflow could run there now."""

    async def check_engine(self) -> Finding:
        """Whether the engine can be reached and the settings fit it; never raises an EngineError."""
        ...

    async def check(self, workflow: str, options: Mapping[str, JSON]) -> Finding:
        """Whether this workflow could run now; never raises an EngineError."""
        ...


@runtime_checkable
class Verifies(Protocol):
    """Optional: can say whether a workflow has what its tool names: signals, updates, queries."""

    async def verify(
        self, workflow: str, options: Mapping[str, JSON], gates: Mapping[str, Mapping[str, JSON]]
    ) -> Sequence[Finding]:
        """What is missing, and what could not be found out (unknown, no problem); never raises an EngineError.

        `gates` are `when`, `send` and `decline` by name, as they are written: nothing is filled in. A text about one
        setting begins with its path in the tool and a colon (`gates.approve.when.after: ...`): `check` puts the file
        and the line before it.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowSchema:
    """What the code of a workflow says about its input and output."""

    input: Mapping[str, JSON]  # JSON Schema of an object: the tool's arguments
    output: Mapping[str, JSON] | None  # JSON Schema of an object, if the result is one
    args: JSON  # the mapping template that turns the arguments into what the engine gets


@runtime_checkable
class Schemas(Protocol):
    """Optional: can derive a tool's schemas from the workflow's code, `module:attribute`."""

    @staticmethod
    def schema(reference: str) -> WorkflowSchema:
        """Import the workflow and read its type hints.

        Raises:
            ConfigError: cannot be imported, or is not a workflow whose hints can be read.
        """
        ...


@runtime_checkable
class ReadsHandlers(Protocol):
    """Optional, beside `Schemas`: can tell from a workflow's code whether it takes what a tool's gates send."""

    @staticmethod
    def misfits(reference: str, gates: Mapping[str, Mapping[str, JSON]]) -> Mapping[str, str]:
        """What is wrong, by the setting in `gates`: `approve.send.args`.

        `gates` are by name, as they are written: nothing is filled in, and they may not be right.

        Raises:
            ConfigError: see `Schemas.schema`.
        """
        ...


@runtime_checkable
class Gated(Protocol):
    """Optional: shows an execution of a workflow that was not written for us as waiting for a person.

    `describe` and `answer` heed `ref.gates`: an open gate is a request with `gate` set to its name, and a key that no
    other round of it ever has.
    """

    GateSettings: ClassVar[type[BaseModel]]  # what `when`, `send` and `decline` of a gate may be on this engine


GATE_WORDS = frozenset({"when", "send", "decline"})  # the fields of `GateSettings`


def gate_settings(adapter: object) -> type[BaseModel] | None:
    """The model for the engine's words in a gate, of an adapter or its class; None: it knows no gates."""
    return getattr(adapter, "GateSettings", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What a client would have seen from one event of a history on."""

    event: str  # the engine's own id of the event
    execution: Execution


@runtime_checkable
class Replays(Protocol):
    """Optional: can tell from an exported history, offline, what clients would have seen."""

    @staticmethod
    def replay(history: JSON, gates: Mapping[str, Gate]) -> Sequence[Replayed]:
        """Each change a client would have seen, in order.

        Raises:
            ConfigError: this is not a history of this engine.
        """
        ...


class GateState(StrEnum):
    """Whether a gate asks its question now."""

    OPEN = "open"
    CLOSED = "closed"
    UNKNOWN = "unknown"  # it cannot be told now


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedGate:
    """The state of one gate of an execution, and the reason for it in a sentence."""

    state: GateState
    why: str


def open_gates(requests: Mapping[str, InputRequest]) -> Mapping[str, ExplainedGate]:
    """The gates whose questions are among these, by name."""
    asking = {request.gate: (key, request) for key, request in requests.items() if request.gate is not None}
    return {
        gate: ExplainedGate(state=GateState.OPEN, why=f"it asks: {request.params.get('message', '')} ({key})")
        for gate, (key, request) in asking.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why an execution is where it is."""

    reason: str  # one sentence
    facts: Mapping[str, str] = field(default_factory=dict[str, str])  # in the order they are told
    advice: str | None = None  # the next thing to do
    gates: Mapping[str, ExplainedGate] = field(default_factory=dict[str, ExplainedGate])  # by name, of `ref.gates`


@runtime_checkable
class Explains(Protocol):
    """Optional: can say why an execution is still working; may ask the engine more than `describe` does."""

    async def explain(self, ref: Ref) -> Explanation:
        """Why, for the operator: attempts, last errors, who polls, since when nothing changed.

        With gates also the state of each: `open_gates`, and of the others why they are closed. Those that are left out
        are told from the last look alone.

        Raises:
            ExecutionNotFound, EngineUnavailable: see `Adapter.describe`.
        """
        ...


@runtime_checkable
class Finds(Protocol):
    """What `StartGuarantee.FINDABLE` means: can look for the execution of a key that may have been started.

    The core asks before it starts a key again, and starts it only when nothing is found `settling` after the attempt
    before; so `start` is one attempt, and need not look by itself.
    """

    @property
    def settling(self) -> timedelta:
        """How long after an attempt its execution may not be found yet: a call under way, a list that lags behind."""
        ...

    async def find(self, start: Start) -> str | None:
        """The handle of the execution of this start's key: the oldest, later ones are cancelled. None: none is seen.

        Raises:
            StartConflict: the key belongs to an execution with another workflow or input.
            EngineRefused, EngineUnavailable: it cannot be told.
        """
        ...


class Notes(Protocol):
    """What one engine's adapter must remember: JSON values by key in our store, shared by all replicas.

    Each value is kept until a time of its own, and no longer than that is needed. All raise `EngineUnavailable` if the
    store cannot be used now; what is written is on disk when the call returns.
    """

    async def get(self, key: str) -> JSON:
        """The value of this key; None: there is none."""
        ...

    async def under(self, beginning: str) -> Mapping[str, JSON]:
        """All whose key begins so, by key, sorted by it."""
        ...

    async def add(self, key: str, value: JSON, *, until: datetime) -> JSON:
        """The value of this key from now on: that which is there already, or else this one; atomic."""
        ...

    async def put(self, key: str, value: JSON, *, until: datetime) -> None:
        """Keep this value, whatever was there."""
        ...


@runtime_checkable
class Remembers(Protocol):
    """Optional: must remember something that the engine does not keep for it. It owns no database."""

    def remember(self, notes: Notes) -> None:
        """Use these notes; called before it is entered. Without, where there is no store, there is nothing known."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Trusted:
    """Whose OpenID Connect tokens are good for a route."""

    issuer: str  # `iss` of the token, to the letter
    keys_url: str  # where the issuer publishes its keys (JWKS)
    audience: str  # `aud` of the token
    accounts: frozenset[str]  # its `email`, which must be verified: service accounts


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One inbound HTTP address of an engine: `POST /engines/ENGINE/PATH`, JSON in, JSON out.

    The core has checked the token, the size and that it is JSON before `receive` is called with the body and the
    account that sent it. What it raises is answered so that the sender can tell: `EngineRefused` 400,
    `ExecutionNotFound` 404, `EngineUnavailable` 503 (try again).
    """

    path: str  # one word: `input`
    trusted: Trusted
    receive: Callable[[JSON, str], Awaitable[JSON]]


@runtime_checkable
class Routes(Protocol):
    """Optional: is called by its workflows over HTTP. Only where the sidecar is served over HTTP."""

    def routes(self) -> Sequence[Route]:
        """What is served for it; none if its settings do not say so."""
        ...


@runtime_checkable
class Sweeps(Protocol):
    """Optional: a cheap look at many executions at once, as the hint which of them to describe."""

    async def describe_many(self, refs: Sequence[Ref]) -> Mapping[str, Execution]:
        """By handle, as far as the engine can tell cheaply; it may lag behind, and may leave some out.

        What differs from the sweep before is confirmed by `describe`.

        Raises:
            EngineUnavailable: no answer.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """How often an engine may be asked, by its own quotas."""

    looks_per_second: float
    sweep_every: float  # seconds between two sweeps
    batch: int  # executions of one sweep
    burst: int = 0  # looks that it takes now beyond that rate; they go to what has surely changed


@runtime_checkable
class Limited(Protocol):
    """Optional: its engine has quotas, shared with others; the core paces itself by them."""

    @property
    def allowance(self) -> Allowance:
        """What this process may use now; less after the engine has throttled us."""
        ...


@runtime_checkable
class Hints(Protocol):
    """Optional: is told by the engine which executions may have changed."""

    async def hints(self, changed: Callable[[str], None]) -> None:
        """Call `changed` with each handle that may have changed, until cancelled; each is worth one `describe`.

        Returns at once if it is not configured: then there are none.

        Raises:
            EngineError: there are none now; it is tried again later.
        """
        ...


@runtime_checkable
class Waits(Protocol):
    """Optional: can wait for an execution to end without asking again and again; the core opens a bounded number."""

    async def wait(self, ref: Ref) -> None:
        """Return when the execution may have ended; until cancelled otherwise. A hint: `describe` tells.

        Raises:
            EngineError: it cannot be waited for now.
        """
        ...


@runtime_checkable
class Terminates(Protocol):
    """Optional: can end an execution without asking it."""

    async def terminate(self, ref: Ref, reason: str) -> None:
        """End it now; a no-op on an ended execution.

        Raises:
            ExecutionNotFound, EngineUnavailable: see `Adapter.describe`.
        """
        ...


def can_terminate(adapter: object) -> bool:
    """Whether an adapter, or its class, has it."""
    return callable(getattr(adapter, "terminate", None))


def cancels_at_once(adapter: object) -> bool:
    """Whether a cancellation ends an execution of this adapter (or its class) at once, so that no grace is needed.

    It says so in a class attribute of this name; without it, an execution may go on for as long as it likes.
    """
    found: bool = getattr(adapter, "cancels_at_once", False)
    return found


def takes_grace(adapter: object) -> bool:
    """Whether it means something on an adapter, or its class, to wait after a cancellation and then to terminate."""
    return can_terminate(adapter) and not cancels_at_once(adapter)


@runtime_checkable
class Adopts(Protocol):
    """Optional: can make a task of an execution that somebody else started."""

    async def adopt(self, execution_id: str) -> Ref:
        """The execution a person names as the engine's own UI does: its workflow and handle, no options.

        Raises:
            ExecutionNotFound, EngineUnavailable: see `Adapter.describe`.
            EngineRefused: it can be no task.
        """
        ...


def read_options(model: type[Options], options: Mapping[str, JSON]) -> Options:
    """The options of one tool, as they were frozen with its task, read by the adapter's own model of them.

    Raises:
        EngineRefused: they are wrong.
    """
    try:
        return model.model_validate(options)
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, wrong["loc"]))
        raise EngineRefused(f"{place}: {wrong['msg']}" if place else wrong["msg"], final=True) from None


def start_options(adapter: object) -> frozenset[str]:
    """The tool options of an adapter, or of its class, that matter for a start only: who watches may not set them.

    It says so in a class attribute of this name; without it, they all may be set.
    """
    found: frozenset[str] = getattr(adapter, "start_options", frozenset[str]())
    return found


@runtime_checkable
class Fleeting(Protocol):
    """Optional: some of its workflows are too short-lived to be looked up later, so they can be no tasks.

    Their handle is good in this process only, and nothing dedupes their starts: whatever `Adapter.starts` says, what
    may have been started is never started again.
    """

    @staticmethod
    def fleeting(options: Mapping[str, JSON]) -> bool:
        """Whether a tool with these options runs such a workflow."""
        ...


def is_fleeting(adapter: object, options: Mapping[str, JSON]) -> bool:
    """Whether a tool with these options is too short-lived for a task, on an adapter or its class."""
    return isinstance(adapter, Fleeting) and adapter.fleeting(options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposed:
    """A workflow that its owner has marked, in the engine itself, to be offered as a tool."""

    name: str  # of the tool, as clients call it: `[A-Za-z0-9_.-]`, at most 64 characters
    workflow: str
    source: str  # how people find it in the engine: an ARN, a resource name
    title: str | None = None
    description: str | None = None
    input: Mapping[str, JSON]  # JSON Schema of an object
    draft: Mapping[str, JSON] | None = None  # a guess at a better one, which `check` prints for the owner to correct
    options: Mapping[str, JSON] = field(default_factory=dict[str, JSON])


@runtime_checkable
class Exposes(Protocol):
    """Optional: finds the workflows that their owners have marked to be tools; off unless its settings say so."""

    @property
    def expose_every(self) -> float | None:
        """Seconds between two looks for them; None: it is off, and nothing is offered that is not named."""
        ...

    async def exposed(self) -> Sequence[Exposed]:
        """All that are marked now.

        Raises:
            EngineRefused, EngineUnavailable: it cannot be told; what was offered stays.
        """
        ...


def expose_every(adapter: object) -> float | None:
    """Seconds between two looks of an adapter for marked workflows; None: it does not look, or cannot."""
    return adapter.expose_every if isinstance(adapter, Exposes) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What a tool uses of an engine."""

    tool: str
    workflow: str
    options: Mapping[str, JSON] = field(default_factory=dict[str, JSON])  # as they are written: nothing is filled in
    gates: Mapping[str, Mapping[str, JSON]] = field(default_factory=dict[str, Mapping[str, JSON]])  # likewise
    watches: bool = False  # it starts nothing
    answers: bool = True
    cancels: bool = True


@runtime_checkable
class Permits(Protocol):
    """Optional: can say which permissions of the engine exactly these tools need."""

    async def permissions(self, uses: Sequence[Use]) -> Mapping[str, JSON]:
        """The least privilege, in the engine's own format (an IAM policy document).

        Raises:
            EngineRefused, EngineUnavailable: it cannot be told.
        """
        ...


def same_workflow(adapter: object, written: str, found: str) -> bool:
    """Whether the workflow that a tool names is the one an adopted execution runs.

    An engine whose workflows have more than one name says so in a method of this name; otherwise they must be equal.
    """
    says: Callable[[str, str], bool] | None = getattr(adapter, "same_workflow", None)
    return written == found if says is None else says(written, found)


def one_workflow(adapter: object, written: str, found: str) -> bool:
    """Whether they are one workflow, also if a tool names a version of what was found."""
    return same_workflow(adapter, written, found) or same_workflow(adapter, found, written)


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovered:
    """A workflow that ran on an engine lately."""

    workflow: str
    options: Mapping[str, JSON] = field(default_factory=dict[str, JSON])  # what a tool for it would have to set
    last_seen: datetime | None = None
    executions: int = 0  # of those looked at


@runtime_checkable
class Discovers(Protocol):
    """Optional: can list the workflows there are."""

    async def discover(self) -> Sequence[Discovered]:
        """Workflows seen lately, the most frequent first.

        Raises:
            EngineRefused, EngineUnavailable: it cannot be told.
        """
        ...


def first_settings(adapter: object) -> Mapping[str, str]:
    """The settings that `mcp-workflows init` asks for, on an adapter or its class: by name, with the value it proposes.

    An empty value proposes to leave the setting out. A class attribute of this name says so; without it, `init` asks
    for the settings that are required.
    """
    found: Mapping[str, str] = getattr(adapter, "first_settings", {})
    return found


@runtime_checkable
class Previews(Protocol):
    """Optional: can say what `start` would send to the engine, without sending it."""

    def preview(self, start: Start) -> Mapping[str, JSON]:
        """The request in the engine's own words.

        Raises:
            EngineRefused: it would be refused before anything is sent.
        """
        ...


@runtime_checkable
class Embeds(Protocol):
    """Optional: ships source files that authors copy into their workflows, to ask people and report progress."""

    @staticmethod
    def embeds() -> Mapping[str, str]:
        """The text of the file, by language (`go`, `typescript`)."""
        ...
