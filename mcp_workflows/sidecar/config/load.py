"""Loading workflows.yaml into frozen models.

Each adapter's models validate its engine's settings and its tools' options, so that a mistake is reported here, with
its line, and not in the first call.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast
from urllib.parse import quote, unquote, urlsplit

from pydantic import BaseModel

from mcp_workflows.access import Allow, Authorizer
from mcp_workflows.access.limit_settings import Limits
from mcp_workflows.adapter import GATE_WORDS, Adapter, installed_adapters, load_adapter, takes_grace
from mcp_workflows.adapter.redaction import KNOWN
from mcp_workflows.adapter.templates import Template
from mcp_workflows.errors import ConfigError
from mcp_workflows.events.notifications import CHANNEL_NAME, NotificationChannel, no_channel
from mcp_workflows.kit.definition import EngineQuestion
from mcp_workflows.kit.tooling import Exposes, Schemas, expose_every
from mcp_workflows.receiver.task_tools.definitions import clashes
from mcp_workflows.sidecar.config.includes import REFERENCE, ComposedConfig, is_schema_file, read_config
from mcp_workflows.sidecar.config.models import (
    CANCEL,
    OTLP,
    SECTIONS,
    TOOL_KEYS,
    AuditSettings,
    Config,
    Engine,
    ServerSettings,
    StoreSettings,
    imported,
    with_absolute_path,
)
from mcp_workflows.sidecar.config.problems import Report, known_keys, models_in, names, no_engine
from mcp_workflows.sidecar.config.yaml import Source, Where, list_in, mapping_in, read_text
from mcp_workflows.store.protocol import open_store
from mcp_workflows.task import START_GATE
from mcp_workflows.tools.compatibility import adapt_tool, find_incompatibilities
from mcp_workflows.tools.json_schema import Schema, check_schema, did_you_mean
from mcp_workflows.tools.tool import MODELS, AfterCancel, AnyTool, Kind, TaskAction, TaskSupport, missing_need

T = TypeVar("T")
Kinds: TypeAlias = Mapping[str, type[Adapter] | None]  # of every engine in the file; None: its adapter is unknown

_SQLITE = "sqlite:///"
_CANCEL_KEYS = known_keys(AfterCancel)


def load_config(path: Path, environ: Mapping[str, str], *, text: str | None = None) -> Config:
    """Read workflows.yaml; `${NAME}` comes from `environ`. With `text`, parse that instead of the file's content.

    Workflows given as `module:attribute` are imported, so their folder must be on `sys.path`.

    Raises:
        ConfigError: one line for each problem: `file:line: path: text`.
    """
    composed = read_config(path, environ, text=text)
    source = composed.source
    report = Report(source)
    for key in source.data.keys() - set(SECTIONS):
        report.unknown((key,), SECTIONS)
    server = report.validate(ServerSettings, _or_empty(source.data.get("server")), ("server",))
    store = _store(report, source)
    limits = report.validate(Limits, _or_empty(source.data.get("limits")), ("limits",))
    audit = source.data.get("audit")
    audited = None if audit is None else report.validate(AuditSettings, audit, ("audit",))
    telemetry = source.data.get("telemetry")
    if (not isinstance(telemetry, dict | None) and telemetry != OTLP) or telemetry == {}:
        report.add(("telemetry",), f"must be {OTLP} or omitted")
    kinds, engines = _engines(report, source)
    found = _tools(report, composed, kinds, engines)
    tools = [tool for tool in found if tool]
    for name, wrong in clashes(tools, my_tasks=server is not None and server.my_tasks):
        report.add(("tools", name), wrong)
    for tool in tools:
        if limits and (too_long := limits.too_long(tool.ttl)):
            report.add(("tools", tool.name, "ttl"), too_long)
        if server and server.auth and server.auth.sources > 1:
            _check_issuers(report, tool, claims_differ=server.auth.claiming > 1)
    if server and server.web is None:
        for where in (*_on_page(tools), *_asked_on_page(engines)):
            report.add((*where, "answer_in"), "page needs server.web: see docs/use/approvals.md")
    _check_layers(report, composed, kinds)
    channels = _channels(report, composed)
    authorizer: Authorizer | None = None
    if server and server.authorizer:
        try:
            authorizer = _load_authorizer(server.authorizer)
        except ConfigError as error:
            report.add(("server", "authorizer"), str(error))
    KNOWN.add_all(
        [
            server,
            store,
            *channels.values(),
            [each.path for each in channels.values() if each],
            *(engine.settings for engine in engines.values() if engine),
        ]
    )
    report.raise_if_any()
    return Config(
        tool_defaults=partial(composed.layers.over, known=TOOL_KEYS),
        place=source.place,
        authorizer=authorizer,
        audit=None if audited is None else with_absolute_path(audited, source.path.parent),
        telemetry=telemetry == OTLP,
        server=_present(server),
        store=_present(store),
        limits=_present(limits),
        notify={name: _present(channel) for name, channel in channels.items()},
        engines={name: _present(engine) for name, engine in engines.items()},
        tools=tools,
    )


def _channels(report: Report, composed: ComposedConfig) -> Mapping[str, NotificationChannel | None]:
    """Return the channels of notifications; report those that approvals name but that do not exist."""
    source = composed.source
    channels: dict[str, NotificationChannel | None] = {}
    for name, entry in _section(report, source, "notify", needed=False).items():
        channels[name] = report.validate(NotificationChannel, entry, ("notify", name))
        if not CHANNEL_NAME.fullmatch(name):
            report.add(("notify", name), "is not a channel name: up to 64 of a-z, A-Z, 0-9, _, . and -")
    of_tools: dict[Where, object] = {
        ("tools", name): tool for name, tool in mapping_in(source.data.get("tools")).items()
    }
    layers: dict[Where, object] = {("defaults",): composed.layers.defaults}
    layers |= {("rules", name): rule for name, rule in composed.layers.rules.items()}
    reported = set[str]()
    for place, settings in [*of_tools.items(), *layers.items()]:
        for where, name in _notified(mapping_in(settings)):
            if name not in channels and not (place[0] != "tools" and name in reported):
                reported.add(name)  # report a layer at the tools that use it, or alone if no tool of the file does
                report.add((*place, *where), no_channel(name, channels))
    return channels


def _notified(tool: Mapping[str, Any]) -> Iterator[tuple[Where, str]]:
    """Yield each channel that the approvals of a tool name, with its place in the file."""
    blocks: dict[Where, Mapping[str, Any]] = {("approval",): mapping_in(tool.get("approval"))}
    for name, question in mapping_in(tool.get("questions")).items():
        blocks["questions", name, "approval"] = mapping_in(mapping_in(question).get("approval"))
    for where, block in blocks.items():
        for at, name in enumerate(list_in(block.get("notify"))):
            if isinstance(name, str):
                yield (*where, "notify", at), name


def load_engines(path: Path, environ: Mapping[str, str]) -> tuple[Mapping[str, Engine], Mapping[str, object]]:
    """Return the engines of workflows.yaml, and its tools unchecked.

    Raises:
        ConfigError: see `load_config`; problems of tools are not reported.
    """
    source = read_config(path, environ).source
    report = Report(source)
    _, engines = _engines(report, source)
    report.raise_if_any()
    return {name: _present(engine) for name, engine in engines.items()}, mapping_in(source.data.get("tools"))


def _check_issuers(report: Report, tool: AnyTool, *, claims_differ: bool) -> None:
    """Report the rules with subjects or claims that can mean different things at several issuers."""
    subjects = "principals need an `issuer` here: with several issuers, each may have this subject"
    claims = "claims need an `issuer` here: with several issuers, each can set this claim"
    address = Template((tool.message and tool.message.address) or "").begun_with("principal")
    if address and not address & {"id", "issuer"}:
        text = "several issuers may have the same subject: build the id from `principal.id`, or add `principal.issuer`"
        report.add(("tools", tool.name), text)
    for text, of in ((subjects, "loose"), (claims, "claiming")):
        if of == "claiming" and not claims_differ:
            continue
        for verb in getattr(tool.allow, of) if tool.allow else ():
            report.add(("tools", tool.name, "allow", verb), text)
        for gate, approval in tool.approvals.items():
            where = () if gate == START_GATE else ("questions", gate)
            if list(getattr(Allow(answer=list(approval.rules(escalated=True))), of)):
                report.add(("tools", tool.name, *where, "approval"), text)


def _on_page(tools: Iterable[AnyTool]) -> Iterator[Where]:
    """Yield the places of tools' questions that people answer on our page."""
    for tool in tools:
        if tool.approval is not None and tool.approval.answer_in == "page":
            yield "tools", tool.name, "approval"
        for name, gate in tool.gates.items():
            if gate.answer_in == "page":
                yield "tools", tool.name, "questions", name


