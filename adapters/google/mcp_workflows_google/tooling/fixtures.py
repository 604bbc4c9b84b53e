"""Workflows of known behaviour, for `mcp-workflows verify`."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, TypeVar

import anyio
import anyio.to_thread
from google.api_core.exceptions import GoogleAPICallError
from httpx2 import HTTPError

from mcp_workflows.adapter import Fixtures, Observation, Question, Role
from mcp_workflows.errors import EngineRefused, EngineUnavailable
from mcp_workflows_google.client import Client
from mcp_workflows_google.credentials import AUTH_ERRORS, credentials_error
from mcp_workflows_google.settings import GoogleSettings
from mcp_workflows_google.tooling.deployment import Deployment, FixtureSettings, code
from mcp_workflows_google.tooling.engine_questions import ECHO, QUESTIONS, SLEEP

NOTICE: Final = (
    "Some 20 small workflows named mcp-workflows-verify-... are deployed, run a few times each, and removed. That "
    "takes about ten minutes, as Google's list may lag, and costs less than a cent. The credentials need "
    "roles/workflows.admin on the project, and roles/iam.serviceAccountUser on the account that the workflows run as."
)
_FAILURE: Final = "the card was declined"
_FAILS: Final = f"main: {{steps: [{{charging: {{raise: {{code: 402, message: {_FAILURE}, tags: [CardDeclined]}}}}}}]}}"
_SOURCES: Final[Mapping[str, str]] = {"finishes": ECHO, "fails": _FAILS, "endless": SLEEP}
_OTHER_WORKFLOW: Final = (
    "executions are listed by workflow; keys are made of the tool, so no two workflows get the same one"
)
T = TypeVar("T")


@asynccontextmanager
async def fixtures(client: Client, engine: GoogleSettings, settings: FixtureSettings) -> AsyncGenerator[Fixtures]:
    """Deploy the workflows, and remove them in the end.

    Raises:
        EngineRefused, EngineUnavailable: they cannot be deployed, or not be removed.
    """
    place = (await client.place()).name
    at = await _called(engine, partial(Deployment.open, engine, place, settings))
    try:
        yield _of(engine, at, await _called(engine, partial(_deploy, at)))
    finally:
        with anyio.CancelScope(shield=True):
            await _called(engine, at.remove)


def _deploy(at: Deployment) -> Mapping[str, str]:
    return {part: at.workflow(source) for part, source in _SOURCES.items()}


def _of(engine: GoogleSettings, at: Deployment, names: Mapping[str, str]) -> Fixtures:
    echo = names["finishes"]
    return Fixtures(
        finishes=Role(workflow=echo, arguments=[{"text": "hi"}]),
        output={"text": "hi"},
        other_arguments=[{"text": "ho"}],
        fails=Role(workflow=names["fails"]),
        failure=_FAILURE,
        endless=Role(workflow=names["endless"]),
        asks=Role(workflow="", missing="questions come in over HTTP: see --set sidecar=URL, at the end"),
        asks_two=Role(workflow="", missing="questions come in over HTTP: see --set sidecar=URL, at the end"),
        refused=Role(workflow=f"{echo}-nobody"),
        unknown_handle=f"{echo}/executions/{uuid.uuid4()}",
        gaps={"another_workflow_under_the_same_key_is_refused": _OTHER_WORKFLOW},
        questions={(each.__doc__ or "").strip(): _question(engine, at, each) for each in QUESTIONS},
    )


def _question(engine: GoogleSettings, at: Deployment, ask: Callable[[Deployment], Iterator[Observation]]) -> Question:
    async def asked() -> Sequence[Observation]:
        return await _called(engine, lambda: list(ask(at)))

    return asked


async def _called(engine: GoogleSettings, function: Callable[[], T]) -> T:
    """Run a function in a thread.

    Raises:
        EngineRefused, EngineUnavailable: Google says no, or nothing.
    """
    try:
        return await anyio.to_thread.run_sync(function)
    except GoogleAPICallError as error:
        raise EngineRefused(f"Google says {code(error)}") from None
    except HTTPError as error:
        raise EngineUnavailable(f"Google cannot be asked ({type(error).__name__})") from None
    except AUTH_ERRORS as error:
        raise credentials_error(error, engine) from None
