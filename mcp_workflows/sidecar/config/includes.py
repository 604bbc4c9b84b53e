"""The configuration together with the files that it includes, as one source that knows the origin of its values."""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, TypeAlias, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from mcp_workflows.access.authn.settings import one_or_more
from mcp_workflows.errors import ConfigError
from mcp_workflows.sidecar.config.problems import Report, empty_guards, no_engine
from mcp_workflows.sidecar.config.yaml import (
    ExternalValues,
    Problem,
    Source,
    Where,
    list_in,
    mapping_in,
    read_source,
    variables_in,
)

MAX_NAME = 64
REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
TEAM_SECTIONS = ("tools",)
COMPOSED = ("include", "defaults", "rules")  # sections that the composed configuration does not have
POLICY = frozenset({"allow", "allow_answer", "allow_cancel", "limits"})
"""Settings of a tool that its team cannot change: permissions and limits."""
_PART = r"[A-Za-z0-9_-]+"
_TEXT = {"type": "string"}
_ONE_OR_MORE = WithJsonSchema({"anyOf": [_TEXT, {"type": "array", "items": _TEXT, "minItems": 1}]})
Settings: TypeAlias = Mapping[str, Any]  # Any: any JSON value, for the models to check


class Include(BaseModel):
    """Some files with tools, and what they may do. A glob alone will do for files of your own."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    files: Annotated[list[str], Field(min_length=1), BeforeValidator(one_or_more), _ONE_OR_MORE] = Field(
        description="The files, as a glob (`teams/orders/*.yaml`) or a list of them, from the folder of this file on. "
        "They stay in that folder, and each glob must find something.",
    )
    namespace: str | None = Field(
        default=None,
        pattern=rf"^{_PART}(\.{_PART})*$",
        description="What the names of their tools begin with: `orders` makes `create` the tool `orders_create`.",
    )
    separator: str = Field(
        default="_", pattern=r"^[._-]{1,2}$", description="What stands between the namespace and the name."
    )
    engines: list[str] = Field(min_length=1, description="The engines that they may use.")
    env: list[str] = Field(
        default_factory=list, description="The variables of the environment that they may use, as `${NAME}`."
    )
    code: bool = Field(
        default=False,
        description="Whether they may name code to read schemas from (`input: module:Class`), which is run here.",
    )
    defaults: dict[str, Any] = Field(
        default_factory=dict, description="Settings of their tools, where those say nothing themselves."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """The permissions and defaults that one entry of `include` gives to its files."""

    where: Where
    files: Mapping[str, Where]  # the globs, and the place of each
    engines: frozenset[str] | None = None  # None: all
    env: frozenset[str] = frozenset()
    code: bool = False
    prefix: str = ""
    defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])


def grants(report: Report, source: Source) -> Sequence[Grant]:
    """Return the valid entries of `include`; report problems of the others."""
    written = source.data.get("include")
    entries, known = list_in(written), frozenset(mapping_in(source.data.get("engines")))
    if written is not None and not isinstance(written, list):
        report.add(("include",), "must be a list, of globs or of mappings with files and engines")
    found = [_grant(report, entry, ("include", index), known) for index, entry in enumerate(entries)]
    return [grant for grant in found if grant]


def _grant(report: Report, entry: object, where: Where, known: frozenset[str]) -> Grant | None:
    if isinstance(entry, str):
        return Grant(where=where, files={entry: where})
    include = report.validate(Include, entry, where)
    if include is None:
        return None
    for index, engine in enumerate(include.engines):
        if engine not in known:
            report.add((*where, "engines", index), no_engine(engine, known))
    listed = isinstance(cast("Mapping[str, object]", entry)["files"], list)
    at = (*where, "files")
    return Grant(
        where=where,
        files={pattern: (*at, index) if listed else at for index, pattern in enumerate(include.files)},
        engines=frozenset(include.engines),
        env=frozenset(include.env),
        code=include.code,
        prefix=f"{include.namespace}{include.separator}" if include.namespace else "",
        defaults=include.defaults,
    )


def globs_in(data: Mapping[str, Any]) -> Sequence[str]:
    """Return the globs of a configuration that may be invalid."""
    files = [mapping_in(entry).get("files", entry) for entry in list_in(data.get("include"))]
    return [each for found in files for each in (list_in(found) or [found]) if isinstance(each, str)]


def files_for(config: Path, pattern: str) -> Sequence[Path]:
    """Return the files that a glob of this configuration matches, sorted by name; hidden ones only if it names them.

    Symbolic links must stay in its folder, so that reviewers of that folder see all files that a team can change.

    Raises:
        ConfigError: it leads out of the folder, or there is no such file.
    """
    folder = config.parent
    if Path(pattern).is_absolute() or ".." in Path(pattern).parts:
        raise ConfigError(f"{pattern}: files in the folder of {config.name} only, and no ..")
    found = sorted(glob.glob(pattern, root_dir=folder, recursive=True))
    files = [folder / name for name in found if (folder / name).is_file()]
    others = [file for file in files if not file.samefile(config)]
    for file in others:
        if not file.resolve().is_relative_to(folder.resolve()):
            raise ConfigError(f"{file} leads out of the folder of {config.name}; put the file itself there")
    if not others:
        raise ConfigError(f"{pattern}: there is no such file")
    return others


@dataclass(frozen=True, slots=True, kw_only=True)
class ComposedConfig:
    """The configuration with all that it includes."""

    source: Source
    engines: Mapping[str, frozenset[str]]  # that a tool may use, by tool; others may use all
    layers: Layers
    unused_rules: Sequence[str] = ()  # patterns of rules that match no tool
    includes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _ToolEntry:
    """One tool as it is written in one of the files."""

    name: str  # with its namespace
    source: Source
    where: Where
    entry: object
    grant: Grant | None = None  # None: it is in workflows.yaml itself

    @property
    def place(self) -> str:
        return f"{self.source.path}:{self.source.line(self.where)}"


def is_schema_file(reference: str) -> bool:
    """Return whether a reference names a file with a schema, and not a workflow in code."""
    return reference.endswith(".json") or reference.startswith((".", "/"))


def read_config(path: Path, environ: Mapping[str, str], *, text: str | None = None) -> ComposedConfig:
    """Read workflows.yaml and all that it includes; the problems of these files are among its problems.

    With `text`, read that as if it were the file.

    Raises:
        ConfigError: one of the files cannot be read or parsed at all.
    """
    source = read_source(path, ExternalValues(environ=environ), text=text)
    empty = [source.problem(where, text) for where, text in empty_guards(source.data)]
    source = replace(source, problems=[*source.problems, *empty])
    if not source.data.keys() & set(COMPOSED):
        return ComposedConfig(source=source, engines={}, layers=Layers())
    return _Composer(source, environ).composed()


def variables_of(path: Path, environ: Mapping[str, str]) -> Mapping[str, str | None]:
    """Return the variables of the environment in the configuration and all that it includes, with their defaults.

    The default is None if one of the mentions has none, and empty if they differ: an empty variable takes the default
    of each mention.
    """
    included = files_in(path, included_globs(path, environ))
    found: dict[str, str | None] = {}
    for name, default in (mention for file in (path, *included) for mention in variables_in(file)):
        known = found.setdefault(name, default)
        if known != default:
            found[name] = None if None in (known, default) else ""
    return found


def included_globs(path: Path, environ: Mapping[str, str]) -> Sequence[str]:
    """Return the globs of a configuration that may be invalid; none if it cannot be read."""
    try:
        return globs_in(read_source(path, ExternalValues(environ=environ)).data)
    except ConfigError:
        return ()


def files_in(path: Path, patterns: Sequence[str]) -> Sequence[Path]:
    """Return the files that these globs match now."""
    found: list[Path] = []
    for pattern in patterns:
        with suppress(ConfigError):
            found += files_for(path, pattern)
    return found


class _Composer:
    """One pass over the files of a configuration."""

    def __init__(self, source: Source, environ: Mapping[str, str]) -> None:
        self._source = source
        self._environ = environ
        self._report = Report(source)
        self._problems: list[Problem] = []  # of the included files

    def composed(self) -> ComposedConfig:
        layers = Layers(defaults=self._mapping(("defaults",)), rules=self._rules())
        others = [tool for grant in grants(self._report, self._source) for tool in self._included(grant)]
        tools = self._named_once([*self._own(), *others])
        entries: dict[str, object] = {}
        moved: dict[Where, tuple[Source, Where]] = {}
        for tool in tools.values():
            entries[tool.name], origins = self._layered(tool, layers)
            moved[("tools", tool.name)] = (tool.source, tool.where)
            moved |= {("tools", tool.name, key): origin for key, origin in origins.items()}
        data = {key: value for key, value in self._source.data.items() if key not in COMPOSED}
        if isinstance(data.get("tools", {}), dict | None):
            data["tools"] = entries
        return ComposedConfig(
            source=replace(self._source, data=data, moved=moved, problems=[*self._report.problems, *self._problems]),
            engines={
                each.name: each.grant.engines
                for each in tools.values()
                if each.grant and each.grant.engines is not None
            },
            layers=layers,
            includes=bool(self._source.data.get("include")),
            unused_rules=[each for each in layers.rules if not any(each in layers.rules_for(name) for name in tools)],
        )

    def _own(self) -> Iterator[_ToolEntry]:
        for name, entry in mapping_in(self._source.data.get("tools")).items():
            yield _ToolEntry(name=name, source=self._source, where=("tools", name), entry=entry)

    def _mapping(self, where: Where) -> Settings:
        found: object = self._source.data
        for key in where:
            found = mapping_in(found).get(str(key))
        settings = mapping_in(found)
        if found is not None and not isinstance(found, dict):
            self._report.add(where, "must be a mapping of settings of tools")
        return settings

    def _rules(self) -> Mapping[str, Settings]:
        rules = self._source.data.get("rules")
        names = list(mapping_in(rules))
        if rules is not None and not isinstance(rules, dict):
            self._report.add(("rules",), 'must be a mapping, by name of tools or pattern ("orders_*")')
        return {name: self._mapping(("rules", name)) for name in names}

    def _included(self, grant: Grant) -> Iterator[_ToolEntry]:
        """Yield the tools of the files that a grant is for, in the order of the files."""
        for pattern, where in grant.files.items():
            try:
                files = files_for(self._source.path, pattern)
            except ConfigError as error:
                self._report.add(where, str(error))
                continue
            for file in files:
                yield from self._tools_in(file, grant)

    def _tools_in(self, file: Path, grant: Grant) -> Iterator[_ToolEntry]:
        giver = f"{self._source.path.name}, which includes it"
        external = ExternalValues(environ=self._environ, names=grant.env, files=False)
        source = read_source(file, external, holds="tools")
        report = Report(source)
        for key in source.data.keys() - set(TEAM_SECTIONS):
            report.add((key,), f"a file that is included has tools only; anything else belongs in {giver}")
        for empty, text in empty_guards({key: source.data.get(key) for key in TEAM_SECTIONS}):
            if empty[-1] not in POLICY:  # which is an error anyway
                report.add(empty, text)
        written_tools, rules = source.data.get("tools"), _TeamRules(report, self._source.path, grant)
        tools = mapping_in(written_tools)
        if not tools:
            report.add(("tools",), "must be a mapping, by name" if written_tools else "needs at least one of the tools")
        for name, entry in tools.items():
            where: Where = ("tools", name)
            full, written = f"{grant.prefix}{name}", rules.permitted(where, entry)
            if len(full) > MAX_NAME >= len(name):
                report.add(where, f"{full!r} has {len(full)} characters with its namespace, at most {MAX_NAME} will do")
            else:
                yield _ToolEntry(name=full, source=source, where=where, entry=written, grant=grant)
        self._problems += report.problems

    def _named_once(self, tools: Sequence[_ToolEntry]) -> Mapping[str, _ToolEntry]:
        found: dict[str, _ToolEntry] = {}
        for tool in tools:
            first = found.setdefault(tool.name, tool)
            if first is not tool:
                text = f"there is a tool {tool.name!r} already: {first.place}; `namespace:` keeps teams apart"
                self._problems.append(tool.source.problem(tool.where, text))
        return found

    def _layered(self, tool: _ToolEntry, layers: Layers) -> tuple[object, Mapping[str, tuple[Source, Where]]]:
        entry, ours = tool.entry, self._source
        if not isinstance(entry, dict):
            return entry, {}
        below = [Layer(source=ours, where=("defaults",), values=layers.defaults, default=True)]
        if tool.grant:
            at = (*tool.grant.where, "defaults")
            below.append(Layer(source=ours, where=at, values=tool.grant.defaults, default=True))
        own = Layer(source=tool.source, where=tool.where, values=cast("Settings", entry))
        above = [
            Layer(source=ours, where=("rules", pattern), values=layers.rules[pattern])
            for pattern in layers.rules_for(tool.name)
        ]
        return merge([*below, own, *above])


@dataclass(frozen=True, slots=True)
class _TeamRules:
    """The settings that a tool of an included file may have."""

    report: Report
    config: Path
    grant: Grant

    def permitted(self, where: Where, entry: object) -> object:
        """Return the tool without forbidden settings, which are reported; its paths begin at the configuration."""
        if not isinstance(entry, dict):
            return entry
        written = dict(cast("Mapping[str, Any]", entry))
        for key in sorted(written.keys() & POLICY):
            where_to = "in `rules`, or in `defaults` where this is included"
            text = f"is policy, which belongs in {self.config.name}: {where_to}"
            self.report.add((*where, key), text)
            del written[key]
        for key in ("input", "output"):
            if isinstance(reference := written.get(key), str):
                try:
                    written[key] = self._reference(reference)
                except ConfigError as error:
                    self.report.add((*where, key), str(error))
                    del written[key]
        return written

    def _reference(self, reference: str) -> str:
        if is_schema_file(reference):
            return self._schema_file(reference)
        return self._code(reference) if REFERENCE.fullmatch(reference) else reference

    @property
    def _folder(self) -> Path:
        return self.report.path.parent

    def _schema_file(self, reference: str) -> str:
        file = self._folder / reference
        if Path(reference).is_absolute() or not file.resolve().is_relative_to(self._folder.resolve()):
            raise ConfigError(f"{reference} leads out of the folder of this file; put the schema beside it")
        return f"./{file.relative_to(self.config.parent).as_posix()}"

    def _code(self, reference: str) -> str:
        """Return the reference with the folders that lead to the code: two teams may each have a `workflows.py`."""
        if not self.grant.code:
            wrong = f"{reference} is code, and none is run for this file; write the schema out, or name a file"
            raise ConfigError(f"{wrong} (`code: true` in {self.config.name}, where this is included, would permit it)")
        first = reference.partition(":")[0].partition(".")[0]
        beside = (self._folder / f"{first}.py").is_file() or (self._folder / first).is_dir()
        folders = self._folder.relative_to(self.config.parent).parts if beside else ()
        if strange := [name for name in folders if not name.isidentifier()]:
            raise ConfigError(f"{reference}: code cannot be imported from a folder named {strange[0]!r}; rename that")
        return ".".join((*folders, reference))


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Some settings and their place."""

    source: Source
    where: Where
    values: Settings
    default: bool = False  # dropped where it does not apply to a tool