def _asked_on_page(engines: Mapping[str, Engine | None]) -> Iterator[Where]:
    """Yield the places of engines' questions, from their definitions, that people answer on our page."""
    for engine, found in engines.items():
        asks: Mapping[str, object] = getattr(found.settings, "asks", {}) if found else {}
        for name, ask in asks.items():
            if isinstance(ask, EngineQuestion) and ask.answer_in == "page":
                yield "engines", engine, "asks", name


def _check_layers(report: Report, composed: ComposedConfig, kinds: Kinds) -> None:
    """Report keys of `defaults` and `rules` that no tool has.

    They may be for tools that exist only on engines. A misspelt `allow` would leave those open to everybody.
    """
    options = [kind.Options for kind in kinds.values() if kind]
    if len(options) < len(kinds) or any(model.model_config.get("extra") == "allow" for model in options):
        return  # not all keys are known
    known = TOOL_KEYS.union(*(known_keys(model) for model in options))
    layers: dict[Where, Mapping[str, Any]] = {("defaults",): composed.layers.defaults}
    layers.update((("rules", name), rule) for name, rule in composed.layers.rules.items())
    for where, settings in layers.items():
        for key in settings.keys() - known:
            report.unknown((*where, key), known)


def _or_empty(value: object) -> object:
    """Return a mapping for null, which is an empty section in YAML."""
    return {} if value is None else value


