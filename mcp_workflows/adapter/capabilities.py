"""Abilities of an engine beyond the four verbs that change how the core runs its executions.

Each is a separate protocol, so an adapter has exactly those that suit its engine: see docs/decisions/0006. Without one,
the core uses only the verbs. The tools for operators are in `mcp_workflows.kit.tooling`; the types that the engine in
memory needs for them are here.
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
    """The result of a check in one sentence: ok, not ok, or unknown (None), with a hint about what to do.

    Unknown means that the check is impossible now: a missing permission, or an engine that does not list its workflows.
    """

    ok: bool | None
    text: str
    hint: str | None = None


GATE_WORDS = frozenset({"when", "send", "decline"})  # the fields of `GateSettings`


@runtime_checkable
class Finds(Protocol):
    """The ability behind `StartGuarantee.FINDABLE`: finding the execution of a key that may have been started.

    The core calls `find` before it repeats the start of a key, and repeats it only if nothing is found `settling` after
    the previous attempt. So `start` is one attempt, and need not search itself.
    """

    @property
    def settling(self) -> timedelta:
        """The time after an attempt in which its execution may be missing: a call is running, or a list is late."""
        ...

    async def find(self, start: Start) -> str | None:
        """Return the handle of the oldest execution with this start's key, or None; later ones are cancelled.

        Raises:
            StartConflict: the key belongs to an execution with another workflow or input.
            EngineRefused, EngineUnavailable: the outcome is unknown.
        """
        ...


class Notes(Protocol):
    """The memory of one engine's adapter: JSON values by key in our store, shared by all replicas.

    Each value has its own expiry; keep it no longer than needed. All methods raise `EngineUnavailable` if the store
    cannot be used now. A value is on disk when the call that writes it returns.
    """

    async def get(self, key: str) -> JSON:
        """Return the value of this key, or None."""
        ...

    async def under(self, beginning: str) -> Mapping[str, JSON]:
        """Return all values whose keys begin with this text, sorted by key."""
        ...

    async def add(self, key: str, value: JSON, *, until: datetime) -> JSON:
        """Return the value of this key: the existing one, or else this one, which is stored; atomic."""
        ...

    async def put(self, key: str, value: JSON, *, until: datetime) -> None:
        """Store this value, replacing any other."""
        ...


@runtime_checkable
class Remembers(Protocol):
    """Optional: the adapter must remember something that the engine does not keep. It has no database itself."""

    def remember(self, notes: Notes) -> None:
        """Use these notes. Called before the adapter is entered, and only if there is a store."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Trusted:
    """The OpenID Connect tokens that a route accepts."""

    issuer: str  # exact `iss` of the token
    keys_url: str  # the URL of the issuer's keys (JWKS)
    audience: str  # `aud` of the token
    accounts: frozenset[str]  # service accounts: the token's verified `email`


class Signature(StrEnum):
    """The way in which the caller of a route proves that it knows the secret."""

    HUB = "hub"  # X-Hub-Signature-256: the HMAC of the body, as GitHub sends it
    GITLAB = "gitlab"  # X-Gitlab-Token: the secret itself
    STANDARD = "standard"  # standardwebhooks.com: webhook-id, webhook-timestamp, webhook-signature
    BEARER = "bearer"  # Authorization: Bearer, followed by the secret itself


def standard_signature(key: bytes, message_id: str, seconds: str, body: bytes) -> str:
    """Return the Standard Webhooks signature, version 1; `seconds` is when the message was sent (Unix time)."""
    signed = f"{message_id}.{seconds}.".encode() + body
    return f"v1,{base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSecret:
    """The secret that a route accepts; all callers that know it count as one account."""

    signature: Signature
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """An inbound HTTP address of an engine: `POST /engines/ENGINE/PATH`, JSON in, JSON out.

    The core checks the token or signature, the size and the JSON, then calls `receive` with the body and the sending
    account. Errors become status codes: `EngineRefused` 400, `ExecutionNotFound` 404, `EngineUnavailable` 503 (retry).
    """

    path: str  # one word: `input`
    trusted: Trusted | SharedSecret
    receive: Callable[[JSON, str], Awaitable[JSON]]


