"""Checks of a whole configuration: store, issuers, engines, workflows and hosts."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import Any, TypeAlias

import anyio
from rich.table import Table
from rich.text import Text

from mcp_workflows.access import Rule
from mcp_workflows.access.authn.fetch import JsonFetcher
from mcp_workflows.access.authn.settings import AuthSettings
from mcp_workflows.access.authn.verifier import issuer_metadata, verifier
from mcp_workflows.adapter import GATE_WORDS, TERMINAL, Adapter, Finding
from mcp_workflows.adapter.display_text import cleaned, quoted
from mcp_workflows.engines.registry import REBIND, Engines, NotesOf
from mcp_workflows.errors import EngineError, IssuerUnavailable, StoreError, WorkflowsError
from mcp_workflows.events.notifications import channels_of
from mcp_workflows.kit.tooling import Checks, Exposed, Verifies, expose_every
from mcp_workflows.receiver.webhooks import addresses
from mcp_workflows.sidecar.config.models import (
    AuditSettings,
    Config,
    Engine,
    ServerSettings,
    StoreSettings,
    WebSettings,
)
from mcp_workflows.sidecar.config.yaml import Where
from mcp_workflows.sidecar.engine_checks import check_engine, find_exposed
from mcp_workflows.sidecar.host_rules import refusals
from mcp_workflows.sidecar.marked_workflows import ACCEPT, MarkedWorkflow, as_accepted, compose
from mcp_workflows.store.key_value import notes_in
from mcp_workflows.task import engine_key, split_engine_key
from mcp_workflows.tasks.pauses import Pauses
from mcp_workflows.tools.compatibility import find_problems
from mcp_workflows.tools.hosts import UNKNOWN_WAIT
from mcp_workflows.tools.questions import Approval
from mcp_workflows.tools.tool import AnyTool, Kind
from mcp_workflows.units import utc_now

_SHOWN = 300  # characters of a changed description
_TIMEOUT = 60.0  # seconds for each check: npx and uvx install a program before they start it
_NO_TOOL = "correct it; if it should not be a tool, begin its name with _ or use tool(..., expose=False)"
_PAGES = 3  # times the time limit of one call, as reading all pages takes several calls


class ItemKind(StrEnum):
    """The kinds of checked items, in the order of the report."""

    STORE = "store"
    ISSUER = "issuer"
    AUDIT = "audit"
    CHANNEL = "channel"
    TASKS = "tasks"
    ENGINE = "engine"
    TOOL = "tool"
    EXPOSED = "exposed"
    HOST = "host"


class ItemState(StrEnum):
    """The result of a check."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    UNKNOWN = "unknown"
    NOT_CHECKED = "not checked"


Place: TypeAlias = Callable[[Where], str | None]  # see `Config.place`