def _present(value: T | None) -> T:
    assert value is not None, "nothing is missing without a problem, and problems have been raised"
    return value


def _section(report: Report, source: Source, name: str, *, needed: bool = True) -> Mapping[str, Any]:
    """Return a section of named entries; report it if it is needed but empty."""
    found = source.data.get(name)
    if not mapping_in(found) and (found or needed):
        report.add((name,), "must be a mapping, by name" if found else "needs at least one entry")
    return mapping_in(found)


def _store(report: Report, source: Source) -> StoreSettings | None:
    """Return the settings of the store, with absolute paths, if its URL and keys are valid."""
    written = _or_empty(source.data.get("store"))
    settings = report.validate(StoreSettings, {"url": written} if isinstance(written, str) else written, ("store",))
    if settings is None:
        return None
    folder, url = source.path.parent, settings.url
    file = urlsplit(url).path.removeprefix("/")
    if url.startswith(_SQLITE) and file not in {"", ":memory:"} and not Path(unquote(file)).is_absolute():
        url = f"{_SQLITE}{quote(folder.resolve().as_posix())}/{url.removeprefix(_SQLITE)}"
    try:
        open_store(url)  # only parses the URL
    except ConfigError as error:
        report.add(("store", "url") if isinstance(written, dict) and "url" in written else ("store",), str(error))
        return None
    settings = settings.model_copy(update={"url": url}).with_absolute_paths(folder)
    if any(problem.where[:2] == ("store", "encryption") for problem in source.problems):
        return settings  # the key is an unset variable
    encryption = settings.encryption
    place: Where = ("store", "encryption", "key_file" if encryption and encryption.key_file else "keys")
    try:
        if encryption is not None:
            encryption.cipher()
        place = ("store",)
        settings.open()  # only parses the URLs
    except ConfigError as error:
        report.add(place, str(error))
    return settings


