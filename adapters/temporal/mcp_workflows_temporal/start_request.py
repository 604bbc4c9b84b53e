"""The request of one start: the options of a tool and the arguments of a task in Temporal's terms."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from mcp_workflows_temporal_worker.contract import MEMO_CONTEXT, MEMO_DIGEST, MEMO_KEY
from pydantic import AwareDatetime, TypeAdapter, ValidationError
from temporalio.common import (
    AutoUpgradeVersioningOverride,
    PinnedVersioningOverride,
    Priority,
    SearchAttributeKey,
    SearchAttributePair,
    TypedSearchAttributes,
    VersioningOverride,
    WorkerDeploymentVersion,
)

from mcp_workflows.adapter import JSON, Start
from mcp_workflows.errors import EngineRefused
from mcp_workflows_temporal.options import (
    OWN_IDS,
    AttributeType,
    AttributeValue,
    Pinned,
    TemporalOptions,
    TypedAttribute,
)

OWNER = "owner"  # in the context of a start: the name of the owner, for people
PRINCIPAL = "principal"  # the exact owner, if the name is ambiguous: one subject of two issuers is two principals

NO_QUEUE = "no task queue: set task_queue, on the engine or on the tool"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRequest:
    """One StartWorkflowExecution."""

    workflow: str
    arguments: Sequence[JSON]
    id: str
    task_queue: str
    fingerprint: str
    size: int  # characters of the input as JSON, all of them ASCII
    key: str  # hashed
    context: Mapping[str, str]
    options: TemporalOptions

    @property
    def memo(self) -> Mapping[str, JSON]:
        """The memo: digest and key identify the execution later, the context names its owner."""
        return {MEMO_DIGEST: self.fingerprint, MEMO_KEY: self.key, MEMO_CONTEXT: dict(self.context)}

    @property
    def owner(self) -> str | None:
        """The exact owner."""
        return self.context.get(PRINCIPAL) or self.context.get(OWNER)


def read_start(start: Start, task_queue: str | None) -> StartRequest:
    """Return the request for a start; `task_queue` is for tools that name none.

    Raises:
        EngineRefused: the options of the tool are wrong, or there is no task queue.
    """
    options = TemporalOptions.final(start.options)
    queue = options.task_queue or task_queue
    if queue is None:
        raise EngineRefused(f"workflow {start.workflow} has {NO_QUEUE}")
    arguments = to_positional(start.arguments)
    canonical = _canonical(start.workflow, arguments)
    return StartRequest(
        workflow=start.workflow,
        arguments=arguments,
        id=default_id(start.key) if options.workflow_id is None else options.workflow_id,
        task_queue=queue,
        fingerprint=_digest(canonical),
        size=len(canonical),
        key=hashlib.sha256(start.key.encode()).hexdigest(),
        context=start.context,
        options=options,
    )


def default_id(key: str) -> str:
    """Return the default workflow id for a key."""
    return f"{OWN_IDS}{key}"


def to_positional(arguments: JSON) -> list[JSON]:
    """Return the mapped arguments as Temporal takes them: a list is positional, any other value the only argument."""
    return list(cast("Sequence[JSON]", arguments)) if isinstance(arguments, list) else [arguments]


def digest(workflow: str, arguments: Sequence[JSON]) -> str:
    """Return the digest of a workflow type and its arguments (SHA-256, hex)."""
    return _digest(_canonical(workflow, arguments))


def _canonical(workflow: str, arguments: Sequence[JSON]) -> str:
    return _JSON.encode([workflow, arguments])


def _digest(canonical: str) -> str:
    return hashlib.sha256(canonical.encode()).hexdigest()


_JSON: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


def sdk_options(options: TemporalOptions) -> dict[str, Any]:  # Any: of many types
    """Return the options as `Client.start_workflow` takes them.

    Raises:
        EngineRefused: a search attribute is not of its type.
    """
    return {
        "execution_timeout": options.execution_timeout,
        "run_timeout": options.run_timeout,
        "task_timeout": options.task_timeout,
        "search_attributes": search_attributes(options),
        "priority": priority(options),
        "versioning_override": versioning_override(options),
        "static_summary": options.summary,
        "static_details": options.details,
    }


def priority(options: TemporalOptions) -> Priority:
    """Return Temporal's Priority; its default if none is set."""
    chosen = options.priority
    if chosen is None:
        return Priority.default
    return Priority(priority_key=chosen.key, fairness_key=chosen.fairness_key, fairness_weight=chosen.fairness_weight)


