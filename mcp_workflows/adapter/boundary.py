"""The four verbs of a workflow engine, their types, and the installed adapters.

An adapter has four verbs and a lifetime. It is stateless between calls but for its client: a handle or our store holds
all that must be remembered. `mcp_workflows.testing.AdapterContract` has one test per law. Abilities beyond the four
verbs are in `mcp_workflows.adapter.capabilities`.
"""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from importlib.metadata import entry_points
from typing import Any, ClassVar, Final, TypeAlias, cast

from pydantic import BaseModel, ConfigDict

from mcp_workflows.adapter.display_text import cleaned_details, closest
from mcp_workflows.adapter.forms import flat_form
from mcp_workflows.adapter.templates import Template
from mcp_workflows.errors import ConfigError

ENTRY_POINT_GROUP = "mcp_workflows.adapters"
EXTRA_OF_ADAPTER: Mapping[str, str] = {
    "dbos": "dbos",
    "google-workflows": "google",
    "http": "http",
    "mcp": "mcp",
    "stepfunctions": "stepfunctions",
    "temporal": "temporal",
}
"""The extra of this distribution that installs an adapter, by the adapter's name."""

JSON: TypeAlias = Any  # any JSON value: its shape is checked where it enters, by schema


_CANONICAL: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


def digest(value: JSON) -> str:
    """Return a name for a JSON value: 32 hexadecimal characters, the same for the same value."""
    return hashlib.sha256(_CANONICAL.encode(value).encode()).hexdigest()[:32]


class Status(StrEnum):
    """The state of an execution in the engine's words, not MCP's: the protocol versions differ on `failed`."""

    RUNNING = "running"
    INPUT_REQUIRED = "input_required"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"  # also terminated or aborted, by anybody; the message has the reason


class StartGuarantee(StrEnum):
    """The promise of the engine itself about starting twice with one key."""

    KEYED = "keyed"  # the engine dedupes by key: starting again is always safe
    FINDABLE = "findable"  # we can look for an execution by its key: `capabilities.Finds`; ONCE without that
    ONCE = "once"  # neither: after a lost reply the outcome stays unknown, and it is never started again


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """An order to start an execution; a new field breaks no foreign adapter."""

    workflow: str
    arguments: JSON  # already mapped: what the engine gets
    key: str  # one key, one execution; ASCII letters, digits, `_`, `.` and `-`, at most 200 characters
    created: datetime  # the time of the order
    options: Mapping[str, JSON] = field(default_factory=dict[str, JSON])  # the tool's own settings for this engine
    context: Mapping[str, str] = field(default_factory=dict[str, str])  # the person behind the call, the trace parent
    target: str | None = None  # of an action: the handle of the execution that it is about, see `ActionSettings`
    attempt: int | None = None  # 1: no earlier attempt can have started it; None: not known

    @property
    def digest(self) -> str:
        """32 characters that stand for workflow and arguments: to be stored with the key, and compared later."""
        return digest([self.workflow, self.arguments])


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message to an execution that exists: to `Start.target`, or to the one with an id of the business."""

    name: str  # in the engine's words: `signal checkout`
    address: str | None = None  # the template of that id; None: it has none
    reads: bool = False  # it changes nothing

    @property
    def addressed_by(self) -> frozenset[str]:
        """The arguments that decide to which execution it goes; `*` stands for any."""
        template = Template(self.address or "")
        return template.arguments if template.is_plain else template.arguments | {"*"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of an execution: `value` of `total` (None: unknown), in the workflow's own unit."""

    value: float
    total: float | None = None


