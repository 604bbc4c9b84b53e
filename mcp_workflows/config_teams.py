"""The configuration as it is with all that it includes: one source, whose values know where they come from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from mcp_workflows.config_include import Share, files_for, globs_in, shares
from mcp_workflows.config_layers import Layer, Layers, Settings, merge
from mcp_workflows.config_left_empty import left_empty
from mcp_workflows.config_problems import Report
from mcp_workflows.config_source import Outside, Problem, Source, Where, read_source, variables_in
from mcp_workflows.errors import ConfigError

TEAM_SECTIONS = ("tools",)
COMPOSED = ("include", "defaults", "rules")  # what there is no more of in the whole
POLICY = frozenset({"allow", "allow_answer", "allow_cancel", "limits"})
"""Settings of a tool that its team does not say: who may, and how much."""

MAX_NAME = 64
REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Composed:
    """The whole configuration."""

    source: Source
    engines: Mapping[str, frozenset[str]]  # that a tool may use, by tool; one that is not here may use all
    layers: Layers
    idle: Sequence[str] = ()  # patterns of rules that fit no tool
    includes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """One tool as it is written in one of the files."""

    name: str  # with its namespace
    source: Source
    where: Where
    entry: object
    share: Share | None = None  # None: it is in the platform's own file

    @property
    def place(self) -> str:
        return f"{self.source.path}:{self.source.line(self.where)}"


def is_schema_file(reference: str) -> bool:
    """Whether that is how a schema in a file of its own is named, and not a workflow in code."""
    return reference.endswith(".json") or reference.startswith((".", "/"))


def read_config(path: Path, environ: Mapping[str, str]) -> Composed:
    """Read workflows.yaml and all that it includes; what is wrong with these is among its problems.

    Raises:
        ConfigError: one of the files cannot be read or parsed at all.
    """
    source = read_source(path, Outside(environ=environ))
    empty = [source.problem(where, text) for where, text in left_empty(source.data)]
    source = replace(source, problems=[*source.problems, *empty])
    if not source.data.keys() & set(COMPOSED):
        return Composed(source=source, engines={}, layers=Layers())
    return _Composing(source, environ).composed()


def variables_of(path: Path, environ: Mapping[str, str]) -> Mapping[str, str | None]:
    """The variables of the environment that the configuration and all that it includes name, with their defaults.

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
    """What the configuration includes, whatever else is wrong with it; nothing if it cannot be read at all."""
    try:
        return globs_in(read_source(path, Outside(environ=environ)).data)
    except ConfigError:
        return ()


def files_in(path: Path, patterns: Sequence[str]) -> Sequence[Path]:
    """The files that these globs find now."""
    return [file for pattern in patterns for file in _found(path, pattern)]


def _found(path: Path, pattern: str) -> Sequence[Path]:
    try:
        return files_for(path, pattern)
    except ConfigError:
        return ()


