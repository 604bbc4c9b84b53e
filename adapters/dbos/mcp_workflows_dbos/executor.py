"""The workflows of a module, run by DBOS in this process, on a separate event loop and thread.

A workflow that blocks the loop blocks the other workflows, but not the server. A process can have only one DBOS, so
adapters with the same settings share one executor.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread
import inspect
import logging
import sqlite3
import sys
import threading
import time
import traceback
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from dbos import DBOS, SetWorkflowAttributes, SetWorkflowID
from sqlalchemy import NullPool, create_engine
from sqlalchemy.engine import Engine, make_url
from sqlalchemy.event import listen  # pyright: ignore[reportUnknownVariableType]  # untyped

from mcp_workflows.errors import ConfigError, EngineRefused
from mcp_workflows_dbos.errors import ForeignDatabaseError, problem_of
from mcp_workflows_dbos.executor_lock import lock_for
from mcp_workflows_dbos.module import (
    WorkflowFunction,
    fail_on_exit,
    folder_of,
    hidden_workflows_in,
    load_module,
    place_in,
    workflows_in,
)
from mcp_workflows_dbos.serializer import TypedJsonSerializer
from mcp_workflows_dbos.settings import is_sqlite
from mcp_workflows_dbos.start import DIGEST, Arguments, split
from mcp_workflows_dbos.workflow import CHANGES

logger = logging.getLogger(__name__)
T = TypeVar("T")
_OTHER_WORKFLOWS: Final = (
    "another process runs application {} with other workflows, so none is started here until it ends: if these are "
    "two applications, set `application` in one of the engines"
)
_POOL: Final = "dbos-executor-"  # the names of threads in which DBOS runs functions without `async`


@dataclass(frozen=True, slots=True, kw_only=True)
class _Timing:
    """The constants of the executor, in seconds."""

    retry: float = 1.0  # after the lock was taken or the database was unavailable
    notice: float = 0.25  # DBOS's poll for answers, on SQLite: one query per open question
    queue: float = 1.0  # DBOS's poll for executions from other processes
    blocked: float = 3.0  # a loop that is idle for this long is blocked
    begin: float = 10.0  # until the workflows run; a silent database delays nobody for longer
    end: float = 5.0  # until the thread ends


_TIMING: Final = _Timing()


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """A module and the database of its executions."""

    module: str
    name: str
    url: str
    version: str | None

    @property
    def queue(self) -> str:
        """The queue of executions that other processes enqueue."""
        return f"{self.name}-queue"


class Executor:
    """The executor of one application in this process."""

    def __init__(self, application: Application) -> None:
        """Import the module.

        Raises:
            ConfigError: see `load_module`.
        """
        self.application = application
        self._module = load_module(application.module)
        self.workflows: Mapping[str, WorkflowFunction] = workflows_in(self._module)
        fail_on_exit(self.folder)
        for line in hidden_workflows_in(self._module):
            logger.warning("%s", line)
        self.version: str | None = None  # set while it runs
        self.problem: str | None = None  # for operators: why it does not run, or the problem of a workflow
        self.refusal: str | None = None  # for callers: why it does not run
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._begun = threading.Event()
        self._lock = lock_for(application.url, application.name, self.workflows)
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"workflows of {application.module}")
        self._watch = threading.Thread(target=self._watch_loop, daemon=True, name="watch of the workflows")

    @property
    def folder(self) -> Path:
        """The folder of the module."""
        return folder_of(self._module)

    @property
    def is_running(self) -> bool:
        """True if this process runs the workflows; otherwise another process does, or none can now."""
        return self.version is not None

    @property
    def outage(self) -> str | None:
        """Why this process does not run the workflows, for operators (may contain a path); None if it does."""
        return None if self.is_running else self.problem

    @property
    def has_other_workflows(self) -> bool:
        """True if the process that runs the application has other workflows than this one."""
        return self._lock.is_for_others and not self.is_running

    def start(self) -> None:
        """Start the thread, and wait until it runs the workflows, has failed once, or the database is too slow."""
        self._thread.start()
        self._watch.start()
        self._begun.wait(_TIMING.begin)

    def stop(self) -> None:
        """End the thread. The next process continues running executions."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(_TIMING.end)
        _abandon_threads()

    async def begin(self, workflow: str, key: str, digest: str, arguments: Arguments) -> None:
        """Start a workflow under this key; if the key is taken, nothing is started."""
        await self._there(partial(self._begin, self.workflows[workflow].function, key, digest, arguments))

    async def _there(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        begun = asyncio.run_coroutine_threadsafe(work(), self._loop)
        return await asyncio.shield(asyncio.wrap_future(begun))  # half a start would wait for the next process

    async def _begin(self, function: Callable[..., Any], key: str, digest: str, arguments: Arguments) -> None:
        args, named = split(arguments)
        with SetWorkflowID(key), SetWorkflowAttributes({DIGEST: digest}):
            if inspect.iscoroutinefunction(function):
                handle: Any = await DBOS.start_workflow_async(function, *args, **named)
                ended = getattr(handle, "task", None)  # if it was started now
            else:
                handle = await asyncio.to_thread(DBOS.start_workflow, function, *args, **named)
                ended = getattr(handle, "future", None)
        if ended is not None:
            ended.add_done_callback(partial(_tell_end, key))

    # --- the thread

    def _run(self) -> None:
        with _DBOS:
            asyncio.set_event_loop(self._loop)
            main = self._loop.create_task(self._serve())
            while not main.done():
                try:
                    self._loop.run_until_complete(main)
                except (SystemExit, KeyboardInterrupt) as error:
                    place = place_in(self.folder, error.__traceback__) or self.application.module
                    logger.error("%s: a workflow called exit: raise an exception instead", place)
                except (asyncio.CancelledError, RuntimeError):  # from `asyncio.all_tasks` or `stop`, which are ours
                    logger.error("a workflow of %s stopped the event loop: all restart", self.application.module)
                    if main.done():
                        main = self._loop.create_task(self._serve())
                finally:
                    self._begun.set()
            self._loop.close()

    async def _serve(self) -> None:
        """Run the workflows whenever no other process does, until a stop."""
        while not self._stopping.is_set():
            try:
                if self._lock.acquire():
                    await self._run_while_locked()
                    continue
                if self.has_other_workflows:
                    self._tell(_OTHER_WORKFLOWS.format(self.application.name))
                else:
                    self.problem = self.refusal = None
            except Exception as error:  # the thread would end, and DBOS also calls the user's code
                place, wrong = problem_of(error, self.application.url)
                self.refusal = f"its workflows do not run: their database {wrong}"
                self._tell(f"the workflows of {self.application.module} do not run: {place} {wrong}")
                logger.debug("they do not run", exc_info=error)
                self._lock.release()
            self._begun.set()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), _TIMING.retry)

    async def _run_while_locked(self) -> None:
        """Run the workflows until a stop, or until another process may take them over."""
        application = self.application
        if is_sqlite(application.url):
            _prepare(application.url)
        DBOS(
            config={
                "name": application.name,
                "system_database_url": application.url,
                "application_version": application.version,
                "serializer": TypedJsonSerializer(),
                "notification_listener_polling_interval_sec": _TIMING.notice,
                "log_level": "WARNING",
            }
        )
        try:
            DBOS.launch()
            await DBOS.register_queue_async(
                application.queue, polling_interval_sec=_TIMING.queue, on_conflict="always_update"
            )
            self.version, self.problem, self.refusal = DBOS.application_version, None, None
            self._begun.set()
            waits = [self._loop.create_task(each) for each in (self._stopping.wait(), self._until_lost())]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.version = None
            running = asyncio.all_tasks() - {task for task in (asyncio.current_task(),) if task}
            for task in running:
                task.cancel()
            await _ended(asyncio.gather(*running, return_exceptions=True))
            await _ended(self._loop.run_in_executor(None, DBOS.destroy))
            self._lock.release()

    async def _until_lost(self) -> None:
        while await asyncio.to_thread(self._lock.is_held):  # noqa: ASYNC110  # nothing signals it
            await asyncio.sleep(_TIMING.retry)
        logger.warning("the workflows of %s restart: their database was unavailable", self.application.module)

    def _tell(self, problem: str) -> None:
        if problem != self.problem:
            logger.error("%s", problem)
        self.problem = problem

    # --- a loop that is blocked

    def _watch_loop(self) -> None:
        """Log where a workflow blocks the loop; `async` code must not wait without `await`."""
        while self._thread.is_alive():
            turned = threading.Event()
            try:
                self._loop.call_soon_threadsafe(turned.set)
            except RuntimeError:  # closed
                return
            if not turned.wait(_TIMING.blocked) and (place := self._place()):
                self._tell(f"{place}: this blocks all workflows: await it, or make a step without async of it")
                while self._thread.is_alive() and not turned.wait(_TIMING.blocked):
                    pass
                self.problem = None
            self._thread.join(_TIMING.blocked / 3)

    def _place(self) -> str | None:
        """Return the place of the loop's thread in the user's folder."""
        frame = sys._current_frames().get(self._thread.ident or 0)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # documented
        found = [each for each in traceback.extract_stack(frame) if Path(each.filename).is_relative_to(self.folder)]
        return f"{found[-1].filename}:{found[-1].lineno}" if found else None