def _engines(report: Report, source: Source) -> tuple[Kinds, Mapping[str, Engine | None]]:
    """Return the adapters of all engines, and the engines with a known adapter; None: invalid settings."""
    kinds, engines = dict[str, type[Adapter] | None](), dict[str, Engine | None]()
    for name, entry in _section(report, source, "engines").items():
        where: Where = ("engines", name)
        kinds[name] = kind = _kind(report, where, entry)
        if kind is not None:
            values = {key: value for key, value in entry.items() if key != "adapter"}
            settings = _by_adapter(report, kind.Settings, values, where)
            engine = Engine(name=name, adapter=entry["adapter"], kind=kind, settings=settings) if settings else None
            engines[name] = engine
    return kinds, engines


def _kind(report: Report, where: Where, entry: object) -> type[Adapter] | None:
    """Return the adapter of an engine; report it if there is none."""
    if not isinstance(entry, dict):
        report.add(where, "must be a mapping with an adapter and its settings")
        return None
    adapter = cast("dict[str, Any]", entry).get("adapter")
    if not isinstance(adapter, str):
        wrong = "is missing" if adapter is None else "must be text"
        report.add((*where, "adapter"), f"{wrong} (installed: {names(installed_adapters())})")
        return None
    try:
        return load_adapter(adapter)
    except ConfigError as error:
        report.add((*where, "adapter"), str(error))
        return None


def _by_adapter(
    report: Report,
    model: type[BaseModel],
    values: Mapping[str, Any],
    where: Where,
    others: frozenset[str] = frozenset(),
) -> BaseModel | None:
    """Validate with an adapter's model, and report unknown keys even if the model ignores them."""
    known = known_keys(model)
    unknown = frozenset[str]() if model.model_config.get("extra") == "allow" else values.keys() - known
    for key in unknown:
        report.unknown((*where, key), known | others)
    if unknown and model.model_config.get("extra") == "forbid":
        report.validate(model, values, where, reported=unknown)  # the model may explain why they are wrong
    return report.validate(model, {key: value for key, value in values.items() if key not in unknown}, where)


def _tools(
    report: Report, composed: ComposedConfig, kinds: Kinds, engines: Mapping[str, Engine | None]
) -> Sequence[AnyTool | None]:
    """Return the tools. None are needed if an engine offers marked workflows, to which rules may apply, too."""
    marked = any(
        isinstance(engine.kind.tooling, Exposes) and expose_every(engine.kind(engine.settings)) is not None
        for engine in engines.values()
        if engine
    )
    section = _section(report, composed.source, "tools", needed=not marked and not composed.includes)
    for pattern in () if marked else composed.unused_rules:
        report.add(("rules", pattern), f"there is no such tool{did_you_mean(pattern, section)}")
    tools: list[AnyTool | None] = []
    for name, entry in section.items():
        usable: Collection[str] = composed.engines.get(name, kinds)  # messages mention no others
        of_tool = {engine: kind for engine, kind in kinds.items() if engine in usable}
        tools.append(_tool(report, composed.source.path.parent, name, entry, of_tool))
    return tools


