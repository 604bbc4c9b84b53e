"""The channels of notifications in workflows.yaml: what names them, what is wrong with them, and what is said of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_workflows.adapter.redaction import mask
from mcp_workflows.sidecar.checks import check
from mcp_workflows.sidecar.config.redaction import redact_config
from tests.sidecar.test_reload import HEAD, HERE, edited
from tests.support.config_files import load, problems
from tests.support.endpoint import endpoint, new_secret

SLACK = "https://hooks.slack.com/services/T0/B0/s3cretpath"
CHANNELS = f"notify:\n  releases: {{slack: '{SLACK}'}}\n  ops: {{teams: 'https://example.com/s3cretflow'}}\n"
TOOL = """\
tools:
  deploy:
    engine: here
    workflow: echo
    approval:
      before_start: true
      message: Deploy?
      approvers: {{scopes: [approve]}}
      requester_may_approve: true
      remind: 4h
      notify: {notify}
"""
MISSING = "no channel named 'release'; did you mean 'releases'? (channels: ops, releases)"
GATE = """\
    questions:
      release:
        message: Release?
        when: {}
        send: {}
        approval:
          approvers: {scopes: [approve]}
          notify:
          - release
"""


def test_a_channel_that_is_not_there_is_reported_where_it_is_named_with_a_suggestion(tmp_path: Path) -> None:
    text = HERE + CHANNELS + TOOL.format(notify="[release]")
    [wrong] = problems(tmp_path, text)
    assert wrong == f"16: tools.deploy.approval.notify[0]: {MISSING}"


def test_so_is_one_that_a_gate_names_and_one_of_a_rule_for_tools_that_engines_offer(tmp_path: Path) -> None:
    gated = CHANNELS + HERE.replace("memory", "temporal, task_queue: q") + "tools:\n  ship:\n    engine: here\n"
    found = problems(tmp_path, gated + "    workflow: Ship\n" + GATE)
    [wrong] = [each for each in found if "channel" in each]
    assert wrong == f"18: tools.ship.questions.release.approval.notify[0]: {MISSING}"
    block = "{before_start: true, message: Go?, approvers: {scopes: [a]}, notify: [nobody]}"
    layers = f"defaults: {{approval: {block}}}\n"
    tools = "tools:\n  echo: {engine: here, workflow: echo}\n"
    [wrong] = problems(tmp_path, HERE + layers + tools)
    assert "no channel named 'nobody' (channels: none)" in wrong
    assert wrong.startswith("3: ")


def test_a_channel_with_mistakes_is_reported_without_its_secrets(tmp_path: Path) -> None:
    text = HERE + TOOL.format(notify="[]") + "notify:\n  releases: {slak: 'https://s3cret.example.com'}\n"
    found = problems(tmp_path, text)
    assert any("notify.releases.slak: unknown key; did you mean 'slack'?" in each for each in found)
    text = HERE + TOOL.format(notify="[]") + "notify:\n  a b: {slack: 'http://s3cret.example.com'}\n"
    wrong = "\n".join(problems(tmp_path, text))
    assert "is not a channel name" in wrong
    assert "slack: must be a URL: https://" in wrong
    assert "s3cret" not in wrong


def test_the_secrets_of_channels_are_known_and_hidden_wherever_a_configuration_is_shown(tmp_path: Path) -> None:
    text = HERE + CHANNELS + TOOL.format(notify="[releases, ops]")
    config = load(tmp_path, text)
    shown = redact_config(tmp_path / "workflows.yaml", {}).as_yaml()
    assert "s3cret" not in shown + repr(config) + mask(f"posting to {SLACK} failed")


@pytest.mark.anyio
async def test_check_names_channels_and_warns_of_those_that_nobody_uses_and_of_reminders_that_reach_nobody(
    tmp_path: Path,
) -> None:
    config = load(tmp_path, HEAD + HERE + CHANNELS + TOOL.format(notify="[releases]"))
    report = await check(config)
    channels = {each["name"]: each for each in report.as_json()["channels"]}
    assert channels["releases"]["text"] == "is notified of approvals of deploy"
    assert (channels["releases"]["to"], channels["releases"]["host"]) == ("slack", "hooks.slack.com")
    assert (channels["ops"]["ok"], channels["ops"]["text"]) == (None, "no tool of the configuration names it")
    assert report.problems == 0
    assert [row.state for row in report.rows if row.name == "ops"] == ["warning"]
    assert "s3cret" not in str(report.as_json())
    silent = await check(load(tmp_path, HEAD + HERE + TOOL.format(notify="[]")))
    [tool] = silent.as_json()["tools"]
    assert "remind and escalate notify nobody" in str(tool["hint"])


@pytest.mark.anyio
async def test_a_reload_takes_new_channels_and_forgets_old_ones(tmp_path: Path) -> None:
    secret = new_secret()
    tool = TOOL.format(notify="[program]").replace("{scopes: [approve]}", "{}")
    async with endpoint(secret=secret) as first, endpoint(secret=secret) as second:
        there = [f"notify:\n  program: {{webhook: '{each.url}', secret: {secret}}}\n" for each in (first, second)]
        async with edited(tmp_path, HEAD + HERE + there[0] + tool) as stage:
            await stage.client.call("deploy", {})
            await first.until(lambda: bool(first.events()))
            await stage.save(HEAD + HERE + there[1] + tool)
            await stage.client.call("deploy", {})
            await second.until(lambda: bool(second.events()))
            await stage.save(HEAD + HERE + tool.replace("[program]", "[]"))
            assert stage.sidecar.workflows.channels == {}
    assert [len(each.events()) for each in (first, second)] == [1, 1]
