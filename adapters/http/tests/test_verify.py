"""`mcp-workflows verify` with tools on job APIs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

from adapters.http.tests.buildbot_engine import Buildbot
from adapters.http.tests.jobs_api import DEFINITION, FIND, TOKEN, jobs_api
from adapters.http.tests.toil_engine import Toil
from tests.support.commands import COMMAND, run

TEXT: Mapping[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}}
PARTS = ["--finishes", "echo text=hi", "--other", "echo text=ho", "--fails", "decline", "--endless", "forever"]
PATIENT = ["--patience", "150"]  # Toil may take 60 s to say that a run is cancelled (its MAX_CANCELING_SECONDS)
pytestmark = pytest.mark.anyio


def configured(folder: Path, engine: Mapping[str, Any], **workflows: str) -> Path:
    """A workflows.yaml with one engine, `jobs`, and a tool for each of these workflows."""
    tools = {name: {"engine": "jobs", "workflow": workflow, "input": TEXT} for name, workflow in workflows.items()}
    written = folder / "workflows.yaml"
    written.write_text(json.dumps({"engines": {"jobs": {"adapter": "http", **engine}}, "tools": tools}))
    return written


async def verified(config: Path, *more: str) -> Mapping[str, str]:
    """The verdict on each promise; nothing may be broken, and no secret is shown."""
    command = [COMMAND, "verify", "jobs", "-c", str(config), "--yes", "--json", *PARTS, *PATIENT, *more]
    done = await anyio.to_thread.run_sync(partial(run, command, seconds=900))
    assert done.returncode == 0, done.stdout + done.stderr
    assert TOKEN not in done.stdout + done.stderr
    assert "hunter22" not in done.stdout + done.stderr
    return {each["promise"]: each["verdict"] for each in json.loads(done.stdout)["promises"]}


def assert_held(found: Mapping[str, str], number: int) -> None:
    """Hold that so many promises are held; the error says what became of the others."""
    assert list(found.values()).count("held") == number, found


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    ("more", "promises"),
    [({"starts": "keyed"}, 20), ({"starts": "findable", "find": FIND}, 22), ({"starts": "once"}, 14)],
    ids=["keyed", "findable", "once"],
)
async def test_each_guarantee_is_verified_with_tools_of_the_user(
    more: Mapping[str, Any], promises: int, tmp_path: Path
) -> None:
    async with jobs_api(dedupes=more["starts"] == "keyed") as (api, url):
        engine = {**DEFINITION, "url": url, "timeout": "4s", **more}
        config = configured(tmp_path, engine, echo="echo", decline="decline", forever="forever", ask="ask")
        found = await verified(config, "--asks", "ask", "--answer", "answer=yes")
        assert_held(found, promises)
        assert {job.shown()["state"] for job in api.jobs.values()} == {"done", "error", "stopped"}


@pytest.mark.process
async def test_the_preset_of_buildbot_is_verified(buildbot: Buildbot, tmp_path: Path) -> None:
    config = configured(
        tmp_path, {"preset": "buildbot", "url": buildbot.url}, echo="echo", decline="decline", forever="forever"
    )
    found = await verified(config)
    assert_held(found, 17)


@pytest.mark.process
async def test_the_preset_of_wes_is_verified_on_toil(toil: Toil, tmp_path: Path) -> None:
    workflows = {name: toil.workflow(name) for name in ("echo", "decline", "forever")}
    found = await verified(configured(tmp_path, {"preset": "wes", "url": toil.url}, **workflows))
    assert_held(found, 9)
