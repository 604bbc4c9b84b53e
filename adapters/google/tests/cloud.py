"""The local engine for the shared suites and the tests here: adapters in front of it, and workflows by their parts."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from textwrap import indent as indented
from typing import Any, ClassVar, Final

import anyio
import httpx2
from google.api_core.exceptions import FailedPrecondition
from mcp_workflows_google import GoogleAdapter, GoogleSettings
from mcp_workflows_google.tooling.subworkflows import add_subworkflows
from starlette.applications import Starlette
from starlette.routing import Mount

from mcp_workflows.adapter import Notes
from mcp_workflows.engines.registry import Engines
from mcp_workflows.receiver.webhooks import MOUNTED_AT, Webhooks
from tests.support.cloud_suites import PATIENCE, Cloud
from tests.support.configured import written
from tests.support.google_engine import ACCOUNT, LOCATION, PROJECT, GoogleEngine
from tests.support.served import serving

AUDIENCE: Final = "https://mcp.example.com"
INBOUND: Final = {"audience": AUDIENCE, "accounts": [ACCOUNT]}

ECHO: Final = "main: {params: [args], steps: [{answer: {return: '${args}'}}]}"
FOREVER: Final = "main: {params: [args], steps: [{sleeping: {call: sys.sleep, args: {seconds: 3600}}}]}"
DECLINES: Final = """
main:
  params: [args]
  steps:
    - charging:
        raise: {code: 402, message: the card was declined, tags: [CardDeclined]}
"""


def _asking(step: str, indent: int, key: str, message: str) -> str:
    """A step that asks a person, so far in."""
    lines = f"""
- {step}:
    call: mcp_elicit
    args:
      key: {key}
      message: {message}
      requested_schema: {{type: object, properties: {{answer: {{type: string}}}}, required: [answer]}}
    result: answer
"""
    return indented(lines.strip("\n"), " " * indent)


ASKS: Final = add_subworkflows(f"""
main:
  params: [args]
  steps:
{_asking("asking", 4, "ship", "Ship it?")}
    - done:
        return: ${{answer}}
""")

ASKS_TWO: Final = add_subworkflows(f"""
main:
  params: [args]
  steps:
    - both:
        parallel:
          branches:
            - first:
                steps:
{_asking("ask_first", 18, "ship", "Ship it?")}
            - second:
                steps:
{_asking("ask_second", 18, "really", "Really?")}
    - done:
        return: {{asked: 2}}
""")

GATED: Final = """
main:
  params: [args]
  steps:
    - prepare:
        call: events.create_callback_endpoint
        args: {http_callback_method: POST}
        result: callback
    - wait_for_approval:
        call: events.await_callback
        args: {callback: "${callback}", timeout: 3600}
        result: request
    - done:
        return: ${request.http_request.body}
