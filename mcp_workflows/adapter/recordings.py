"""Recordings of `mcp-workflows verify`: what a real engine said, as a file that `replay` and tests take.

See `mcp-workflows docs verify` for the format; a change that older readers cannot take raises `VERSION`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Literal, cast

from pydantic import BaseModel, ConfigDict, ValidationError

from mcp_workflows.adapter.boundary import JSON, Execution
from mcp_workflows.adapter.capabilities import Replays
from mcp_workflows.errors import ConfigError

VERSION: Final = 1
_END: Final = 200  # characters of a failure
_MODEL: Final = ConfigDict(extra="forbid", frozen=True)


class Verdict(StrEnum):
    """The verdict on a promise."""

    HELD = "held"
    BROKEN = "broken"
    NOT_TRIED = "not tried"
    NOTED = "noted"  # there is nothing that it should be


class Promise(BaseModel):
    """One promise of the boundary, or one answer of the engine that the adapter relies on."""

    model_config = _MODEL

    promise: str
    verdict: Verdict
    seen: str = ""  # the reason, or what the engine said
    expected: str = ""


class RecordedExecution(BaseModel):
    """One execution: the history as `Replays.replay` takes it, and how it ended for the adapter."""

    model_config = _MODEL

    part: str  # finishes, fails, endless, asks
    workflow: str
    arguments: JSON = None
    seen: Mapping[str, Any]  # see `outcome`
    history: JSON = None  # None: the adapter has no `Records`


class Recording(BaseModel):
    """One run of `mcp-workflows verify`, sanitized."""

    model_config = _MODEL

    recording: Literal[1] = VERSION
    adapter: str
    date: str  # the day, in UTC
    versions: Mapping[str, str]  # of Python and of the distributions
    promises: tuple[Promise, ...]
    measured: Mapping[str, float]
    executions: tuple[RecordedExecution, ...] = ()


def outcome(execution: Execution) -> Mapping[str, JSON]:
    """Return the parts of an ended execution that a replay must show as well."""
    failure = execution.failure and execution.failure.text
    return {"status": execution.status.value, "output": execution.output, "failure": failure}


def replay_differences(kind: type[Replays], recording: Recording) -> Sequence[str]:
    """Return the executions whose replay ends in another way than it was seen; none: the adapter reads them as then."""
    found = {
        each.part: (each.seen, outcome(kind.replay(each.history, {})[-1].execution))
        for each in recording.executions
        if each.history is not None
    }
    return [f"{part}: seen {seen}, replayed {again}" for part, (seen, again) in found.items() if not _same(seen, again)]


def _same(seen: Mapping[str, JSON], again: Mapping[str, JSON]) -> bool:
    """Compare two outcomes. Of a failure its end counts: the end of a log was cut before it was sanitized."""
    one, other = ({**each, "failure": str(each["failure"])[-_END:]} for each in (seen, again))
    return one == other


def load_recording(path: Path) -> Recording:
    """Return the recording in a file.

    Raises:
        ConfigError: there is none in it.
    """
    found = read_recording(json.loads(path.read_text("utf-8")))
    if found is None:
        raise ConfigError(f"{path} is no recording of `mcp-workflows verify`")
    return found


def read_recording(value: JSON) -> Recording | None:
    """Return the recording that a JSON value is; None if it is none.

    Raises:
        ConfigError: it is a recording of another version, or is damaged.
    """
    if not isinstance(value, dict) or "recording" not in value:
        return None
    found = cast("Mapping[str, JSON]", value)
    if found["recording"] != VERSION:
        raise ConfigError(f"this is a recording of version {found['recording']!r}; this release reads {VERSION}")
    try:
        return Recording.model_validate(found)
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_input=False)[0]
        raise ConfigError(f"this recording is damaged: {'.'.join(map(str, wrong['loc']))}: {wrong['msg']}") from None
