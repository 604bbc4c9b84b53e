"""The settings of a DBOS engine with workflows in this process, or in workers elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from mcp_workflows.adapter import JSON
from mcp_workflows.kit.definition import MessageName
from mcp_workflows_dbos.workflow import ANSWER

_MODEL = ConfigDict(extra="forbid", frozen=True)
_DIALECTS = frozenset({"sqlite", "postgresql"})


def is_sqlite(url: str) -> bool:
    """True for an SQLite file; False for PostgreSQL."""
    return make_url(url).get_backend_name() == "sqlite"


class DbosSettings(BaseModel):
    """Settings of an engine with `adapter: dbos`."""

    model_config = _MODEL

    module: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$",
        description="The Python module with the workflows, which run in this process: `app` is app.py beside "
        "this file. Default: none; workers in other processes take executions from `queue`.",
    )
    database: SecretStr | None = Field(
        default=None,
        description="The system database of DBOS: sqlite:////srv/app.db or postgresql://user@host/name. "
        "Default: an SQLite file beside `module`, named after it.",
    )
    queue: str | None = Field(default=None, min_length=1, description="The queue for tools that set none.")
    application: str | None = Field(
        default=None,
        min_length=3,
        description="The name of the DBOS application, for workers that share a database with other "
        "applications. Default with `module`: derived from its name.",
    )
    version: str | None = Field(
        default=None,
        min_length=1,
        description="The version of the code in `module`. Default: DBOS's hash of the workflows' source.",
    )

    @field_validator("database")
    @classmethod
    def _is_a_database(cls, value: SecretStr | None) -> SecretStr | None:
        if value is None:
            return None
        try:
            url = make_url(value.get_secret_value())
        except ArgumentError:
            url = None
        if url is None or url.get_backend_name() not in _DIALECTS or url.database in (None, "", ":memory:"):
            raise ValueError("must be the URL of an SQLite file or a PostgreSQL database")
        return value

    @model_validator(mode="after")
    def _has_workers(self) -> Self:
        if self.module is None and self.database is None:
            raise ValueError("needs `module` (workflows in this process) or `database` (workers in other processes)")
        if self.module is None and self.version is not None:
            raise ValueError("`version` is that of the code in `module`: workers in other processes set their own")
        return self

    def queue_of(self, options: Mapping[str, JSON]) -> str | None:
        """Return the queue in these options of a tool, or else the engine's."""
        queue: str | None = options.get("queue")
        return queue or self.queue


class DbosOptions(BaseModel):
    """Options of a tool on an engine with `adapter: dbos`."""

    model_config = _MODEL

    queue: str | None = Field(
        default=None, min_length=1, description="The queue for this tool's executions. Default: the engine's."
    )


class DbosAction(BaseModel):
    """A message to the execution of a task: one of `send` and `event`."""

    model_config = _MODEL

    send: MessageName | None = Field(
        default=None,
        description="Send a message on this topic, which the workflow receives (`DBOS.recv`).",
    )
    event: MessageName | None = Field(default=None, description="Read this event of the workflow (`DBOS.set_event`).")

    @field_validator("send", "event")
    @classmethod
    def _is_no_answer(cls, name: str | None) -> str | None:
        if name and name.startswith(ANSWER):
            raise ValueError(f"topics that begin with {ANSWER} are those of answers to questions")
        return name

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.send is None) == (self.event is None):
            raise ValueError("write one of send and event")
        return self
