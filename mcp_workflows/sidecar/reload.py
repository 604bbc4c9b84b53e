"""Reload on save: serve the current content of the configuration files whenever it is valid."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import TypeAlias

import anyio
from anyio import to_thread

from mcp_workflows.access.authn.settings import AuthSettings
from mcp_workflows.adapter import Adapter
from mcp_workflows.errors import ConfigError, WorkflowsError
from mcp_workflows.sidecar.app import Sidecar
from mcp_workflows.sidecar.config.includes import files_in, included_globs
from mcp_workflows.sidecar.config.load import load_config
from mcp_workflows.sidecar.config.models import Config, Engine, ServerSettings
from mcp_workflows.sidecar.config.yaml import read_text

logger = logging.getLogger(__name__)

Stamp: TypeAlias = tuple[int, int, int]  # changes with every save

_POLL_EVERY = 0.2  # seconds; a save is complete after the same time without changes
_INCLUDED = re.compile(r"\$\{file:([^}]+)\}")
_SCHEMA = re.compile(r"""[^\s"'{},\[\]]+\.json\b""")
_CODE = re.compile(r"\b([A-Za-z_][\w.]*):[A-Za-z_]\w*")


def files_of(config: Path, environ: Mapping[str, str]) -> frozenset[Path]:
    """Return the configuration, its included files, and all files that these name, existing or not."""
    config = config.absolute()
    files = (config, *files_in(config, included_globs(config, environ)))
    return frozenset(named for file in files for named in _named_in(file))


def _named_in(file: Path) -> Set[Path]:
    """Return a file and the files that it names: schemas, secrets, modules in the same folder."""
    folder = file.parent
    try:
        text = read_text(file)
    except ConfigError:
        text = ""
    named = [*_INCLUDED.findall(text), *_SCHEMA.findall(text)]
    code = [f"{name.replace('.', '/')}.py" for name in _CODE.findall(text)]
    beside = [module for name in code if (module := folder / name).is_file()]
    return {file, *(folder / name for name in named), *beside}


class Reloader:
    """Watches the files of a configuration, and applies their content to a sidecar."""

    def __init__(self, path: Path, config: Config, environ: Mapping[str, str]) -> None:
        self._path = path.absolute()
        self._environ = environ
        self._started_with = config
        self._config = config
        self._remember_files()

    async def run(self, sidecar: Sidecar) -> None:
        """Reload after every save, until cancelled; an invalid configuration is logged and changes nothing."""
        logger.info("reloading on save: %s", ", ".join(str(file) for file in sorted(self._files)))
        while True:
            await self._until_saved()
            await self.reload(sidecar)

    async def reload(self, sidecar: Sidecar) -> None:
        """Serve the content of the files, if it is valid."""
        self._remember_files()
        _forget_code(self._files, self._path.parent)
        try:
            config = await to_thread.run_sync(load_config, self._path, self._environ)
            adapters = self._adapters(config, sidecar)
            await sidecar.discovery.reload(config.tools, adapters, config.tool_defaults, config.notify)
        except WorkflowsError as error:
            logger.error("not reloaded; the last good configuration stays:\n%s", error)
            return
        logger.info("reloaded: %s", "; ".join(_differences(self._config, config)) or "nothing changed")
        for section in ("server", "store", "limits", "audit", "telemetry"):
            if _fixed_settings(config, section) != _fixed_settings(self._started_with, section):
                logger.warning("%s has changed: restart the server to apply this", section)
        if sidecar.authenticator is not None and config.server.auth is not None:
            sidecar.authenticator.reload(config.server.auth)
        self._config = config

    def _remember_files(self) -> None:
        """Remember the current files and their stamps."""
        self._files = files_of(self._path, self._environ)
        self._globs = included_globs(self._path, self._environ)
        self._stamps = self._current_stamps()

    def _current_stamps(self) -> Mapping[Path, Stamp | None]:
        """Return the current stamps, including those of files that a glob newly matches."""
        return _stamps(self._files.union(files_in(self._path, self._globs)))

    async def _until_saved(self) -> None:
        """Wait until a file differs from the remembered state and is saved completely; earlier changes count.

        Polls the files, because not every file system reports changes (network, containers).
        """
        stamps = self._current_stamps()
        while True:
            await anyio.sleep(_POLL_EVERY)
            before, stamps = stamps, self._current_stamps()
            if before == stamps != self._stamps:
                return

    def _adapters(self, config: Config, sidecar: Sidecar) -> Mapping[str, Adapter]:
        """Return the adapters of a configuration; an unchanged engine keeps its adapter and thus its connection."""
        now, before = sidecar.workflows.adapters, self._config.engines
        return {
            name: now[name] if engine == before.get(name) else _adapter(engine)
            for name, engine in config.engines.items()
        }


def _adapter(engine: Engine) -> Adapter:
    try:
        return engine.kind(engine.settings)
    except (ValueError, TypeError, LookupError, AttributeError, RuntimeError, OSError) as error:  # foreign code
        raise ConfigError(f"engine {engine.name}: its adapter rejects these settings: {error}") from None


def _fixed_settings(config: Config, section: str) -> object:
    """Return a section without the settings that a reload replaces, such as the callers of `server.auth`."""
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
    """Remove imported modules of workflows, so that they are imported again; their own imports stay."""
    for file in files:
        if file.suffix == ".py" and file.is_relative_to(folder):
            sys.modules.pop(".".join(file.relative_to(folder).with_suffix("").parts), None)


def _differences(before: Config, after: Config) -> Iterator[str]:
    """Yield the added, changed and removed tools, engines and channels, for people."""
    tools = ({tool.name: tool for tool in config.tools} for config in (before, after))
    yield from _changed("tool", *tools)
    yield from _changed("engine", before.engines, after.engines)
    yield from _changed("channel", before.notify, after.notify)


def _changed(kind: str, before: Mapping[str, object], after: Mapping[str, object]) -> Iterator[str]:
    for verb, names in {
        "added": [name for name in after if name not in before],
        "changed": [name for name in after if name in before and after[name] != before[name]],
        "removed": [name for name in before if name not in after],
    }.items():
        if names:
            yield f"{kind} {', '.join(names)} {verb}"
