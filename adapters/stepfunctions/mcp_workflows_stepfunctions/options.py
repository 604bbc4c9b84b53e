"""The options of one tool."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from mcp_workflows import Duration
from mcp_workflows.adapter import JSON, read_options
from mcp_workflows.errors import EngineRefused
from mcp_workflows_stepfunctions.settings import SESSION

LONGEST_EXPRESS = timedelta(minutes=5)  # the longest run of an Express workflow


class StepFunctionsOptions(BaseModel):
    """One tool on AWS Step Functions."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    express: bool = Field(
        default=False,
        description="The state machine is an Express one. It runs within the call and is no task (`tasks: forbidden`).",
    )
    timeout: Duration | None = Field(
        default=None,
        description="With `express`: how long a call waits for it. Default, and at most: 5m, Express's own limit.",
    )
    history: bool = Field(
        default=True,
        description="Whether a look at a running execution reads its history: for questions, gates, the state it is "
        "in and the progress of a Map. `false` saves one call of a scarce quota where nobody is asked.",
    )

    source_identity: str | None = Field(
        default=None,
        description="On whose behalf executions are started and stopped: `{{principal.subject}}`. These calls are made "
        "with a session of the engine's `assume_role` for this caller alone, whose source identity CloudTrail shows. "
        "2 to 64 letters, digits or any of _+=,.@-; whoever has another is refused.",
    )

    @model_validator(mode="after")
    def _only_what_counts(self) -> Self:
        if self.timeout is not None and not self.express:
            raise ValueError("timeout: only with express: true; a Standard state machine has its own TimeoutSeconds")
        if self.timeout is not None and self.timeout > LONGEST_EXPRESS:
            raise ValueError("timeout: an Express workflow ends within 5m")
        if self.express and "history" in self.model_fields_set:
            raise ValueError("history: an Express execution has none; leave it out")
        return self

    @classmethod
    def read(cls, options: Mapping[str, JSON]) -> Self:
        """Return the options of a start, which are kept with its task.

        Raises:
            EngineRefused: they are not valid.
        """
        return read_options(cls, options)

    @property
    def caller(self) -> str | None:
        """The source identity with its values filled in.

        Raises:
            EngineRefused: AWS does not accept it.
        """
        name = self.source_identity
        if name is not None and not SESSION.fullmatch(name):
            raise EngineRefused(
                "the source_identity of this tool, as it is filled in for who calls, is none that AWS takes: 2 to 64 "
                "letters, digits or any of _+=,.@-",
                final=True,
            )
        return name

    @property
    def patience(self) -> timedelta:
        """The longest time that a call waits for an Express execution."""
        return self.timeout or LONGEST_EXPRESS