"""


class GoogleCloud(Cloud):
    """Workflows, which call a sidecar at the port of this scene."""

    name = "google"
    gate: ClassVar[Mapping[str, Any]] = {
        "when": "wait_for_approval",
        "send": {"body": {"approved": "{{answer.ok}}"}},
        "decline": {"body": {"approved": False}},
    }
    declined: ClassVar[Mapping[str, Any]] = {"approved": False}
    secret = "/callbacks/|eyJ|Bearer"  # URLs of callbacks, and how tokens begin
    parts: ClassVar[Mapping[str, str]] = {
        "echo": ECHO,
        "declines": DECLINES,
        "forever": FOREVER,
        "nap": FOREVER.replace("3600", "1"),
        "asks": ASKS,
        "asks_two": ASKS_TWO,
        "gated": GATED,
    }

    def __init__(self, engine: GoogleEngine) -> None:
        super().__init__(engine)
        self.engine = engine

    def settings(self) -> Mapping[str, Any]:
        place = {"project": PROJECT, "location": LOCATION, "emulator": self.engine.address}
        return {"adapter": "google-workflows", **place, "inbound": INBOUND}

    def open(self, **more: Any) -> GoogleAdapter:
        return adapter(self.engine, **more)

    def deploy(self, part: str, *, mark: str | None = None) -> str:
        return self.deploy_source(part.replace("_", "-"), self.parts[part], labels={} if mark is None else {"m": mark})

    def deploy_source(self, name: str, source: str, **more: Any) -> str:
        """Deploy a workflow that calls the sidecar of this scene."""
        return self.engine.deploy(name, source, env=environment(self.port), **more)

    def start(self, workflow: str) -> str:
        return self.engine.execute(workflow, {})

    def workflows(self) -> Sequence[str]:
        return [each.name for each in self.engine.workflows().list_workflows(parent=self.engine.place)]

    def executions(self, workflow: str) -> Sequence[str]:
        return executions(self.engine, workflow)

    def state(self, execution: str) -> str:
        return str(self.engine.ended(execution).state.name)

    async def answer_elsewhere(self, execution: str, output: str) -> None:
        await deliver(self.engine, execution, output)

    def secrets(self, execution: str) -> Sequence[str]:
        return []  # Google shows no URL of a callback; `secret` is how they look

    def discover(self, mark: str) -> Mapping[str, Any]:
        return {"label": f"m={mark}"}

    def unmark(self, workflow: str, mark: str) -> None:
        client: Any = self.engine.workflows()  # Any: its methods are typed in part only
        found = client.get_workflow(name=workflow)
        found.labels.clear()
        client.update_workflow(workflow=found, update_mask={"paths": ["labels"]}).result(timeout=60)

    def returned(self, response: Mapping[str, Any]) -> Any:
        return {**super().returned(response), "timed_out": False}


def settings(engine: GoogleEngine, **more: Any) -> GoogleSettings:
    """Of an adapter in front of this engine; `more` is as in workflows.yaml."""
    here = {"project": PROJECT, "location": LOCATION, "emulator": engine.address, "inbound": INBOUND}
    return GoogleSettings.model_validate({**here, **more})


def adapter(engine: GoogleEngine, notes: Notes | None = None, **more: Any) -> GoogleAdapter:
    """Not entered."""
    made = GoogleAdapter(settings(engine, **more))
    if notes is not None:
        made.remember(notes)
    return made


def configured(folder: Path, emulator: str, tools: Mapping[str, Mapping[str, Any]], **engine: Any) -> Path:
    """The workflows.yaml of these tools of the engine `google` at this address; `engine` adds to its settings."""
    place = {"project": PROJECT, "location": LOCATION, "emulator": emulator}
    return written(folder, "google", {"adapter": "google-workflows", **place, "inbound": INBOUND, **engine}, tools)


def environment(port: int) -> Mapping[str, str]:
    """What a workflow is deployed with, so that it calls the engine `google` of a server at this port."""
    return {"MCP_WORKFLOWS_URL": f"http://127.0.0.1:{port}/engines/google", "MCP_WORKFLOWS_AUDIENCE": AUDIENCE}


@asynccontextmanager
async def called_at(port: int, receiving: GoogleAdapter) -> AsyncGenerator[None]:
    """What workflows tell the engine `google` at this port comes to this adapter, which is opened for that."""
    async with Engines({"google": receiving}) as engines:
        app = Starlette(routes=[Mount(MOUNTED_AT, Webhooks(lambda: engines))])
        async with serving(app, port=port):
            yield


def executions(engine: GoogleEngine, workflow: str) -> list[str]:
    """The names of all executions of a workflow, the newest first."""
    return [each.name for each in engine.executions().list_executions(parent=workflow, timeout=60)]


async def deliver(engine: GoogleEngine, execution: str, body: Any, *, method: str = "POST") -> None:
    """Send this to the callback of that method, once the execution waits for it, as who has the mail with the URL."""
    async with httpx2.AsyncClient(headers={"Authorization": "Bearer somebody"}) as client:
        url = None
        with anyio.fail_after(PATIENCE):
            while url is None:
                found = (await client.get(f"{engine.url}/v1/{execution}/callbacks")).json().get("callbacks", [])
                waiting = [each["name"] for each in found if each["waiters"] != "0" and each["method"] == method]
                url = f"{engine.url}/v1/{waiting[0].replace('/callback/', '/callbacks/')}" if waiting else None
                await anyio.sleep(0.01)
        assert (await client.request(method, url, json=body)).is_success


def cancel(engine: GoogleEngine, execution: str) -> None:
    """CancelExecution, if it still runs."""
    client: Any = engine.executions()  # Any: its methods are typed in part only
    with suppress(FailedPrecondition):
        client.cancel_execution(name=execution, timeout=60)