DECLINE_META: Final = "mcp-workflows/decline"
"""In `_meta` of an elicitation: false if the question cannot be declined, only answered or left open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRequest:
    """A question of the execution to a person: the MCP method (`elicitation/create`) and its params.

    The `requestedSchema` of the params becomes a form here, whoever wrote it: see `flat_form`.
    """

    method: str
    params: Mapping[str, JSON]
    gate: str | None = None  # the gate of the tool that asks it; None: the workflow itself
    declinable: bool | None = None  # None: the workflow gets each response, and decides what a refusal means
    on_page: bool = False  # people answer it on our page alone, if the server has pages

    def __post_init__(self) -> None:
        """Make the schema a form."""
        schema = self.params.get("requestedSchema")
        if self.method == "elicitation/create" and isinstance(schema, Mapping):
            form = flat_form(cast("Mapping[str, JSON]", schema))
            object.__setattr__(self, "params", {**self.params, "requestedSchema": form})


def asked(requests: Mapping[str, InputRequest]) -> str:
    """Return the questions of these requests in one text for people, with the links to our own pages."""
    at = {key: f"at {each.params['url']}: " for key, each in requests.items() if each.on_page and "url" in each.params}
    return "; ".join(f"{at.get(key, '')}{each.params.get('message', key)}" for key, each in requests.items())


def askable(requests: Mapping[str, InputRequest], *, takes_urls: bool) -> Mapping[str, InputRequest]:
    """Return the questions for a client: those that send people to a page only if it declared URL mode."""
    return {key: each for key, each in requests.items() if takes_urls or each.params.get("mode") != "url"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """A human step that our configuration declares for a workflow that was not written for us, frozen at the start.

    `when`, `send` and `decline` are in the engine's own words, see `Adapter.GateSettings`; placeholders in the last two
    are filled in when an answer comes.
    """

    when: JSON  # the condition under which the execution waits for it
    request: InputRequest  # the question
    send: JSON  # the way of an answer to the execution
    decline: JSON = None  # the way of a refusal; None: there is none


@dataclass(frozen=True, slots=True, kw_only=True)
class Ref:
    """One execution: workflow, handle (opaque, storable), the tool's options and gates as frozen at its start.

    `asked` are the keys of the questions of the last poll that the store kept, of whatever process that was. A question
    that cannot be decided now stays open if its key is among them. `principal` is who answers, for `answer` alone: what
    the templates of a gate know of it.
    """

    workflow: str
    handle: str
    options: Mapping[str, JSON] = field(default_factory=dict[str, JSON])
    gates: Mapping[str, Gate] = field(default_factory=dict[str, Gate])  # empty for adapters without gates
    asked: frozenset[str] = frozenset()
    principal: JSON = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The failure of an execution: a text for people, and the engine's or the workflow's own kind of error.

    `code` (and `data`) are set only if the workflow asked for a JSON-RPC protocol error. `details` have no stack trace
    and no control characters, and at most `MAX_DETAILS` characters as JSON.
    """

    text: str
    kind: str | None = None
    code: int | None = None
    data: JSON = None
    details: JSON = None  # for programs, in the shape that the engine or the workflow gives them
    retryable: bool | None = None  # False: its author says that trying again is of no use; None: unknown
    step: str | None = None  # the step that failed or timed out, as its workflow names it

    def __post_init__(self) -> None:
        """Clean the details."""
        if self.details is not None:
            object.__setattr__(self, "details", cleaned_details(self.details))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionStep:
    """One step of an execution, as its workflow names it: a job, a stage, an activity, a state."""

    name: str
    status: Status
    at: datetime | None = None  # when it ended, or else began, if the engine tells


MAX_STEPS: Final = 100
"""The most steps of an execution that are kept; the core drops earlier ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """The result of one poll of an execution."""

    status: Status
    message: str | None = None  # for people: the step, the reason, "nobody polls task queue orders"
    progress: Progress | None = None
    requests: Mapping[str, InputRequest] = field(default_factory=dict[str, InputRequest])  # keys are never reused
    output: JSON = None  # when SUCCEEDED
    failure: Failure | None = None  # when FAILED
    cancel_requested: bool = False
    execution_id: str | None = None  # as people type it in the engine's own UI or CLI
    url: str | None = None  # the engine's own page of it
    steps: tuple[ExecutionStep, ...] = ()  # in their order; if the engine can tell
    has_log: bool = False  # `HasLogs.log` can tell its end
    is_unmapped: bool = False  # the adapter does not know the engine's word for its status; RUNNING, and a message

    @property
    def terminal(self) -> bool:
        """True if it has ended and will never change again."""
        return self.status in TERMINAL


TERMINAL = frozenset({Status.SUCCEEDED, Status.FAILED, Status.CANCELLED})


class Nothing(BaseModel):
    """The `Options` (or `Settings`) of an adapter that has none: nothing can be set."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Adapter(AbstractAsyncContextManager["Adapter"]):
    """One workflow engine. Stateless between calls but for its client.

    Entering it must not need the engine: the first call notices an engine that is down. Only `EngineError`s cross: one
    table per adapter translates foreign errors. A subclass writes the four verbs and says what it is in class
    attributes. An ability beyond the verbs is a protocol of `capabilities`, or of `mcp_workflows.kit.tooling` for
    `tooling`; an adapter has it if it has its methods, and `isinstance` is the one way to ask.
    """

    Settings: ClassVar[type[BaseModel]]  # of the engine, from `engines:` in workflows.yaml
    Options: ClassVar[type[BaseModel]]  # of one tool on this engine, from `tools:`
    GateSettings: ClassVar[type[BaseModel] | None] = None
    """The model of a gate's `when`, `send` and `decline` on this engine; None: it has no gates.

    With gates, `describe` and `answer` heed `ref.gates`: an open gate is a request with `gate` set to its name, and a
    key that no other round of it ever has.
    """
    ActionSettings: ClassVar[type[BaseModel] | None] = None
    """The model of a message to an execution that exists, an entry of a tool's `actions`; None: it sends none.

    With it, `start` also sends messages: see `Message`. They are no executions of the engine, but have handles of their
    own, by which `describe` returns what came of them. Their key is that of a start: one key, one message.
    """
    starts: ClassVar[StartGuarantee]
    start_options: ClassVar[frozenset[str]] = frozenset()  # that only matter for a start: `kind: watch` has none
    cancels_at_once: ClassVar[bool] = False  # a cancellation ends the execution, so that no grace is needed
    tooling: Any = None
    """The tools for operators and authors; None: there are none.

    In the class it is the class of the tools, whose static methods need no engine. An adapter has one instance of it,
    from its construction on. Any: its type is the adapter's own, and has those protocols of
    `mcp_workflows.kit.tooling` that it can.
    """

    def __init__(self, settings: Any) -> None:  # Any: an instance of the adapter's own Settings
        """Keep the settings; connect lazily."""

    @property
    def identity(self) -> str:
        """The adapter and its namespace, account, project or database: `temporal:default`.

        It tells the engine from another one with the same name in another configuration: see docs/decisions/0030. It is
        read while the adapter is open, needs no call, and has no secret. It must not change with credentials, nor with
        an address if the engine has anything more lasting. A row keeps it; only an engine with the same name and
        identity acts on the row. Empty: the name in the configuration is all that tells engines apart.
        """
        return ""

    @abstractmethod
    async def start(self, start: Start) -> str:
        """Start one execution and return its handle; KEYED: the same key again returns the same handle.

        Raises:
            StartConflict: the key belongs to an execution with another workflow or input.
            EngineRefused: a definite no, nothing was started.
            EngineUnavailable: nobody knows; `sent=False` if certainly nothing was started.
        """
        ...

    @abstractmethod
    async def describe(self, ref: Ref) -> Execution:
        """Poll once, without waiting. A terminal answer never changes.

        Raises:
            ExecutionNotFound: the engine has no such execution.
            EngineUnavailable: no answer.
        """
        ...

    @abstractmethod
    async def answer(self, ref: Ref, responses: Mapping[str, JSON]) -> None:
        """Deliver responses (`{action, content}`) by input request key; unknown and answered keys are ignored.

        A response to a gate's request also has `send`: what to send in the engine's words, filled in.

        Raises:
            EngineRefused: the execution does not accept an answer.
            ExecutionNotFound, EngineUnavailable: see `describe`.
        """
        ...

    @abstractmethod
    async def cancel(self, ref: Ref) -> None:
        """Ask to cancel; a no-op on an ended execution. The truth is what `describe` says afterwards.

        Raises:
            EngineRefused: the execution cannot be cancelled.
            ExecutionNotFound, EngineUnavailable: see `describe`.
        """
        ...

    @staticmethod
    def same_workflow(written: str, found: str) -> bool:
        """Return True if the workflow that a tool names is the one that an adopted execution runs.

        Override it if workflows of the engine have more than one name.
        """
        return written == found

    @staticmethod
    def message(options: Mapping[str, JSON]) -> Message | None:
        """Return the message that a tool with these options sends; None: it starts an execution."""
        return None

    def promise(self, options: Mapping[str, JSON]) -> StartGuarantee:
        """Return what the engine promises about a start with these options; messages may have their own promise."""
        return StartGuarantee.ONCE if self.fleeting(options) else self.starts

    @staticmethod
    def fleeting(options: Mapping[str, JSON]) -> bool:
        """Return True if a tool with these options runs workflows too short-lived to be looked up later.

        Such executions can be no tasks. Their handle is good in this process only, and nothing dedupes their starts: no
        start that may have happened is repeated, whatever `starts` promises.
        """
        return False


