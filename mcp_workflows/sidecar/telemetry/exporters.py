"""The audit log and telemetry of a sidecar, which import only the packages that the configuration needs.

Audit events wait in a bounded queue for a thread that writes them, so that no request waits or fails. An event that
cannot be written (disk full, file not writable, queue full) is lost: it is counted, and the log reports losses once a
minute.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from io import TextIOWrapper
from logging.handlers import QueueListener, WatchedFileHandler
from pathlib import Path
from queue import Full, Queue
from types import ModuleType, TracebackType
from typing import Any, Final, Literal, Self

import anyio
from pydantic import BaseModel, ConfigDict, Field

from mcp_workflows.access.audit import Audit, Event, Record, silent
from mcp_workflows.adapter import JSON
from mcp_workflows.errors import ConfigError
from mcp_workflows.sidecar.config.models import OTLP, STDERR, STDOUT, AuditSettings, Config, Payload
from mcp_workflows.telemetry import Telemetry, trace_id

logger = logging.getLogger(__name__)
WAITING: Final = 10_000  # events in the queue
_TELL_EVERY: Final = 60.0  # seconds
_FLUSH_WITHIN: Final = 3.0  # seconds, at the end
OpenHandler = Callable[[], logging.Handler]


class AuditEvent(BaseModel):
    """One event of the audit log of mcp-workflows. Unknown values are null."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    schema_version: Literal[1] = Field(default=1, description="The version of the schema. New fields do not change it.")
    time: datetime = Field(description="The time of the event: ISO 8601, UTC.")
    server: str = Field(description="The name of the server, as in `server.name`.")
    event: Event = Field(description="The type of the event.")
    outcome: str = Field(
        description="The outcome: `ok`, `refused`, `again` (found under its idempotency key), or the new status."
    )
    reason: str | None = Field(description="The reason, for people, without payloads.")
    principal: str | None = Field(description="The id of the principal. For `status`, the owner of the task.")
    subject: str | None = Field(description="The person, if the token names one.")
    client: str | None = Field(description="The OAuth client of the request.")
    peer: str | None = Field(
        description="The address of an anonymous or rejected caller. Behind a proxy, the proxy's address."
    )
    tool: str | None = Field(description="The tool.")
    task: str | None = Field(description="The first 16 hexadecimal characters of the SHA-256 of the task's id.")
    engine: str | None = Field(description="The name of the engine in the configuration.")
    workflow: str | None = Field(description="The workflow.")
    execution: str | None = Field(description="The execution's id in the engine, once known.")
    trace_id: str | None = Field(
        description="The trace of the request. For `status`, the trace of the task's creation."
    )
    arguments: JSON = Field(default=None, description="The arguments of a `create`, only with `include: [arguments]`.")
    result: JSON = Field(default=None, description="The result of a `retrieve`, only with `include: [results]`.")


_PAYLOADS: Final = frozenset({"arguments", "result"})
_FROM_RECORD: Final = AuditEvent.model_fields.keys() - _PAYLOADS - {"schema_version", "time", "server", "trace_id"}


def event_of(record: Record, *, at: datetime, server: str, include: frozenset[Payload]) -> AuditEvent:
    """Return the event of a record, with the configured payloads."""
    return AuditEvent(
        **{name: getattr(record, name) for name in _FROM_RECORD},
        time=at,
        server=server,
        trace_id=trace_id(record.trace, at_hand=record.event is not Event.STATUS),
        arguments=record.arguments if "arguments" in include else None,
        result=record.result if "results" in include else None,
    )


def event_line(event: AuditEvent, include: frozenset[Payload]) -> str:
    """Return the event as one line of JSON, with keys only for the configured payloads."""
    out = {name for name in _PAYLOADS if f"{name.removesuffix('s')}s" not in include}
    return event.model_dump_json(exclude=out)


class _EventFormatter(logging.Formatter):
    """Formats events, in the thread that writes them."""

    def __init__(self, include: frozenset[Payload]) -> None:
        super().__init__()
        self._include = include

    def format(self, record: logging.LogRecord) -> str:
        """Return the event as one line."""
        event = record.msg
        assert isinstance(event, AuditEvent), "nothing else is put into the queue"
        return event_line(event, self._include)


class _Listener(QueueListener):
    """The thread that writes events; a failure to write does not end it."""

    def __init__(self, queue: Queue[logging.LogRecord | None], sink: logging.Handler, lost: Callable[[str], None]):
        super().__init__(queue, sink)
        self._waiting = queue
        self._lost = lost

    def handle(self, record: logging.LogRecord) -> None:
        """Write one event. The handler checks the file first, which fails if its folder was removed."""
        try:
            super().handle(record)
        except OSError as error:
            self._lost(error.strerror or str(error))

    def enqueue_sentinel(self) -> None:
        """Queue the end marker, waiting for room."""
        self._waiting.put(None, timeout=_FLUSH_WITHIN)


