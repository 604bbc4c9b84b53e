"""Webhooks of the API: a signed call about an execution makes the sidecar poll at once, and nothing else."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import anyio
import httpx2
import pytest
from mcp_workflows_http import HttpAdapter, HttpSettings
from pydantic import ValidationError

from adapters.http.tests.scripted import Vendor
from mcp_workflows.adapter import Hints, Routes
from mcp_workflows.sidecar.app import build, http_app
from mcp_workflows.sidecar.config.load import load_config
from tests.support.served import serving

SECRET = "of the webhook"
CONFIG = """
store: sqlite:///tasks.db
engines:
  ci:
    adapter: http
    url: https://jobs.example.com
    webhook_secret: {secret}
    webhook: {{signature: {signature}, handle: "{{{{event.run}}}}"}}
    start: {{request: POST /jobs, handle: "{{{{reply.body.id}}}}"}}
    describe: {{request: "/jobs/{{{{handle}}}}", status: "{{{{reply.body.state}}}}"}}
tools:
  deploy: {{engine: ci, workflow: deploy}}
"""
BODY = b'{"run": 42}'


def hub(secret: str = SECRET, body: bytes = BODY) -> Mapping[str, str]:
    return {"x-hub-signature-256": f"sha256={hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()}"}


def standard(secret: bytes, ago: int = 0, body: bytes = BODY) -> Mapping[str, str]:
    at = int(time.time()) - ago
    digest = hmac.new(secret, f"m1.{at}.".encode() + body, hashlib.sha256).digest()
    signature = f"v1,{base64.b64encode(b'other').decode()} v1,{base64.b64encode(digest).decode()}"
    return {"webhook-id": "m1", "webhook-timestamp": str(at), "webhook-signature": signature}


WHSEC = f"whsec_{base64.b64encode(b'key').decode()}"


@pytest.mark.parametrize(
    ("signature", "secret", "headers", "status"),
    [
        ("hub", SECRET, hub(), 200),
        ("hub", SECRET, hub("another"), 401),
        ("hub", SECRET, hub(body=b"{}"), 401),
        ("hub", SECRET, {}, 401),
        ("gitlab", SECRET, {"x-gitlab-token": SECRET}, 200),
        ("gitlab", SECRET, {"x-gitlab-token": "guess"}, 401),
        ("bearer", SECRET, {"authorization": f"Bearer {SECRET}"}, 200),
        ("bearer", SECRET, {"authorization": SECRET}, 401),
        ("standard", WHSEC, partial(standard, b"key"), 200),
        ("standard", SECRET, partial(standard, SECRET.encode()), 200),
        ("standard", WHSEC, partial(standard, b"key", 3600), 401),
        ("standard", WHSEC, partial(standard, b"guess"), 401),
        ("standard", WHSEC, {}, 401),
    ],
)
async def test_only_who_knows_the_secret_is_heard(
    tmp_path: Any,
    signature: str,
    secret: str,
    headers: Mapping[str, str] | Callable[[], Mapping[str, str]],
    status: int,
) -> None:
    file = tmp_path / "workflows.yaml"
    file.write_text(CONFIG.format(signature=signature, secret=secret))
    config = load_config(file, {})
    async with serving(http_app(build(config), config, "127.0.0.1", 0)) as url, httpx2.AsyncClient() as client:
        there = f"{url.removesuffix('/mcp')}/engines/ci/webhook"
        made = headers() if callable(headers) else headers  # signed now
        sent = {"content-type": "application/json", **made}
        reply = await client.post(there, content=BODY, headers=sent)
        assert reply.status_code == status
        if status != 200:
            assert reply.json() == {"error": "a valid token is needed"}
        nowhere = await client.post(there.replace("webhook", "other"), content=BODY, headers=sent)
        assert (nowhere.status_code, nowhere.json()) == (401, {"error": "a valid token is needed"})
        form = await client.post(there, content=b"payload=1", headers={"content-type": "text/plain"})
        assert (form.status_code, form.json()) == (401, {"error": "a valid token is needed"})


async def test_a_call_is_a_hint_for_the_execution_it_is_about() -> None:
    vendor = Vendor()
    settings = {
        "preset": "github-actions",
        "url": "https://api.github.com",
        "webhook_secret": SECRET,
        "vars": {"owner": "acme", "repo": "shop"},
    }
    adapter = HttpAdapter(HttpSettings.model_validate(settings))
    assert vendor.asked == []
    assert isinstance(adapter, Routes)
    assert isinstance(adapter, Hints)
    [route] = adapter.routes()
    assert SECRET not in repr(route)
    handle = json.dumps({"v": 1, "run": "42", "workflow": "deploy.yml", "at": 0.0, "vars": {}, "definition": "d"})
    adapter.changes.register("42", handle)
    changed: list[str] = []
    async with anyio.create_task_group() as group:
        group.start_soon(adapter.hints, changed.append)
        await anyio.wait_all_tasks_blocked()
        for event in ({"workflow_run": {"id": 42}}, {"workflow_job": {"run_id": 42}}, {"workflow_run": {"id": 7}}):
            assert await route.receive(event, "hub") == {}
        for strange in ({"zen": "Keep it simple"}, "text", None, {"workflow_run": 5}):
            assert await route.receive(strange, "hub") == {}
        group.cancel_scope.cancel()
    assert changed == [handle, handle]


def test_without_a_secret_nobody_calls() -> None:
    adapter = HttpAdapter(HttpSettings.model_validate({"preset": "github-actions", "url": "https://api.github.com"}))
    assert not isinstance(adapter, Routes)


@pytest.mark.parametrize(("preset", "secret"), [("github-actions", ""), ("wes", "s")])
def test_a_secret_without_use_is_told(preset: str, secret: str) -> None:
    with pytest.raises(ValidationError, match="webhook_secret needs webhook, and a value"):
        HttpSettings.model_validate({"preset": preset, "url": "https://api", "webhook_secret": secret})
