"""An adapter's tools for operators and authors: checks, explanations, drafts, schemas, fixtures.

They are in one attribute, `Adapter.tooling`. Each protocol here is optional: `isinstance(adapter.tooling, Explains)` is
the only way to ask for one, for an adapter and for its class. Methods need the entered adapter. Static methods need no
engine, and can be called on the class of the tools. See docs/decisions/0031.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import chain
from typing import Final, Protocol, Self, cast, runtime_checkable

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from mcp_workflows.adapter.boundary import JSON, Adapter, Execution, Gate, InputRequest, Ref, Start
from mcp_workflows.adapter.capabilities import Finding, Fixtures


@runtime_checkable
class Checks(Protocol):
    """Optional: can check that the engine replies and that a workflow can run there now."""

    async def check_engine(self) -> Finding:
        """Check that the engine is reachable and accepts the settings; never raise an EngineError."""
        ...

    async def check(self, workflow: str, options: Mapping[str, JSON]) -> Finding:
        """Check that this workflow can run now; never raise an EngineError."""
        ...


@runtime_checkable
class Verifies(Protocol):
    """Optional: can check that a workflow has the signals, updates and queries that its tool names."""

    async def verify(
        self, workflow: str, options: Mapping[str, JSON], gates: Mapping[str, Mapping[str, JSON]]
    ) -> Sequence[Finding]:
        """Return the findings about missing parts and failed checks (unknown, not a problem); never raise an
        EngineError.

        `gates` are `when`, `send` and `decline` by name, with their placeholders unfilled. `options` also contains the
        messages of the tool's `actions`, by name. A text about one setting begins with its path in the tool and a colon
        (`gates.approve.when.after: ...`); `check` adds the file and line in front.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowSchema:
    """The schemas of a workflow's input and output, derived from its code."""

    input: Mapping[str, JSON]  # JSON Schema of an object: the tool's arguments
    output: Mapping[str, JSON] | None  # JSON Schema of an object, if the result is one
    args: JSON  # the mapping template from the arguments to the engine's input


class ArgumentSchema(GenerateJsonSchema):
    """Generates argument schemas that forbid the extra fields which a record's class would silently drop."""

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> dict[str, JSON]:
        """Generate the schema of a dataclass."""
        return self._closed(super().dataclass_schema(schema), None)

    def model_schema(self, schema: core_schema.ModelSchema) -> dict[str, JSON]:
        """Generate the schema of a model; its own setting for extra fields takes precedence."""
        return self._closed(super().model_schema(schema), schema["cls"].model_config.get("extra"))

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> dict[str, JSON]:
        """Generate the schema of a typed dictionary; its own setting for extra fields takes precedence."""
        return self._closed(super().typed_dict_schema(schema), schema.get("config", {}).get("extra_fields_behavior"))

    def _closed(self, found: dict[str, JSON], extra: str | None) -> dict[str, JSON]:
        is_open = extra is not None or self.mode != "validation" or found.get("type") != "object"
        return found if is_open else {"additionalProperties": False, **found}


@runtime_checkable
class Schemas(Protocol):
    """Optional: can compare a tool with the workflow's code, `module:attribute`, and derive its schemas from it."""

    @staticmethod
    def schema(reference: str) -> WorkflowSchema:
        """Import the workflow and read its type hints.

        Raises:
            ConfigError: it cannot be imported, or is not a workflow with readable hints.
        """
        ...

    @staticmethod
    def misfits(
        reference: str, workflow: str, options: Mapping[str, JSON], gates: Mapping[str, Mapping[str, JSON]]
    ) -> Mapping[str, str]:
        """Return the settings of a tool that the workflow's code contradicts, with the reason.

        The settings are paths: `workflow`, `questions.approve.send.args`. `options` and `gates` are as in
        `Verifies.verify`, and may be invalid.

        Raises:
            ConfigError: see `schema`.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """The execution as a client would have seen it after one event of a history."""

    event: str  # the engine's id of the event
    execution: Execution


@runtime_checkable
class Replays(Protocol):
    """Optional: can replay an exported history offline, as clients would have seen it."""

    @staticmethod
    def replay(history: JSON, gates: Mapping[str, Gate]) -> Sequence[Replayed]:
        """Return each change that a client would have seen, in order.

        Raises:
            ConfigError: not a history of this engine.
        """
        ...


class GateState(StrEnum):
    """The state of a gate; an open gate has a question now."""

    OPEN = "open"
    CLOSED = "closed"
    UNKNOWN = "unknown"  # it cannot be determined now


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedGate:
    """The state of one gate of an execution, with the reason in a sentence."""

    state: GateState
    why: str

    @classmethod
    def closed(cls, why: str) -> Self:
        """Return the state of a gate without a question now."""
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
    """The reason for the current state of an execution."""

    reason: str  # one sentence
    facts: Mapping[str, str] = field(default_factory=dict[str, str])  # in the order of display
    advice: str | None = None  # the next thing to do
    gates: Mapping[str, ExplainedGate] = field(default_factory=dict[str, ExplainedGate])  # by name, of `ref.gates`


@runtime_checkable
class Explains(Protocol):
    """Optional: can explain why an execution is still working; may ask the engine more than `describe` does."""

    async def explain(self, ref: Ref) -> Explanation:
        """Explain the state for the operator: attempts, last errors, pollers, the time without a change.

        With gates, return the state of each: `open_gates`, and for the others why they are closed. For a gate that is
        left out, the last poll is used.

        Raises:
            ExecutionNotFound, EngineUnavailable: see `Adapter.describe`.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposed:
    """A workflow that its owner has marked, in the engine itself, as a tool."""

    name: str  # of the tool, as clients call it: `[A-Za-z0-9_.-]`, at most 64 characters
    workflow: str
    source: str  # its name in the engine: an ARN, a resource name
    title: str | None = None
    description: str | None = None
    input: Mapping[str, JSON]  # JSON Schema of an object
    draft: Mapping[str, JSON] | None = None  # a guess at a better schema, which `check` prints for the owner to correct
    options: Mapping[str, JSON] = field(default_factory=dict[str, JSON])
    pin: bool = False  # owned by a third party: a changed title, description or input must be accepted first


