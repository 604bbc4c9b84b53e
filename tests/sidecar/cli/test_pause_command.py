"""`mcp-workflows pause` and `resume`."""

from __future__ import annotations

import json

from tests.sidecar.cli.terminal import Terminal

CONFIG = """
store: sqlite:///tasks.db
audit: {to: audit.jsonl}
engines: {shop: {adapter: memory}}
tools: {charge: {engine: shop, workflow: echo}}
"""


def test_a_pause_is_shown_recorded_and_ended(terminal: Terminal) -> None:
    (terminal.folder / "workflows.yaml").write_text(CONFIG)
    paused = terminal.run("pause", "--tool", "charge", "--reason", "the bank is down")
    assert (paused.code, paused.out.strip()) == (0, "paused: starts of tool charge")
    shown = terminal.run("check")
    assert "starts of tool charge have been paused since" in " ".join(shown.out.split())
    other = terminal.run("resume")
    assert (other.code, "everything is not paused; paused: tool charge" in other.err) == (1, True)
    assert terminal.run("resume", "--tool", "charge", "--reason", "it is back").code == 0
    assert "paused" not in terminal.run("check").out
    lines = [json.loads(line) for line in (terminal.folder / "audit.jsonl").read_text().splitlines()]
    found = [(line["event"], line["outcome"], line["reason"], line["principal"]) for line in lines]
    assert found == [
        ("pause", "paused", "tool charge: the bank is down", "operator"),
        ("pause", "resumed", "tool charge: it is back", "operator"),
    ]


def test_what_has_left_the_configuration_can_be_resumed(terminal: Terminal) -> None:
    place = terminal.folder / "workflows.yaml"
    place.write_text(CONFIG)
    assert terminal.run("pause", "--tool", "charge", "--reason", "the bank is down").code == 0
    place.write_text(CONFIG.replace("charge", "bill"))
    assert terminal.run("resume", "--tool", "charge").out.strip() == "resumed: starts of tool charge"


def test_what_cannot_be_paused_is_said(terminal: Terminal) -> None:
    (terminal.folder / "workflows.yaml").write_text(CONFIG)
    assert terminal.run("pause").code == 2
    wrong = terminal.run("pause", "--tool", "charg", "--reason", "x")
    assert (wrong.code, "there is no tool 'charg'; did you mean 'charge'?" in wrong.err) == (1, True), wrong.err
    both = terminal.run("pause", "--tool", "charge", "--engine", "shop", "--reason", "x")
    assert (both.code, "give one of" in both.err) == (1, True)
