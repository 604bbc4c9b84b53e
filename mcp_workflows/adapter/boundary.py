"""THE BOUNDARY: what a workflow engine must be able to do, and the words for it.

Four verbs and a lifetime. An adapter is stateless between calls but for its client; whatever must be
remembered is in the handle or in our store. `mcp_workflows.testing.AdapterContract` has one test per law.
What an engine may be able to do beyond that is in `mcp_workflows.adapter.capabilities`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from difflib import get_close_matches
from enum import StrEnum
from importlib.metadata import entry_points
from typing import Any, ClassVar, Protocol, TypeAlias

from pydantic import BaseModel, ConfigDict

from mcp_workflows.errors import ConfigError

ENTRY_POINT_GROUP = "mcp_workflows.adapters"
OURS: Mapping[str, str] = {"google-workflows": "google", "stepfunctions": "stepfunctions", "temporal": "temporal"}
"""The extra of this distribution that brings an adapter, by the adapter's name."""

JSON: TypeAlias = Any  # any JSON value: its shape is checked where it enters, by schema


def digest(value: JSON) -> str:
    """Return a name for a JSON value: 32 hexadecimal characters, the same for the same value."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:32]


class Status(StrEnum):
    """The state of an execution in the engine's words, not MCP's: the two eras contradict each other on `failed`."""

    RUNNING = "running"
    INPUT_REQUIRED = "input_required"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"  # also terminated, aborted: whoever did it, the reason is in the message


class StartGuarantee(StrEnum):
    """What the engine itself promises about starting twice with one key."""

    KEYED = "keyed"  # the engine dedupes by key: starting again is always safe
    FINDABLE = "findable"  # we can look for an execution by its key: `capabilities.Finds`; ONCE without that
    ONCE = "once"  # neither: after a lost reply the outcome stays unknown, and it is never started again


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What to start; a new field breaks no stranger's adapter."""

    workflow: str
    arguments: JSON  # already mapped: what the engine gets
    key: str  # one key, one execution; ASCII letters, digits, `_`, `.` and `-`, at most 200 characters
    created: datetime  # when we meant to start it
    options: Mapping[str, JSON] = field(default_factory=dict[str, JSON])  # the tool's own settings for this engine
    context: Mapping[str, str] = field(default_factory=dict[str, str])  # on whose behalf, trace parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far an execution is: `value` of `total` (None: unknown), in the workflow's own unit."""

    value: float
    total: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRequest:
    """A question of the execution to a person: the MCP method (`elicitation/create`) and its params."""

    method: str
    params: Mapping[str, JSON]
    gate: str | None = None  # the gate of the tool that asks it; None: the workflow itself


