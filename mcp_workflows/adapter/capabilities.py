"""Optional abilities of an engine beyond the four verbs; without one the core does the plain thing.

Each is a protocol of its own, so that an adapter has exactly those its engine is good at: see docs/decisions/0006.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import ClassVar, Protocol, Self, TypeVar, runtime_checkable

from pydantic import BaseModel, ValidationError

from mcp_workflows.adapter.boundary import JSON, Execution, Gate, InputRequest, Ref, Start
from mcp_workflows.errors import EngineRefused

Options = TypeVar("Options", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of a check: fine, not fine, or unknown (None), in a sentence, and a hint about what to do.

    Unknown means that nothing can say it now: no permission to look, or an engine that does not know its workflows.
    """

    ok: bool | None
    text: str
    hint: str | None = None


@runtime_checkable
class Checks(Protocol):
    """Optional: can check that the engine answers and that a workflow could run there now."""

    async def check_engine(self) -> Finding:
        """Check that the engine can be reached and the settings fit it; never raise an EngineError."""
        ...

    async def check(self, workflow: str, options: Mapping[str, JSON]) -> Finding:
        """Check that this workflow could run now; never raise an EngineError."""
        ...


@runtime_checkable
class Identified(Protocol):
    """Optional: can tell its engine from another one with the same name in another configuration.

    Without it the name in the configuration is all that tells engines apart. See docs/decisions/0030.
    """

    @property
    def identity(self) -> str:
        """The adapter and its namespace, account, project or database: `temporal:default`.

        It is read while the adapter is open, needs no call, and has no secret. It must not change with credentials,
        nor with an address if the engine has anything more lasting. A row keeps it; only an engine with the same name
        and identity acts on the row.
        """
        ...


@runtime_checkable
class Verifies(Protocol):
    """Optional: can check that a workflow has the signals, updates and queries that its tool names."""

    async def verify(
        self, workflow: str, options: Mapping[str, JSON], gates: Mapping[str, Mapping[str, JSON]]
    ) -> Sequence[Finding]:
        """Return all that is missing or could not be found out (unknown, no problem); never raise an EngineError.

        `gates` are `when`, `send` and `decline` by name, as they are written: nothing is filled in. A text about one
        setting begins with its path in the tool and a colon (`questions.approve.when.after: ...`): `check` puts the
        file and the line before it.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowSchema:
    """The schemas that the code of a workflow gives for its input and output."""

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
    """Optional, beside `Schemas`: can check in a workflow's code that it takes all that a tool's gates send."""

    @staticmethod
    def misfits(reference: str, gates: Mapping[str, Mapping[str, JSON]]) -> Mapping[str, str]:
        """Return the problems by setting in `gates`: `approve.send.args`.

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

    GateSettings: ClassVar[type[BaseModel]]  # the model of a gate's `when`, `send` and `decline` on this engine


GATE_WORDS = frozenset({"when", "send", "decline"})  # the fields of `GateSettings`


