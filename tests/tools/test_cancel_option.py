"""What a tool may say of the end of its executions, and what is said of it if that cannot be."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from mcp_workflows_google.adapter import GoogleAdapter
from mcp_workflows_stepfunctions.adapter import StepFunctionsAdapter
from mcp_workflows_temporal.adapter import TemporalAdapter
from pydantic import ValidationError

from mcp_workflows import Tool, WatchTool
from mcp_workflows.adapter import Adapter
from mcp_workflows.adapter.memory import MemoryAdapter
from mcp_workflows.kit.functions import FunctionsAdapter
from mcp_workflows.tools.compatibility import find_incompatibilities
from mcp_workflows.tools.tool import AfterCancel, OnExpire
from tests.sidecar.config.test_config_schema import complaints
from tests.support.config_files import load, problems

ENGINES = """\
engines:
  orders: {adapter: temporal, task_queue: orders}
  here: {adapter: memory}
  machines: {adapter: stepfunctions, region: us-east-1}
"""


def written(engine: str, cancel: str, more: str = "") -> str:
    """A configuration with one tool; what is wrong with it is in line 9 or 10."""
    return f"{ENGINES}tools:\n  ship:\n    engine: {engine}\n    workflow: Ship\n    cancel: {cancel}\n{more}"


def test_a_tool_says_how_long_a_cancellation_may_take_and_what_becomes_of_it_when_it_expires(tmp_path: Path) -> None:
    text = written("orders", "{grace: 30s, then: terminate}", "    on_expire: cancel\n")
    (tool,) = load(tmp_path, text).tools
    assert (tool.grace, tool.cancels_on_expiry) == (30, True)
    assert complaints(text) == []
    (plain,) = load(tmp_path, f"{ENGINES}tools:\n  ship: {{engine: orders, workflow: Ship}}\n").tools
    assert (plain.grace, plain.cancels_on_expiry, plain.on_expire) == (None, False, OnExpire.KEEP)


@pytest.mark.parametrize(
    ("cancel", "ours", "theirs"),
    [
        ("{signal: stop, args: [1]}", None, {"signal": "stop", "args": [1]}),
        ("{signal: stop, grace: 1m}", AfterCancel(grace=timedelta(minutes=1)), {"signal": "stop"}),
        ("{grace: 1m}", AfterCancel(grace=timedelta(minutes=1)), None),
    ],
)
def test_how_temporal_is_asked_to_cancel_and_what_follows_are_written_in_one_place(
    tmp_path: Path, cancel: str, ours: AfterCancel | None, theirs: Any
) -> None:
    text = written("orders", cancel)
    (tool,) = load(tmp_path, text).tools
    assert (tool.cancel, tool.options.get("cancel")) == (ours, theirs)
    assert complaints(text) == []


@pytest.mark.parametrize(
    ("engine", "cancel", "said"),
    [
        (
            "orders",
            "{grce: 30s}",
            "cancel.grce: unknown key; did you mean 'grace'? (known: args, grace, signal, then)",
        ),
        ("orders", "{grace: 30}", "cancel.grace: a duration is a number and a unit: 500ms, 30s, 15m, 12h, 7d or 2w"),
        ("orders", "{then: terminate}", "cancel.grace: is missing"),
        ("orders", "{grace: 30s, then: shoot}", "cancel.then: must be 'terminate'"),
        ("orders", "{}", "cancel.grace: is missing"),
        ("orders", "soon", "cancel: must be a mapping"),
        ("here", "{signal: stop, grace: 1s}", "cancel.signal: unknown key (known: grace, then)"),
        (
            "machines",
            "{grace: 30s}",
            "cancel: a cancellation ends executions of this engine at once: remove `cancel`",
        ),
    ],
)
def test_what_is_wrong_with_it_is_said_with_its_line(tmp_path: Path, engine: str, cancel: str, said: str) -> None:
    assert problems(tmp_path, written(engine, cancel)) == [f"9: tools.ship.{said}"]


@pytest.mark.parametrize("setting", [{"cancel": {"grace": "1s"}}, {"on_expire": "cancel"}])
def test_who_may_not_cancel_what_they_watch_may_not_have_it_ended_either(setting: dict[str, Any]) -> None:
    tool = {"name": "t", "engine": "orders", "workflow": "Ship", "kind": "watch", **setting}
    with pytest.raises(ValidationError, match="only with allow_cancel: true"):
        WatchTool.model_validate(tool)
    WatchTool.model_validate({**tool, "allow_cancel": True})


AT_ONCE = "a cancellation ends executions of this engine at once: remove `cancel`"


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (TemporalAdapter, None),
        (MemoryAdapter, None),
        (FunctionsAdapter, "the adapter of this engine cannot terminate executions: remove `cancel`"),
        (StepFunctionsAdapter, AT_ONCE),
        (GoogleAdapter, AT_ONCE),
    ],
)
def test_a_grace_needs_an_engine_that_can_be_gentle_and_then_terminate(kind: type[Adapter], said: str | None) -> None:
    tool = Tool.model_validate({"name": "t", "engine": "e", "workflow": "w", "cancel": {"grace": "1s"}})
    assert dict(find_incompatibilities(tool, kind)).get("cancel") == said