def versioning_override(options: TemporalOptions) -> VersioningOverride | None:
    """Return Temporal's VersioningOverride, if one is set."""
    chosen = options.versioning_override
    if chosen is None:
        return None
    if not isinstance(chosen, Pinned):
        return AutoUpgradeVersioningOverride()
    version = WorkerDeploymentVersion(deployment_name=chosen.pinned.deployment, build_id=chosen.pinned.build_id)
    return PinnedVersioningOverride(version=version)


def search_attributes(options: TemporalOptions) -> TypedSearchAttributes | None:
    """Return Temporal's search attributes, if there are any.

    Raises:
        EngineRefused: a value is not of the type it should have.
    """
    pairs = [SearchAttributePair(_READERS[kind].key(name), value) for name, kind, value in attributes(options)]
    return TypedSearchAttributes(pairs) if pairs else None


def attributes(options: TemporalOptions) -> Iterator[tuple[str, AttributeType, Any]]:  # Any: of that type
    """Yield name, type and value of each search attribute; leave out those without a value.

    Raises:
        EngineRefused: see `search_attributes`.
    """
    for name, written in options.search_attributes.items():
        kind, value = _typed(written)
        if value is not None:
            yield name, kind, _read(name, kind, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class _AttributeReader:
    """The reader of values of one type, and the SDK's key for it."""

    adapter: TypeAdapter[Any]  # Any: of each type
    key: Any  # a constructor of SearchAttributeKey, each of another type


_READERS: Mapping[AttributeType, _AttributeReader] = {
    AttributeType.TEXT: _AttributeReader(adapter=TypeAdapter(str), key=SearchAttributeKey.for_text),
    AttributeType.KEYWORD: _AttributeReader(adapter=TypeAdapter(str), key=SearchAttributeKey.for_keyword),
    AttributeType.INT: _AttributeReader(adapter=TypeAdapter(int), key=SearchAttributeKey.for_int),
    AttributeType.DOUBLE: _AttributeReader(adapter=TypeAdapter(float), key=SearchAttributeKey.for_float),
    AttributeType.BOOL: _AttributeReader(adapter=TypeAdapter(bool), key=SearchAttributeKey.for_bool),
    AttributeType.DATETIME: _AttributeReader(adapter=TypeAdapter(AwareDatetime), key=SearchAttributeKey.for_datetime),
    AttributeType.KEYWORD_LIST: _AttributeReader(
        adapter=TypeAdapter(list[str]), key=SearchAttributeKey.for_keyword_list
    ),
}

_INFERRED: Mapping[type, AttributeType] = {
    str: AttributeType.KEYWORD,
    bool: AttributeType.BOOL,
    int: AttributeType.INT,
    float: AttributeType.DOUBLE,
    list: AttributeType.KEYWORD_LIST,
}


def _typed(value: AttributeValue) -> tuple[AttributeType, JSON]:
    if isinstance(value, TypedAttribute):
        return value.type, value.value
    return _INFERRED.get(type(value), AttributeType.KEYWORD), value


def _read(name: str, kind: AttributeType, value: JSON) -> Any:  # Any: of that type
    try:
        return _READERS[kind].adapter.validate_python(value)
    except ValidationError:
        raise EngineRefused(f"search attribute {name} is no {kind}", final=True) from None