_CREDENTIALS = re.compile(r"//[^/]*@")
_STYLES: Mapping[ItemState, str] = {
    ItemState.OK: "green",
    ItemState.WARNING: "yellow",
    ItemState.PROBLEM: "bold red",
    ItemState.UNKNOWN: "yellow",
    ItemState.NOT_CHECKED: "yellow",
}
_STATES: Mapping[bool | None, ItemState] = {True: ItemState.OK, False: ItemState.PROBLEM, None: ItemState.UNKNOWN}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One checked item."""

    kind: ItemKind
    name: str
    details: Mapping[str, str] = field(default_factory=dict[str, str])  # adapter, or engine and workflow
    finding: Finding | None  # None: its adapter has no check

    @property
    def state(self) -> ItemState:
        """The result of the check."""
        if self.finding is None:
            return ItemState.NOT_CHECKED
        may_warn = self.kind in {ItemKind.TASKS, ItemKind.CHANNEL}
        is_warning = self.kind is ItemKind.HOST or (may_warn and self.finding.ok is None)
        return ItemState.WARNING if is_warning else _STATES[self.finding.ok]

    def as_json(self) -> Mapping[str, Any]:
        """Return the row for programs. `ok` is null if unknown; `text` and `hint` are null if it was not checked."""
        found = self.finding
        result = (found.ok, found.text, found.hint) if found else (None, None, None)
        return {"name": self.name, **self.details, **dict(zip(("ok", "text", "hint"), result, strict=True))}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """All checked items: the store, its tasks, issuers, the audit, engines, tools and marked workflows."""

    rows: Sequence[Row]
    tasks: LiveTasks | None = None  # None: not counted

    @property
    def problems(self) -> int:
        """The number of items that do not work now."""
        return sum(row.state is ItemState.PROBLEM for row in self.rows)

    @property
    def unknown(self) -> int:
        """The number of items whose check gave no result."""
        return sum(row.state is ItemState.UNKNOWN for row in self.rows)

    @property
    def unchecked(self) -> int:
        """The number of items whose adapters have no check."""
        return sum(row.finding is None for row in self.rows)

    @property
    def summary(self) -> str:
        """The result of all checks in a few words."""
        if self.problems:
            return "1 problem" if self.problems == 1 else f"{self.problems} problems"
        warnings = sum(row.state is ItemState.WARNING for row in self.rows)
        said = "warning" if warnings == 1 else "warnings"
        unsure = {"unknown": self.unknown, "not checked": self.unchecked, said: warnings}
        rest = "".join(f", {count} {what}" for what, count in unsure.items() if count)
        return f"no problem found{rest}" if rest else "everything is fine"

    def as_json(self) -> Mapping[str, Any]:
        """Return the report for programs."""
        tasks = {} if self.tasks is None else {"tasks": self.tasks.as_json()}
        by_kind = {kind: [row.as_json() for row in self.rows if row.kind is kind] for kind in ItemKind}
        return {
            "ok": not self.problems,
            "store": by_kind[ItemKind.STORE][0],
            **tasks,
            "issuers": by_kind[ItemKind.ISSUER],
            "audit": by_kind[ItemKind.AUDIT],
            "channels": by_kind[ItemKind.CHANNEL],
            "engines": by_kind[ItemKind.ENGINE],
            "tools": by_kind[ItemKind.TOOL],
            "exposed": by_kind[ItemKind.EXPOSED],
            "hosts": by_kind[ItemKind.HOST],
        }

    def as_table(self) -> Table:
        """Return the report for people."""
        table = Table(box=None, pad_edge=False)
        for heading in ("", "name", "what", "state", "found"):
            table.add_column(heading, overflow="fold")
        for row in self.rows:
            state = Text(row.state, style=_STYLES[row.state])
            what = cleaned(" / ".join(row.details.values()))
            table.add_row(row.kind, Text(cleaned(row.name)), Text(what), state, _sentence(row))
        return table


def _sentence(row: Row) -> Text:
    if row.finding is None:
        return Text("its adapter cannot check this")
    hint = f"\n-> {row.finding.hint}" if row.finding.hint else ""
    return Text(cleaned(f"{row.finding.text}{hint}"))  # text from engines must not control the terminal


async def check(
    config: Config, *, tasks: bool = False, accept: bool = False, time_limit: float = _TIMEOUT
) -> CheckReport:
    """Check everything concurrently, on request also the tasks in the store; `accept` changed definitions of tools.

    `time_limit` is in seconds per check.
    """
    rows: dict[tuple[ItemKind, str], Row] = {}
    discoveries = Discoveries(store=config.store, accept=accept)
    identities: dict[str, str] = {}
    tools = {tool.name: tool for tool in config.tools}
    advice = {name: _unsaid(tool, config.server.auth) or _advice(tool, config.server) for name, tool in tools.items()}

    def found(row: Row) -> None:
        hint = advice[row.name] if row.kind is ItemKind.TOOL else None
        if row.kind is ItemKind.TOOL and (alone := _alone(tools[row.name], config.server)):
            row = replace(row, finding=alone)
        elif hint and row.finding and row.finding.ok is not False:
            row = replace(row, finding=replace(row.finding, hint=hint))
        rows[row.kind, row.name] = row

    async with AsyncExitStack() as stack, anyio.create_task_group() as group:
        notes = await _notes(config.store, stack) if tasks else None
        group.start_soon(_check_store, config.store, time_limit, found)
        group.start_soon(_check_issuers, config, time_limit, found)
        for engine in config.engines.values():
            its_tools = [tool for tool in config.tools if tool.engine == engine.name]
            group.start_soon(
                _check_engine, engine, its_tools, time_limit, found, discoveries, config.place, notes, identities
            )
    store = rows[ItemKind.STORE, _scheme(config.store.url)]
    issuers = [row for (kind, _), row in rows.items() if kind is ItemKind.ISSUER]
    audit, channels = _audit_rows(config.audit), list(_channel_rows(config))
    others = [(ItemKind.ENGINE, name) for name in config.engines] + [
        (ItemKind.TOOL, tool.name) for tool in config.tools
    ]
    live, live_rows = await _check_tasks(config, store, time_limit, identities)
    if not tasks:  # only the warning
        live_rows = [row for row in live_rows if row.finding and row.finding.ok is None]
        live = live if live_rows else None
    found_rows = (rows[key] for key in others)
    hosts = [row for tool in config.tools if tool.listed for row in _host_rows(tool)]
    return CheckReport(
        rows=[store, *issuers, *audit, *channels, *live_rows, *found_rows, *hosts, *discoveries.rows(config)],
        tasks=live,
    )


async def _notes(settings: StoreSettings, stack: AsyncExitStack) -> NotesOf | None:
    """Return the notes of adapters; None if the store cannot be opened, which its own check reports."""
    try:
        return notes_in(await stack.enter_async_context(settings.open()))
    except WorkflowsError:
        return None


def _scheme(url: str) -> str:
    return url.partition(":")[0]


async def _check_store(settings: StoreSettings, time_limit: float, found: Callable[[Row], None]) -> None:
    async def probe() -> Finding:
        async with settings.open() as store:
            await store.check()
            paused = "".join(f"; {each.text}" for each in await Pauses(store, utc_now).every())
        return Finding(
            ok=True, text=f"can be read and written{paused}", hint="mcp-workflows resume" if paused else None
        )

    url = settings.url
    place = _CREDENTIALS.sub("//", url).partition("?")[0]
    found(Row(kind=ItemKind.STORE, name=_scheme(url), details={"url": place}, finding=await _within(time_limit, probe)))


async def _check_issuers(config: Config, time_limit: float, found: Callable[[Row], None]) -> None:
    """Check for each issuer that its tokens can be verified now."""

    async def check_issuer(name: str, probe: Callable[[], Awaitable[str]]) -> None:
        async def probed() -> Finding:
            return Finding(ok=True, text=await probe())

        found(Row(kind=ItemKind.ISSUER, name=name, finding=await _within(time_limit, probed)))

    if config.server.auth is None:
        return
    asked = verifier(config.server.auth, "")
    probes = {signed.issuer: signed.probe for signed in asked.signed}
    probes |= {introspected.endpoint: introspected.probe for introspected in asked.introspected}
    if config.server.web is not None:
        probes["pages"] = partial(_probe_pages, config.server.web, config.server.public_url)
    async with anyio.create_task_group() as group:
        for name, probe in probes.items():
            group.start_soon(check_issuer, name, probe)


async def _probe_pages(settings: WebSettings, public_url: str | None) -> str:
    metadata = await issuer_metadata(settings.issuer, JsonFetcher())
    if missing := {"authorization_endpoint", "token_endpoint"} - metadata.keys():
        raise IssuerUnavailable(f"{settings.issuer} has no {' and no '.join(sorted(missing))}: nobody can log in there")
    callback = f"{public_url or 'http://HOST:PORT'}/login/callback"
    return f"people log in at {settings.issuer}, where {callback} must be registered for {settings.client_id}"


def _audit_rows(settings: AuditSettings | None) -> Sequence[Row]:
    """Check that the audit file can be written. Do not create it, as it may belong to another user."""
    if settings is None or settings.file is None:
        return ()
    file = settings.file
    finding = Finding(ok=True, text=f"{file} can be written")
    if not file.parent.is_dir():
        finding = Finding(ok=False, text=f"the folder {file.parent} does not exist")
    elif file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK):
        finding = Finding(ok=False, text=f"{file} cannot be written")
    return [Row(kind=ItemKind.AUDIT, name="file", finding=finding)]


def _channel_rows(config: Config) -> Iterator[Row]:
    """Yield the channels of notifications with the tools that use them; send nothing."""
    for name, channel in config.notify.items():
        tools = [tool.name for tool in config.tools if name in channels_of(tool)]
        finding = Finding(ok=True, text=f"is notified of approvals of {', '.join(tools)}")
        if not tools:
            finding = Finding(
                ok=None, text="no tool of the configuration names it", hint=f"name it: approval: {{notify: [{name}]}}"
            )
        yield Row(kind=ItemKind.CHANNEL, name=name, details={"to": channel.kind, "host": channel.host}, finding=finding)


async def _check_tasks(
    config: Config, store: Row, time_limit: float, identities: Mapping[str, str]
) -> tuple[LiveTasks | None, Sequence[Row]]:
    live: LiveTasks | None = None

    async def probe() -> Finding:
        nonlocal live
        live = await count_live_tasks(config, identities)
        return live.findings()["live"]

    if store.state is ItemState.PROBLEM:
        return None, ()
    finding = await _within(time_limit, probe)
    findings = live.findings() if live else {"live": finding}
    return live, [Row(kind=ItemKind.TASKS, name=name, finding=found) for name, found in findings.items()]


async def _check_engine(
    engine: Engine,
    tools: Sequence[AnyTool],
    time_limit: float,
    found: Callable[[Row], None],
    discoveries: Discoveries,
    place: Place,
    notes: NotesOf | None,
    identities: dict[str, str],
) -> None:
    """Check the engine and, if it replies, all of its tools and marked workflows concurrently."""
    details = {"adapter": engine.adapter}
    try:
        adapter = engine.kind(engine.settings)
        async with Engines({engine.name: adapter}, call_timeout=time_limit, notes=notes) as engines:
            identities[engine.name] = engines.identity(engine.name)
            if called_at := addresses(engine.name, engines.routes.get(engine.name, {})):
                details["called_at"] = ", ".join(called_at)
            finding = await check_engine(engines, engine.name)
            found(Row(kind=ItemKind.ENGINE, name=engine.name, details=details, finding=finding))
            async with anyio.create_task_group() as group:
                if expose_every(adapter) is not None:
                    group.start_soon(discoveries.probe, engine.name, adapter, engines, time_limit)
                for tool in tools:
                    group.start_soon(_check_tool, tool, adapter, finding, time_limit, found, place)
    except WorkflowsError as error:
        finding = Finding(ok=False, text=str(error))
        found(Row(kind=ItemKind.ENGINE, name=engine.name, details=details, finding=finding))
        for tool in tools:
            found(_tool_row(tool, _blocked(tool)))


async def _check_tool(
    tool: AnyTool,
    adapter: Adapter,
    engine: Finding | None,
    time_limit: float,
    found: Callable[[Row], None],
    place: Place,
) -> None:
    """Check that the workflow can run now and fits the tool; a tool that only watches needs no check."""
    tooling = adapter.tooling
    if not isinstance(tooling, Checks):
        found(_tool_row(tool, None))
        return
    if engine and engine.ok is False:
        found(_tool_row(tool, _blocked(tool)))
        return

    async def checked() -> Finding:
        if problem := next(find_problems(tool, {tool.engine: adapter}), None):
            return Finding(ok=False, text=problem)
        if tool.kind is Kind.WATCH:
            return Finding(ok=True, text=f"watches executions of {tool.workflow}")
        return await tooling.check(tool.workflow, tool.options)

    finding = await _within(time_limit, checked)
    if isinstance(tooling, Verifies) and finding.ok is not False:
        finding = await _within(time_limit, lambda: _verified(tool, tooling, finding, place))
    found(_tool_row(tool, finding))


async def _verified(tool: AnyTool, tooling: Verifies, checked: Finding, place: Place) -> Finding:
    """Return the finding together with the differences between the workflow and the tool, and the open points.

    A finding about a setting begins with that setting, and gets its file and line; see `Verifies.verify`.
    """
    gates = {name: gate.model_dump(include=set(GATE_WORDS)) for name, gate in tool.gates.items()}
    more: list[Finding] = []
    actions = {"actions": {name: each.settings for name, each in tool.actions.items()}} if tool.actions else {}
    options = {**tool.options, **actions}
    for each in await tooling.verify(tool.workflow, options, gates):
        at = place(("tools", tool.name, *each.text.partition(": ")[0].split(".")))
        more.append(replace(each, text=f"{at}: {each.text}") if at else each)
    wrong = [finding for finding in more if finding.ok is False]
    if not wrong:
        unknown = any(finding.ok is None for finding in (checked, *more))
        suggestions = [] if tool.input.get("properties") else [finding.hint for finding in more if finding.hint]
        text = "; ".join(finding.text for finding in (checked, *more))
        return Finding(ok=None if unknown else True, text=text, hint="; ".join(suggestions) or checked.hint)
    hints = [finding.hint for finding in wrong if finding.hint]
    text = "; ".join(finding.text for finding in (*wrong, *(each for each in more if each.ok is not False)))
    return Finding(ok=False, text=text, hint="; ".join(hints) or None)


def _tool_row(tool: AnyTool, finding: Finding | None) -> Row:
    details = {"engine": tool.engine, "workflow": tool.workflow}
    return Row(kind=ItemKind.TOOL, name=tool.name, details=details, finding=finding)


def _unsaid(tool: AnyTool, auth: AuthSettings | None) -> str | None:
    """Return a hint about claims in the tool's rules that no login here can provide."""
    allowed = frozenset[str]() if tool.allow is None else tool.allow.claims
    claims = sorted(allowed.union(name for rule in tool.approval_rules for name in rule.claims))
    unsaid = [name for name in claims if auth is None or not auth.says(name)]
    return f"rules need claims that no login here has, so they match nobody: {', '.join(unsaid)}" if unsaid else None