@runtime_checkable
class Routes(Protocol):
    """Optional: the engine's workflows call the adapter over HTTP. Only if the sidecar is served over HTTP."""

    def routes(self) -> Sequence[Route]:
        """Return the routes of this engine; empty if its settings need none."""
        ...


@runtime_checkable
class ConnectsLate(Protocol):
    """Optional: the adapter connects on first use, for example to a program that takes seconds to start.

    With `StartGuarantee.ONCE` the core connects before it records the start attempt. A crash until then has started
    nothing, so the start can be repeated, and its outcome is known.
    """

    async def connect_engine(self) -> None:
        """Connect unless connected; start nothing.

        Raises:
            EngineRefused: access is refused permanently, for example because of wrong credentials.
            EngineUnavailable: it cannot be reached.
        """
        ...


@runtime_checkable
class DescribesMany(Protocol):
    """Optional: a cheap poll of many executions at once, which shows the executions to describe."""

    async def describe_many(self, refs: Sequence[Ref]) -> Mapping[str, Execution]:
        """Return executions by handle if the engine can report them cheaply; the result may be outdated and incomplete.

        The core confirms with `describe` each one that differs from the previous batch.

        Raises:
            EngineUnavailable: no answer.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """The rate at which an engine may be polled, by its quotas."""

    polls_per_second: float
    batch_every: float  # seconds between batches
    batch: int  # executions per batch
    burst: int = 0  # polls accepted now beyond that rate, for executions that have certainly changed
    runs_here: bool | None = None  # whether this process runs its workflows now; None: they run elsewhere


@runtime_checkable
class Limited(Protocol):
    """Optional: the engine has quotas, shared with other clients; the core adapts its rate."""

    @property
    def allowance(self) -> Allowance:
        """The rate that this process may use now; lower after the engine has throttled us."""
        ...


_live_replicas: list[int] = []  # the last number; empty: the store does not count replicas


def set_live_replicas(replicas: int | None) -> None:
    """Record how many replicas share the store now; None: this process has left."""
    _live_replicas[:] = [] if replicas is None else [replicas]


def replica_count(configured: int) -> int:
    """Return how many processes share a quota: the live replicas, or the configured number if they are not counted."""
    return _live_replicas[0] if _live_replicas else configured


@runtime_checkable
class Hints(Protocol):
    """Optional: the engine reports which executions may have changed."""

    async def hints(self, changed: Callable[[str], None]) -> None:
        """Call `changed` with each handle that may have changed, until cancelled; each is worth one `describe`.

        Call it in a task: in a callback of the event loop, anyio does not know the loop.
        Return at once if hints are not configured.

        Raises:
            EngineError: no hints now; the core retries later.
        """
        ...


@runtime_checkable
class Waits(Protocol):
    """Optional: the adapter can wait for an execution to end without polling; the core limits the number of waits."""

    async def wait(self, ref: Ref) -> None:
        """Return when the execution may have ended; otherwise wait until cancelled. Only `describe` shows the outcome.

        Raises:
            EngineError: waiting is impossible now.
        """
        ...


@runtime_checkable
class HasLogs(Protocol):
    """Optional: the adapter can show an execution's log; `Execution.has_log` marks the executions that have one."""

    async def log(self, ref: Ref) -> str:
        """Return the end of the log, at most 64 KiB, without secrets and stack traces; empty: no log yet.

        Raises:
            ExecutionNotFound, EngineUnavailable: see `Adapter.describe`.
        """
        ...


@runtime_checkable
class Terminates(Protocol):
    """Optional: the adapter can end an execution without its cooperation."""

    async def terminate(self, ref: Ref, reason: str) -> None:
        """End it now; a no-op on an ended execution.

        Raises:
            ExecutionNotFound, EngineUnavailable: see `Adapter.describe`.
        """
        ...


