"""State machines with their execution counts, machines tagged as tools, and executions to adopt.

ListExecutions has a small quota per account (5/s, in most Regions 2/s), so only some machines are counted. The
Tagging API lists a whole account in pages of 100. Without permission for it there is no fallback to
ListTagsForResource, which takes one call per machine, with a quota of 1/s per account.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Any, Final, cast

import anyio

from mcp_workflows.adapter import JSON, MOST_ENDED, TERMINAL, EndedExecution, Ref, Status
from mcp_workflows.errors import EngineError, EngineRefused, EngineUnavailable, ExecutionNotFound
from mcp_workflows.kit.tooling import Discovered, Exposed, infer_schema
from mcp_workflows_stepfunctions.arns import ExecutionArn, Machine, Place, is_machine_arn, parse_machine
from mcp_workflows_stepfunctions.client import Client, ExpectedCodeError
from mcp_workflows_stepfunctions.describe import STATUSES
from mcp_workflows_stepfunctions.errors import DENIED
from mcp_workflows_stepfunctions.settings import Discover
from mcp_workflows_stepfunctions.start import EXPRESS

MOST: Final = 5_000  # machines
PAGE: Final = 1000  # machines of one call
COUNTED: Final = 25  # machines, the newest
LATEST: Final = 100  # executions per machine
MOST_LISTED: Final = 20_000  # executions, in 20 calls

_UNCOUNTABLE: Final = frozenset({DENIED, "StateMachineDoesNotExist", "StateMachineTypeNotSupported"})


async def discover(client: Client, named: Collection[str] = ()) -> Sequence[Discovered]:
    """Return all state machines of the engine's account and Region, the most frequent first, then by name.

    Raises:
        EngineRefused, EngineUnavailable: see `Discovers.discover`.
    """
    rows = await client.pages("list_state_machines", "stateMachines", limit=MOST, maxResults=PAGE)
    standard = [row for row in rows if row["type"] != EXPRESS]  # Express executions cannot be listed
    standard.sort(key=lambda row: (row["name"] in named, row["creationDate"]), reverse=True)
    counted = {str(row["stateMachineArn"]): await _counted(client, row) for row in standard[:COUNTED]}
    found = [counted.get(str(row["stateMachineArn"])) or _discovered(row, ()) for row in rows]
    return sorted(found, key=lambda each: (-each.executions, each.workflow))


async def _counted(client: Client, row: Mapping[str, Any]) -> Discovered:
    """Count a machine's latest executions, and infer the input's schema from the last; stop where this is not
    allowed."""
    found = _discovered(row, ())
    try:
        arn = row["stateMachineArn"]
        listed = await client.call("list_executions", known=_UNCOUNTABLE, stateMachineArn=arn, maxResults=LATEST)
        found = _discovered(row, listed["executions"])
        for latest in listed["executions"][:1]:
            read = await client.call("describe_execution", executionArn=latest["executionArn"])
            sample = _object(read.get("input"))
            return replace(found, input=infer_schema([sample]), is_sampled=True) if sample else found
    except (ExpectedCodeError, EngineError):
        return found
    return found


def _discovered(row: Mapping[str, Any], executions: Sequence[Mapping[str, Any]]) -> Discovered:
    lengths = [
        (each["stopDate"] - each["startDate"]).total_seconds()
        for each in executions
        if STATUSES.get(each["status"]) is Status.SUCCEEDED
    ]
    return Discovered(
        workflow=str(row["name"]),
        options={"express": True, "tasks": "forbidden"} if row["type"] == EXPRESS else {},
        last_seen=max((each["startDate"] for each in executions), default=None),
        executions=len(executions),
        usual=timedelta(seconds=median(lengths)) if lengths else None,
    )


async def adopt(client: Client, execution_id: str) -> Ref:
    """Return the execution with this ARN, running or ended.

    Raises:
        ExecutionNotFound: it does not exist.
        EngineRefused: not an execution ARN, of another Region or account, or an Express execution.
    """
    named = ExecutionArn.parse(execution_id.strip())
    if named.express:
        raise EngineRefused("an Express execution cannot be looked up, so it can be no task", final=True)
    if named.place.region != client.region:
        raise ExecutionNotFound(f"this engine is set up for {client.region}, the execution is in {named.place.region}")
    if client.account not in (None, named.place.account):
        raise ExecutionNotFound("this engine is set up for another account than that of the execution")
    found = await client.call("describe_execution", executionArn=execution_id.strip())
    return Ref(workflow=_workflow_of(found), handle=str(found["executionArn"]))


def _workflow_of(row: Mapping[str, Any]) -> str:
    """Return what the execution was started as: an alias, a version, or the machine itself."""
    return str(row.get("stateMachineAliasArn") or row.get("stateMachineVersionArn") or row["stateMachineArn"])


async def list_ended(client: Client, machine: Machine, since: datetime) -> Sequence[EndedExecution]:
    """Return the executions of a machine, version or alias that ended since then, the earliest first.

    The API lists the latest first: ended executions by their end, running ones by their start. So reading stops after
    the first page with an earlier end.
    """

    def is_earlier(row: Mapping[str, Any]) -> bool:
        return STATUSES.get(row["status"]) in TERMINAL and bool(row["stopDate"] < since)

    params: dict[str, Any] = {"stateMachineArn": machine.unqualified, "maxResults": PAGE}
    rows = await client.pages("list_executions", "executions", limit=MOST_LISTED, enough=is_earlier, **params)
    if len(rows) == MOST_LISTED:
        _log.warning("%s: only the latest %d executions are looked at, more have ended", machine.arn, MOST_LISTED)
    late = [row for row in rows if STATUSES.get(row["status"]) in TERMINAL and row["stopDate"] >= since]
    mine = {str(row["executionArn"]): row for row in late if same_workflow(machine.arn, _workflow_of(row))}
    ended = [
        EndedExecution(
            handle=arn, execution_id=arn, status=STATUSES[row["status"]], ended=row["stopDate"].astimezone(UTC)
        )
        for arn, row in mine.items()  # one may be on two pages
    ]
    return sorted(ended, key=lambda each: each.ended)[:MOST_ENDED]


def same_workflow(written: str, found: str) -> bool:
    """True if `found` is the machine that `written` names, by ARN or name, with or without a version or alias.

    A machine without a version or alias includes all of them.
    """
    try:
        (mine, qualifier, place), (its, its_qualifier, its_place) = _parts(written), _parts(found)
    except EngineRefused:
        return False
    return mine == its and qualifier in (None, its_qualifier) and (place is None or its_place in (None, place))


def _parts(workflow: str) -> tuple[str, str | None, Place | None]:
    """Return the name, qualifier and place of a machine; a bare name has no place."""
    if is_machine_arn(workflow):
        machine = parse_machine(workflow)
        return machine.name, machine.qualifier, machine.place
    name, _, qualifier = workflow.partition(":")
    return name, qualifier or None, None


MAX_NAME: Final = 64
TAGGED_PAGE: Final = 100  # machines in one reply of the Tagging API
_GONE: Final = frozenset({"StateMachineDoesNotExist", "StateMachineDeleting"})
_ENCRYPTED: Final = frozenset({"KmsAccessDeniedException", "KmsInvalidStateException"})
_DENIED: Final = frozenset({DENIED, "AccessDenied"})
_DESCRIBE: Final = "describe_state_machine"
_TRIES: Final = 5  # attempts for one description, when the quota is used up
_FASTEST: Final = 20.0  # descriptions per second without a known quota
_SHARE: Final = 0.2  # fraction of the quota for known descriptions, which may have changed

_log = logging.getLogger(__name__)


class TaggedMachines:
    """The tagged machines. Each is described once, and a few are described again each time, within the quota."""

    def __init__(self, client: Client, discover: Discover | None) -> None:
        self._client = client
        self._discover = discover
        self._known: dict[str, Exposed | None] = {}  # by ARN, the oldest description first
        self._logged: set[str] = set()

    async def exposed(self) -> Sequence[Exposed]:
        """Return all currently tagged machines, by name; see `Exposes.exposed`.

        Raises:
            EngineRefused: there is no permission to read tags.
            EngineUnavailable: tags cannot be read now.
        """
        if self._discover is None:
            return []
        tagged = dict.fromkeys([arn async for arn in self._tagged(self._discover)])
        self._known = {arn: self._known[arn] for arn in self._known if arn in tagged}
        again = list(self._known)[: self._affordable(self._discover)]
        for arn in (arn for arn in tagged if arn not in self._known):
            self._known[arn] = await self._find_exposed(arn)
        await self._refresh(again)
        return sorted((each for each in self._known.values() if each), key=lambda each: (each.name, each.source))

    async def _tagged(self, discover: Discover) -> AsyncIterator[str]:
        """Return the ARNs of the machines with the tag, without versions and aliases, which inherit it."""
        key, value = discover.key_and_value
        page: dict[str, Any] = {
            "TagFilters": [{"Key": key, "Values": [value]}],
            "ResourceTypeFilters": ["states:stateMachine"],
            "ResourcesPerPage": TAGGED_PAGE,
        }
        while True:
            found = await self._client.tagging("get_resources", **page)
            for row in cast("Sequence[Mapping[str, Any]]", found.get("ResourceTagMappingList", ())):
                tags = {tag["Key"]: tag["Value"] for tag in row.get("Tags", ())}
                if tags.get(key) == value and _is_machine(str(row["ResourceARN"])):  # or a local engine
                    yield str(row["ResourceARN"])
            if not found.get("PaginationToken"):  # the last page has an empty one
                return
            page["PaginationToken"] = found["PaginationToken"]

    def _affordable(self, discover: Discover) -> int:
        """Return the number of known machines that may be described again this time."""
        refill = min(self._client.refill(_DESCRIBE), _FASTEST)
        return max(1, int(refill * discover.every.total_seconds() * _SHARE))

    async def _refresh(self, arns: Sequence[str]) -> None:
        """Describe machines again; keep the old description of a machine while there is no reply."""
        for arn in arns:
            try:
                found = await self._find_exposed(arn)
            except EngineUnavailable:
                return
            self._known.pop(arn)
            self._known[arn] = found  # now the newest

    async def _find_exposed(self, arn: str) -> Exposed | None:
        """Return the tool of a machine; None if it was deleted, or its owner must act first (see the log)."""
        try:
            return self._read(arn, await self._describe(arn))
        except ExpectedCodeError as answered:
            code = answered.code
        if code in _ENCRYPTED:
            self._log(arn, "is encrypted, and kms:Decrypt is not allowed: it is offered without description and schema")
            try:
                return self._read(arn, await self._describe(arn, includedData="METADATA_ONLY"))
            except ExpectedCodeError as answered:
                code = answered.code
        if code not in _GONE:
            self._log(arn, "is not offered: allow states:DescribeStateMachine on it")
        return None

    async def _describe(self, arn: str, **more: str) -> Mapping[str, Any]:
        known = _GONE | _DENIED | _ENCRYPTED
        for _ in range(_TRIES - 1):
            try:
                return await self._client.call(_DESCRIBE, known=known, stateMachineArn=arn, **more)
            except EngineUnavailable as error:
                if error.sent:
                    raise
            await anyio.sleep(1 / self._client.refill(_DESCRIBE))
        return await self._client.call(_DESCRIBE, known=known, stateMachineArn=arn, **more)

    def _read(self, arn: str, found: Mapping[str, Any]) -> Exposed | None:
        if found.get("status") == "DELETING":
            return None
        comment = read_comment(found.get("definition"))
        if comment.problems:
            self._log(arn, f"is not offered: its Comment is wrong, {'; '.join(comment.problems)}")
            return None
        options: dict[str, JSON] = {"express": True} if found["type"] == EXPRESS else {}
        return Exposed(
            name=comment.name or tool_name(str(found["name"])),
            workflow=arn,
            source=arn,
            title=comment.title,
            description=comment.description,
            input=comment.input,
            options=options,
        )

    def _log(self, arn: str, what: str) -> None:
        """Log a line once: the machine is found again every few minutes."""
        line = f"state machine {arn} {what}"
        if line not in self._logged:
            self._logged.add(line)
            _log.warning("%s", line)


def tool_name(machine: str) -> str:
    """Return the tool name of a machine; a long name ends in a hash, to keep names distinct."""
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", machine)
    if len(name) <= MAX_NAME:
        return name
    return f"{name[: MAX_NAME - 9]}_{hashlib.sha256(machine.encode()).hexdigest()[:8]}"


def _is_machine(arn: str) -> bool:
    try:
        return parse_machine(arn).qualifier is None
    except EngineRefused:
        return False


LONGEST: Final = 10_000  # characters of a text: every client and model gets it with every list of tools
_LONG: Final = f"is longer than {LONGEST} characters"
OPEN: Final[Mapping[str, JSON]] = {"type": "object"}  # accepts any arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolComment:
    """The description of a tool in the `Comment` of a definition; `problems` are its mistakes, for its author.

    Plain text is the description. A JSON object can have `description`, `title`, `name` and `inputSchema`, at the top
    level or under `mcp`, where they do not affect other readers of the comment.
    """

    name: str | None = None
    title: str | None = None
    description: str | None = None
    input: Mapping[str, JSON] = field(default_factory=lambda: dict(OPEN))
    problems: tuple[str, ...] = ()


def read_comment(definition: object) -> ToolComment:
    """Return the tool in the comment of a definition (JSON text); an empty one without a comment."""
    comment = _object(definition).get("Comment")
    if not isinstance(comment, str) or not comment.strip():
        return ToolComment()
    content = _object(comment)
    return _comment_of(content or {"description": comment.strip()})


def _comment_of(content: Mapping[str, Any]) -> ToolComment:
    inner: object = content.get("mcp")
    merged: Mapping[str, Any] = {**content, **cast("dict[str, Any]", inner)} if isinstance(inner, dict) else content
    texts = {key: merged[key] for key in ("name", "title", "description") if merged.get(key) is not None}
    schema = merged.get("inputSchema", OPEN)
    problems = [f"{key} is no text" for key, value in texts.items() if not isinstance(value, str)]
    problems += [f"{key} {_LONG}" for key, value in texts.items() if isinstance(value, str) and len(value) > LONGEST]
    if not isinstance(schema, dict):
        problems.append("inputSchema is no JSON Schema of an object")
    if problems:
        return ToolComment(problems=tuple(problems))
    return ToolComment(**texts, input=cast("Mapping[str, JSON]", schema))


def _object(text: object) -> Mapping[str, Any]:  # Any: any JSON value
    """Return the JSON object in a text; an empty one for any other text."""
    try:
        value = json.loads(text) if isinstance(text, str) and text.lstrip().startswith("{") else None
    except (ValueError, RecursionError):
        return {}
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}
