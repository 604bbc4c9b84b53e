"""All executions: their start, queue, cancellation, and continuation after a restart."""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections import deque
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import grpc
from google.cloud.workflows import executions_v1 as api

from mcp_workflows_google_local.callbacks import Callbacks
from mcp_workflows_google_local.catalog import Catalog
from mcp_workflows_google_local.http_client import Requests
from mcp_workflows_google_local.journal import ExecutionHost
from mcp_workflows_google_local.labels import check_labels
from mcp_workflows_google_local.language.errors import DeployError, Raised, Tag, failure
from mcp_workflows_google_local.language.program import Program
from mcp_workflows_google_local.language.values import is_map
from mcp_workflows_google_local.project import Home
from mcp_workflows_google_local.record import Record, State, now
from mcp_workflows_google_local.refusals import LocalEngineError, RefusedError, invalid, not_found
from mcp_workflows_google_local.store import Store

log = logging.getLogger(__name__)

LARGEST_ARGUMENT: Final = 32 * 1024  # bytes


class Engine:
    """The executions of all workflows, each in a task of this loop."""

    def __init__(
        self, store: Store, home: Home, catalog: Catalog, requests: Requests, *, url: str, most: int | None = None
    ) -> None:
        self._store = store
        self._home = home
        self._catalog = catalog
        self._requests = requests
        self._url = url
        self._most = most  # maximum of concurrent executions; None: no limit
        self._records: dict[str, dict[str, Record]] = {}
        self._callbacks: dict[str, Callbacks] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._queue: deque[Record] = deque()

    def resume(self) -> int:
        """Continue all executions that were not finished at the last stop; return their number."""
        going = 0
        for workflow, execution, created, data in self._store.executions():
            moment = datetime.fromtimestamp(created, UTC)
            kept: Any = api.Execution.deserialize(data)
            record = Record(workflow=workflow, execution=execution, created=moment, kept=kept)
            self._records.setdefault(workflow, {})[execution] = record
            if not record.ended:
                going += 1
                self._go_on(record)
        self._start_queued()
        return going

    def _go_on(self, record: Record) -> None:
        try:
            self._run(record) if record.state == State.ACTIVE else self._queue.append(record)
        except DeployError as error:  # a newer engine rejects the source
            text = f"cannot go on with {record.kept.name}: {error}; begin a new file with --db"
            raise LocalEngineError(text) from error

    async def stop(self) -> None:
        """Stop all executions; stored ones continue at the next start."""
        tasks = list(self._tasks.values())
        self._queue.clear()
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def create(self, workflow: str, wanted: Any) -> Record:
        """Return a new execution of the latest revision, started or queued."""
        deployed = self._catalog.get(workflow)
        _check_argument(wanted.argument)
        check_labels(wanted.labels)
        labels = {**deployed.labels, **wanted.labels}
        check_labels(labels)
        execution = str(uuid.uuid4())
        kept: Any = api.Execution(
            name=self._home.execution_name(workflow, execution),
            state=State.QUEUED,
            argument=wanted.argument,
            labels=labels,
            call_log_level=wanted.call_log_level or deployed.call_log_level,
            workflow_revision_id=deployed.revision_id,
        )
        record = Record(workflow=workflow, execution=execution, created=now(), kept=kept)
        self._records.setdefault(workflow, {})[execution] = record
        self._queue.append(record)
        self._keep(record)
        self._start_queued()
        return record

    def get(self, workflow: str, execution: str) -> Record:
        """Return an execution."""
        found = self._records.get(workflow, {}).get(execution)
        if found is None:
            raise not_found(self._home.execution_name(workflow, execution))
        return found

    def of(self, workflow: str) -> Iterable[Record]:
        """Return all executions of a workflow, newest first."""
        self._catalog.get(workflow)
        return reversed(self._records.get(workflow, {}).values())

    def cancel(self, workflow: str, execution: str) -> Record:
        """End an execution immediately, whatever it waits for."""
        record = self.get(workflow, execution)
        if record.ended:
            text = f"Execution '{record.kept.name}' has already ended: its state is {record.state.name}"
            raise RefusedError(grpc.StatusCode.FAILED_PRECONDITION, text)
        self._end(record, State.CANCELLED)
        return record

    def forget(self, workflow: str) -> None:
        """Cancel and delete all executions of a workflow."""
        for record in self._records.pop(workflow, {}).values():
            if not record.ended:
                self._end(record, State.CANCELLED)

    def callbacks(self, workflow: str, execution: str) -> Callbacks | None:
        """Return the callback endpoints of a running execution; None for any other."""
        record = self._records.get(workflow, {}).get(execution)
        return None if record is None else self._callbacks.get(record.execution)

    def _start_queued(self) -> None:
        while self._queue and (self._most is None or len(self._tasks) < self._most):
            record = self._queue.popleft()
            record.start()
            self._keep(record)
            self._run(record)

    def _run(self, record: Record) -> None:
        program = self._catalog.program(record.workflow, record.kept.workflow_revision_id)
        callbacks = Callbacks(self._store, record.execution, f"{self._url}/v1/{record.kept.name}")
        self._callbacks[record.execution] = callbacks
        host = ExecutionHost(record, self._store, callbacks, self._requests, self._env(record))
        task = asyncio.create_task(self._follow(record, program, host))
        self._tasks[record.execution] = task
        task.add_done_callback(lambda done: self._broke(record, done))

    async def _follow(self, record: Record, program: Program, host: ExecutionHost) -> None:
        argument = json.loads(record.kept.argument or "null")
        try:
            result = await program.run(argument, host)
        except Raised as raised:
            record.kept.error = _error(raised)
            self._end(record, State.FAILED)
        else:
            record.kept.result = json.dumps(result, ensure_ascii=False)
            self._end(record, State.SUCCEEDED)

    def _broke(self, record: Record, task: asyncio.Task[None]) -> None:
        """Log the error of an execution that failed through a defect of this engine."""
        if task.cancelled() or (error := task.exception()) is None:
            return
        log.error("%s: the local engine made a mistake", record.kept.name, exc_info=error)
        payload = failure(Tag.SYSTEM, f"the local engine made a mistake: {type(error).__name__}; see its log").payload
        record.kept.error = _error(Raised(payload, "", ""))
        self._end(record, State.FAILED)

    def _end(self, record: Record, state: int) -> None:
        record.end(state)
        self._store.end_execution(record.workflow, record.execution, record.created.timestamp(), record.data)
        self._callbacks.pop(record.execution, None)
        task = self._tasks.pop(record.execution, None)
        if task is None:
            self._queue.remove(record)
        elif task is not asyncio.current_task():
            task.cancel()
        self._start_queued()

    def _keep(self, record: Record) -> None:
        self._store.put_execution(record.workflow, record.execution, record.created.timestamp(), record.data)

    def _env(self, record: Record) -> Mapping[str, str]:
        deployed = self._catalog.get(record.workflow, record.kept.workflow_revision_id)
        return {
            **deployed.user_env_vars,
            "GOOGLE_CLOUD_LOCATION": self._home.location,
            "GOOGLE_CLOUD_PROJECT_ID": self._home.project,
            "GOOGLE_CLOUD_PROJECT_NUMBER": self._home.number,
            "GOOGLE_CLOUD_SERVICE_ACCOUNT_NAME": deployed.service_account,
            "GOOGLE_CLOUD_WORKFLOW_EXECUTION_ATTEMPT": "1",
            "GOOGLE_CLOUD_WORKFLOW_EXECUTION_ID": record.execution,
            "GOOGLE_CLOUD_WORKFLOW_ID": record.workflow,
            "GOOGLE_CLOUD_WORKFLOW_REVISION_ID": deployed.revision_id,
        }


def _check_argument(argument: str) -> None:
    size = len(argument.encode())
    if size > LARGEST_ARGUMENT:
        raise invalid(f"the argument is too large: {size} bytes are more than {LARGEST_ARGUMENT}")
    try:
        json.loads(argument or "null")
    except ValueError as error:
        raise invalid(f"the argument is not valid JSON: {error}") from error


def _error(raised: Raised) -> Any:
    """Return an error in Google's form: the payload as JSON, and its origin."""
    payload: Any = raised.payload
    message: Any = payload.get("message") if is_map(payload) and "tags" in payload else None
    text = message if isinstance(message, str) else f"RuntimeError: {json.dumps(payload, ensure_ascii=False)}"
    element = {"step": raised.step, "routine": raised.routine, "position": {"line": raised.line}}
    return api.Execution.Error(
        payload=json.dumps(payload, ensure_ascii=False),
        context=f'{text}\nin step "{raised.step}", routine "{raised.routine}", line: {raised.line}',
        stack_trace={"elements": [element]},
    )
