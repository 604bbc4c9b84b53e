"""`mcp-workflows verify` with tools on job APIs, and its recordings, which replay as they were seen."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
from mcp_workflows_http import HttpAdapter

from adapters.http.tests.buildbot_engine import Buildbot
from adapters.http.tests.jobs_api import DEFINITION, FIND, TOKEN, jobs_api
from adapters.http.tests.toil_engine import Toil
from mcp_workflows.adapter import Replays
from mcp_workflows.adapter.recordings import Recording, Verdict, load_recording, replay_differences
from mcp_workflows.errors import ConfigError
from tests.support.commands import COMMAND, run

ROOT = Path(__file__).parents[3]
RECORDINGS = Path(__file__).with_name("recordings")
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


async def verified(config: Path, *more: str) -> Recording:
    """What the command has recorded; nothing may be broken."""
    file = config.with_name("recording.json")
    command = [COMMAND, "verify", "jobs", "-c", str(config), "--yes", "--record", str(file), *PARTS, *PATIENT, *more]
    done = await anyio.to_thread.run_sync(partial(run, command, seconds=900))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "does not replay" not in done.stderr
    assert "Nobody has run this command in a cloud yet" in done.stdout
    recording = load_recording(file)
    assert replay_differences(HttpAdapter, recording) == []
    return recording


def assert_held(recording: Recording, number: int) -> None:
    """Hold that so many promises are held; the error says what became of the others."""
    others = [each for each in recording.promises if each.verdict is not Verdict.HELD]
    assert len(recording.promises) - len(others) == number, others


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
        recording = await verified(config, "--asks", "ask", "--answer", "answer=yes")
        assert_held(recording, promises)
        assert {job.shown()["state"] for job in api.jobs.values()} == {"done", "error", "stopped"}
    assert [each.part for each in recording.executions] == ["finishes", "fails", "endless", "asks"]
    assert TOKEN not in (tmp_path / "recording.json").read_text()


@pytest.mark.process
async def test_the_preset_of_buildbot_is_verified(buildbot: Buildbot, tmp_path: Path) -> None:
    config = configured(
        tmp_path, {"preset": "buildbot", "url": buildbot.url}, echo="echo", decline="decline", forever="forever"
    )
    recording = await verified(config)
    assert_held(recording, 17)
    assert "hunter22" not in (tmp_path / "recording.json").read_text()


@pytest.mark.process
async def test_the_preset_of_wes_is_verified_on_toil(toil: Toil, tmp_path: Path) -> None:
    workflows = {name: toil.workflow(name) for name in ("echo", "decline", "forever")}
    recording = await verified(configured(tmp_path, {"preset": "wes", "url": toil.url}, **workflows))
    assert_held(recording, 9)


@pytest.mark.parametrize("file", sorted(RECORDINGS.iterdir()), ids=lambda file: file.stem)
async def test_a_recording_replays_as_it_was_seen(file: Path) -> None:
    recording = load_recording(file)
    assert [each.part for each in recording.executions][:3] == ["finishes", "fails", "endless"]
    assert replay_differences(HttpAdapter, recording) == []


async def test_the_test_of_the_page_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [block] = re.findall(r"```python\n(.*?)```", (ROOT / "docs/verify.md").read_text(), re.DOTALL)
    (tmp_path / "recording.json").write_text((RECORDINGS / "buildbot.json").read_text())
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(block, names)
    names["test_our_api_is_read_as_it_was"]()


async def test_the_adapter_replays_nothing_that_is_no_recording_of_it() -> None:
    assert issubclass(HttpAdapter, Replays)
    histories: list[Any] = [{"events": []}, [], {"definition": {}, "handle": {}, "looks": []}]
    for history in histories:
        with pytest.raises(ConfigError, match="this is not a history of an HTTP engine"):
            HttpAdapter.replay(history, {})


async def test_a_recording_that_lacks_a_reply_says_which() -> None:
    [history, *_] = [each.history for each in load_recording(RECORDINGS / "jobs.json").executions]
    with pytest.raises(ConfigError, match="no reply to GET /jobs/"):
        HttpAdapter.replay({**history, "looks": [[]]}, {})