def _alone(tool: AnyTool, server: ServerSettings) -> Finding | None:
    """Return the problem of an approval by another person if there is no other person."""
    needs_others = any(not each.requester_may_approve for each in tool.approvals.values())
    if not needs_others or server.auth is not None:
        return None
    text = "approval: nobody can approve: without server.auth all callers are one, and may not approve their own"
    alone = "requester_may_approve: true"
    if not server.single_user:  # a caller over HTTP is then anonymous, and cannot approve
        alone += ", over HTTP with server.single_user: true"
    return Finding(ok=False, text=text, hint=f"set server.auth; or, if only one person uses it, {alone}")


def _advice(tool: AnyTool, server: ServerSettings) -> str | None:
    """Return a hint about settings that are valid but may be unintended."""
    if tool.approvals and server.auth is not None and len({each.subject for each in server.auth.tokens or ()}) > 1:
        return "approval: a holder of tokens of two subjects in server.auth.tokens can approve their own requests"
    if server.web is not None and any(_by_client(rule) for rule in tool.approval_rules):
        return "approval: scopes and clients are those of hosts, and a login on the pages has neither: name claims"
    if any(_prompts(each) and not each.notify for each in tool.approvals.values()):
        return "approval: remind and escalate notify nobody: name channels in its `notify`"
    if tool.approvals and not (server.single_user or server.auth):
        return "approval: approved on stdio only; over HTTP with server.auth or server.single_user"
    if tool.kind is Kind.WATCH and not (server.single_user or server.auth):
        return "seen on stdio only; over HTTP with server.auth or server.single_user"
    waits = {"wait": tool.wait if tool.hands_over else None, "adaptive": tool.adaptive}
    long = [name for name, value in waits.items() if value is not None and value > UNKNOWN_WAIT]
    return f"{' and '.join(long)}: a host that times out sooner may call again; some do after 5s" if long else None


