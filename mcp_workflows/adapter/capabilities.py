"""Abilities of an engine beyond the four verbs that change how the core runs its executions.

Each is a protocol of its own, so that an adapter has exactly those its engine is good at: see docs/decisions/0006.
Without one the core does the plain thing. The tools for operators are in `mcp_workflows.kit.tooling`; the types that
the engine in memory needs for them are here.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, Protocol, TypeVar, runtime_checkable

from pydantic import BaseModel, ValidationError

from mcp_workflows.adapter.boundary import JSON, Adapter, Execution, Ref, Start, Status
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


GATE_WORDS = frozenset({"when", "send", "decline"})  # the fields of `GateSettings`


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


def standard_signature(key: bytes, message_id: str, seconds: str, body: bytes) -> str:
    """Return the signature of a webhook by Standard Webhooks, version 1; `seconds` is when it was sent (Unix time)."""
    signed = f"{message_id}.{seconds}.".encode() + body
    return f"v1,{base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()}"


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
class ConnectsLate(Protocol):
    """Optional: it connects to its engine when it is first used, as to a program that takes seconds to boot.

    With `StartGuarantee.ONCE` the core connects before it notes the attempt to start. A crash until then has started
    nothing, so the task is started later and its outcome is not unknown.
    """

    async def connect_engine(self) -> None:
        """Connect, unless it is connected; start nothing.

        Raises:
            EngineRefused: it lets us in no more, as with wrong credentials.
            EngineUnavailable: it cannot be reached.
        """
        ...


@runtime_checkable
class DescribesMany(Protocol):
    """Optional: a cheap poll of many executions at once, as the hint which of them to describe."""

    async def describe_many(self, refs: Sequence[Ref]) -> Mapping[str, Execution]:
        """Return executions by handle, as far as the engine can tell cheaply; the result may lag behind and be partial.

        The core confirms with `describe` each that differs from the batch before.

        Raises:
            EngineUnavailable: no answer.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """The rate at which an engine may be asked, by its own quotas."""

    polls_per_second: float
    batch_every: float  # seconds between two batches
    batch: int  # executions of one batch
    burst: int = 0  # polls that it takes now beyond that rate; for executions that have surely changed
    runs_here: bool | None = None  # whether this process runs its workflows now; None: they run elsewhere


@runtime_checkable
class Limited(Protocol):
    """Optional: its engine has quotas, shared with others; the core paces itself by them."""

    @property
    def allowance(self) -> Allowance:
        """The rate that this process may use now; less after the engine has throttled us."""
        ...


_live_replicas: list[int] = []  # the latest number; empty: the store does not count them


def set_live_replicas(replicas: int | None) -> None:
    """Note how many replicas share the store now; None: this process has left."""
    _live_replicas[:] = [] if replicas is None else [replicas]


def replica_count(configured: int) -> int:
    """Return how many processes share a quota: the live replicas, or as many as configured if nothing counts them."""
    return _live_replicas[0] if _live_replicas else configured


@runtime_checkable
class Hints(Protocol):
    """Optional: the engine tells it which executions may have changed."""

    async def hints(self, changed: Callable[[str], None]) -> None:
        """Call `changed` with each handle that may have changed, until cancelled; each is worth one `describe`.

        Call it in a task: in a callback of the event loop, anyio does not know the loop.
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


def takes_grace(adapter: Adapter | type[Adapter]) -> bool:
    """True if an adapter, or its class, can terminate an execution some time after a cancellation."""
    return isinstance(adapter, Terminates) and not adapter.cancels_at_once


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


MOST_ENDED: Final = 500
"""The most executions that `ListsEnded.list_ended` returns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedExecution:
    """An execution that has ended, as the engine lists it."""

    handle: str  # as in `Ref`
    execution_id: str  # as the engine's own UI shows it, and `Adopts.adopt` takes it
    status: Status  # terminal
    ended: datetime  # aware, UTC; a fraction that Python cannot hold is cut off, not rounded


@runtime_checkable
class ListsEnded(Protocol):
    """Optional: can list the executions of a workflow that ended lately, whoever started them."""

    async def list_ended(self, workflow: str, since: datetime) -> Sequence[EndedExecution]:
        """Return the executions of a tool's workflow that ended at this time or later, the earliest first.

        If there are more than `MOST_ENDED`, return the earliest ones: the caller goes on from the end of the last one.
        Fewer mean that no others are listed now. The list may lag behind: an end may appear in it after a later one.
        An execution whose end was not final, as after a redrive, is listed with its last end.

        Raises:
            EngineRefused: the workflow cannot be listed.
            EngineUnavailable: no answer.
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
class MessageRole:
    """A workflow that takes messages, a message to it, and a way to see those that have arrived."""

    receiver: Role  # runs until it is cancelled
    settings: Mapping[str, JSON]  # of an action, see `Adapter.ActionSettings`: a message with one argument, a text
    received: Callable[[Adapter, Ref], Awaitable[Sequence[JSON]]]  # the texts, in their order; gets the receiver


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
    messages: MessageRole | None = None  # None: no message can be tried
    has_stopped: Callable[[Ref], Awaitable[bool]] | None = None  # the engine does no more work for this execution
    refused: Role | None = None  # the engine does not take it at all: a definite no; None: it takes everything
    unknown_handle: str = "no-such-execution"
    gaps: Mapping[str, str] = field(default_factory=dict[str, str])  # laws that the engine cannot keep, and why
    questions: Mapping[str, Question] = field(default_factory=dict[str, Question])  # about the engine itself