class _Composing:
    """One pass over the files of a configuration."""

    def __init__(self, source: Source, environ: Mapping[str, str]) -> None:
        self._source = source
        self._environ = environ
        self._report = Report(source)
        self._problems: list[Problem] = []  # of the other files

    def composed(self) -> Composed:
        layers = Layers(defaults=self._mapping(("defaults",)), rules=self._rules())
        others = [tool for share in shares(self._report, self._source) for tool in self._included(share)]
        tools = self._named_once([*self._own(), *others])
        entries: dict[str, object] = {}
        moved: dict[Where, tuple[Source, Where]] = {}
        for tool in tools.values():
            entries[tool.name], origins = self._laid(tool, layers)
            moved[("tools", tool.name)] = (tool.source, tool.where)
            moved |= {("tools", tool.name, key): origin for key, origin in origins.items()}
        data = {key: value for key, value in self._source.data.items() if key not in COMPOSED}
        if isinstance(data.get("tools", {}), dict | None):
            data["tools"] = entries
        return Composed(
            source=replace(self._source, data=data, moved=moved, problems=[*self._report.problems, *self._problems]),
            engines={tool.name: engines for tool in tools.values() if (engines := _engines(tool)) is not None},
            layers=layers,
            includes=bool(self._source.data.get("include")),
            idle=[each for each in layers.rules if not any(each in layers.rules_for(name) for name in tools)],
        )

    def _own(self) -> Iterator[_Written]:
        tools = self._source.data.get("tools")
        for name, entry in cast("Mapping[str, object]", tools if isinstance(tools, dict) else {}).items():
            yield _Written(name=name, source=self._source, where=("tools", name), entry=entry)

    def _mapping(self, where: Where) -> Settings:
        found: object = self._source.data
        for key in where:
            found = cast("Mapping[str | int, object]", found).get(key) if isinstance(found, dict) else None
        if found is not None and not isinstance(found, dict):
            self._report.add(where, "must be a mapping of settings of tools")
        return cast("Settings", found if isinstance(found, dict) else {})

    def _rules(self) -> Mapping[str, Settings]:
        rules = self._source.data.get("rules")
        if rules is not None and not isinstance(rules, dict):
            self._report.add(("rules",), 'must be a mapping, by name of tools or pattern ("orders.*")')
        names = cast("Mapping[str, object]", rules if isinstance(rules, dict) else {})
        return {name: self._mapping(("rules", name)) for name in names}

    def _included(self, share: Share) -> Iterator[_Written]:
        """The tools of its files, in the order of the files."""
        for pattern, where in share.files.items():
            try:
                files = files_for(self._source.path, pattern)
            except ConfigError as error:
                self._report.add(where, str(error))
                continue
            for file in files:
                yield from self._tools_in(file, share)

    def _tools_in(self, file: Path, share: Share) -> Iterator[_Written]:
        giver = f"{self._source.path.name}, which includes it"
        outside = Outside(environ=self._environ, names=share.env, files=False)
        source = read_source(file, outside, holds="tools")
        report = Report(source)
        for key in source.data.keys() - set(TEAM_SECTIONS):
            report.add((key,), f"a file that is included has tools only; anything else belongs in {giver}")
        for empty, text in left_empty({key: source.data.get(key) for key in TEAM_SECTIONS}):
            if empty[-1] not in POLICY:  # which is an error anyhow
                report.add(empty, text)
        tools = source.data.get("tools")
        if not isinstance(tools, dict) or not tools:
            report.add(("tools",), "must be a mapping, by name" if tools else "needs at least one of the tools")
        for name, entry in cast("Mapping[str, object]", tools if isinstance(tools, dict) else {}).items():
            where: Where = ("tools", name)
            full, written = f"{share.prefix}{name}", _Team(report, self._source.path, share).permitted(where, entry)
            if len(full) > MAX_NAME >= len(name):
                report.add(where, f"{full!r} has {len(full)} characters with its namespace, at most {MAX_NAME} will do")
            else:
                yield _Written(name=full, source=source, where=where, entry=written, share=share)
        self._problems += report.problems

    def _named_once(self, tools: Sequence[_Written]) -> Mapping[str, _Written]:
        found: dict[str, _Written] = {}
        for tool in tools:
            first = found.setdefault(tool.name, tool)
            if first is not tool:
                text = f"there is a tool {tool.name!r} already: {first.place}; `namespace:` keeps teams apart"
                self._problems.append(tool.source.problem(tool.where, text))
        return found

    def _laid(self, tool: _Written, layers: Layers) -> tuple[object, Mapping[str, tuple[Source, Where]]]:
        entry, ours = tool.entry, self._source
        if not isinstance(entry, dict):
            return entry, {}
        below = [Layer(source=ours, where=("defaults",), values=layers.defaults, default=True)]
        if tool.share:
            at = (*tool.share.where, "defaults")
            below.append(Layer(source=ours, where=at, values=tool.share.defaults, default=True))
        own = Layer(source=tool.source, where=tool.where, values=cast("Settings", entry))
        above = [
            Layer(source=ours, where=("rules", pattern), values=layers.rules[pattern])
            for pattern in layers.rules_for(tool.name)
        ]
        return merge([*below, own, *above])


def _engines(tool: _Written) -> frozenset[str] | None:
    return tool.share.engines if tool.share else None


@dataclass(frozen=True, slots=True)
class _Team:
    """What a tool of a file that is included may say."""

    report: Report
    config: Path
    share: Share

    def permitted(self, where: Where, entry: object) -> object:
        """The tool without what it may not say, which is reported; its files as seen from the configuration."""
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
        """The code, by the folders that lead to it: two teams may each have a `workflows.py`."""
        if not self.share.code:
            wrong = f"{reference} is code, and none is run for this file; write the schema out, or name a file"
            raise ConfigError(f"{wrong} (`code: true` in {self.config.name}, where this is included, would permit it)")
        first = reference.partition(":")[0].partition(".")[0]
        beside = (self._folder / f"{first}.py").is_file() or (self._folder / first).is_dir()
        folders = self._folder.relative_to(self.config.parent).parts if beside else ()
        if strange := [name for name in folders if not name.isidentifier()]:
            raise ConfigError(f"{reference}: code cannot be imported from a folder named {strange[0]!r}; rename that")
        return ".".join((*folders, reference))