def merge(layers: Sequence[Layer]) -> tuple[Settings, Mapping[str, tuple[Source, Where]]]:
    """Merge settings, later layers over earlier ones, and return them with the origin of each."""
    on_top: dict[str, Layer] = {}
    for layer in layers:
        for key, value in layer.values.items():
            if value is not None or key not in on_top:
                on_top[key] = layer
    own_first = sorted(layers, key=lambda layer: layer.default)
    values = {key: on_top[key].values[key] for layer in own_first for key in layer.values}
    counting = {key: on_top[key] for key in values if not on_top[key].default or applies(key, values)}
    origins = {key: (layer.source, (*layer.where, key)) for key, layer in counting.items()}
    return {key: values[key] for key in counting}, origins


def applies(key: str, settings: Settings) -> bool:
    """Return whether a default applies to a tool with these settings; in the tool itself it would be a mistake."""
    needs = _ONLY_FOR.get(key)
    return needs is None or needs(settings)


def _optional(settings: Settings) -> bool:
    return bool(settings.get("tasks", "optional") == "optional")


def _is_task(settings: Settings) -> bool:
    return bool(settings.get("tasks") != "forbidden")


def _watches(settings: Settings) -> bool:
    return bool(settings.get("kind") == "watch")


def _starts(settings: Settings) -> bool:
    return not _watches(settings)