class AuditLog:
    """An `Audit` that writes records; an async context manager for the time of recording, which opens `sink`."""

    def __init__(
        self,
        sink: OpenHandler,
        *,
        telemetry: Telemetry,
        server: str,
        include: frozenset[Payload] = frozenset(),
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._sink = sink
        self._telemetry = telemetry
        self._server = server
        self._include = include
        self._clock = clock
        self._queue: Queue[logging.LogRecord | None] = Queue(WAITING)
        self._listener: _Listener | None = None
        self._reported_at = float("-inf")

    def __call__(self, record: Record) -> None:
        """Queue the record and return at once."""
        event = event_of(record, at=self._clock(), server=self._server, include=self._include)
        try:
            self._queue.put_nowait(logging.makeLogRecord({"msg": event, "levelno": logging.INFO}))
        except Full:
            self._lost("they arrive faster than they can be written")

    async def __aenter__(self) -> Self:
        try:
            sink = self._sink()
        except OSError as error:
            raise ConfigError(f"audit.to: cannot be written: {error.strerror or error}") from None
        sink.setFormatter(_EventFormatter(self._include))
        sink.handleError = self._failed  # type: ignore[method-assign]  # the hook of the standard library for this
        self._listener = _Listener(self._queue, sink, self._lost)
        self._listener.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._listener is not None:
            await close_in_thread(partial(_stop, self._listener))

    def _failed(self, record: logging.LogRecord) -> None:
        error = sys.exception()
        self._lost((isinstance(error, OSError) and error.strerror) or type(error).__name__)

    def _lost(self, reason: str) -> None:
        self._telemetry.count("audit_lost")
        if time.monotonic() - self._reported_at >= _TELL_EVERY:
            self._reported_at = time.monotonic()
            logger.error("audit events are lost: %s; requests are still served", reason)


async def close_in_thread(close: Callable[[], object], within: float = _FLUSH_WITHIN) -> None:
    """Close a blocking resource within a few seconds; unlike anyio's threads, this one does not delay the exit."""
    thread = threading.Thread(target=close, name="finish", daemon=True)
    thread.start()
    with anyio.move_on_after(within, shield=True):
        while thread.is_alive():  # noqa: ASYNC110  # a plain thread cannot set an event of the loop
            await anyio.sleep(0.01)


def _stop(listener: _Listener) -> None:
    try:
        listener.stop()
    except Full:
        logger.error("the last audit events are lost: they could not be written in time")
    for sink in listener.handlers:
        with suppress(OSError):  # losses are counted already
            sink.close()


def to_file(path: Path) -> OpenHandler:
    """Return a handler that appends to a file, and begins a new one if the file is moved away (logrotate)."""
    return lambda: _PrivateFile(path, encoding="utf-8")


class _PrivateFile(WatchedFileHandler):
    """A log file that is created readable by its owner and group, for log shippers; an existing file keeps its mode."""

    def _open(self) -> TextIOWrapper:
        return TextIOWrapper(open(self.baseFilename, "ab", opener=_open_private), encoding=self.encoding)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o640)


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
            ConfigError: a required package is not installed.
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
        """Have the MCP SDK use the same providers; works once per process, so only a command that owns it calls
        this."""
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


def exporters_of(config: Config, *, scraped: bool = False, printing: bool = False) -> Exporters:
    """Return the exporters of audit events and telemetry; if `printing`, the audit cannot use standard output.

    Raises:
        ConfigError: a required package is not installed.
    """
    name, version, audit = config.server.name, config.server.version, config.audit
    if audit is not None and audit.to == STDOUT and printing:
        audit = audit.model_copy(update={"to": STDERR})
    return Exporters(audit, otlp=config.telemetry, name=name, version=version, scraped=scraped)


def _loaded(module: str, extra: str, wanted_by: str) -> ModuleType:
    """Import a module that needs an extra, by name, so that its packages are imported only when needed.

    Raises:
        ConfigError: the extra is not installed.
    """
    try:
        return import_module(f"mcp_workflows.sidecar.telemetry.{module}")
    except ImportError as error:
        missing = f" ({error.name} is missing)" if error.name else ""
        raise ConfigError(f"{wanted_by} needs more packages{missing}: pip install 'mcp-workflows[{extra}]'") from None