def _by_client(rule: Rule) -> bool:
    return bool(rule.scopes) or any(each.client is not None for each in rule.principals)


def _prompts(approval: Approval) -> bool:
    """True if the approval reminds people or escalates to others."""
    return approval.remind is not None or (approval.after is not None and approval.after.then != "decline")


def _host_rows(tool: AnyTool) -> Iterator[Row]:
    """Yield the hosts that refuse the tool. It works in all others, so this is not a problem of the configuration."""
    for rule, text in refusals(tool):
        finding = Finding(ok=True, text=f"{text} ({rule.source})", hint=rule.hint)
        yield Row(kind=ItemKind.HOST, name=tool.name, details={"host": rule.host}, finding=finding)


def _blocked(tool: AnyTool) -> Finding:
    return Finding(ok=False, text=f"not without engine {tool.engine}")


async def _within(time_limit: float, probe: Callable[[], Awaitable[Finding]]) -> Finding:
    try:
        with anyio.fail_after(time_limit):
            return await probe()
    except TimeoutError:
        return Finding(ok=False, text=f"no answer within {time_limit:g} s")
    except WorkflowsError as error:
        return Finding(ok=False, text=str(error))


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTasks:
    """The number of live tasks, also by name for removed tools and engines."""

    total: int = 0
    removed_tools: Mapping[str, int] = field(default_factory=dict[str, int])
    removed_engines: Mapping[str, int] = field(default_factory=dict[str, int])
    other_engines: Mapping[tuple[str, str, str], int] = field(default_factory=dict[tuple[str, str, str], int])
    # tasks of another engine with a configured name: by name, its identity, and that of the configured engine

    def as_json(self) -> Mapping[str, Any]:
        """Return the counts for programs."""
        other = {identity: count for (_, identity, _), count in self.other_engines.items()}
        removed = {"removed_tools": self.removed_tools, "removed_engines": self.removed_engines}
        return {"live": self.total, **removed, **({"other_engines": other} if other else {})}

    def findings(self) -> Mapping[str, Finding]:
        """Return the counts as findings. A removed tool is fine: its tasks keep the settings that they started with."""
        gone = "that is no longer in the configuration"
        is_fine = self.total and not (self.removed_tools or self.removed_engines or self.other_engines)
        total = counted(self.total) + (", all of configured tools" if is_fine else "")
        found = {"live": Finding(ok=True, text=total)}
        for name, count in self.removed_tools.items():
            text = f"{counted(count)} of a tool {gone}: they can still be read, answered and cancelled"
            found[f"tool {name}"] = Finding(ok=True, text=text)
        for name, count in self.removed_engines.items():
            text, hint = f"{counted(count)} on an engine {gone}: they cannot be polled", f"put engine {name} back"
            found[f"engine {name}"] = Finding(ok=False, text=text, hint=f"{hint} until they have ended")
        for (name, old, new), count in self.other_engines.items():
            here, rebind = new or "without identity", shlex.join([*REBIND.split(), old, new])
            text = f"{counted(count)} of another engine named {name}: it is {here} here, and is not polled for them"
            hint = f"if it is the same engine under a new name or address: {rebind}"
            found[f"engine {name} ({old})"] = Finding(ok=None, text=text, hint=hint)
        return found