def _may_cancel(settings: Settings) -> bool:
    return _starts(settings) or settings.get("allow_cancel") is True


def _hands_over(settings: Settings) -> bool:
    return _optional(settings) and settings.get("fallback", "tools") == "tools"


_ONLY_FOR: Mapping[str, Callable[[Settings], bool]] = {
    "fallback": _optional,
    "wait": _hands_over,
    "card": _hands_over,
    "adaptive": _is_task,
    "allow_answer": _watches,
    "allow_cancel": _watches,
    "input": _starts,
    "args": _starts,
    "send": _starts,
    "ask": _starts,
    "dedupe": _starts,
    "on_behalf_of": _starts,
    "cancel": _may_cancel,
    "cancel_on_disconnect": _may_cancel,
    "on_expire": _may_cancel,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """The `defaults` under every tool, and the `rules` over those whose names match."""

    defaults: Settings = field(default_factory=dict[str, Any])
    rules: Mapping[str, Settings] = field(default_factory=dict[str, Settings])

    def over(self, name: str, found: Settings, *, known: Collection[str]) -> Settings:
        """Return the settings of a tool that is in no file, with the known ones of these layers."""
        layers = [self.defaults, found, *(self.rules[pattern] for pattern in self.rules_for(name))]
        ours = [{key: value for key, value in layer.items() if key in known or layer is found} for layer in layers]
        nowhere = Source(path=Path(), data={}, lines={}, substitutions=(), problems=(), unreadable=frozenset())
        return merge([Layer(source=nowhere, where=(), values=each, default=each is ours[0]) for each in ours])[0]

    def rules_for(self, name: str) -> Sequence[str]:
        """Return the patterns that match this name, in the order of the file."""
        return [pattern for pattern in self.rules if fnmatchcase(name, pattern)]
