"""Setup of the audit log and of telemetry by the configuration, importing only the packages that it needs."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from importlib import import_module
from types import ModuleType, TracebackType
from typing import Any, Self

from mcp_workflows.access.audit import Audit, silent
from mcp_workflows.errors import ConfigError
from mcp_workflows.sidecar.config.models import OTLP, STDERR, STDOUT, AuditSettings
from mcp_workflows.sidecar.telemetry.audit_log import (
    AuditLog,
    OpenHandler,
    close_in_thread,
    to_file,
)
from mcp_workflows.telemetry import Telemetry

Scrape = Callable[[str], tuple[bytes, str]]


class Exporters:
    """The audit log and telemetry of a sidecar, an async context manager; `scrape` is None without `--ops`."""

    def __init__(
        self,
        audit: AuditSettings | None = None,
        *,
        otlp: bool = False,
        name: str,
        version: str,
        scraped: bool = False,
    ) -> None:
        """Open nothing yet.

        Raises:
            ConfigError: a package that it needs is not installed.
        """
        self._service = {"service.name": name, "service.version": version}
        self.scrape: Scrape | None = None
        self._providers: Any = None  # Any: a class of an optional package
        self.telemetry = self._telemetry(otlp=otlp, scraped=scraped)
        self._audit_log: AuditLog | None = None
        if audit is not None:
            sink = self._sink(audit)
            include = frozenset(audit.include)
            self._audit_log = AuditLog(sink, telemetry=self.telemetry, server=name, include=include)
        self._stack = AsyncExitStack()

    @property
    def audit(self) -> Audit:
        """The audit log."""
        return self._audit_log or silent

    def _telemetry(self, *, otlp: bool, scraped: bool) -> Telemetry:
        readers: list[Any] = []  # Any: classes of optional packages
        processors: list[Any] = []
        if scraped:
            prometheus = _loaded("prometheus", "ops", "serve --ops").PrometheusMetrics()
            self.scrape = prometheus.text
            readers.append(prometheus.reader)
        if otlp:
            exporters = _loaded("otlp", OTLP, "telemetry: otlp")
            readers += exporters.readers()
            processors += exporters.processors()
        if not readers and not processors:
            return Telemetry()
        providers = _loaded("sdk", "ops", "telemetry").Providers
        self._providers = providers(self._service, readers=readers, processors=processors)
        found: Telemetry = self._providers.telemetry
        return found

    def _sink(self, audit: AuditSettings) -> OpenHandler:
        if audit.file is not None:
            return to_file(audit.file)
        if audit.to == OTLP:
            logs = _loaded("otlp", OTLP, "audit.to: otlp").AuditLogs
            return lambda: logs(self._service)
        return lambda: logging.StreamHandler({STDOUT: sys.stdout, STDERR: sys.stderr}[audit.to])

    def make_global(self) -> None:
        """Have the MCP SDK use the same providers; works once in a process, so only a command that owns it does so."""
        if self._providers is not None:
            self._providers.make_global()

    async def __aenter__(self) -> Self:
        if self._audit_log is not None:
            await self._stack.enter_async_context(self._audit_log)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()
        if self._providers is not None:
            await close_in_thread(self._providers.close)


def _loaded(module: str, extra: str, wanted_by: str) -> ModuleType:
    """Import a module that needs an extra, by name, so that its packages are not imported without need.

    Raises:
        ConfigError: the extra is not installed.
    """
    try:
        return import_module(f"mcp_workflows.sidecar.telemetry.{module}")
    except ImportError as error:
        missing = f" ({error.name} is missing)" if error.name else ""
        raise ConfigError(
            f"{wanted_by} needs more than is installed{missing}: pip install 'mcp-workflows[{extra}]'"
        ) from None
