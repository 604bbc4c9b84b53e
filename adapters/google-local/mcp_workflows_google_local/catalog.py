"""The deployed workflows in all their revisions."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import grpc
from google.cloud import workflows_v1 as api

from mcp_workflows_google_local.labels import check_labels
from mcp_workflows_google_local.language.errors import DeployError
from mcp_workflows_google_local.language.program import Program
from mcp_workflows_google_local.language.source import load
from mcp_workflows_google_local.project import Home
from mcp_workflows_google_local.refusals import RefusedError, invalid, not_found
from mcp_workflows_google_local.store import Store

LARGEST_SOURCE: Final = 128 * 1024
MOST_VARIABLES: Final = 20
LARGEST_VARIABLE: Final = 4 * 1024
LONGEST_DESCRIPTION: Final = 1000

SETTABLE: Final = frozenset(
    {"description", "labels", "service_account", "source_contents", "crypto_key_name"}
    | {"call_log_level", "user_env_vars", "execution_history_level"}
)
_NEW_REVISION: Final = ("source_contents", "service_account", "user_env_vars", "crypto_key_name", "call_log_level")
_RESERVED: Final = ("GOOGLE", "WORKFLOWS")  # the engine reserves environment variables with these prefixes


class Catalog:
    """All workflows; a revision stays while executions use it."""

    def __init__(self, store: Store, home: Home) -> None:
        self._store = store
        self._home = home
        self._revisions: dict[str, list[Any]] = {}
        self._programs: dict[tuple[str, str], Program] = {}
        for workflow, data in store.revisions():
            self._revisions.setdefault(workflow, []).append(api.Workflow.deserialize(data))

    def listed(self) -> Iterable[Any]:
        """Return the latest revision of each workflow."""
        return [revisions[-1] for _, revisions in sorted(self._revisions.items())]

    def has(self, workflow: str) -> bool:
        """Return True if the workflow exists."""
        return workflow in self._revisions

    def revisions(self, workflow: str) -> Sequence[Any]:
        """Return all revisions of a workflow, oldest first."""
        self.get(workflow)
        return self._revisions[workflow]

    def get(self, workflow: str, revision: str = "") -> Any:
        """Return a revision of a workflow, by default the latest.

        Raises:
            RefusedError: there is no such workflow or revision.
        """
        revisions = self._revisions.get(workflow)
        if revisions is None:
            raise not_found(self._home.workflow_name(workflow))
        if not revision:
            return revisions[-1]
        for found in revisions:
            if found.revision_id == revision:
                return found
        raise not_found(f"{self._home.workflow_name(workflow)}@{revision}")

    def program(self, workflow: str, revision: str) -> Program:
        """Return the program of a revision."""
        key = (workflow, revision)
        if key not in self._programs:
            self._programs[key] = load(self.get(workflow, revision).source_contents)
        return self._programs[key]

    def create(self, workflow: str, given: Any) -> Any:
        """Deploy a new workflow."""
        if workflow in self._revisions:
            name = self._home.workflow_name(workflow)
            raise RefusedError(grpc.StatusCode.ALREADY_EXISTS, f"Resource '{name}' already exists")
        return self._put(workflow, _taken(api.Workflow(), given, SETTABLE), [])

    def update(self, workflow: str, given: Any, fields: Iterable[str]) -> Any:
        """Change these fields, by default all; a change that executions see makes a new revision."""
        latest = self.get(workflow)
        names = frozenset(fields) or SETTABLE
        if unknown := sorted(names - SETTABLE):
            raise invalid(f"update_mask names what cannot be updated: {', '.join(unknown)}")
        return self._put(workflow, _taken(latest, given, names), self._revisions[workflow])

    def delete(self, workflow: str) -> Any:
        """Delete a workflow."""
        latest = self.get(workflow)
        del self._revisions[workflow]
        for key in [key for key in self._programs if key[0] == workflow]:
            del self._programs[key]
        self._store.delete_workflow(workflow)
        return latest

    def _put(self, workflow: str, wanted: Any, before: list[Any]) -> Any:
        wanted.service_account = wanted.service_account.rpartition("/")[2] or self._home.service_account
        program = _checked(wanted)
        moment = datetime.now(UTC)
        wanted.name = self._home.workflow_name(workflow)
        wanted.state = api.Workflow.State.ACTIVE
        wanted.update_time = moment
        new = not before or any(getattr(wanted, name) != getattr(before[-1], name) for name in _NEW_REVISION)
        number = len(before) + new
        if new:
            wanted.create_time = before[0].create_time if before else moment
            wanted.revision_id = f"{number:06d}-{secrets.token_hex(2)[:3]}"
            wanted.revision_create_time = moment
        self._store.put_revision(workflow, number, _bytes(wanted))
        self._revisions[workflow] = [*before[: number - 1], wanted]
        self._programs[workflow, wanted.revision_id] = program
        return wanted


def _bytes(wanted: Any) -> bytes:
    kind: Any = api.Workflow  # partly typed
    return bytes(kind.serialize(wanted))


def _taken(latest: Any, given: Any, names: Iterable[str]) -> Any:
    """Return the latest revision with the given values of these fields."""
    taken: Any = api.Workflow(latest)
    for name in names:
        setattr(taken, name, getattr(given, name))
    return taken


def _checked(wanted: Any) -> Program:
    check_labels(wanted.labels)
    _check_variables(wanted.user_env_vars)
    if len(wanted.description) > LONGEST_DESCRIPTION:
        raise invalid(f"the description is longer than {LONGEST_DESCRIPTION} characters")
    size = len(wanted.source_contents.encode())
    if size > LARGEST_SOURCE:
        raise invalid(f"the source is larger than {LARGEST_SOURCE} bytes: {size}")
    try:
        return load(wanted.source_contents)
    except DeployError as error:
        raise invalid(str(error)) from error


def _check_variables(variables: Mapping[str, str]) -> None:
    if len(variables) > MOST_VARIABLES:
        raise invalid(f"{len(variables)} environment variables are more than {MOST_VARIABLES}")
    for name, value in variables.items():
        if not name or name.startswith(_RESERVED):
            raise invalid(f"invalid name of an environment variable: {name!r}")
        if len(value.encode()) > LARGEST_VARIABLE:
            raise invalid(f"environment variable {name} is larger than {LARGEST_VARIABLE} bytes")
