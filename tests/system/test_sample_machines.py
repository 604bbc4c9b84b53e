"""The samples' state machines, as they are written: a local engine accepts a way to a state that is not there."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.local_engines import SAMPLES

FILES = sorted(SAMPLES.glob("*/stepfunctions/*.asl.json"))
WAITS = ".waitForTaskToken"


def machines(definition: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """A machine, and those within its Parallel and Map states."""
    yield definition
    for state in definition["States"].values():
        for inner in (*state.get("Branches", ()), *filter(None, [state.get("ItemProcessor")])):
            yield from machines(inner)


def ways(state: Mapping[str, Any]) -> Iterator[str]:
    """The states that may come after this one."""
    yield from (state[key] for key in ("Next", "Default") if key in state)
    yield from (way["Next"] for way in (*state.get("Choices", ()), *state.get("Catch", ())))


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.parent.name}-{file.name.partition('.')[0]}")
def test_every_state_is_there_and_can_be_reached_and_a_question_does_not_wait_for_ever(file: Path) -> None:
    for machine in machines(json.loads(file.read_text())):
        states = machine["States"]
        assert {machine["StartAt"], *(way for state in states.values() for way in ways(state))} == set(states)
        waiting = [name for name, state in states.items() if state.get("Resource", "").endswith(WAITS)]
        assert [name for name in waiting if "TimeoutSeconds" not in states[name]] == []