async def count_live_tasks(config: Config, identities: Mapping[str, str]) -> LiveTasks:
    """Count the live tasks in the store; `identities` are those of the engines that could be opened.

    Raises:
        StoreError: the store cannot be read.
    """
    async with config.store.open() as store:
        live = [each for each in await store.counts(datetime.now(UTC)) if each.status not in TERMINAL]
    configured = {tool.name for tool in config.tools}
    tools, engines, other = Counter[str](), Counter[str](), Counter[tuple[str, str, str]]()
    for each in live:
        engine, identity = split_engine_key(each.engine)
        tools[each.tool] += each.tasks
        engines[engine] += each.tasks
        if identity not in ("", current := identities.get(engine, identity)):
            other[engine, identity, current] += each.tasks
    return LiveTasks(
        total=tools.total(),
        removed_tools={name: count for name, count in tools.items() if name not in configured},
        removed_engines={name: count for name, count in engines.items() if name not in config.engines},
        other_engines=other,
    )


def counted(count: int) -> str:
    """Return the number of live tasks in words."""
    return "1 live task" if count == 1 else f"{count} live tasks"


@dataclass(slots=True)
class Discoveries:
    """The workflows that are marked on the engines; filled while the checks run."""

    store: StoreSettings
    accept: bool  # accept changed definitions
    adapters: dict[str, Adapter] = field(default_factory=dict[str, Adapter])
    exposed: dict[str, Sequence[Exposed]] = field(default_factory=dict[str, Sequence[Exposed]])
    trouble: dict[str, str] = field(default_factory=dict[str, str])
    changed: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])

    async def probe(self, engine: str, adapter: Adapter, engines: Engines, time_limit: float) -> None:
        """Read the marked workflows of an open engine."""
        self.adapters[engine] = adapter
        try:
            self.exposed[engine] = await find_exposed(engines, engine, time_limit * _PAGES)
        except EngineError as error:
            self.trouble[engine] = str(error)
        else:
            pinned = [each for each in self.exposed[engine] if each.pin]
            await self._compare(engine, engines.identity(engine), pinned)

    async def _compare(self, engine: str, identity: str, pinned: Sequence[Exposed]) -> None:
        """Compare definitions with the accepted ones; skip this if the store fails, which its own check reports."""
        if not pinned:
            return
        with suppress(StoreError):
            async with self.store.open() as store:
                notes = notes_in(store)(engine_key(engine, identity))
                for each in pinned:
                    _, changed = await as_accepted(notes, each, accept=self.accept)
                    if changed:
                        self.changed[engine, each.source] = f"{changed}: {quoted(each.description, _SHOWN)}"

    def rows(self, config: Config) -> Iterator[Row]:
        """Yield a row for each marked workflow, and one for each engine that has none or did not reply."""
        for problem in config.not_offered:
            finding = Finding(ok=False, text=f"not offered: {problem}", hint=_NO_TOOL)
            yield Row(kind=ItemKind.EXPOSED, name=", ".join(config.engines), finding=finding)
        my_tasks, tool_defaults = config.server.my_tasks, config.tool_defaults
        for each in compose(config.tools, self.exposed, self.adapters, my_tasks=my_tasks, tool_defaults=tool_defaults):
            details = {"engine": each.engine, "workflow": each.exposed.workflow}
            yield Row(kind=ItemKind.EXPOSED, name=each.exposed.name, details=details, finding=self._finding(each))
            yield from () if each.tool is None else _host_rows(each.tool)
        nothing = Finding(ok=True, text="no workflow is marked there")
        engines = {name: nothing for name, exposed in self.exposed.items() if not exposed} | {
            name: Finding(ok=False, text=f"marked workflows cannot be listed: {why}")
            for name, why in self.trouble.items()
        }
        for name, finding in engines.items():
            yield Row(kind=ItemKind.EXPOSED, name=name, details={"engine": name}, finding=finding)

    def _finding(self, marked: MarkedWorkflow) -> Finding:
        if marked.wrong:
            return Finding(ok=False, text=f"not offered: {marked.wrong}", hint=marked.hint)
        changed = self.changed.get((marked.engine, marked.exposed.source))
        if changed and not marked.named:
            said = f"the server has changed its {changed}"
            hint = None if self.accept else f"it is offered as accepted before; to offer the new one: {ACCEPT}"
            return Finding(ok=self.accept, text=f"{said}; accepted" if self.accept else said, hint=hint)
        return _offered(marked)


def _offered(marked: MarkedWorkflow) -> Finding:
    said = f"offered as workflows.yaml says: {marked.named}" if marked.named else "offered as a tool"
    draft = None if marked.named else marked.exposed.draft  # for its owner to correct and set; without effect before
    hint = None if draft is None else f"its input schema might be, correct it and set it: {json.dumps(draft)}"
    return Finding(ok=True, text=said, hint=hint)
