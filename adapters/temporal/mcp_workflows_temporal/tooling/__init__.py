"""Tools for operators and authors: check, discover, explain, preview, replay, verify, schemas and files to embed."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial

from pydantic import BaseModel
from temporalio.client import Client
from temporalio.envconfig import ClientConfigProfile

from mcp_workflows.adapter import JSON, Finding, Fixtures, Gate, Nothing, Ref, Start
from mcp_workflows.errors import EngineRefused
from mcp_workflows.kit.tooling import Discovered, Explanation, Replayed, WorkflowSchema
from mcp_workflows_temporal.client import Frontend, Handle
from mcp_workflows_temporal.connection import LOCALHOST
from mcp_workflows_temporal.gates import Gates
from mcp_workflows_temporal.payloads import as_mapping
from mcp_workflows_temporal.settings import TemporalOptions, TemporalSettings, is_template, message_in
from mcp_workflows_temporal.start import positional, preview, read_start, refuse_unwritable
from mcp_workflows_temporal.tooling.check import (
    check_engine,
    check_queue,
    read_references,
    verify,
    verify_arguments,
    verify_codec,
    verify_search_attributes,
)
from mcp_workflows_temporal.tooling.discover import discover as discover_workflows
from mcp_workflows_temporal.tooling.explain import explain as explain_execution
from mcp_workflows_temporal.tooling.fixtures import NOTICE, Verbs
from mcp_workflows_temporal.tooling.fixtures import fixtures as run_fixtures
from mcp_workflows_temporal.tooling.replay import replay as replay_history
from mcp_workflows_temporal.tooling.schema import embedded_files, find_mismatches, read_schema


class _FirstSettings:
    """Reads the defaults from Temporal's own configuration file, as a host may start the server without that file."""

    def __get__(self, instance: object, owner: type) -> Mapping[str, str]:
        try:
            profile = ClientConfigProfile.load(disable_env=True, profile=os.environ.get("TEMPORAL_PROFILE"))
        except RuntimeError:  # the adapter reports the error
            profile = ClientConfigProfile()
        return {
            "address": f"${{TEMPORAL_ADDRESS:-{profile.address or LOCALHOST}}}",
            "namespace": f"${{TEMPORAL_NAMESPACE:-{profile.namespace or 'default'}}}",
            "task_queue": "",
        }