@runtime_checkable
class Exposes(Protocol):
    """Optional: finds the workflows that their owners marked as tools; off by default."""

    @property
    def expose_every(self) -> float | None:
        """Seconds between two searches; None: off, and only configured tools are offered."""
        ...

    async def exposed(self) -> Sequence[Exposed]:
        """Return all workflows that are marked now.

        Raises:
            EngineRefused, EngineUnavailable: the search failed; the tools offered so far remain.
        """
        ...


def expose_every(adapter: Adapter) -> float | None:
    """Return the seconds between two searches of an adapter for marked workflows; None: it is off or unsupported."""
    tooling = adapter.tooling
    return tooling.expose_every if isinstance(tooling, Exposes) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """A tool's use of an engine."""

    tool: str
    workflow: str
    options: Mapping[str, JSON] = field(default_factory=dict[str, JSON])  # placeholders unfilled
    gates: Mapping[str, Mapping[str, JSON]] = field(default_factory=dict[str, Mapping[str, JSON]])  # also unfilled
    watches: bool = False  # it starts nothing
    answers: bool = True
    cancels: bool = True


@runtime_checkable
class Permits(Protocol):
    """Optional: can return the exact permissions of the engine that these tools need."""

    async def permissions(self, uses: Sequence[Use]) -> Mapping[str, JSON]:
        """Return the least privilege, in the engine's own format (an IAM policy document).

        Raises:
            EngineRefused, EngineUnavailable: the permissions cannot be determined.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovered:
    """A workflow that exists on an engine, or ran there recently."""

    workflow: str
    title: str | None = None
    description: str | None = None
    input: Mapping[str, JSON] | None = None  # JSON Schema of an object; None: unknown to the engine
    is_sampled: bool = False  # `input` is inferred from executions: its property names may be data
    code: str | None = None  # `module:attribute`, for `Schemas`: the schemas are those of the code
    options: Mapping[str, JSON] = field(default_factory=dict[str, JSON])  # other settings for its tool
    place: str | None = None  # the file and line of its code
    last_seen: datetime | None = None
    executions: int = 0  # of the executions read
    usual: timedelta | None = None  # the median duration of successful executions
    is_child: bool = False  # only other workflows start it


_TYPES: Final[Mapping[type, str]] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
    type(None): "null",
}
_FIELD = re.compile(r"(?!.*\d{4})[A-Za-z_]\w{0,39}", re.ASCII)  # other keys may be data: ids, addresses, dates
_MOST_FIELDS: Final = 50


def infer_schema(samples: Sequence[JSON], *, depth: int = 1, least: int = 1) -> Mapping[str, JSON]:
    """Return a JSON Schema of the types of some values, without the values themselves.

    For `depth` levels, objects get a property for each key if the keys look like field names. For that, each key must
    occur in at least `least` different objects, and if there are several objects, in two and in half of them. Within a
    property, it must occur in two. Otherwise the keys are data, and none appears in the schema. A property is required
    if there are several objects and it is present and not null in all of them.
    """
    types = list(dict.fromkeys(_TYPES[type(sample)] for sample in samples))
    if "number" in types and "integer" in types:
        types.remove("integer")
    found: dict[str, JSON] = {} if types in ([], ["null"]) else {"type": types[0] if len(types) == 1 else [*types]}
    if items := [item for sample in samples if isinstance(sample, list) for item in cast("Sequence[JSON]", sample)]:
        found["items"] = infer_schema(items, depth=0)
    objects = [cast("Mapping[str, JSON]", sample) for sample in samples if isinstance(sample, dict)]
    if not depth or not objects:
        return found
    records = list({json.dumps(each, sort_keys=True): each for each in objects}.values())
    columns = {key: [each[key] for each in records if key in each] for record in records for key in record}
    seldom = min(map(len, columns.values()), default=0)
    are_names = seldom > 0 and len(columns) <= _MOST_FIELDS and all(map(_FIELD.fullmatch, columns))
    if not are_names or seldom < max(least, min(2, len(records)), len(records) / 2):
        found["additionalProperties"] = infer_schema(list(chain.from_iterable(columns.values())), depth=0)
        return found
    found["properties"] = {key: infer_schema(each, depth=depth - 1, least=2) for key, each in columns.items()}
    required = [key for key, each in columns.items() if len(each) == len(records) and None not in each]
    return {**found, "required": required} if required and len(records) > 1 else found


@runtime_checkable
class Discovers(Protocol):
    """Optional: can list the workflows on the engine."""

    async def discover(self, named: Collection[str] = ()) -> Sequence[Discovered]:
        """Return the recently seen workflows: the most frequent first, those started only by other workflows last.

        `named` are workflows whose inputs are wanted, even if they rarely ran.

        Raises:
            EngineRefused, EngineUnavailable: the workflows cannot be listed.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftedEngine:
    """A draft of an engine's settings, made from the server at an address."""

    name: str  # the server's own name
    settings: Mapping[str, JSON]
    workflows: Sequence[Discovered] = ()  # those with a separate tool in the draft
    advice: Sequence[str] = ()  # advice for people, a sentence each