def takes_grace(adapter: Adapter | type[Adapter]) -> bool:
    """Return True if an adapter, or its class, can terminate an execution some time after a cancellation."""
    return isinstance(adapter, Terminates) and not adapter.cancels_at_once


@runtime_checkable
class Adopts(Protocol):
    """Optional: the adapter can make a task of an execution that others started."""

    async def adopt(self, execution_id: str) -> Ref:
        """Return the execution with an id as the engine's UI shows it: its workflow and handle, no options.

        Raises:
            ExecutionNotFound, EngineUnavailable: see `Adapter.describe`.
            EngineRefused: it cannot be a task.
        """
        ...


MOST_ENDED: Final = 500
"""The maximum number of executions that `ListsEnded.list_ended` returns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedExecution:
    """An ended execution, as the engine lists it."""

    handle: str  # as in `Ref`
    execution_id: str  # as the engine's UI shows it and `Adopts.adopt` accepts it
    status: Status  # terminal
    ended: datetime  # aware, UTC; digits that Python cannot hold are cut off, not rounded


@runtime_checkable
class ListsEnded(Protocol):
    """Optional: the adapter can list the recently ended executions of a workflow, including those others started."""

    async def list_ended(self, workflow: str, since: datetime) -> Sequence[EndedExecution]:
        """Return the executions of a tool's workflow that ended at `since` or later, earliest first.

        If there are more than `MOST_ENDED`, return the earliest: the caller continues from the end of the last one. A
        smaller number means that no others are listed now. The list may be late: an end may appear in it after a later
        one. An execution that ran again after its end, as after a redrive, is listed with its last end.

        Raises:
            EngineRefused: the workflow cannot be listed.
            EngineUnavailable: no answer.
        """
        ...


def read_options(model: type[Options], options: Mapping[str, JSON]) -> Options:
    """Parse the options of one tool, as frozen with its task, with the adapter's model.

    Raises:
        EngineRefused: they are invalid.
    """
    try:
        return model.model_validate(options)
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, wrong["loc"]))
        raise EngineRefused(f"{place}: {wrong['msg']}" if place else wrong["msg"], final=True) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """A workflow for one role of the tests, with its input."""

    workflow: str
    arguments: JSON = field(default_factory=list[JSON])
    options: Mapping[str, JSON] = field(default_factory=dict[str, JSON])
    missing: str | None = None  # the reason why no workflow has this role; laws that need it are skipped


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """An answer of the engine, with the one that the adapter expects."""

    expected: str  # empty: any answer is accepted
    seen: str
    ok: bool | None  # None: nothing to compare, or it could not be tried


Question = Callable[[], Awaitable[Sequence[Observation]]]
"""Test one point of the engine's behaviour, and return its answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRole:
    """A workflow that receives messages, a message to it, and a way to read the received ones."""

    receiver: Role  # runs until it is cancelled
    settings: Mapping[str, JSON]  # of an action, see `Adapter.ActionSettings`: a message with one argument, a text
    received: Callable[[Adapter, Ref], Awaitable[Sequence[JSON]]]  # the texts in order; called with the receiver


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixtures:
    """Workflows with known behaviour on an engine."""

    finishes: Role  # immediately, with `output`
    output: JSON
    other_arguments: JSON  # other valid arguments of `finishes`
    fails: Role  # immediately, with `failure` in its text
    failure: str
    endless: Role  # runs until it is cancelled
    asks: Role | None = None  # one question, then it succeeds; None: this engine never asks a person
    asks_two: Role | None = None  # two questions at once, then it succeeds
    content: JSON = None  # answers each of these questions
    messages: MessageRole | None = None  # None: messages cannot be tested
    has_stopped: Callable[[Ref], Awaitable[bool]] | None = None  # the engine has stopped working on it
    refused: Role | None = None  # the engine certainly rejects it; None: it accepts everything
    unknown_handle: str = "no-such-execution"
    gaps: Mapping[str, str] = field(default_factory=dict[str, str])  # laws that the engine cannot keep, with reasons
    questions: Mapping[str, Question] = field(default_factory=dict[str, Question])  # about the engine itself
