"""One execution in the form of the API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from google.cloud.workflows import executions_v1 as api

from mcp_workflows_google_local.language.host import Step

State = api.Execution.State
ENDED: Final = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED})


@dataclass(slots=True, kw_only=True)
class Record:
    """One execution: its stored part (all except the current steps), and its position."""

    workflow: str
    execution: str
    created: datetime
    kept: Any  # api.Execution, whose types do not allow Python's own values in fields
    steps: Sequence[Step] = ()

    @property
    def state(self) -> Any:
        """The state of the execution."""
        return self.kept.state

    @property
    def ended(self) -> bool:
        """True if the execution has ended."""
        return self.kept.state in ENDED

    @property
    def data(self) -> bytes:
        """The stored part as bytes."""
        kind: Any = api.Execution  # partly typed
        return bytes(kind.serialize(self.kept))

    def start(self) -> None:
        """Record the start of the run."""
        self.kept.state = State.ACTIVE
        self.kept.start_time = now()

    def end(self, state: int) -> None:
        """Record the end."""
        moment = now()
        self.kept.end_time = moment
        self.kept.duration = moment - (self.started or moment)
        self.kept.state = state
        self.kept.status = self._status()

    @property
    def started(self) -> datetime | None:
        """The start of the run; None while the execution is queued."""
        return moment(self.kept, "start_time")

    @property
    def at_end(self) -> datetime | None:
        """The end time, if it has ended."""
        return moment(self.kept, "end_time")

    def _status(self) -> Any:
        steps = [{"routine": step.routine, "step": step.step} for step in self.steps]
        return api.Execution.Status(current_steps=steps)

    def shown(self, *, full: bool) -> Any:
        """Return the execution in the full or the basic view."""
        kept = self.kept
        if full:
            shown: Any = api.Execution(kept)
            if not self.ended:
                shown.status = self._status()
            return shown
        return api.Execution(
            name=kept.name,
            start_time=kept.start_time,
            end_time=kept.end_time,
            duration=kept.duration,
            state=kept.state,
            workflow_revision_id=kept.workflow_revision_id,
        )


def moment(kept: Any, name: str) -> datetime | None:
    """Return a time from the stored part, if set."""
    return getattr(kept, name) if name in kept else None


def now() -> datetime:
    """Return the current time in the API's form."""
    return datetime.now(UTC)