@runtime_checkable
class Drafts(Protocol):
    """Optional: can draft the settings of an engine from the server at an address, or from a command."""

    @staticmethod
    async def draft(address: str, start: str | None) -> DraftedEngine:
        """Return a draft; `start` limits it to one workflow.

        Raises:
            ConfigError: the server does not fit.
            EngineRefused, EngineUnavailable: there is no reply.
        """
        ...


@runtime_checkable
class Proposes(Protocol):
    """Optional: names the settings of a first configuration; by default the required ones."""

    @property
    def first_settings(self) -> Mapping[str, str]:
        """The settings that `mcp-workflows init` asks for, by name, with proposed values; also available on the class.

        An empty value proposes to omit the setting.
        """
        ...


@runtime_checkable
class Previews(Protocol):
    """Optional: can return the request that `start` would send to the engine, without sending it."""

    def preview(self, start: Start) -> Mapping[str, JSON]:
        """Return the request in the engine's format.

        Raises:
            EngineRefused: it would be refused before anything is sent.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Settings for a well-known engine, as a file of the adapter."""

    title: str  # the engine
    verified: str  # `real` (the contract ran on the engine), `recorded` (a specification, replies) or `read` (docs)
    since: str  # the version of the engine
    notes: str  # advice for users
    text: str  # the file


@runtime_checkable
class HasPresets(Protocol):
    """Optional: includes settings for well-known engines, selected by a setting `preset`."""

    @staticmethod
    def presets() -> Mapping[str, Preset]:
        """Return the presets by name."""
        ...

    @staticmethod
    def preset_schema() -> Mapping[str, JSON]:
        """Return the JSON Schema of a preset, for users' files."""
        ...


@runtime_checkable
class HasFixtures(Protocol):
    """Optional: can temporarily create workflows of known behaviour on its engine, for `mcp-workflows check --live`."""

    @staticmethod
    def fixture_settings() -> type[BaseModel]:
        """Return the model of additional settings from the user: a role, a service account."""
        ...

    @staticmethod
    def fixtures_notice() -> str:
        """Return what `fixtures` creates, its cost and the required permissions, in a few sentences."""
        ...

    def fixtures(self, settings: BaseModel) -> AbstractAsyncContextManager[Fixtures]:
        """Create the workflows, and remove them at the end, even after an error. The adapter is entered.

        Raises:
            EngineRefused, EngineUnavailable: they cannot be created.
        """
        ...


@runtime_checkable
class Embeds(Protocol):
    """Optional: includes source files that authors copy into their workflows, to ask people and report progress."""

    @staticmethod
    def embeds() -> Mapping[str, str]:
        """Return the text of the file, by language (`go`, `typescript`)."""
        ...