def _tool(report: Report, folder: Path, name: str, entry: object, kinds: Kinds) -> AnyTool | None:
    where: Where = ("tools", name)
    if not isinstance(entry, dict):
        report.add(where, "must be a mapping with an engine and a workflow")
        return None
    written = cast("dict[str, Any]", entry)
    engine = written.get("engine")
    if isinstance(engine, str) and kinds and engine not in kinds:  # otherwise the tool's model reports it
        report.add((*where, "engine"), no_engine(engine, kinds))
    kind = kinds.get(engine) if isinstance(engine, str) else None
    fields = {key: value for key, value in written.items() if key in TOOL_KEYS}
    others = {key: written[key] for key in written.keys() - TOOL_KEYS}
    fields, others = _split_cancel(report, fields, others, kind, where)
    options = _options(report, others, kind, kinds, where)
    if not fields.get("workflow") and (kind is None or kind.message(others) is None):
        report.add((*where, "workflow"), "is missing")
    own = {key for key in fields if not report.by_default((*where, key))}
    if kind is not None and kind.fleeting(options) and "tasks" not in own and fields.get("kind") != Kind.WATCH:
        fields["tasks"] = TaskSupport.FORBIDDEN.value  # and no default that needs tasks
        fields = {key: value for key, value in fields.items() if key in own or not missing_need(key, fields)}
    fields = _with_schemas(report, folder, fields, kind, where)
    gates = _check_gates(report, fields.get("questions"), kind, (*where, "questions"))
    code, tooling = written.get("input"), kind and kind.tooling
    is_code = isinstance(code, str) and REFERENCE.fullmatch(code) and not is_schema_file(code)
    if is_code and isinstance(tooling, Schemas):
        named = {**options, "actions": fields.get("actions")}
        with suppress(ConfigError):  # an import error is reported for `input`
            for place, wrong in tooling.misfits(str(code), str(fields.get("workflow", "")), named, gates).items():
                report.add((*where, *place.split(".")), wrong)
    for action, settings in mapping_in(fields.get("actions")).items():
        _check_action(report, mapping_in(settings), kind, (*where, "actions", action))
    if (written_kind := fields.get("kind", Kind.START)) not in list(Kind):
        hint = did_you_mean(str(written_kind), [kind.value for kind in Kind])
        report.add((*where, "kind"), f"must be {' or '.join(Kind)}{hint}")
        return None
    model = MODELS[Kind(written_kind)]
    tool: AnyTool | None = report.validate(model, {**fields, "name": name, "options": options}, where)
    if tool is not None:
        for place, wrong in (*tool.problems(), *(find_incompatibilities(tool, kind) if kind else ())):
            report.add((*where, *place.split(".")), wrong)
    return tool and adapt_tool(tool, kind)


def _check_gates(
    report: Report, questions: object, kind: type[Adapter] | None, where: Where
) -> Mapping[str, Mapping[str, Any]]:
    """Report the adapter's problems with the settings of gates; return these by name, unfilled."""
    gates = {
        name: found for name, each in mapping_in(questions).items() if GATE_WORDS & (found := mapping_in(each)).keys()
    }
    if kind is None or not gates:
        return {}
    model = kind.GateSettings
    if model is None:
        report.add(where, "the adapter of this engine does not support gates: remove the questions with `when`")
        return {}
    for name, gate in gates.items():
        report.validate(model, {key: value for key, value in gate.items() if key in GATE_WORDS}, (*where, name))
    return gates


def _check_action(report: Report, action: Mapping[str, Any], kind: type[Adapter] | None, where: Where) -> None:
    """Report the adapter's problems with a message of a tool's `actions`."""
    if kind is None:
        return
    if kind.ActionSettings is None:
        report.add(where[:-1], "the adapter of this engine cannot send messages: remove `actions`")
        return
    settings = {key: value for key, value in action.items() if key not in TaskAction.model_fields}
    _by_adapter(report, kind.ActionSettings, settings, where, frozenset(TaskAction.model_fields))


def _options(
    report: Report, values: Mapping[str, Any], kind: type[Adapter] | None, kinds: Kinds, where: Where
) -> Mapping[str, Any]:
    """Return the adapter's options of a tool; without a known engine, report keys that no configured adapter knows."""
    if kind is not None:
        options = _by_adapter(report, kind.Options, values, where, TOOL_KEYS)
        return {} if options is None else options.model_dump(mode="json", by_alias=True, exclude_unset=True)
    known = [known_keys(other.Options) for other in kinds.values() if other]
    for key in values.keys() - frozenset[str]().union(*known) if known else ():
        report.unknown((*where, key), TOOL_KEYS.union(*known))
    return {}


