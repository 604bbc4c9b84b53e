"""The identities of engines by their settings: what tells two apart, and what does not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mcp_workflows.adapter import load_adapter

pytestmark = pytest.mark.anyio

URL = "https://jobs.example.com/api"
ENGINES: Mapping[str, tuple[str, Mapping[str, Any], str]] = {
    "temporal": ("temporal", {}, "temporal:default"),
    "temporal-namespace": ("temporal", {"namespace": "prod"}, "temporal:prod"),
    "aws": ("stepfunctions", {"region": "eu-west-1"}, "stepfunctions:default/eu-west-1"),
    "aws-account": (
        "stepfunctions",
        {"region": "eu-west-1", "account": "012345678901"},
        "stepfunctions:012345678901/eu-west-1",
    ),
    "aws-local": (
        "stepfunctions",
        {"region": "eu-west-1", "endpoint_url": "http://localhost:4566"},
        "stepfunctions:localhost/eu-west-1",
    ),
    "google": (
        "google-workflows",
        {"project": "shop", "location": "europe-west1"},
        "google-workflows:shop/europe-west1",
    ),
    "google-default": ("google-workflows", {"location": "europe-west1"}, "google-workflows:default/europe-west1"),
    "google-local": (
        "google-workflows",
        {"project": "shop", "location": "europe-west1", "emulator": "127.0.0.1:8790"},
        "google-workflows:emulator/europe-west1",
    ),
    "http": ("http", {"preset": "wes", "url": URL}, f"http:{URL}"),
    "github": (
        "http",
        {"preset": "github-actions", "url": "https://api.github.com", "vars": {"owner": "acme", "repo": "shop"}},
        "http:https://api.github.com#owner=acme,repo=shop",
    ),
    "mcp": ("mcp", {"url": "https://tools.example.com/mcp"}, "mcp:https://tools.example.com/mcp"),
    "dbos": ("dbos", {"database": "postgresql://db.example.com/shop", "queue": "q"}, "dbos:db.example.com/shop"),
    "dbos-file": ("dbos", {"database": "sqlite:////srv/shop.db", "application": "shop"}, "dbos:/srv/shop.db#shop"),
    "memory": ("memory", {}, "memory:memory"),
}


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Settings come from nowhere else."""
    for name in ("AWS_PROFILE", "GOOGLE_CLOUD_PROJECT", "TEMPORAL_NAMESPACE", "TEMPORAL_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


async def identity(adapter: str, settings: Mapping[str, Any]) -> str:
    kind = load_adapter(adapter)
    engine: Any = kind(kind.Settings(**settings))
    async with engine:
        found: str = engine.identity
    return found


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("temporal", {"address": "temporal.example.com:7234", "api_key": "secret", "task_queue": "other", "tls": True}),
        ("aws-account", {"endpoint_url": "https://vpce-1.states.eu-west-1.vpce.amazonaws.com"}),
        ("aws-local", {"endpoint_url": "http://localhost:4567"}),
        ("google", {"endpoint": "workflowexecutions.europe-west1.rep.googleapis.com"}),
        ("google-local", {"emulator": "127.0.0.1:8791"}),
        ("http", {"url": f"{URL}/", "auth": {"bearer": "secret"}, "vars": {"branch": "main"}}),
        ("mcp", {"url": "https://tools.example.com/mcp?apiKey=secret", "auth": {"bearer": "secret"}}),
        ("dbos", {"database": "postgresql://user:secret@db.example.com:5433/shop", "queue": "other"}),
    ],
)
async def test_it_stays_with_other_credentials_and_ports(name: str, changed: Mapping[str, Any]) -> None:
    adapter, settings, expected = ENGINES[name]
    assert await identity(adapter, {**settings, **changed}) == expected


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("aws", {"region": "eu-west-2"}),
        ("google", {"location": "europe-west2"}),
        ("http", {"url": "https://staging.example.com/api"}),
        ("github", {"vars": {"owner": "acme", "repo": "shop-staging"}}),
        ("mcp", {"url": "https://tools.example.com/mcp?tenant=staging"}),
        ("dbos", {"database": "postgresql://db.example.com/staging"}),
        ("dbos", {"database": "postgresql://staging.example.com/shop"}),
        ("dbos-file", {"application": "other"}),
    ],
)
async def test_it_tells_two_engines_apart(name: str, changed: Mapping[str, Any]) -> None:
    adapter, settings, expected = ENGINES[name]
    assert await identity(adapter, {**settings, **changed}) != expected


async def test_a_program_is_known_by_what_leads_it_and_no_secret_is_shown() -> None:
    settings: dict[str, Any] = {"command": ["/usr/bin/tools", "--site=prod"], "env": {"SITE": "prod"}}
    found = await identity("mcp", settings)
    assert found.startswith("mcp:tools#")
    assert "prod" not in found
    assert await identity("mcp", {**settings, "env": {"SITE": "prod", "API_TOKEN": "secret"}}) == found
    for other in ({"command": ["/usr/bin/tools", "--site=staging"]}, {"env": {"SITE": "staging"}}, {"cwd": "/srv"}):
        assert await identity("mcp", {**settings, **other}) != found
