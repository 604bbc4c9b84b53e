"""The four verbs of a workflow engine, their types, and the installed adapters.

An adapter has four verbs and a lifetime. Between calls it keeps no state except its client: anything to be remembered
is in a handle or in our store. `mcp_workflows.testing.AdapterContract` has one test per law. Abilities beyond the four
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

JSON: TypeAlias = Any  # any JSON value: a schema checks its shape where it enters


_CANONICAL: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


def digest(value: JSON) -> str:
    """Return a name for a JSON value: 32 hexadecimal characters, the same for equal values."""
    return hashlib.sha256(_CANONICAL.encode(value).encode()).hexdigest()[:32]


class Status(StrEnum):
    """The state of an execution in the engine's terms, not MCP's, because protocol versions differ on `failed`."""

    RUNNING = "running"
    INPUT_REQUIRED = "input_required"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"  # also if terminated or aborted by anyone; the message has the reason


class StartGuarantee(StrEnum):
    """The engine's promise about starting twice with one key."""

    KEYED = "keyed"  # the engine dedupes by key: a repeated start is always safe
    FINDABLE = "findable"  # the execution of a key can be found: `capabilities.Finds`; ONCE without that
    ONCE = "once"  # neither: after a lost reply the outcome stays unknown, and the start is never repeated


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A request to start an execution. A new field breaks no foreign adapter."""

    workflow: str
    arguments: JSON  # already mapped, as the engine receives them
    key: str  # one key, one execution; ASCII letters, digits, `_`, `.` and `-`, at most 200 characters
    created: datetime  # the time of the request
    options: Mapping[str, JSON] = field(default_factory=dict[str, JSON])  # the tool's settings for this engine
    context: Mapping[str, str] = field(default_factory=dict[str, str])  # the caller's identity and the trace parent
    target: str | None = None  # of an action: the handle of its execution, see `ActionSettings`
    attempt: int | None = None  # 1: no earlier attempt can have started it; None: unknown

    @property
    def digest(self) -> str:
        """32 characters that identify workflow and arguments: stored with the key, and compared later."""
        return digest([self.workflow, self.arguments])


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message to an existing execution: to `Start.target`, or to the one with a business id."""

    name: str  # in the engine's terms: `signal checkout`
    address: str | None = None  # the template of the business id; None: `Start.target`
    reads: bool = False  # it changes nothing

    @property
    def addressed_by(self) -> frozenset[str]:
        """The arguments that select the execution; `*` stands for any."""
        template = Template(self.address or "")
        return template.arguments if template.is_plain else template.arguments | {"*"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of an execution: `value` of `total` (None: unknown), in the workflow's unit."""

    value: float
    total: float | None = None


DECLINE_META: Final = "mcp-workflows/decline"
"""In `_meta` of an elicitation: false if the question cannot be declined, only answered or left open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRequest:
    """A question of the execution to a person: the MCP method (`elicitation/create`) and its params.

    The `requestedSchema` of the params is converted to a form here, whatever its origin: see `flat_form`.
    """

    method: str
    params: Mapping[str, JSON]
    gate: str | None = None  # the gate that asks it; None: the workflow itself
    declinable: bool | None = None  # None: the workflow receives each response, and interprets a refusal itself
    on_page: bool = False  # people answer it only on our page, if the server has pages

    def __post_init__(self) -> None:
        """Convert the schema to a form."""
        schema = self.params.get("requestedSchema")
        if self.method == "elicitation/create" and isinstance(schema, Mapping):
            form = flat_form(cast("Mapping[str, JSON]", schema))
            object.__setattr__(self, "params", {**self.params, "requestedSchema": form})


def asked(requests: Mapping[str, InputRequest]) -> str:
    """Return the questions of these requests as one text for people, with links to our pages."""
    at = {key: f"at {each.params['url']}: " for key, each in requests.items() if each.on_page and "url" in each.params}
    return "; ".join(f"{at.get(key, '')}{each.params.get('message', key)}" for key, each in requests.items())


def askable(requests: Mapping[str, InputRequest], *, takes_urls: bool) -> Mapping[str, InputRequest]:
    """Return the questions that a client can show: those with a page only if it declared URL mode."""
    return {key: each for key, each in requests.items() if takes_urls or each.params.get("mode") != "url"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """A human step that our configuration declares for an unmodified workflow, frozen at the start.

    `when`, `send` and `decline` are in the engine's terms, see `Adapter.GateSettings`. Placeholders in the last two are
    filled in when the answer arrives.
    """

    when: JSON  # the condition under which the execution waits
    request: InputRequest  # the question
    send: JSON  # how an answer reaches the execution
    decline: JSON = None  # how a refusal reaches it; None: it cannot be declined


@dataclass(frozen=True, slots=True, kw_only=True)
class Ref:
    """One execution: workflow, handle (opaque, storable), and the tool's options and gates, frozen at its start.

    `asked` has the keys of the questions in the last stored poll, from any process. A question that cannot be decided
    now stays open if its key is among them. `principal` is set only for `answer`: it describes the person who answers,
    for the templates of a gate.
    """

    workflow: str
    handle: str
    options: Mapping[str, JSON] = field(default_factory=dict[str, JSON])
    gates: Mapping[str, Gate] = field(default_factory=dict[str, Gate])  # empty for adapters without gates
    asked: frozenset[str] = frozenset()
    principal: JSON = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The failure of an execution: a text for people, and the engine's or workflow's kind of error.

    `code` (and `data`) are set only if the workflow asked for a JSON-RPC protocol error. `details` have no stack trace
    and no control characters, and at most `MAX_DETAILS` characters as JSON.
    """

    text: str
    kind: str | None = None
    code: int | None = None
    data: JSON = None
    details: JSON = None  # for programs, in the engine's or workflow's format
    retryable: bool | None = None  # False: its author declared retries useless; None: unknown
    step: str | None = None  # the step that failed or timed out, by its name in the workflow

    def __post_init__(self) -> None:
        """Clean the details."""
        if self.details is not None:
            object.__setattr__(self, "details", cleaned_details(self.details))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionStep:
    """One step of an execution, by its name in the workflow: a job, a stage, an activity, a state."""

    name: str
    status: Status
    at: datetime | None = None  # its end, or else its beginning, if the engine reports it


MAX_STEPS: Final = 100
"""The maximum number of steps kept of an execution; the core drops earlier ones."""


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
    execution_id: str | None = None  # as typed in the engine's UI or CLI
    url: str | None = None  # its page in the engine's UI
    steps: tuple[ExecutionStep, ...] = ()  # in order, if the engine reports them
    has_log: bool = False  # `HasLogs.log` can return its end
    is_unmapped: bool = False  # the adapter does not know the engine's status; RUNNING, with a message

    @property
    def terminal(self) -> bool:
        """True if it has ended and will never change."""
        return self.status in TERMINAL


TERMINAL = frozenset({Status.SUCCEEDED, Status.FAILED, Status.CANCELLED})


class Nothing(BaseModel):
    """The `Options` (or `Settings`) of an adapter that has none."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Adapter(AbstractAsyncContextManager["Adapter"]):
    """One workflow engine, without state between calls except its client.

    Entering it must not need the engine: the first call detects an engine that is down. Only `EngineError`s leave an
    adapter: a table in each adapter translates foreign errors. A subclass implements the four verbs and describes
    itself in class attributes. An ability beyond the verbs is a protocol of `capabilities`, or of
    `mcp_workflows.kit.tooling` for `tooling`. An adapter has the ability if it has the protocol's methods; check only
    with `isinstance`.
    """

    Settings: ClassVar[type[BaseModel]]  # of the engine, from `engines:` in workflows.yaml
    Options: ClassVar[type[BaseModel]]  # of one tool on this engine, from `tools:`
    GateSettings: ClassVar[type[BaseModel] | None] = None
    """The model of a gate's `when`, `send` and `decline` on this engine; None: no gates.

    With gates, `describe` and `answer` use `ref.gates`: an open gate is a request with `gate` set to its name, and with
    a key that no other round of it ever has.
    """
    ActionSettings: ClassVar[type[BaseModel] | None] = None
    """The model of an entry of a tool's `actions`, a message to an existing execution; None: no messages.

    With it, `start` also sends messages: see `Message`. They are not executions of the engine, but have separate
    handles for which `describe` returns their outcome. As for a start, one key means one message.
    """
    starts: ClassVar[StartGuarantee]
    start_options: ClassVar[frozenset[str]] = frozenset()  # used only by a start: `kind: watch` has none of these
    cancels_at_once: ClassVar[bool] = False  # a cancellation ends the execution, so it needs no grace
    tooling: Any = None
    """The tools for operators and authors; None: none.

    The class attribute is the class of the tools, whose static methods need no engine. Each adapter has an instance
    from its construction on. Any: each adapter has its own type, with the protocols of `mcp_workflows.kit.tooling` that
    it can implement.
    """

    def __init__(self, settings: Any) -> None:  # Any: an instance of the adapter's own Settings
        """Keep the settings; connect lazily."""

    @property
    def identity(self) -> str:
        """The adapter and its namespace, account, project or database: `temporal:default`.

        It distinguishes the engine from another one with the same name in another configuration: see
        docs/decisions/0030. It is read while the adapter is open, needs no call, and contains no secret. It must not
        change with credentials, nor with an address if the engine has anything more permanent. Rows store it, and only
        an engine with the same name and identity acts on a row. Empty: only the name in the configuration distinguishes
        engines.
        """
        return ""

    @abstractmethod
    async def start(self, start: Start) -> str:
        """Start one execution and return its handle; KEYED: the same key returns the same handle.

        Raises:
            StartConflict: the key belongs to an execution with another workflow or input.
            EngineRefused: certainly nothing was started.
            EngineUnavailable: the outcome is unknown; `sent=False` if certainly nothing was started.
        """
        ...

    @abstractmethod
    async def describe(self, ref: Ref) -> Execution:
        """Poll once, without waiting. A terminal result never changes.

        Raises:
            ExecutionNotFound: the engine has no such execution.
            EngineUnavailable: no answer.
        """
        ...

    @abstractmethod
    async def answer(self, ref: Ref, responses: Mapping[str, JSON]) -> None:
        """Deliver responses (`{action, content}`) by input request key; ignore unknown and answered keys.

        A response to a gate's request also has `send`: the message in the engine's terms, with placeholders filled in.

        Raises:
            EngineRefused: the execution does not accept an answer.
            ExecutionNotFound, EngineUnavailable: see `describe`.
        """
        ...

    @abstractmethod
    async def cancel(self, ref: Ref) -> None:
        """Request cancellation; a no-op on an ended execution. Only `describe` shows the outcome.

        Raises:
            EngineRefused: the execution cannot be cancelled.
            ExecutionNotFound, EngineUnavailable: see `describe`.
        """
        ...

    @staticmethod
    def same_workflow(written: str, found: str) -> bool:
        """Return True if a tool's workflow (`written`) is the one that an adopted execution runs (`found`).

        Override it if the engine's workflows have more than one name.
        """
        return written == found

    @staticmethod
    def message(options: Mapping[str, JSON]) -> Message | None:
        """Return the message that a tool with these options sends; None: it starts an execution."""
        return None

    def promise(self, options: Mapping[str, JSON]) -> StartGuarantee:
        """Return the engine's promise about a start with these options; messages may have a different one."""
        return StartGuarantee.ONCE if self.fleeting(options) else self.starts

    @staticmethod
    def fleeting(options: Mapping[str, JSON]) -> bool:
        """Return True if a tool with these options runs workflows too short-lived to be looked up later.

        Such executions cannot be tasks. Their handle is valid only in this process, and their starts are not
        deduplicated: a start that may have happened is never repeated, whatever `starts` promises.
        """
        return False


def installed_adapters() -> Sequence[str]:
    """Return the names of the installed adapters, sorted."""
    return sorted({entry.name for entry in entry_points(group=ENTRY_POINT_GROUP)})


def _to_install(name: str) -> str:
    """Return how to install an adapter. Name no package that is not ours: anyone may have published it."""
    meant = _meant(name, EXTRA_OF_ADAPTER)
    if meant is None:
        return f"this project has: {', '.join(EXTRA_OF_ADAPTER)}; others come in separate packages"
    question = "" if meant == name else f"did you mean {meant!r}? "
    return f"{question}try: pip install 'mcp-workflows[{EXTRA_OF_ADAPTER[meant]}]'"


def _meant(name: str, adapters: Iterable[str]) -> str | None:
    """Return the adapter meant by a misspelt name, or by the name of its extra."""
    known = {
        **{EXTRA_OF_ADAPTER[each]: each for each in adapters if each in EXTRA_OF_ADAPTER},
        **{each: each for each in adapters},
    }
    close = closest(name, known)
    return None if close is None else known[close]


def load_adapter(name: str) -> type[Adapter]:
    """Return the adapter class of an entry point name.

    Raises:
        ConfigError: no adapter of that name is installed (the message lists those installed and what to install),
            or it is broken.
    """
    found = entry_points(group=ENTRY_POINT_GROUP, name=name)
    if not found:
        here = ", ".join(installed_adapters()) or "none"
        meant = _meant(name, installed_adapters())  # never suggest installing a misspelt name
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