async def _ended(awaited: asyncio.Future[Any]) -> None:
    """Wait for its end, even while a workflow cancels all tasks of the loop."""
    while not awaited.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([awaited])
    awaited.result()


def _abandon_threads() -> None:
    """Allow the process to end while functions without `async` run; the next process continues their executions.

    The interpreter joins the threads of every pool, also daemons, and has no public way to omit some.
    """
    joined: dict[threading.Thread, Any] = getattr(concurrent.futures.thread, "_threads_queues", {})  # Any: its queue
    for thread in [each for each in joined if each.daemon and each.name.startswith(_POOL)]:
        joined.pop(thread, None)


def _tell_end(workflow_id: str, _: object) -> None:
    CHANGES.notify(workflow_id)


_SHARED: Final[dict[Application, tuple[Executor, int]]] = {}
_GUARD: Final = threading.Lock()
_DBOS: Final = threading.Lock()  # held by the running executor until its DBOS is destroyed: a process has one


@asynccontextmanager
async def running(application: Application) -> AsyncGenerator[Executor]:
    """Run the workflows of this application while anybody in this process needs them.

    Raises:
        ConfigError: the module is invalid, or this process runs the workflows of another one.
    """
    executor = await asyncio.to_thread(_join, application)
    try:
        yield executor
    finally:
        await asyncio.shield(asyncio.to_thread(_leave, application))