def asked(requests: Mapping[str, InputRequest]) -> str:
    """What they ask, in one text for people."""
    return "; ".join(str(request.params.get("message", key)) for key, request in requests.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """A human step that our configuration declares for a workflow that was not written for us, frozen at the start.

    `when`, `send` and `decline` are in the engine's own words, see `capabilities.Gated`; placeholders in the last two
    are filled in when an answer comes.
    """

    when: JSON  # when the execution waits for it
    request: InputRequest  # what is asked then
    send: JSON  # how an answer reaches the execution
    decline: JSON = None  # how a refusal does; None: it cannot


@dataclass(frozen=True, slots=True, kw_only=True)
class Ref:
    """One execution: workflow, handle (opaque, storable), the tool's options and gates as frozen at its start.

    `asked` are the keys of the questions of the last look that the store kept, of whatever process that was. A question
    that cannot be decided now stays open if its key is among them.
    """

    workflow: str
    handle: str
    options: Mapping[str, JSON] = field(default_factory=dict[str, JSON])
    gates: Mapping[str, Gate] = field(default_factory=dict[str, Gate])  # empty for adapters without `Gated`
    asked: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why an execution failed: a text for people, the engine's or the workflow's own kind of error.

    `code` (and `data`) only if the workflow asked for a JSON-RPC protocol error.
    """

    text: str
    kind: str | None = None
    code: int | None = None
    data: JSON = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """One look at an execution."""

    status: Status
    message: str | None = None  # for people: the step, the reason, "nobody polls task queue orders"
    progress: Progress | None = None
    requests: Mapping[str, InputRequest] = field(default_factory=dict[str, InputRequest])  # keys are never reused
    output: JSON = None  # when SUCCEEDED
    failure: Failure | None = None  # when FAILED
    cancel_requested: bool = False
    execution_id: str | None = None  # what a person types into the engine's own UI or CLI
    url: str | None = None  # the engine's own page of it

    @property
    def terminal(self) -> bool:
        """Whether it has ended and will never change again."""
        return self.status in TERMINAL


TERMINAL = frozenset({Status.SUCCEEDED, Status.FAILED, Status.CANCELLED})


class Nothing(BaseModel):
    """The `Options` (or `Settings`) of an adapter that has none: nothing can be set."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Adapter(AbstractAsyncContextManager["Adapter"], Protocol):
    """One workflow engine. Stateless between calls but for its client.

    Entering it must not need the engine: an engine that is down when we start is found out by the first
    call. Only `EngineError`s cross: foreign errors are translated by one table per adapter.
    """

    Settings: ClassVar[type[BaseModel]]  # of the engine, from `engines:` in workflows.yaml
    Options: ClassVar[type[BaseModel]]  # of one tool on this engine, from `tools:`
    starts: ClassVar[StartGuarantee]

    def __init__(self, settings: Any) -> None:  # Any: an instance of the adapter's own Settings
        """Keep the settings; connect lazily."""
        ...

    async def start(self, start: Start) -> str:
        """Start one execution and return its handle; KEYED: the same key again returns the same handle.

        Raises:
            StartConflict: the key belongs to an execution with another workflow or input.
            EngineRefused: a definite no, nothing was started.
            EngineUnavailable: nobody knows; `sent=False` if certainly nothing was started.
        """
        ...

    async def describe(self, ref: Ref) -> Execution:
        """One look, never waits. A terminal answer never changes.

        Raises:
            ExecutionNotFound: the engine has no such execution.
            EngineUnavailable: no answer.
        """
        ...

    async def answer(self, ref: Ref, responses: Mapping[str, JSON]) -> None:
        """Deliver responses (`{action, content}`) by input request key; unknown and answered keys are ignored.

        A response to a gate's request also has `send`: what to send in the engine's words, filled in.

        Raises:
            EngineRefused: the execution does not accept an answer.
            ExecutionNotFound, EngineUnavailable: see `describe`.
        """
        ...

    async def cancel(self, ref: Ref) -> None:
        """Ask to cancel; a no-op on an ended execution. The truth is what `describe` says afterwards.

        Raises:
            EngineRefused: the execution cannot be cancelled.
            ExecutionNotFound, EngineUnavailable: see `describe`.
        """
        ...


def installed_adapters() -> Sequence[str]:
    """The names of the adapters installed here, sorted."""
    return sorted({entry.name for entry in entry_points(group=ENTRY_POINT_GROUP)})


def _to_install(name: str) -> str:
    """What brings it; a package that nobody here knows is never named, as anybody may have put it there."""
    meant = _meant(name, OURS)
    if meant is None:
        return f"of this project there are: {', '.join(OURS)}; others come in packages of their own"
    slip = "" if meant == name else f"did you mean {meant!r}? "
    return f"{slip}try: pip install 'mcp-workflows[{OURS[meant]}]'"


def _meant(name: str, adapters: Iterable[str]) -> str | None:
    """The one of these adapters that a slip means, or the extra that brings it."""
    known = {**{OURS[each]: each for each in adapters if each in OURS}, **{each: each for each in adapters}}
    close = get_close_matches(name, known, n=1)
    return known[close[0]] if close else None


def load_adapter(name: str) -> type[Adapter]:
    """The adapter class behind an entry point name.

    Raises:
        ConfigError: nothing of that name is installed (says what is, and what to install), or it is broken.
    """
    found = entry_points(group=ENTRY_POINT_GROUP, name=name)
    if not found:
        here = ", ".join(installed_adapters()) or "none"
        meant = _meant(name, installed_adapters())  # then nobody shall install a name that is a slip
        hint = f"did you mean {meant!r}?" if meant else _to_install(name)
        raise ConfigError(f"no adapter named {name!r} is installed (installed: {here}); {hint}")
    try:
        adapter: type[Adapter] = next(iter(found)).load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"the adapter {name!r} is installed but cannot be loaded: {error}") from None
    return adapter
