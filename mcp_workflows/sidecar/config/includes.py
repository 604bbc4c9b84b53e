"""The configuration and its included files, composed into one source that knows the origin of each value."""

from __future__ import annotations

import glob
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, TypeAlias, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from mcp_workflows.access.authn.settings import one_or_more
from mcp_workflows.errors import ConfigError
from mcp_workflows.sidecar.config.problems import Report, find_mistakes, no_engine
from mcp_workflows.sidecar.config.yaml import Problem, Source, Where, list_in, mapping_in, read_source
from mcp_workflows.tools.tool import missing_need

MAX_NAME = 64
REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
COMPOSED = ("include", "defaults", "rules")  # sections that the composed configuration lacks
POLICY = frozenset({"allow", "allow_answer", "allow_cancel", "limits"})
"""Settings of a tool that an included file must not contain: permissions and limits."""
_QUESTIONS = "questions"  # merged by name, so that a tool cannot drop a question that the platform asks
_TEXT = {"type": "string"}
_ONE_OR_MORE = WithJsonSchema({"anyOf": [_TEXT, {"type": "array", "items": _TEXT, "minItems": 1}]})
Settings: TypeAlias = Mapping[str, Any]  # Any: any JSON value, validated by the models
Origins: TypeAlias = Mapping[Where, tuple[Source, Where]]