def _with_schemas(
    report: Report, folder: Path, fields: Mapping[str, Any], kind: type[Adapter] | None, where: Where
) -> dict[str, Any]:
    """Return the fields with `input` and `output` as schemas; explicit settings override those from code."""
    references = {key: fields[key] for key in ("output", "input") if isinstance(fields.get(key), str)}
    result = {key: value for key, value in fields.items() if key not in references}
    for key, reference in references.items():
        try:
            result = {**_resolve(key, reference, folder, kind), **result}
        except ConfigError as error:
            report.add((*where, key), str(error))
    return result


def _resolve(key: str, reference: str, folder: Path, kind: type[Adapter] | None) -> Mapping[str, Any]:
    if is_schema_file(reference):
        return {key: _schema_file(folder, reference)}
    if not REFERENCE.fullmatch(reference):
        raise ConfigError("must be a schema, a file (./schema.json) or a workflow in code (module:attribute)")
    if kind is None:
        return {}  # reported elsewhere
    tooling = kind.tooling
    if not isinstance(tooling, Schemas):
        raise ConfigError("the adapter of this engine cannot read schemas from code; write out the schema")
    derived = tooling.schema(reference)
    if key == "input":
        return {"input": derived.input, "output": derived.output, "args": derived.args}
    if derived.output is None:
        raise ConfigError(f"{reference} does not return an object; remove `output`")
    return {"output": derived.output}


def _schema_file(folder: Path, reference: str) -> Schema:
    text = read_text(folder / reference)
    try:
        schema = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{reference}:{error.lineno}:{error.colno}: not JSON: {error.msg}") from None
    if not isinstance(schema, dict):
        raise ConfigError(f"{reference}: must be a JSON Schema of an object")
    try:
        return check_schema(cast("Schema", schema))
    except ValueError as error:
        raise ConfigError(f"{reference}: {error}") from None


def _split_cancel(
    report: Report, fields: dict[str, Any], options: dict[str, Any], kind: type[Adapter] | None, where: Where
) -> tuple[dict[str, Any], dict[str, Any]]:  # Any: any JSON value
    """Split `cancel` into the tool's part and its adapter's part; return the fields and the options."""
    written = fields.get(CANCEL)
    without = {key: value for key, value in fields.items() if key != CANCEL}
    if written and kind is not None and not takes_grace(kind) and report.by_default((*where, CANCEL)):
        return without, options
    extended = None if kind is None else kind.Options.model_fields.get(CANCEL)
    models = () if extended is None else models_in(extended.annotation)
    theirs, settings = frozenset[str]().union(*map(known_keys, models)), mapping_in(written)
    if not isinstance(written, dict) or not theirs:
        return fields, options
    for key in settings.keys() - _CANCEL_KEYS - theirs:
        report.unknown((*where, CANCEL, key), _CANCEL_KEYS | theirs)
    ours = {key: value for key, value in settings.items() if key in _CANCEL_KEYS}
    others = {key: value for key, value in settings.items() if key in theirs}
    kept = {**without, CANCEL: ours} if ours or not settings else without
    return kept, {**options, CANCEL: others} if others else options


def _load_authorizer(reference: str) -> Authorizer:
    """Import an authorizer.

    Raises:
        ConfigError: it cannot be imported, or is not an async function of one argument.
    """
    found = imported(reference)
    if not (iscoroutinefunction(found) or iscoroutinefunction(getattr(found, "__call__", None))):  # noqa: B004  # which one it is matters
        raise ConfigError(f"{reference} must be an async function of one argument, see: docs/secure/access.md")
    return cast("Authorizer", found)