class TemporalTooling:
    """The protocols of `mcp_workflows.kit.tooling` that Temporal supports."""

    first_settings = _FirstSettings()

    def __init__(
        self,
        settings: TemporalSettings,
        opened: Callable[[], Frontend],
        gates: Gates,
        verbs: Verbs,
        connected: Callable[[], Awaitable[Client]],
    ) -> None:
        """`opened` returns the frontend of the entered adapter, `verbs` are its verbs, `connected` is for a worker."""
        self._settings = settings
        self._opened = opened
        self._gates = gates
        self._verbs = verbs
        self._connected = connected

    # --- checks

    async def check_engine(self) -> Finding:
        """Check that Temporal replies and has the namespace."""
        return await check_engine(self._opened())

    async def check(self, workflow: str, options: Mapping[str, JSON]) -> Finding:
        """Check that workers poll the workflow's task queue; options may have placeholders."""
        try:
            written = TemporalOptions.written(options)
        except EngineRefused as error:
            return Finding(ok=False, text=str(error))
        if written.names and written.start_if_missing is None:
            return Finding(ok=True, text=f"it is sent to workflow id {written.workflow_id}, whoever started that")
        workflow = written.start_if_missing.workflow if written.start_if_missing else workflow
        queue = written.task_queue or self._settings.task_queue
        if is_template(queue):
            return Finding(ok=None, text=f"the arguments choose the task queue of {workflow}: {queue}")
        return await check_queue(self._opened(), workflow, queue)

    async def verify(
        self, workflow: str, options: Mapping[str, JSON], gates: Mapping[str, Mapping[str, JSON]]
    ) -> Sequence[Finding]:
        """Check that the workflow has the signals, updates and queries that the tool names; see `Verifies.verify`."""
        frontend = self._opened()
        queue = self._settings.task_queue if options.get("task_queue") is None else options["task_queue"]
        if not (workflow := _started(workflow, options)):
            return ()  # the workflow is unknown
        named = await verify(frontend, workflow, queue, read_references(options, gates))
        arguments = await verify_arguments(frontend, workflow, queue, gates)
        attributes = await verify_search_attributes(frontend, as_mapping(options.get("search_attributes")))
        return [*named, *arguments, *attributes, *await verify_codec(frontend, workflow, queue)]

    # --- workflows and executions

    async def discover(self, named: Collection[str] = ()) -> Sequence[Discovered]:
        """Return the workflow types of the latest executions; see `Discovers.discover`."""
        frontend = self._opened()
        async with frontend.call():
            return await discover_workflows(frontend, self._settings.task_queue, named)

    async def explain(self, ref: Ref) -> Explanation:
        """Explain the state with attempts, last errors and pollers, in a few requests. See `Explains.explain`."""
        frontend, execution = self._opened(), await self._verbs.describe(ref)
        if message_in(ref.options) is not None:
            said = execution.failure.text if execution.failure else execution.message
            facts = {"workflow id": str(execution.execution_id)}
            return Explanation(reason=said or execution.status.value, facts=facts)
        async with frontend.call():
            read_gates = partial(self._gates.read, frontend, ref)
            return await explain_execution(frontend, Handle.parse(ref.handle), execution, ref.gates, read_gates)

    def preview(self, start: Start) -> Mapping[str, JSON]:
        """Return the StartWorkflowExecution that `start` would send, or its message; see `Previews.preview`."""
        options = TemporalOptions.final(start.options)
        if (message := message_in(start.options)) is not None:
            kind, name = message
            return {kind: name, "workflowId": options.workflow_id, "input": list(positional(start.arguments))}
        frontend, request = self._opened(), read_start(start, self._settings.task_queue)
        refuse_unwritable(frontend.converter(request.id), request.arguments, self._settings.max_input_bytes)
        return preview(request, frontend.place.namespace)

    @staticmethod
    def replay(history: JSON, gates: Mapping[str, Gate]) -> Sequence[Replayed]:
        """Return the changes that clients would have seen, from `temporal workflow show -o json`.

        Raises:
            ConfigError: see `Replays.replay`.
        """
        return replay_history(history, gates)

    # --- code, sources, fixtures

    @staticmethod
    def schema(reference: str) -> WorkflowSchema:
        """Return the schemas of `module:WorkflowClass`, from the type hints of its `@workflow.run`.

        Raises:
            ConfigError: see `Schemas.schema`.
        """
        return read_schema(reference)

    @staticmethod
    def misfits(
        reference: str, workflow: str, options: Mapping[str, JSON], gates: Mapping[str, Mapping[str, JSON]]
    ) -> Mapping[str, str]:
        """Return the names and arguments that `module:WorkflowClass` contradicts.

        Raises:
            ConfigError: see `Schemas.misfits`.
        """
        return find_mismatches(reference, _started(workflow, options), read_references(options, gates), gates)

    @staticmethod
    def embeds() -> Mapping[str, str]:
        """Return mcpwf.go and mcpwf.ts, with which workflows in Go and TypeScript ask people and report progress."""
        return embedded_files()

    @staticmethod
    def fixture_settings() -> type[BaseModel]:
        """Return an empty model; see `HasFixtures`."""
        return Nothing

    @staticmethod
    def fixtures_notice() -> str:
        """Return what runs, and where; see `HasFixtures.fixtures_notice`."""
        return NOTICE

    def fixtures(self, settings: BaseModel) -> AbstractAsyncContextManager[Fixtures]:
        """Run a worker for workflows of known behaviour; see `HasFixtures.fixtures`."""
        return run_fixtures(self._opened(), self._connected, self._verbs)


def _started(workflow: str, options: Mapping[str, JSON]) -> str:
    """Return the workflow that a tool starts; empty for a message that starts none."""
    missing = as_mapping(options.get("start_if_missing"))
    if missing or message_in(options) is not None:
        return str(missing.get("workflow", ""))
    return workflow
