"""What a tool says of the end of its executions: after a cancellation, and when the time to live is over; pure."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field

from mcp_workflows.units import Duration


class Then(StrEnum):
    """What is done to an execution that does not end although it was asked to."""

    TERMINATE = "terminate"


class OnExpire(StrEnum):
    """What becomes of an execution that still runs when its task cannot be read any more."""

    KEEP = "keep"
    CANCEL = "cancel"


class AfterCancel(BaseModel):
    """How long an execution that was asked to cancel may take, and what then."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    grace: Duration = Field(
        description="How long it may take to end, from when its engine has taken the cancellation.", examples=["30s"]
    )
    then: Then = Field(
        default=Then.TERMINATE,
        description="What is done if it has not ended by then: `terminate`, which asks nobody and cleans nothing up.",
    )