class Include(BaseModel):
    """Files with tools, and the engines that they may use. For your own files, a glob alone is enough."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    files: Annotated[list[str], Field(min_length=1), BeforeValidator(one_or_more), _ONE_OR_MORE] = Field(
        description="The files, as a glob (`teams/orders/*.yaml`) or a list of globs, relative to the folder of "
        "this file and inside it. Each glob must match a file.",
    )
    namespace: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9_-]+$",
        description="The prefix of their tools' names: `orders` turns `create` into `orders_create`.",
    )
    engines: list[str] = Field(min_length=1, description="The engines that the files may use.")


@dataclass(frozen=True, slots=True, kw_only=True)
class _ToolEntry:
    """One tool as written in one of the files."""

    name: str  # with its namespace
    source: Source
    where: Where
    entry: object
    engines: frozenset[str] | None = None  # None: all


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """The `defaults` below every tool, and the `rules` above those with matching names."""

    defaults: Settings = field(default_factory=dict[str, Any])
    rules: Mapping[str, Settings] = field(default_factory=dict[str, Settings])

    def over(self, name: str, found: Settings, *, known: Collection[str]) -> Settings:
        """Return the settings of a tool that is in no file, with the known keys of these layers."""
        nowhere = Source(path=Path(), data={}, lines={}, substitutions=(), problems=(), unreadable=frozenset())
        layers = [self.defaults, *(self.rules[pattern] for pattern in self.rules_for(name))]
        below, *above = ({key: value for key, value in layer.items() if key in known} for layer in layers)
        return _merge([(nowhere, (), each) for each in (below, found, *above)])[0]

    def rules_for(self, name: str) -> Sequence[str]:
        """Return the patterns that match this name, in the order of the file."""
        return [pattern for pattern in self.rules if fnmatchcase(name, pattern)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComposedConfig:
    """The configuration with its included files."""

    source: Source
    engines: Mapping[str, frozenset[str]]  # the engines that a tool may use, by tool; other tools may use all
    layers: Layers
    unused_rules: Sequence[str] = ()  # patterns of rules that match no tool
    includes: bool = False


def is_schema_file(reference: str) -> bool:
    """True if a reference names a schema file, not a workflow in code."""
    return reference.endswith(".json") or reference.startswith((".", "/"))


def included_globs(path: Path, environ: Mapping[str, str]) -> Sequence[str]:
    """Return the globs of a configuration that may be invalid; none if it cannot be read."""
    try:
        entries = list_in(read_source(path, environ).data.get("include"))
    except ConfigError:
        return ()
    files = [mapping_in(entry).get("files", entry) for entry in entries]
    return [str(each) for found in files for each in (list_in(found) or [found])]


def files_in(path: Path, patterns: Sequence[str]) -> Sequence[Path]:
    """Return the files that these globs match now."""
    found: list[Path] = []
    for pattern in patterns:
        with suppress(ConfigError):
            found += _files_for(path, pattern)
    return found


def _files_for(config: Path, pattern: str) -> Sequence[Path]:
    """Return the files that a glob of this configuration matches, sorted by name; hidden files only if it names them.

    Symbolic links must stay in its folder, so that reviewers of that folder see all files that a team can change.

    Raises:
        ConfigError: the glob leads outside the folder, or matches no file.
    """
    folder = config.parent
    if Path(pattern).is_absolute() or ".." in Path(pattern).parts:
        raise ConfigError(f"{pattern}: must stay in the folder of {config.name}, without ..")
    files = [folder / name for name in sorted(glob.glob(pattern, root_dir=folder, recursive=True))]
    others = [file for file in files if file.is_file() and not file.samefile(config)]
    for file in others:
        if not file.resolve().is_relative_to(folder.resolve()):
            raise ConfigError(f"{file} leads outside the folder of {config.name}; put the file itself there")
    if not others:
        raise ConfigError(f"{pattern}: no such file")
    return others


def read_config(path: Path, environ: Mapping[str, str], *, text: str | None = None) -> ComposedConfig:
    """Read workflows.yaml and its included files; their problems are among the problems of the source.

    With `text`, parse that instead of the file's content.

    Raises:
        ConfigError: one of the files cannot be read or parsed at all.
    """
    source = read_source(path, environ, text=text)
    mistakes = [source.problem(where, wrong) for where, wrong in find_mistakes(source.data)]
    source = replace(source, problems=[*source.problems, *mistakes])
    if not source.data.keys() & set(COMPOSED):
        return ComposedConfig(source=source, engines={}, layers=Layers())
    report, problems = Report(source), list[Problem]()
    defaults, rules = source.data.get("defaults"), mapping_in(source.data.get("rules"))
    if source.data.get("rules") is not None and not isinstance(source.data["rules"], dict):
        report.add(("rules",), 'must be a mapping, by name of tools or pattern ("orders_*")')
    written: dict[Where, object] = {("defaults",): defaults, **{("rules", name): rule for name, rule in rules.items()}}
    for where, settings in written.items():
        if settings is not None and not isinstance(settings, dict):
            report.add(where, "must be a mapping of tool settings")
    layers = Layers(defaults=mapping_in(defaults), rules={name: mapping_in(rule) for name, rule in rules.items()})
    own = mapping_in(source.data.get("tools"))
    found = [_ToolEntry(name=name, source=source, where=("tools", name), entry=entry) for name, entry in own.items()]
    found += _included(report, source, problems)
    tools: dict[str, _ToolEntry] = {}
    entries: dict[str, object] = {}
    moved: dict[Where, tuple[Source, Where]] = {}
    for tool in found:
        first = tools.setdefault(tool.name, tool)
        if first is not tool:
            place = first.source.problem(first.where, "").place
            wrong = f"a tool {tool.name!r} already exists: {place}; `namespace:` keeps teams apart"
            problems.append(tool.source.problem(tool.where, wrong))
            continue
        moved[("tools", tool.name)] = (tool.source, tool.where)
        entries[tool.name] = tool.entry
        if isinstance(entry := tool.entry, dict):
            above = [(source, ("rules", pattern), layers.rules[pattern]) for pattern in layers.rules_for(tool.name)]
            mine = (tool.source, tool.where, cast("Settings", entry))
            entries[tool.name], origins = _merge([(source, ("defaults",), layers.defaults), mine, *above])
            moved |= {("tools", tool.name, *key): origin for key, origin in origins.items()}
    data = {key: value for key, value in source.data.items() if key not in COMPOSED}
    if isinstance(data.get("tools", {}), dict | None):
        data["tools"] = entries
    return ComposedConfig(
        source=replace(source, data=data, moved=moved, problems=[*report.problems, *problems]),
        engines={name: tool.engines for name, tool in tools.items() if tool.engines is not None},
        layers=layers,
        includes=bool(source.data.get("include")),
        unused_rules=[each for each in layers.rules if not any(fnmatchcase(name, each) for name in tools)],
    )


def _included(report: Report, source: Source, problems: list[Problem]) -> Iterator[_ToolEntry]:
    """Yield the tools of the files that `include` names; add the problems of these files."""
    entries, known = list_in(source.data.get("include")), mapping_in(source.data.get("engines"))
    if source.data.get("include") is not None and not isinstance(source.data["include"], list):
        report.add(("include",), "must be a list of globs, or of mappings with files and engines")
    for index, entry in enumerate(entries):
        where: Where = ("include", index)
        if isinstance(entry, str):
            globs: dict[str, Where] = {entry: where}
            prefix, engines = "", None
        elif include := report.validate(Include, entry, where):
            for at, engine in enumerate(include.engines):
                if engine not in known:
                    report.add((*where, "engines", at), no_engine(engine, known))
            is_list = isinstance(mapping_in(entry).get("files"), list)
            globs = {each: (*where, "files", at)[: None if is_list else -1] for at, each in enumerate(include.files)}
            prefix = f"{include.namespace}_" if include.namespace else ""
            engines = frozenset(include.engines)
        else:
            continue
        for pattern, place in globs.items():
            try:
                files = _files_for(source.path, pattern)
            except ConfigError as error:
                report.add(place, str(error))
                continue
            for file in files:
                theirs = Report(read_source(file, None, holds="tools"))
                for name, at_tool, tool in _tools_in(theirs, source.path):
                    full = f"{prefix}{name}"
                    if len(full) > MAX_NAME >= len(name):
                        wrong = f"{full!r} has {len(full)} characters with its namespace; the limit is {MAX_NAME}"
                        theirs.add(at_tool, wrong)
                    else:
                        yield _ToolEntry(name=full, source=theirs.source, where=at_tool, entry=tool, engines=engines)
                problems += theirs.problems


def _tools_in(report: Report, config: Path) -> Iterator[tuple[str, Where, object]]:
    """Yield the tools of an included file; report forbidden parts and leave them out."""
    data = report.source.data
    for key in data.keys() - {"tools"}:
        text = "an included file may have tools only"
        report.add((key,), f"{text}; put this in {config.name}, which includes it")
    for where, wrong in find_mistakes({"tools": data.get("tools")}):
        if where[-1] not in POLICY:  # an error in any case
            report.add(where, wrong)
    tools = mapping_in(data.get("tools"))
    if not tools:
        report.add(("tools",), "must be a mapping, by name" if data.get("tools") else "needs at least one entry")
    for name, entry in tools.items():
        at: Where = ("tools", name)
        written = dict(mapping_in(entry))
        for key in sorted(written.keys() & POLICY):
            report.add((*at, key), f"is policy, which belongs in `rules` or `defaults` of {config.name}")
            del written[key]
        for key in ("input", "output"):
            if isinstance(reference := written.get(key), str):
                try:
                    written[key] = _schema_file(reference, report.path.parent, config.parent)
                except ConfigError as error:
                    report.add((*at, key), str(error))
                    del written[key]
        yield name, at, written if isinstance(entry, dict) else entry


def _schema_file(reference: str, folder: Path, config: Path) -> str:
    """Return the reference to a schema file, relative to the configuration's folder instead of the referring file's.

    Raises:
        ConfigError: it leads outside the folder, or is code.
    """
    if not is_schema_file(reference):
        if not REFERENCE.fullmatch(reference):
            return reference  # an error in any file
        raise ConfigError(
            f"{reference} is code, which an included file cannot run: write out the schema, or name a file"
        )
    file = folder / reference
    if Path(reference).is_absolute() or not file.resolve().is_relative_to(folder.resolve()):
        raise ConfigError(f"{reference} leads outside the folder of this file; put the schema beside it")
    return f"./{file.relative_to(config).as_posix()}"


def _merge(layers: Sequence[tuple[Source, Where, Settings]]) -> tuple[Settings, Origins]:
    """Merge settings, later layers over earlier ones; return them with the origin of each.

    The uppermost layer with a setting sets it as a whole, except that questions are merged by name. A setting of the
    first layer, the defaults, is omitted where it has no effect.
    """
    values: dict[str, Any] = {key: None for layer in (*layers[1:], layers[0]) for key in layer[2]}
    origins: dict[Where, tuple[Source, Where]] = {}
    for source, where, settings in layers:
        for key, value in settings.items():
            if value is None and values[key] is not None:
                continue
            below = values[key]
            if key == _QUESTIONS and isinstance(below, dict) and isinstance(value, dict):
                named = cast("Settings", value)
                origins |= {(key, name): (source, (*where, key, name)) for name in named}
                values[key] = {**below, **named}
            else:
                values[key], origins[(key,)] = value, (source, (*where, key))
    own = {key for _, _, settings in layers[1:] for key, value in settings.items() if value is not None}
    useless = {key for key in layers[0][2].keys() - own if missing_need(key, values)}
    kept = {where: origin for where, origin in origins.items() if where[0] not in useless}
    return {key: value for key, value in values.items() if key not in useless}, kept
