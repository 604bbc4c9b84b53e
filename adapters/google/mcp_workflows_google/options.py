"""What one tool may set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from pydantic import BaseModel, ConfigDict, Field

from mcp_workflows.adapter import JSON, read_options


class GoogleOptions(BaseModel):
    """One tool on Google Cloud Workflows."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    progress: bool = Field(
        default=True,
        description="Whether a look at a running execution reads the step it is in (view FULL, which brings argument "
        "and result along). `false`: only whether it runs, until it has ended. A tool with gates reads it anyway.",
    )

    @classmethod
    def read(cls, options: Mapping[str, JSON]) -> Self:
        """The options of a start, frozen with its task.

        Raises:
            EngineRefused: they are wrong.
        """
        return read_options(cls, options)
