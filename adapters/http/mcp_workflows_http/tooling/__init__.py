"""Tools for operators: `check`, `init --add`, `print presets`, `call --dry-run`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from functools import partial
from typing import ClassVar

from mcp_workflows.adapter import JSON, Finding, Start
from mcp_workflows.kit.kept_definitions import KeptDefinitions
from mcp_workflows.kit.tooling import Preset
from mcp_workflows_http.client import ApiClient, Prepared
from mcp_workflows_http.definition import ApiDefinition
from mcp_workflows_http.presets import presets
from mcp_workflows_http.settings import HttpSettings, preset_schema
from mcp_workflows_http.start import order_scope
from mcp_workflows_http.tooling.check import check_engine, check_workflow, made_up
from mcp_workflows_http.tooling.discover import discover as discover_workflows


class HttpTooling:
    """The protocols of `mcp_workflows.kit.tooling` that every job API supports."""

    first_settings: ClassVar[Mapping[str, str]] = {"preset": "buildbot", "url": "http://localhost:8010"}

    def __init__(self, settings: HttpSettings, client: ApiClient, definitions: KeptDefinitions[ApiDefinition]) -> None:
        self._settings = settings
        self._client = client
        self._definitions = definitions
        if settings.workflows is not None:
            self.discover = partial(discover_workflows, client, settings, settings.workflows)

    async def check_engine(self) -> Finding:
        """Check that the API answers; see `Checks.check_engine`."""
        finding = await check_engine(self._client, self._settings)
        unmapped = await self._definitions.unmapped_finding(self._settings.describe.map) if finding.ok else None
        return unmapped or finding

    async def check(self, workflow: str, options: Mapping[str, JSON]) -> Finding:
        """Check a workflow within what the API shows without a start; see `Checks.check`."""
        return await check_workflow(self._client, self._settings, made_up(workflow, dict(options)))

    def preview(self, start: Start) -> Mapping[str, JSON]:
        """Return the request that `start` would send, with secrets masked; see `Previews.preview`."""
        prepared = self._client.prepare(self._settings.start.request, order_scope(start, self._settings))
        headers = {**prepared.headers, **self._client.shown_credentials}
        shown: Mapping[str, JSON] = {
            "method": prepared.method,
            "url": prepared.url,
            "headers": headers,
            "json": prepared.body,
            "form": prepared.form,
            "multipart": prepared.multipart,
            "curl": shlex.join(_curl(prepared, headers)),
        }
        return {name: value for name, value in shown.items() if value is not None}

    @staticmethod
    def presets() -> Mapping[str, Preset]:
        """Return the definitions of well-known APIs; see `HasPresets.presets`."""
        return presets()

    @staticmethod
    def preset_schema() -> Mapping[str, JSON]:
        """Return the JSON Schema of a preset; see `HasPresets.preset_schema`."""
        return preset_schema()


def _curl(prepared: Prepared, headers: Mapping[str, str]) -> Iterator[str]:
    yield from ("curl", "--request", prepared.method)
    for name, text in headers.items():
        yield from ("--header", f"{name}: {text}")
    if prepared.body is not None:
        yield from ("--json", json.dumps(prepared.body, ensure_ascii=False))
    for name, text in (prepared.form or {}).items():
        yield from ("--data-urlencode", f"{name}={text}")
    for name, text in (prepared.multipart or {}).items():
        yield from ("--form-string", f"{name}={text}")
    yield prepared.url
