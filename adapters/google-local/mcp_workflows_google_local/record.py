"""One execution as the API shows it."""

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
    """One execution: what is kept of it (all but the current steps), and where it is."""

    workflow: str
    execution: str
    created: datetime
    kept: Any  # api.Execution, whose types do not say that its fields take Python's own values
    steps: Sequence[Step] = ()

    @property
    def state(self) -> Any:
        """Its state."""
        return self.kept.state

    @property
    def ended(self) -> bool:
        """True if the execution has ended."""
        return self.kept.state in ENDED

    @property
    def data(self) -> bytes:
        """All that is kept, as bytes."""
        kind: Any = api.Execution  # typed in part only
        return bytes(kind.serialize(self.kept))

    def start(self) -> None:
        """It runs from now on."""
        self.kept.state = State.ACTIVE
        self.kept.start_time = now()

    def end(self, state: int) -> None:
        """It has ended now."""
        moment = now()
        self.kept.end_time = moment
        self.kept.duration = moment - (self.started or moment)
        self.kept.state = state
        self.kept.status = self._status()

    @property
    def started(self) -> datetime | None:
        """When it began to run; None: it waits for its turn."""
        return moment(self.kept, "start_time")

    @property
    def at_end(self) -> datetime | None:
        """When it ended, if it has."""
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
    """A time of it, if it is set."""
    return getattr(kept, name) if name in kept else None


def now() -> datetime:
    """The time, as the API writes it."""
    return datetime.now(UTC)