def gate_settings(adapter: object) -> type[BaseModel] | None:
    """Return the model of an adapter (or its class) for the engine's words in a gate; None: it has no gates."""
    return getattr(adapter, "GateSettings", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """The execution as a client would have seen it from one event of a history on."""

    event: str  # the engine's own id of the event
    execution: Execution


@runtime_checkable
class Replays(Protocol):
    """Optional: can replay an exported history offline, as clients would have seen it."""

    @staticmethod
    def replay(history: JSON, gates: Mapping[str, Gate]) -> Sequence[Replayed]:
        """Return each change that a client would have seen, in order.

        Raises:
            ConfigError: this is not a history of this engine.
        """
        ...


class GateState(StrEnum):
    """The state of a gate: an open one asks its question now."""

    OPEN = "open"
    CLOSED = "closed"
    UNKNOWN = "unknown"  # it cannot be told now


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedGate:
    """The state of one gate of an execution, and the reason for it in a sentence."""

    state: GateState
    why: str

    @classmethod
    def closed(cls, why: str) -> Self:
        """Return the state of a gate that asks nothing now."""
        return cls(state=GateState.CLOSED, why=why)


def open_gates(requests: Mapping[str, InputRequest]) -> Mapping[str, ExplainedGate]:
    """Return the gates with a question among these requests, by name."""
    asking = {request.gate: (key, request) for key, request in requests.items() if request.gate is not None}
    return {
        gate: ExplainedGate(state=GateState.OPEN, why=f"it asks: {request.params.get('message', '')} ({key})")
        for gate, (key, request) in asking.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The reason for the present state of an execution."""

    reason: str  # one sentence
    facts: Mapping[str, str] = field(default_factory=dict[str, str])  # in the order of display
    advice: str | None = None  # the next thing to do
    gates: Mapping[str, ExplainedGate] = field(default_factory=dict[str, ExplainedGate])  # by name, of `ref.gates`


@runtime_checkable
class Explains(Protocol):
    """Optional: can explain why an execution is still working; may ask the engine more than `describe` does."""

    async def explain(self, ref: Ref) -> Explanation:
        """Explain the state for the operator: attempts, last errors, pollers, the time without a change.

        With gates, give the state of each: `open_gates`, and of the others why they are closed. For gates that are left
        out, the last look counts.

        Raises:
            ExecutionNotFound, EngineUnavailable: see `Adapter.describe`.
        """
        ...


@runtime_checkable
class Finds(Protocol):
    """The ability behind `StartGuarantee.FINDABLE`: can look for the execution of a key that may have been started.

    The core asks before it starts a key again, and starts it only when nothing is found `settling` after the previous
    attempt; so `start` is one attempt, and need not look by itself.
    """

    @property
    def settling(self) -> timedelta:
        """The time after an attempt in which its execution may not be found yet: a call in progress, a late list."""
        ...

    async def find(self, start: Start) -> str | None:
        """Return the handle of the execution of this start's key, or None: the oldest, later ones are cancelled.

        Raises:
            StartConflict: the key belongs to an execution with another workflow or input.
            EngineRefused, EngineUnavailable: it cannot be told.
        """
        ...


class Notes(Protocol):
    """The memory of one engine's adapter: JSON values by key in our store, shared by all replicas.

    Each value is kept until a time of its own, and no longer than that is needed. All methods raise `EngineUnavailable`
    if the store cannot be used now; a value is on disk when the call that writes it returns.
    """

    async def get(self, key: str) -> JSON:
        """Return the value of this key; None: there is none."""
        ...

    async def under(self, beginning: str) -> Mapping[str, JSON]:
        """Return all values whose keys have this beginning, by key, sorted by it."""
        ...

    async def add(self, key: str, value: JSON, *, until: datetime) -> JSON:
        """Return the value of this key from now on: the one that is there already, or else this one; atomic."""
        ...

    async def put(self, key: str, value: JSON, *, until: datetime) -> None:
        """Keep this value in place of any other."""
        ...


@runtime_checkable
class Remembers(Protocol):
    """Optional: must remember something that the engine does not keep for it. It owns no database."""

    def remember(self, notes: Notes) -> None:
        """Use these notes; called before the adapter is entered. Without a store it is not called."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Trusted:
    """The OpenID Connect tokens that are good for a route."""

    issuer: str  # `iss` of the token, to the letter
    keys_url: str  # where the issuer publishes its keys (JWKS)
    audience: str  # `aud` of the token
    accounts: frozenset[str]  # its `email`, which must be verified: service accounts


class Signature(StrEnum):
    """The way in which the caller of a route proves that it knows the secret."""

    HUB = "hub"  # X-Hub-Signature-256: the HMAC of the body, as GitHub does it
    GITLAB = "gitlab"  # X-Gitlab-Token: the secret itself
    STANDARD = "standard"  # standardwebhooks.com: webhook-id, webhook-timestamp, webhook-signature
    BEARER = "bearer"  # Authorization: Bearer, with the secret itself


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSecret:
    """The secret that is good for a route; whoever knows it is one account."""

    signature: Signature
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One inbound HTTP address of an engine: `POST /engines/ENGINE/PATH`, JSON in, JSON out.

    The core checks the token or the signature, the size and that it is JSON; then it calls `receive` with the body and
    the account that sent it. Errors tell the sender: `EngineRefused` 400, `ExecutionNotFound` 404, `EngineUnavailable`
    503 (try again).
    """

    path: str  # one word: `input`
    trusted: Trusted | SharedSecret
    receive: Callable[[JSON, str], Awaitable[JSON]]


@runtime_checkable
class Routes(Protocol):
    """Optional: its workflows call it over HTTP. Only where the sidecar is served over HTTP."""

    def routes(self) -> Sequence[Route]:
        """Return the routes of this engine; none if its settings ask for none."""
        ...


@runtime_checkable
class Sweeps(Protocol):
    """Optional: a cheap look at many executions at once, as the hint which of them to describe."""

    async def describe_many(self, refs: Sequence[Ref]) -> Mapping[str, Execution]:
        """Return executions by handle, as far as the engine can tell cheaply; the result may lag behind and be partial.

        The core confirms with `describe` each that differs from the sweep before.

        Raises:
            EngineUnavailable: no answer.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """The rate at which an engine may be asked, by its own quotas."""

    looks_per_second: float
    sweep_every: float  # seconds between two sweeps
    batch: int  # executions of one sweep
    burst: int = 0  # looks that it takes now beyond that rate; for executions that have surely changed
    runs_here: bool | None = None  # whether this process runs its workflows now; None: they run elsewhere


@runtime_checkable
class Limited(Protocol):
    """Optional: its engine has quotas, shared with others; the core paces itself by them."""

    @property
    def allowance(self) -> Allowance:
        """The rate that this process may use now; less after the engine has throttled us."""
        ...


@runtime_checkable
class Hints(Protocol):
    """Optional: the engine tells it which executions may have changed."""

    async def hints(self, changed: Callable[[str], None]) -> None:
        """Call `changed` with each handle that may have changed, until cancelled; each is worth one `describe`.

        Return at once if hints are not configured: then there are none.

        Raises:
            EngineError: there are none now; the core tries again later.
        """
        ...


@runtime_checkable
class Waits(Protocol):
    """Optional: can wait for an execution to end without asking again and again; the core opens a bounded number."""

    async def wait(self, ref: Ref) -> None:
        """Return when the execution may have ended; until cancelled otherwise. It is a hint: `describe` tells.

        Raises:
            EngineError: it cannot be waited for now.
        """
        ...


@runtime_checkable
class HasLogs(Protocol):
    """Optional: can show the log of an execution; `Execution.has_log` says which ones have one."""

    async def log(self, ref: Ref) -> str:
        """Return the end of its log, at most 64 KiB, without secrets and stack traces; empty: there is none yet.

        Raises:
            ExecutionNotFound, EngineUnavailable: see `Adapter.describe`.
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
    """True if an adapter, or its class, can terminate executions."""
    return callable(getattr(adapter, "terminate", None))


def cancels_at_once(adapter: object) -> bool:
    """True if a cancellation ends an execution of this adapter (or its class) at once, so that no grace is needed.

    A class attribute of this name says so; without it, an execution may go on for as long as it likes.
    """
    found: bool = getattr(adapter, "cancels_at_once", False)
    return found


def takes_grace(adapter: object) -> bool:
    """True if an adapter, or its class, can terminate an execution some time after a cancellation."""
    return can_terminate(adapter) and not cancels_at_once(adapter)


@runtime_checkable
class Adopts(Protocol):
    """Optional: can make a task of an execution that somebody else started."""

    async def adopt(self, execution_id: str) -> Ref:
        """Return the execution of an id as the engine's own UI shows it: its workflow and handle, no options.

        Raises:
            ExecutionNotFound, EngineUnavailable: see `Adapter.describe`.
            EngineRefused: it can be no task.
        """
        ...


def read_options(model: type[Options], options: Mapping[str, JSON]) -> Options:
    """Read the options of one tool, as they were frozen with its task, with the adapter's own model.

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
    """Return the tool options of an adapter (or its class) that only matter for a start.

    A tool of `kind: watch` may not set them. A class attribute of this name names them; without it, there are none.
    """
    found: frozenset[str] = getattr(adapter, "start_options", frozenset[str]())
    return found


@runtime_checkable
class Fleeting(Protocol):
    """Optional: some of its workflows are too short-lived to be looked up later, so they can be no tasks.

    Their handle is good in this process only, and nothing dedupes their starts: no start that may have happened is
    repeated, whatever `Adapter.starts` promises.
    """

    @staticmethod
    def fleeting(options: Mapping[str, JSON]) -> bool:
        """Return True if a tool with these options runs such a workflow."""
        ...


def is_fleeting(adapter: object, options: Mapping[str, JSON]) -> bool:
    """True if a tool with these options is too short-lived for a task, on an adapter or its class."""
    fleeting = getattr(adapter, "fleeting", None)  # `isinstance` of a protocol takes as long as a read of the store
    return fleeting is not None and bool(fleeting(options))


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposed:
    """A workflow that its owner has marked, in the engine itself, to be offered as a tool."""

    name: str  # of the tool, as clients call it: `[A-Za-z0-9_.-]`, at most 64 characters
    workflow: str
    source: str  # its name in the engine: an ARN, a resource name
    title: str | None = None
    description: str | None = None
    input: Mapping[str, JSON]  # JSON Schema of an object
    draft: Mapping[str, JSON] | None = None  # a guess at a better one, which `check` prints for the owner to correct
    options: Mapping[str, JSON] = field(default_factory=dict[str, JSON])
    pin: bool = False  # its owner is a third party: a changed title, description or input is not offered unseen


@runtime_checkable
class Exposes(Protocol):
    """Optional: finds the workflows that their owners have marked to be tools; off unless its settings say so."""

    @property
    def expose_every(self) -> float | None:
        """Seconds between two looks for them; None: it is off, and nothing is offered that is not named."""
        ...

    async def exposed(self) -> Sequence[Exposed]:
        """Return all workflows that are marked now.

        Raises:
            EngineRefused, EngineUnavailable: it cannot be told; the tools that were offered stay.
        """
        ...


def expose_every(adapter: object) -> float | None:
    """Return the seconds between two looks of an adapter for marked workflows; None: it does not look, or cannot."""
    return adapter.expose_every if isinstance(adapter, Exposes) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """The use that a tool makes of an engine."""

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
        """Return the least privilege, in the engine's own format (an IAM policy document).

        Raises:
            EngineRefused, EngineUnavailable: it cannot be told.
        """
        ...


def same_workflow(adapter: object, written: str, found: str) -> bool:
    """True if the workflow that a tool names is the one that an adopted execution runs.

    An engine whose workflows have more than one name has a method of this name; otherwise the two must be equal.
    """
    says: Callable[[str, str], bool] | None = getattr(adapter, "same_workflow", None)
    return written == found if says is None else says(written, found)


def one_workflow(adapter: object, written: str, found: str) -> bool:
    """True if both are one workflow, even if a tool names a version of the one that was found."""
    return same_workflow(adapter, written, found) or same_workflow(adapter, found, written)


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovered:
    """A workflow that is on an engine, or ran there lately."""

    workflow: str
    title: str | None = None
    description: str | None = None
    input: Mapping[str, JSON] | None = None  # JSON Schema of an object; None: the engine knows none
    code: str | None = None  # `module:attribute`, for `Schemas`: the schemas stay those of the code
    options: Mapping[str, JSON] = field(default_factory=dict[str, JSON])  # the options that a tool for it needs
    last_seen: datetime | None = None
    executions: int = 0  # of those looked at


@runtime_checkable
class Discovers(Protocol):
    """Optional: can list the workflows there are."""

    async def discover(self) -> Sequence[Discovered]:
        """Return the workflows seen lately, the most frequent first.

        Raises:
            EngineRefused, EngineUnavailable: it cannot be told.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftedEngine:
    """A draft of an engine, made of what answers at an address."""

    name: str  # as it calls itself
    settings: Mapping[str, JSON]
    workflows: Sequence[Discovered] = ()  # those that become tools of their own in the draft
    advice: Sequence[str] = ()  # what people must look at, in a sentence each


@runtime_checkable
class Drafts(Protocol):
    """Optional: can draft the settings of an engine from what answers at an address, or to a command."""

    @staticmethod
    async def draft(address: str, start: str | None) -> DraftedEngine:
        """Return a draft; `start` names a workflow there, and the draft is for that one.

        Raises:
            ConfigError: nothing can be made of what answers there.
            EngineRefused, EngineUnavailable: nothing answers.
        """
        ...


def first_settings(adapter: object) -> Mapping[str, str]:
    """Return the settings that `mcp-workflows init` asks for, by name, with the proposed values.

    `adapter` may be a class. An empty value proposes to leave the setting out. A class attribute of this name has them;
    without it, `init` asks for the required settings.
    """
    found: Mapping[str, str] = getattr(adapter, "first_settings", {})
    return found


@runtime_checkable
class Previews(Protocol):
    """Optional: can return the request that `start` would send to the engine, without sending it."""

    def preview(self, start: Start) -> Mapping[str, JSON]:
        """Return the request in the engine's own words.

        Raises:
            EngineRefused: it would be refused before anything is sent.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Settings for one well-known engine, as a file that comes with the adapter."""

    title: str  # the engine
    verified: str  # `real` (the contract on the engine itself), `recorded` (a specification, replies) or `read`
    since: str  # the version of the engine
    notes: str  # what its users must know
    text: str  # the file


@runtime_checkable
class HasPresets(Protocol):
    """Optional: ships settings for well-known engines, which a setting `preset` names."""

    @staticmethod
    def presets() -> Mapping[str, Preset]:
        """Return the presets by name."""
        ...

    @staticmethod
    def preset_schema() -> Mapping[str, JSON]:
        """Return the JSON Schema of a preset, for files of users' own."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """A workflow that plays a part, and its input."""

    workflow: str
    arguments: JSON = field(default_factory=list[JSON])
    options: Mapping[str, JSON] = field(default_factory=dict[str, JSON])
    missing: str | None = None  # the reason why nobody plays this part; laws that need it are not tried


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """An answer of the engine, beside the one that the adapter expects."""

    expected: str  # empty: any answer will do
    seen: str
    ok: bool | None  # None: there is nothing to compare it with, or it could not be tried


Question = Callable[[], Awaitable[Sequence[Observation]]]
"""Ask the engine about one point, and return what it says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixtures:
    """Workflows of known behaviour on an engine."""

    finishes: Role  # at once, with `output`
    output: JSON
    other_arguments: JSON  # that `finishes` could have been started with as well
    fails: Role  # at once, with `failure` in its text
    failure: str
    endless: Role  # runs until it is cancelled
    asks: Role | None = None  # one question, then it succeeds; None: this engine never asks a person
    asks_two: Role | None = None  # two questions at once, then it succeeds
    content: JSON = None  # that answers each of these questions
    has_stopped: Callable[[Ref], Awaitable[bool]] | None = None  # the engine does no more work for this execution
    refused: Role | None = None  # the engine does not take it at all: a definite no; None: it takes everything
    unknown_handle: str = "no-such-execution"
    gaps: Mapping[str, str] = field(default_factory=dict[str, str])  # laws that the engine cannot keep, and why
    questions: Mapping[str, Question] = field(default_factory=dict[str, Question])  # about the engine itself


@runtime_checkable
class HasFixtures(Protocol):
    """Optional: can put workflows of known behaviour on its engine for a while, for `mcp-workflows verify`."""

    @staticmethod
    def fixture_settings() -> type[BaseModel]:
        """Return the model of what the user has to say besides: a role, a service account."""
        ...

    def fixtures_notice(self) -> str:
        """Return what `fixtures` creates, what it costs and which permissions it needs, in a few sentences."""
        ...

    def fixtures(self, settings: BaseModel) -> AbstractAsyncContextManager[Fixtures]:
        """Create the workflows; remove them in the end, whatever happens. `self` is entered.

        Raises:
            EngineRefused, EngineUnavailable: they cannot be created.
        """
        ...


@runtime_checkable
class Embeds(Protocol):
    """Optional: ships source files that authors copy into their workflows, to ask people and report progress."""

    @staticmethod
    def embeds() -> Mapping[str, str]:
        """Return the text of the file, by language (`go`, `typescript`)."""
        ...