def installed_adapters() -> Sequence[str]:
    """Return the names of the adapters installed here, sorted."""
    return sorted({entry.name for entry in entry_points(group=ENTRY_POINT_GROUP)})


def _to_install(name: str) -> str:
    """Return the way to install an adapter. Name no package that is not ours, as anybody may have published it."""
    meant = _meant(name, EXTRA_OF_ADAPTER)
    if meant is None:
        return f"this project has: {', '.join(EXTRA_OF_ADAPTER)}; others come in separate packages"
    question = "" if meant == name else f"did you mean {meant!r}? "
    return f"{question}try: pip install 'mcp-workflows[{EXTRA_OF_ADAPTER[meant]}]'"


def _meant(name: str, adapters: Iterable[str]) -> str | None:
    """Return the adapter that a misspelt name, or the name of its extra, means."""
    known = {
        **{EXTRA_OF_ADAPTER[each]: each for each in adapters if each in EXTRA_OF_ADAPTER},
        **{each: each for each in adapters},
    }
    close = closest(name, known)
    return None if close is None else known[close]


def load_adapter(name: str) -> type[Adapter]:
    """Return the adapter class of an entry point name.

    Raises:
        ConfigError: nothing of that name is installed (the message has what is, and what to install), or it is broken.
    """
    found = entry_points(group=ENTRY_POINT_GROUP, name=name)
    if not found:
        here = ", ".join(installed_adapters()) or "none"
        meant = _meant(name, installed_adapters())  # nobody shall install a misspelt name
        hint = f"did you mean {meant!r}?" if meant else _to_install(name)
        raise ConfigError(f"no adapter named {name!r} is installed (installed: {here}); {hint}")
    try:
        adapter: object = next(iter(found)).load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"the adapter {name!r} is installed but cannot be loaded: {error}") from None
    if not isinstance(adapter, type):
        raise ConfigError(f"the adapter {name!r} is no class: give `settings` to from_functions, and it is one")
    if not issubclass(adapter, Adapter):
        raise ConfigError(f"the adapter {name!r} is no subclass of mcp_workflows.adapter.Adapter")
    return adapter
