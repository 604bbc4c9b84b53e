"""Files of teams in use: reload on save, the commands, the schema for editors, the page about them."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import anyio
import pytest
from jsonschema import Draft202012Validator

from mcp_workflows.access import Allow
from mcp_workflows.adapter import Adapter
from mcp_workflows.adapter.memory import MemoryAdapter, MemorySettings
from mcp_workflows.kit.tooling import Exposed
from mcp_workflows.sidecar.app import Sidecar, build, http_app
from mcp_workflows.sidecar.config.json_schema import config_schema, team_schema
from mcp_workflows.sidecar.config.load import load_config
from mcp_workflows.sidecar.config.models import Config
from mcp_workflows.sidecar.marked_workflows import MarkedWorkflow, compose
from mcp_workflows.sidecar.reload import Reloader
from mcp_workflows.tools.json_schema import violations
from tests.sidecar.cli.conftest import terminal
from tests.sidecar.config.test_config_schema import SCHEMA, plain
from tests.sidecar.config.test_includes import PLATFORM, TEAM, written
from tests.support.served import Peer, peer, serving

__all__ = ["terminal"]

pytestmark = pytest.mark.anyio

PAGE = Path(__file__).parents[3] / "docs" / "secure" / "teams.md"
STORE = "store: sqlite:///tasks.db\n"
TEAM_SCHEMA = cache(team_schema)
OTHER = "tools:\n  cancel: {engine: here, workflow: echo}\n"
BROKEN = "tools:\n  create: {engine: vault, workflow: echo}\n"


# --- reload on save


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A sidecar whose teams edit their files."""

    folder: Path
    sidecar: Sidecar
    client: Peer

    async def listed(self) -> Sequence[str]:
        return [tool["name"] for tool in (await self.client.send("tools/list")).result["tools"]]

    async def until_listed(self, *names: str) -> None:
        with anyio.fail_after(60):
            while await self.listed() != list(names):
                await anyio.sleep(0.02)


@asynccontextmanager
async def edited(folder: Path, files: Mapping[str, str]) -> AsyncGenerator[Stage]:
    path = written(folder, files)
    config = load_config(path, {})
    sidecar = build(config, Reloader(path, config, {}).run)
    async with serving(http_app(sidecar, config, "127.0.0.1", 0)) as url, peer(url) as client:
        yield Stage(folder=folder, sidecar=sidecar, client=client)


async def test_a_team_that_saves_adds_or_removes_a_file_is_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with edited(tmp_path, {"workflows.yaml": STORE + PLATFORM, "teams/a.yaml": TEAM}) as stage:
        assert await stage.listed() == ["orders_create"]
        assert (await stage.client.call("orders_create")).result["resultType"] == "task"
        (tmp_path / "teams" / "b.yaml").write_text(OTHER)
        await stage.until_listed("orders_create", "orders_cancel")
        (tmp_path / "teams" / "a.yaml").write_text(TEAM.replace("create", "make"))
        await stage.until_listed("orders_make", "orders_cancel")
        (tmp_path / "teams" / "b.yaml").unlink()
        await stage.until_listed("orders_make")
        (tmp_path / "teams" / "a.yaml").write_text(BROKEN)
        with anyio.fail_after(60):
            while not (said := _errors(caplog)):
                await anyio.sleep(0.02)
        assert said[0].startswith("not reloaded; the last good configuration stays:\n")
        assert f"{tmp_path}/teams/a.yaml:2: tools.create.engine: no engine named 'vault'" in said[0]
        assert await stage.listed() == ["orders_make"]
        assert (await stage.client.call("orders_make")).result["resultType"] == "task"


def _errors(caplog: pytest.LogCaptureFixture) -> Sequence[str]:
    found = [record for record in caplog.records if record.name == "mcp_workflows.sidecar.reload"]
    return [record.getMessage() for record in found if record.levelno == logging.ERROR]


# --- tools that are found on engines


def test_defaults_and_rules_hold_for_what_is_found_on_engines(tmp_path: Path) -> None:
    head = "defaults: {allow: {}, wait: 5s, title: Nothing}\nrules: {'orders_*': {max_result: 5}}\n"
    config = load_config(written(tmp_path, {"workflows.yaml": head + PLATFORM, "teams/a.yaml": TEAM}), {})
    exposed = [
        Exposed(name=name, title=title, workflow=workflow, source=name, input={"type": "object"})
        for name, title, workflow in (("say", None, "ask"), ("orders_say", "Say", "forever"))
    ]
    engines = {"here": MemoryAdapter(MemorySettings())}
    found = {each.tool.name: each.tool for each in _marked(config, exposed, engines) if each.tool}
    assert {name: (tool.title, tool.max_result) for name, tool in found.items()} == {
        "orders_say": ("Say", 5),
        "say": ("Nothing", 1_000_000),
    }
    assert [tool.allow for tool in found.values()] == [Allow(), Allow()]
    assert _marked(config, [replace(exposed[0], name="no name")], engines)[0].wrong


def _marked(config: Config, exposed: Sequence[Exposed], engines: Mapping[str, Adapter]) -> Sequence[MarkedWorkflow]:
    return compose(config.tools, {"here": exposed}, engines, my_tasks=False, tool_defaults=config.tool_defaults)


# --- the commands


# --- for editors


def test_the_published_schemas_accept_what_loads(tmp_path: Path) -> None:
    Draft202012Validator.check_schema(team_schema())
    text = "defaults: {ttl: 1d}\nrules: {'*': {allow: {call: {}, see: {}}}}\n" + PLATFORM
    load_config(written(tmp_path, {"workflows.yaml": text, "teams/a.yaml": TEAM}), {})
    assert not violations(config_schema(), plain(text))
    assert not violations(team_schema(), plain(TEAM))
    for name, schema in (("workflows.yaml", config_schema()), ("teams/orders/tools.yaml", team_schema())):
        assert not violations(schema, plain(_blocks()[name])), name


@pytest.mark.parametrize(
    "text",
    [
        TEAM + "engines: {}\n",
        TEAM.replace("}", ", allow: {}}"),
        TEAM.replace("}", ", limits: {}}"),
        TEAM.replace("workflow", "workflw"),
        "tools: {}\n",
    ],
)
def test_the_schema_of_a_teams_file_rejects_what_is_not_the_teams(text: str) -> None:
    assert violations(TEAM_SCHEMA(), plain(text))


@pytest.mark.parametrize(
    ("old", "new"), [("namespace:", "namespce:"), ("engines: [here]", "code: true"), ("include:", "includes:")]
)
def test_the_published_schema_rejects_a_wrong_include(old: str, new: str) -> None:
    assert violations(SCHEMA(), plain(PLATFORM.replace(old, new)))


# --- the page


def _blocks() -> Mapping[str, str]:
    """The files that the page shows, by where they belong."""
    found = re.findall(r"^```(?:yaml|json)\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    platform, team, schema = found
    return {"workflows.yaml": platform, "teams/orders/tools.yaml": team, "teams/orders/order.json": schema}
