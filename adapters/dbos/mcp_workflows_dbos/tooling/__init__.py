"""Tools for operators: `check`, `why`, `import`, and drafts from a Python file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final, Protocol, TypeVar

from pydantic_core import to_jsonable_python

from mcp_workflows.adapter import JSON, Finding, Ref, Start
from mcp_workflows.errors import EngineError, EngineUnavailable, ExecutionNotFound
from mcp_workflows.kit.tooling import Discovered, DraftedEngine, Explanation, WorkflowSchema
from mcp_workflows_dbos.executor import Executor
from mcp_workflows_dbos.settings import DbosSettings
from mcp_workflows_dbos.start import Arguments, split
from mcp_workflows_dbos.tables import Tables
from mcp_workflows_dbos.tooling.check import check_engine, check_workflow
from mcp_workflows_dbos.tooling.discover import discover as discover_workflows
from mcp_workflows_dbos.tooling.explain import explain as explain_execution
from mcp_workflows_dbos.tooling.schema import draft_file, find_workflow, schema_of

_NO_DATABASE: Final = "set database, or launch the application once"

T = TypeVar("T")


class Read(Protocol):
    """A query of the database of the entered adapter."""

    async def __call__(self, read: Callable[[Tables], T]) -> T:
        """Run `read` in a thread, and translate its errors."""
        ...


class DbosTooling:
    """The protocols of `mcp_workflows.kit.tooling` that DBOS supports."""

    first_settings: ClassVar[Mapping[str, str]] = {"module": "app"}

    def __init__(
        self,
        settings: DbosSettings,
        read: Read,
        executor: Callable[[], Executor | None],
        arguments: Callable[[Start], Arguments],
    ) -> None:
        """`executor` returns the executor in this process, `arguments` the checked arguments of a start."""
        self._settings = settings
        self._read = read
        self._executor = executor
        self._arguments = arguments

    async def check_engine(self) -> Finding:
        """Check that the database answers and the workflows run; see `Checks.check_engine`."""
        try:
            queues = await self._read(lambda tables: tables.queues())
        except EngineError as error:
            return self._unusable(error)
        return check_engine(self._settings, self._executor(), queues)

    async def check(self, workflow: str, options: Mapping[str, JSON]) -> Finding:
        """Check that a workflow and its queue exist; see `Checks.check`."""
        try:
            executed, queues = await self._read(lambda tables: (tables.executed_workflows(), tables.queues()))
        except EngineError as error:
            return self._unusable(error)
        return check_workflow(workflow, self._executor(), executed, self._settings.queue_of(options), queues)

    async def discover(self, named: Collection[str] = ()) -> Sequence[Discovered]:
        """Return the workflows of the module, and those that have run; see `Discovers.discover`."""
        return discover_workflows(self._executor(), await self._read(lambda tables: tables.executed_workflows()))

    async def explain(self, ref: Ref) -> Explanation:
        """Explain the state of an execution; see `Explains.explain`."""
        try:
            rows = await self._read(lambda tables: tables.rows([ref.handle], steps=True))
        except EngineUnavailable:
            if (outage := self._outage) is None:
                raise
            return Explanation(reason=outage)
        if ref.handle not in rows:
            raise ExecutionNotFound(f"DBOS has no workflow {ref.handle}")
        latest = await self._read(lambda tables: tables.latest_version())
        return explain_execution(rows[ref.handle], self._executor(), latest)

    def preview(self, start: Start) -> Mapping[str, JSON]:
        """Return the start that would be sent, with its arguments converted to the type hints; see `Previews`."""
        args, named = split(to_jsonable_python(self._arguments(start), bytes_mode="base64"))
        shown = {"workflow_name": start.workflow, "workflow_id": start.key, "args": [*args], "kwargs": {**named}}
        queue = self._settings.queue_of(start.options)
        return shown if queue is None else {**shown, "queue_name": queue}

    @staticmethod
    def schema(reference: str) -> WorkflowSchema:
        """Read the type hints of a workflow; see `Schemas.schema`."""
        return schema_of(find_workflow(reference))

    @staticmethod
    def misfits(
        reference: str, workflow: str, options: Mapping[str, JSON], gates: Mapping[str, Mapping[str, JSON]]
    ) -> Mapping[str, str]:
        """Return `workflow` if the function has another name in DBOS; see `Schemas.misfits`."""
        name = find_workflow(reference).name
        return (
            {}
            if workflow in ("", name)
            else {"workflow": f"{reference} is the workflow {name!r}, and not {workflow!r}"}
        )

    @staticmethod
    async def draft(address: str, start: str | None) -> DraftedEngine:
        """Draft the engine and the tools of a Python file; see `Drafts.draft`."""
        return draft_file(Path(address), start)

    def _unusable(self, error: EngineError) -> Finding:
        """Return the finding of a check without an answer from the database."""
        outage = self._outage  # includes the remedy
        return Finding(ok=False, text=outage or str(error), hint=None if outage else _NO_DATABASE)

    @property
    def _outage(self) -> str | None:
        executor = self._executor()
        return None if executor is None else executor.outage
