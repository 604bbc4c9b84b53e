"""Reload on save: the configuration as it is in the file, for as long as it can be used."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator, Mapping, Set
from contextlib import aclosing
from pathlib import Path
from typing import TypeAlias

import anyio
from anyio import to_thread
from watchfiles import awatch  # pyright: ignore[reportUnknownVariableType]  # one of its parameters names trio, if that is there

from mcp_workflows.access.authn.settings import AuthSettings
from mcp_workflows.adapter import Adapter
from mcp_workflows.errors import ConfigError, WorkflowsError
from mcp_workflows.sidecar.app import Sidecar
from mcp_workflows.sidecar.config.includes import files_in, included_globs
from mcp_workflows.sidecar.config.load import Config, Engine, ServerSettings, load_config
from mcp_workflows.sidecar.config.yaml import read_text

logger = logging.getLogger(__name__)

Stamp: TypeAlias = tuple[int, int, int]  # what changes with every save

_LOOK_EVERY_MS = 1_000  # where the file system does not tell of changes (network, containers)
_INCLUDED = re.compile(r"\$\{file:([^}]+)\}")
_SCHEMA = re.compile(r"""[^\s"'{},\[\]]+\.json\b""")
_CODE = re.compile(r"\b([A-Za-z_][\w.]*):[A-Za-z_]\w*")


def files_of(config: Path, environ: Mapping[str, str]) -> frozenset[Path]:
    """The configuration, those it includes, and what all of them name, right or wrong."""
    config = config.absolute()
    files = (config, *files_in(config, included_globs(config, environ)))
    return frozenset(named for file in files for named in _named_in(file))


def _named_in(file: Path) -> Set[Path]:
    """A file and those it names: schemas, secrets, workflows in code beside it."""
    folder = file.parent
    try:
        text = read_text(file)
    except ConfigError:
        text = ""
    named = [*_INCLUDED.findall(text), *_SCHEMA.findall(text)]
    code = [f"{name.replace('.', '/')}.py" for name in _CODE.findall(text)]
    beside = [module for name in code if (module := folder / name).is_file()]
    return {file, *(folder / name for name in named), *beside}


class Reloading:
    """Watches the files of a configuration, and has its sidecar serve what is in them."""

    def __init__(self, path: Path, config: Config, environ: Mapping[str, str]) -> None:
        self._path = path.absolute()
        self._environ = environ
        self._started_with = config
        self._config = config
        self._look()

    async def run(self, sidecar: Sidecar) -> None:
        """For ever: a good edit is served, a bad one is told and changes nothing."""
        logger.info("reloading on save: %s", ", ".join(str(file) for file in sorted(self._files)))
        while True:
            await self._until_saved()
            await self.reload(sidecar)

    async def reload(self, sidecar: Sidecar) -> None:
        """Serve what is in the files now, if it can be used."""
        self._look()
        _forget_code(self._files, self._path.parent)
        try:
            config = await to_thread.run_sync(load_config, self._path, self._environ)
            await sidecar.offering.reload(config.tools, self._adapters(config, sidecar), config.laying)
        except WorkflowsError as error:
            logger.error("not reloaded, the last good configuration stays:\n%s", error)
            return
        logger.info("reloaded: %s", "; ".join(_differences(self._config, config)) or "nothing changed")
        for section in ("server", "store", "limits", "audit", "telemetry"):
            if _lasting(config, section) != _lasting(self._started_with, section):
                logger.warning("%s has changed: that takes effect only after a restart", section)
        if sidecar.admission is not None and config.server.auth is not None:
            sidecar.admission.take(config.server.auth)
        self._config = config

    def _look(self) -> None:
        """Remember which files there are now, and how they are."""
        self._files = files_of(self._path, self._environ)
        self._globs = included_globs(self._path, self._environ)
        self._stamps = self._stamps_now()

    def _stamps_now(self) -> Mapping[Path, Stamp | None]:
        """Likewise of files that a glob has found since."""
        return _stamps(self._files.union(files_in(self._path, self._globs)))

    async def _until_saved(self) -> None:
        """Until one of the files is another than it was; also if that happened before the watch began."""
        while self._stamps_now() == self._stamps:
            try:
                await self._until_told()
            except OSError as error:  # no more watches to be had, or a folder is gone
                logger.debug("the file system does not tell of changes: %s", error)
                await anyio.sleep(_LOOK_EVERY_MS / 1000)

    async def _until_told(self) -> None:
        folders = sorted({folder for file in self._files if (folder := file.parent).is_dir()})
        changes = awatch(
            *folders,
            watch_filter=lambda _, name: Path(name) in self._files,
            recursive=False,
            debounce=200,
            rust_timeout=_LOOK_EVERY_MS,
            yield_on_timeout=True,
        )
        async with aclosing(changes):
            async for _ in changes:
                if self._stamps_now() != self._stamps:
                    return

    def _adapters(self, config: Config, sidecar: Sidecar) -> Mapping[str, Adapter]:
        """An engine that is as it was keeps its adapter, and with it its connection."""
        now, before = sidecar.workflows.adapters, self._config.engines
        return {
            name: now[name] if engine == before.get(name) else _adapter(engine)
            for name, engine in config.engines.items()
        }


def _adapter(engine: Engine) -> Adapter:
    try:
        return engine.kind(engine.settings)
    except (ValueError, TypeError, LookupError, AttributeError, RuntimeError, OSError) as error:  # a stranger's code
        raise ConfigError(f"engine {engine.name}: its adapter takes no such settings: {error}") from None


def _lasting(config: Config, section: str) -> object:
    """A section without what is taken over while it runs: who is let in, but not whether anybody is asked at all."""
    found: object = getattr(config, section)
    if not isinstance(found, ServerSettings) or found.auth is None:
        return found
    auth = AuthSettings.model_construct(owner=found.auth.owner, required_scopes=found.auth.required_scopes)
    return found.model_copy(update={"auth": auth})


def _stamps(files: frozenset[Path]) -> Mapping[Path, Stamp | None]:
    return {file: _stamp(file) for file in files}


def _stamp(file: Path) -> Stamp | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _forget_code(files: frozenset[Path], folder: Path) -> None:
    """Workflows in code are imported anew; what they import in turn is not."""
    for file in files:
        if file.suffix == ".py" and file.is_relative_to(folder):
            sys.modules.pop(".".join(file.relative_to(folder).with_suffix("").parts), None)


def _differences(before: Config, after: Config) -> Iterator[str]:
    """For people: what was added, changed and removed."""
    tools = ({tool.name: tool for tool in config.tools} for config in (before, after))
    yield from _changed("tool", *tools)
    yield from _changed("engine", before.engines, after.engines)


def _changed(kind: str, before: Mapping[str, object], after: Mapping[str, object]) -> Iterator[str]:
    for verb, names in {
        "added": [name for name in after if name not in before],
        "changed": [name for name in after if name in before and after[name] != before[name]],
        "removed": [name for name in before if name not in after],
    }.items():
        if names:
            yield f"{kind} {', '.join(names)} {verb}"
