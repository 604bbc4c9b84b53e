"""Which files a configuration includes, and what each of them may do there.

An included file is another team's. It gets nothing by itself: no engine that it was not given, nothing of the
environment, no code. Whoever can write the configuration itself can give it more.
"""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from mcp_workflows.access.authn.settings import one_or_more
from mcp_workflows.config_problems import Report, did_you_mean, names
from mcp_workflows.config_source import Source, Where
from mcp_workflows.errors import ConfigError

_PART = r"[A-Za-z0-9_-]+"


_TEXT = {"type": "string"}
_ONE_OR_MORE = WithJsonSchema({"anyOf": [_TEXT, {"type": "array", "items": _TEXT, "minItems": 1}]})


class Include(BaseModel):
    """Some files with tools, and what they may do. A glob alone will do for files of your own."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    files: Annotated[list[str], Field(min_length=1), BeforeValidator(one_or_more), _ONE_OR_MORE] = Field(
        description="The files, as a glob (`teams/orders/*.yaml`) or a list of them, from the folder of this file on. "
        "They stay in that folder, and each glob must find something.",
    )
    namespace: str | None = Field(
        default=None,
        pattern=rf"^{_PART}(\.{_PART})*$",
        description="What the names of their tools begin with: `orders` makes `create` the tool `orders.create`.",
    )
    separator: str = Field(
        default=".", pattern=r"^[._-]{1,2}$", description="What stands between the namespace and the name."
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


class Share(BaseModel):
    """What one entry of `include` gives its files."""

    model_config = ConfigDict(frozen=True)

    where: Where
    files: Mapping[str, Where]  # the globs, and where each of them stands
    engines: frozenset[str] | None = None  # None: all
    env: frozenset[str] = frozenset()
    code: bool = False
    prefix: str = ""
    defaults: Mapping[str, Any] = Field(default_factory=dict)


def shares(report: Report, source: Source) -> Sequence[Share]:
    """The entries of `include` that can be used; what is wrong with the others is reported."""
    written = source.data.get("include")
    if written is not None and not isinstance(written, list):
        report.add(("include",), "must be a list, of globs or of mappings with files and engines")
    entries = cast("Sequence[object]", written if isinstance(written, list) else [])
    engines = source.data.get("engines")
    known = frozenset(cast("Mapping[str, object]", engines)) if isinstance(engines, dict) else frozenset[str]()
    found = [_share(report, entry, ("include", index), known) for index, entry in enumerate(entries)]
    return [share for share in found if share]


def _share(report: Report, entry: object, where: Where, known: frozenset[str]) -> Share | None:
    if isinstance(entry, str):
        return Share(where=where, files={entry: where})
    include = report.validate(Include, entry, where)
    if include is None:
        return None
    for index, engine in enumerate(include.engines):
        if engine not in known:
            hint = did_you_mean(engine, known)
            report.add((*where, "engines", index), f"no engine named {engine!r}{hint} (engines: {names(known)})")
    listed = isinstance(cast("Mapping[str, object]", entry)["files"], list)
    at = (*where, "files")
    return Share(
        where=where,
        files={pattern: (*at, index) if listed else at for index, pattern in enumerate(include.files)},
        engines=frozenset(include.engines),
        env=frozenset(include.env),
        code=include.code,
        prefix=f"{include.namespace}{include.separator}" if include.namespace else "",
        defaults=include.defaults,
    )


def globs_in(data: Mapping[str, Any]) -> Sequence[str]:
    """The globs of a configuration, which may be wrong."""
    entries = data.get("include")
    found: list[object] = []
    for entry in cast("Sequence[object]", entries if isinstance(entries, list) else []):
        files = cast("Mapping[str, object]", entry).get("files") if isinstance(entry, dict) else entry
        found += cast("Sequence[object]", files if isinstance(files, list) else [files])
    return [each for each in found if isinstance(each, str)]


def files_for(config: Path, pattern: str) -> Sequence[Path]:
    """The files that a glob of this configuration finds, sorted by name; hidden ones only if it says so.

    They must be in its folder, symbolic links followed: what a team can write is then seen where it is included.

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
