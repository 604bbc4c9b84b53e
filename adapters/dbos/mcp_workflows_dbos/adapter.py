"""Adapter for DBOS: durable functions in this process, or in workers that share its database."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from datetime import datetime
from functools import partial
from math import inf
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Final, Self, TypeVar

import anyio
from dbos import DBOSClient, WorkflowSerializationFormat
from pydantic import BaseModel
from sqlalchemy.engine import URL, make_url

from mcp_workflows.adapter import (
    JSON,
    MOST_ENDED,
    Adapter,
    Allowance,
    EndedExecution,
    Execution,
    Message,
    Ref,
    Start,
    StartGuarantee,
    Status,
)
from mcp_workflows.adapter.redaction import KNOWN
from mcp_workflows.errors import EngineRefused, EngineUnavailable, ExecutionNotFound, StartConflict
from mcp_workflows.kit.threads import begin_call
from mcp_workflows_dbos.describe import event_outcome, execution_of, time_of
from mcp_workflows_dbos.errors import translated
from mcp_workflows_dbos.executor import Application, Executor, running, unknown_workflow
from mcp_workflows_dbos.module import load_module
from mcp_workflows_dbos.serializer import TypedJsonSerializer
from mcp_workflows_dbos.settings import DbosAction, DbosOptions, DbosSettings, is_sqlite
from mcp_workflows_dbos.start import (
    Arguments,
    arguments_of,
    by_position_if_unnamed,
    enqueue_options,
    split,
    validate_arguments,
)
from mcp_workflows_dbos.tables import Question, Row, Tables
from mcp_workflows_dbos.tooling import DbosTooling
from mcp_workflows_dbos.workflow import ANSWER, CHANGES

_CALLS: Final = 8  # concurrent calls, each in a thread
_TIMEOUT: Final = 8  # seconds for one call; the core gives up after ten
_BATCH_EVERY: Final = 0.2  # seconds
_BATCH: Final = 500  # executions of one batch, which takes three queries
_MESSAGE: Final = "message to "  # begins the handle of a message; the id of the workflow follows
_WITHDRAWN: Final[Mapping[str, JSON]] = {"action": "cancel", "content": None}

_NO_NAME: Final = re.compile(r"[^a-z0-9_-]+")  # characters that the name of a DBOS application cannot contain

T = TypeVar("T")


class DbosAdapter(Adapter):
    """Adapter for DBOS."""

    Settings: ClassVar[type[BaseModel]] = DbosSettings
    Options: ClassVar[type[BaseModel]] = DbosOptions
    ActionSettings: ClassVar[type[BaseModel] | None] = DbosAction
    starts: ClassVar[StartGuarantee] = StartGuarantee.KEYED  # the key is the workflow id
    start_options: ClassVar[frozenset[str]] = frozenset({"queue"})
    tooling: Any = DbosTooling  # Any: see `Adapter.tooling`

    def __init__(self, settings: DbosSettings) -> None:
        KNOWN.add_all(settings)
        self._settings = settings
        self._application: Application | None = None
        self._url = ""
        self._executor: Executor | None = None
        self._client: DBOSClient | None = None
        self._tables: Tables | None = None
        self._limiter = anyio.CapacityLimiter(_CALLS)
        self._exit = AsyncExitStack()
        self.tooling = DbosTooling(settings, self._read, lambda: self._executor, self._arguments)

    @property
    def identity(self) -> str:
        """The system database, with its server or folder, and the application; see `Adapter.identity`."""
        url, application = make_url(self._url), self._application
        file = str(Path(url.database or "").resolve()) if is_sqlite(self._url) else f"{url.host}/{url.database}"
        name = application.name if application else self._settings.application
        return f"dbos:{file}#{name}" if name else f"dbos:{file}"

    async def __aenter__(self) -> Self:
        """Run the workflows of `module`, if set; otherwise the first call connects to the database."""
        settings = self._settings
        self._application = None if settings.module is None else _application_of(settings)
        if self._application is not None:
            self._executor = await self._exit.enter_async_context(running(self._application))
        url = self._application.url if self._application else settings.database.get_secret_value()  # type: ignore[union-attr]  # one of them is set
        self._url = url
        self._tables = Tables(url)
        self._client = DBOSClient(
            system_database_url=url,
            application_name=self._application.name if self._application else settings.application,
            serializer=TypedJsonSerializer(),
            lazy=True,
            retry_connection_errors=False,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections; the next process continues the executions of this one."""
        client, tables, self._client, self._tables = self._client, self._tables, None, None
        await self._exit.aclose()
        if client is not None:
            client.destroy()
        if tables is not None:
            tables.close()

    async def start(self, start: Start) -> str:
        """Start an execution with the key as workflow id; refuse the id of another start. See `Adapter.start`."""
        if start.target is not None:
            return await self._send_message(start, start.target)
        arguments = self._arguments(start)
        here = None if "queue" in start.options else self._executor
        if here is not None and here.is_running:
            with translated(), _time_limit():
                await here.begin(start.workflow, start.key, start.digest, arguments)
        elif here is not None and here.has_other_workflows:
            problem = "another process runs this application, with other workflows"
            raise EngineUnavailable(problem, sent=False, silent=False)
        elif here is not None and here.refusal is not None:
            raise EngineUnavailable(here.refusal, sent=False, silent=False)
        else:
            await self._enqueue(start, arguments)
        row = await self._row(start.key, events=False)
        if row.workflow != start.workflow or row.digest != start.digest:
            raise StartConflict("this key belongs to an execution of another workflow, or with another input")
        return start.key

    async def _send_message(self, start: Start, target: str) -> str:
        """Send a message once under its key, and return its handle; an event is only recorded.

        Raises:
            EngineRefused: there is no such execution, or it has ended without this message.
        """
        try:
            row = await self._row(target, events=False)
        except ExecutionNotFound as error:
            raise EngineRefused(str(error), final=True) from None
        if (topic := start.options.get("send")) is not None:
            if execution_of(row).terminal and not await self._read(lambda tables: tables.is_sent(target, start.key)):
                raise EngineRefused(f"workflow {target} has ended, and receives nothing", final=True)
            content: JSON = start.arguments
            if isinstance(content, list) and len(start.arguments) < 2:  # one argument is the message itself
                content = next(iter(start.arguments), None)
            await self._send(target, topic, content, start.key)
        return f"{_MESSAGE}{target}"

    def _arguments(self, start: Start) -> Arguments:
        """Return the arguments of a start, checked against the function if it is in this process.

        Raises:
            EngineRefused: the module has no such workflow, or the arguments do not fit its type hints or cannot be
                stored.
        """
        arguments, executor = arguments_of(start), self._executor
        if executor is not None:
            known = executor.workflows.get(start.workflow)
            if known is None:
                raise unknown_workflow(start.workflow, executor.workflows, executor.application.module)
            arguments = by_position_if_unnamed(known.function, start, arguments)
            arguments = validate_arguments(known.function, arguments)
        try:
            TypedJsonSerializer().serialize(arguments)
        except (TypeError, ValueError) as error:
            raise EngineRefused(f"{start.workflow}: {error}", final=True) from None
        return arguments

    async def _enqueue(self, start: Start, arguments: Arguments) -> None:
        queue = self._settings.queue_of(start.options)
        if queue is None and self._application is not None:
            queue = self._application.queue
        if queue is None:
            raise EngineRefused("neither the tool nor the engine names a queue", final=True)
        options = enqueue_options(start, queue, portable=self._application is None)
        args, named = split(arguments)
        client = self._entered(self._client)
        await self._call(partial(client.enqueue, options, *args, **named))

    async def describe(self, ref: Ref) -> Execution:
        """Read the rows of an execution; see `Adapter.describe`."""
        if self.message(ref.options) is not None:
            return await self._describe_message(ref)
        row = await self._row(ref.handle, steps=True)
        return execution_of(row, self._note(row))

    async def _describe_message(self, ref: Ref) -> Execution:
        """Return the outcome of a message; an event is read now."""
        target = ref.handle.removeprefix(_MESSAGE)
        if target == ref.handle:
            raise ExecutionNotFound("this is not the handle of a message to a DBOS workflow")
        if (key := ref.options.get("event")) is not None:
            return event_outcome(target, key, await self._read(lambda tables: tables.event(target, key)))
        output = {"sent": ref.options.get("send"), "to": target}
        return Execution(status=Status.SUCCEEDED, execution_id=target, output=output)

    def _note(self, row: Row) -> str | None:
        """Return why this process does not run an execution of another version of the code."""
        executor = self._executor
        if executor is None or row.status != "PENDING" or executor.version in (None, row.version):
            return None
        return f"waits for version {row.version} of the code: this process has {executor.version}"

    async def answer(self, ref: Ref, responses: Mapping[str, JSON]) -> None:
        """Send answers to open questions; DBOS drops a second message with the same key. See `Adapter.answer`."""
        row = await self._row(ref.handle)
        for key in row.questions.keys() & responses.keys():
            response = responses[key]
            await self._reply(row.questions[key], {"action": response["action"], "content": response.get("content")})

    async def _reply(self, question: Question, message: Mapping[str, JSON]) -> None:
        key = f"{question.workflow_id}:{question.key}"
        await self._send(question.workflow_id, f"{ANSWER}{question.key}", dict(message), key)

    async def _send(self, workflow_id: str, topic: str, message: JSON, key: str) -> None:
        """Send a message to a workflow, as JSON; DBOS drops a second one with the same key."""
        client = self._entered(self._client)
        form = WorkflowSerializationFormat.PORTABLE
        await self._call(
            lambda: client.send(workflow_id, message, topic=topic, idempotency_key=key, serialization_type=form)
        )

    async def cancel(self, ref: Ref) -> None:
        """Cancel an execution and its child workflows: each ends before its next step. See `Adapter.cancel`."""
        if self.message(ref.options) is not None:
            raise EngineRefused("a message that was sent cannot be taken back")
        row = await self._row(ref.handle)
        if execution_of(row).terminal:
            return
        client = self._entered(self._client)
        await self._call(lambda: client.cancel_workflow(ref.handle, cancel_children=True))
        for question in row.questions.values():  # a workflow that waits for an answer wakes up and ends
            await self._reply(question, _WITHDRAWN)
        CHANGES.notify(ref.handle)

    @staticmethod
    def message(options: Mapping[str, JSON]) -> Message | None:
        """Return the message on a topic, or the event to read; see `Adapter.message`."""
        kind = next((kind for kind in ("send", "event") if options.get(kind)), None)
        return None if kind is None else Message(name=f"{kind} {options[kind]}", reads=kind == "event")

    @staticmethod
    def fleeting(options: Mapping[str, JSON]) -> bool:
        """Return True for an event, which is only read; see `Adapter.fleeting`."""
        return bool(options.get("event"))

    # --- further capabilities

    async def describe_many(self, refs: Sequence[Ref]) -> Mapping[str, Execution]:
        """Read the rows of all executions in two queries; see `DescribesMany.describe_many`."""
        rows = await self._read(lambda tables: tables.rows([ref.handle for ref in refs]))
        return {name: execution_of(row, self._note(row)) for name, row in rows.items()}

    @property
    def allowance(self) -> Allowance:
        """Return an allowance without a quota; see `Limited.allowance`."""
        runs = None if self._application is None else self._executor is None or self._executor.outage is None
        return Allowance(polls_per_second=inf, batch_every=_BATCH_EVERY, batch=_BATCH, runs_here=runs)

    async def adopt(self, execution_id: str) -> Ref:
        """Return the reference of an execution by its workflow id; see `Adopts.adopt`."""
        row = await self._row(execution_id)
        return Ref(workflow=row.workflow, handle=row.id)

    async def list_ended(self, workflow: str, since: datetime) -> Sequence[EndedExecution]:
        """Return the executions that have ended by the system table, with three queries; see `ListsEnded`."""
        ends = await self._read(lambda tables: tables.ended(workflow, int(since.timestamp() * 1000), MOST_ENDED))
        rows = await self._read(lambda tables: tables.rows([name for name, _ in ends], events=False))
        return [
            EndedExecution(handle=name, execution_id=name, status=seen.status, ended=time_of(at))
            for name, at in ends
            if time_of(at) >= since and name in rows and (seen := execution_of(rows[name])).terminal
        ]

    async def hints(self, changed: Callable[[str], None]) -> None:
        """Report changes of the workflows in this process, and changes found in the database; see `Hints.hints`."""
        tables = self._entered(self._tables)
        loop = asyncio.get_running_loop()  # DBOS runs only on asyncio

        async def report(workflow_id: str) -> None:
            changed(workflow_id)

        def tell(workflow_id: str) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(lambda: loop.create_task(report(workflow_id)))

        def watch() -> None:
            with translated():
                tables.watch(tell, stopped, lambda: self._executor is not None and self._executor.is_running)

        stopped = threading.Event()
        try:
            with CHANGES.listen(tell):
                await (await begin_call(watch)).outcome()
        finally:
            stopped.set()

    # --- calls

    async def _row(self, handle: str, *, events: bool = True, steps: bool = False) -> Row:
        rows = await self._read(lambda tables: tables.rows([handle], events=events, steps=steps))
        if handle not in rows:
            raise ExecutionNotFound(f"DBOS has no workflow {handle}")
        return rows[handle]

    async def _read(self, read: Callable[[Tables], T]) -> T:
        tables = self._entered(self._tables)
        return await self._call(lambda: read(tables))

    async def _call(self, function: Callable[[], T]) -> T:
        """Call a blocking function in a thread, and translate its errors."""

        def call() -> T:
            with translated():
                return function()

        with _time_limit():
            return await (await begin_call(call, self._limiter)).outcome()

    def _entered(self, opened: T | None) -> T:
        if opened is None:
            raise EngineUnavailable("the adapter is closed", sent=False)
        return opened


@contextmanager
def _time_limit() -> Generator[None]:
    """Limit the time of one call to `_TIMEOUT`.

    Raises:
        EngineUnavailable: the call took longer.
    """
    try:
        with anyio.fail_after(_TIMEOUT):
            yield
    except TimeoutError:
        raise EngineUnavailable(f"the database of DBOS gave no answer within {_TIMEOUT} s") from None


def _application_of(settings: DbosSettings) -> Application:
    """Return the application of an engine with `module`.

    Raises:
        ConfigError: the module cannot be imported.
    """
    name = settings.module or ""
    module = load_module(name)
    file = Path(module.__file__ or name).resolve()
    beside = URL.create("sqlite", database=str(file.with_suffix(".db"))).render_as_string(hide_password=False)
    url = beside if settings.database is None else settings.database.get_secret_value()
    application = settings.application or f"mcp-{_NO_NAME.sub('-', name.lower())}"
    return Application(module=name, name=application, url=url, version=settings.version)
