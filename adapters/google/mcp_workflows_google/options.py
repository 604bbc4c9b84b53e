"""Options of one tool on Google Cloud Workflows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from pydantic import BaseModel, ConfigDict, Field

from mcp_workflows.adapter import JSON, read_options


class GoogleOptions(BaseModel):
    """Options of one tool on Google Cloud Workflows."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    progress: bool = Field(
        default=True,
        description="Whether a look at a running execution reads the step it is in (view FULL, which brings argument "
        "and result along). `false`: only whether it runs, until it has ended. A tool with gates reads it anyway.",
    )

    @classmethod
    def read(cls, options: Mapping[str, JSON]) -> Self:
        """Validate the options of a start, which are stored with its task.

        Raises:
            EngineRefused: they are invalid.
        """
        return read_options(cls, options)