def _join(application: Application) -> Executor:
    with _GUARD:
        if others := [each.module for each in _SHARED if each != application]:
            raise ConfigError(
                f"this process runs the workflows of {others[0]} already: DBOS is one per process, so put both into "
                "one module, or serve the other one by itself"
            )
        executor, users = _SHARED.get(application) or (_started(application), 0)
        _SHARED[application] = executor, users + 1
        return executor


def _started(application: Application) -> Executor:
    executor = Executor(application)
    executor.start()
    return executor


def _leave(application: Application) -> None:
    with _GUARD:
        executor, users = _SHARED.pop(application)
        if users > 1:
            _SHARED[application] = executor, users - 1
            return
        executor.stop()


def unknown_workflow(workflow: str, known: Mapping[str, WorkflowFunction], module: str) -> EngineRefused:
    """Return the refusal of a workflow that the module does not have."""
    return EngineRefused(f"{module} has no workflow {workflow!r} (it has {', '.join(known) or 'none'})", final=True)


def _prepare(url: str) -> None:
    """Set up an SQLite file so that its readers and writers do not wait for each other; create it if missing.

    Raises:
        ForeignDatabaseError: the file has tables, but none of DBOS, so it belongs to another program.
    """
    file = Path(make_url(url).database or "")
    if not file.exists():
        file.touch(0o600)  # like the store of tasks: it contains people's input to workflows
    engine = create_engine(url, poolclass=NullPool)
    with engine.connect() as connection:
        tables = connection.exec_driver_sql("SELECT name FROM sqlite_master WHERE type = 'table'").scalars().all()
        if tables and "dbos_migrations" not in tables:
            raise ForeignDatabaseError
        connection.exec_driver_sql("PRAGMA journal_mode = WAL")


class _LaunchFilter(logging.Filter):
    """Drop DBOS's stack trace of a failed launch, which repeats each second; one line here reports it."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith("DBOS failed to launch")


logging.getLogger("dbos").addFilter(_LaunchFilter())


def _add_unixepoch(connection: Any, _: object) -> None:  # Any: of any database's driver
    """Add the `unixepoch('subsec')` that DBOS's tables need on Python 3.12 and newer to an SQLite connection."""
    if isinstance(connection, sqlite3.Connection):
        connection.create_function("unixepoch", 1, _unixepoch)


def _unixepoch(moment: float | str | bytes | None) -> float | None:
    if moment == "subsec":
        return round(time.time(), 3)
    with closing(sqlite3.connect(":memory:")) as plain:
        seconds: int | None = plain.execute("SELECT CAST(strftime('%s', ?) AS INTEGER)", (moment,)).fetchone()[0]
    return seconds


if sqlite3.sqlite_version_info < (3, 42):  # the first with `subsec`; Debian 12 and Ubuntu 22.04 have older ones
    listen(Engine, "connect", _add_unixepoch)
