"""Google credentials and their access tokens, fetched in threads and shared by all callers."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportMissingTypeStubs=false, reportAttributeAccessIssue=false
# Reason: google-auth is partly typed; its values are converted to our types at once.

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import anyio
import google.auth
from google.auth import aws, identity_pool, impersonated_credentials
from google.auth import credentials as kinds
from google.auth import exceptions as auth
from google.auth.transport.requests import Request
from google.oauth2 import credentials as users
from google.oauth2 import service_account

from mcp_workflows.adapter.redaction import KNOWN
from mcp_workflows.errors import EngineRefused, EngineUnavailable
from mcp_workflows.kit.threads import BlockingCall
from mcp_workflows_google.settings import DEMO, GoogleSettings

SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"
_ASKING: Final = 5  # seconds of one request for a token
_AGAIN: Final = 15.0  # seconds until a failed attempt is repeated
_SOON: Final = 0.5  # seconds that a call waits for the repeated attempt, as the error is already known
_REASON = re.compile(r"\b(invalid_grant|invalid_client|unauthorized_client|invalid_scope|access_denied)\b")
_REMEDY: Final = (
    "`gcloud auth application-default login`, or name a file with GOOGLE_APPLICATION_CREDENTIALS or credentials_file"
)
AUTH_ERRORS: Final = (auth.GoogleAuthError, OSError, ValueError)
"""All errors of reading credentials and fetching tokens: invalid files, missing keys, no network."""


class _BoundedRequest(Request):
    """Requests for tokens with an upper limit on google-auth's timeout."""

    def __call__(  # as google-auth defines it, which has no types
        self, url: Any, method: Any = "GET", body: Any = None, headers: Any = None, timeout: Any = None, **more: Any
    ) -> Any:
        ask: Any = super().__call__
        return ask(url, method, body, headers, min(timeout or _ASKING, _ASKING), **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedCredentials:
    """Credentials, and their project."""

    credentials: Any  # of google-auth: duck typed
    project: str | None


def _external(info: Mapping[str, Any]) -> Any:  # see `LoadedCredentials`
    kind = aws if str(info.get("credential_source", {}).get("environment_id", "")).startswith("aws") else identity_pool
    return kind.Credentials.from_info(info, scopes=[SCOPE])


_FILES: Final[Mapping[str, Callable[[Mapping[str, Any]], Any]]] = {
    "service_account": lambda info: service_account.Credentials.from_service_account_info(info, scopes=[SCOPE]),
    "authorized_user": lambda info: users.Credentials.from_authorized_user_info(info, scopes=[SCOPE]),
    "external_account": _external,
    "impersonated_service_account": lambda info: (
        impersonated_credentials.Credentials.from_impersonated_service_account_info(info, scopes=[SCOPE])
    ),
}


class _FileError(ValueError):
    """The file contains no credentials."""


def load(settings: GoogleSettings) -> LoadedCredentials:
    """Load the credentials of these settings; this blocks.

    Raises:
        GoogleAuthError, OSError, ValueError: there are none.
    """
    credentials: Any  # as in `LoadedCredentials`
    if path := settings.credentials_file:
        info: Any = json.loads(Path(path).expanduser().read_text(encoding="utf-8"))
        kind = str(info.get("type")) if isinstance(info, Mapping) else ""
        if kind not in _FILES:
            raise _FileError(f"{path} is no file of credentials: its type must be one of {', '.join(_FILES)}")
        credentials, project = _FILES[kind](info), info.get("project_id")
    else:
        credentials, project = google.auth.default(scopes=[SCOPE], request=_BoundedRequest())
    if settings.impersonate is not None:
        credentials = impersonated_credentials.Credentials(
            source_credentials=credentials, target_principal=settings.impersonate, target_scopes=[SCOPE]
        )
    return LoadedCredentials(credentials=credentials, project=project)


class Credentials:
    """Authorization headers and the project; all callers wait for the same fetch of a token."""

    def __init__(self, settings: GoogleSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._known: LoadedCredentials | None = None
        self._work: BlockingCall[LoadedCredentials] | None = None
        self._failed: Exception | None = None
        self._failed_at = float("-inf")

    async def headers(self) -> Mapping[str, str]:
        """Return the authorization headers of a request over gRPC or HTTP.

        Raises:
            EngineRefused: there are no credentials, or Google does not accept them.
            EngineUnavailable: the token server does not answer; `sent=False`.
        """
        if self._settings.emulator:
            return {"authorization": "Bearer local"}
        state = self._state()
        if state is not kinds.TokenState.FRESH:
            self._collect()
            self._begin()
        if state is kinds.TokenState.INVALID and self._state() is kinds.TokenState.INVALID:
            await self._wait()
        headers: dict[str, str] = {}
        if self._known is None:
            raise self._error()
        self._known.credentials.apply(headers)
        return headers

    async def project(self) -> str:
        """Return the project from the settings, the environment or the credentials, in this order.

        Raises:
            EngineRefused: none of them names a project.
            EngineRefused, EngineUnavailable: see `headers`.
        """
        if self._settings.project or self._settings.emulator:
            return self._settings.project or DEMO
        if project := os.environ.get("GOOGLE_CLOUD_PROJECT"):
            return project
        await self.headers()
        if self._known is None or not self._known.project:
            raise EngineRefused("no project: set project, or GOOGLE_CLOUD_PROJECT; the credentials name none")
        return str(self._known.project)

    def forget(self) -> None:
        """Drop the access token after Google refused it; the next call fetches another one."""
        if self._known is not None:
            self._known.credentials.token = None

    def _state(self) -> Any:  # Any: kinds.TokenState
        return kinds.TokenState.INVALID if self._known is None else self._known.credentials.token_state

    def _begin(self) -> None:
        """Start to fetch a token, unless that is in progress or has just failed."""
        if self._work is None and self._clock() - self._failed_at >= _AGAIN:
            known, settings = self._known, self._settings
            self._work = BlockingCall(lambda: refreshed(known or load(settings)), errors=AUTH_ERRORS)

    async def _wait(self) -> None:
        if self._work is None:
            raise self._error()
        with anyio.move_on_after(_SOON if self._failed else self._settings.timeout_seconds), suppress(*AUTH_ERRORS):
            await self._work.outcome()
        self._collect()
        if self._state() is kinds.TokenState.INVALID:
            raise self._error()

    def _collect(self) -> None:
        """Store the outcome of the fetch, if it has ended."""
        if self._work is None or not self._work.ended:
            return
        work, self._work = self._work, None
        try:
            self._known = work.result()
            self._failed = None
        except AUTH_ERRORS as error:
            self._failed, self._failed_at = error, self._clock()

    def _error(self) -> EngineRefused | EngineUnavailable:
        if self._failed is None:
            late = f"no access token of Google within {self._settings.timeout_seconds:g} s: is there a network?"
            return EngineUnavailable(late, sent=False)
        return credentials_error(self._failed, self._settings)


def refreshed(known: LoadedCredentials) -> LoadedCredentials:
    """Return the credentials with a new access token; this blocks.

    Raises:
        GoogleAuthError, OSError, ValueError: there is none.
    """
    known.credentials.refresh(_BoundedRequest())
    KNOWN.add(known.credentials.token)
    return known


def credentials_error(error: Exception, settings: GoogleSettings) -> EngineRefused | EngineUnavailable:
    """Translate one of `AUTH_ERRORS`. Its own text, which may contain a reply of a token server, is not used."""
    if _is_network(error):
        return EngineUnavailable("cannot get an access token: Google's token server cannot be reached", sent=False)
    if isinstance(error, _FileError):
        return EngineRefused(str(error))
    if (path := settings.credentials_file) and isinstance(error, OSError | ValueError):
        why = f": {error.strerror}" if isinstance(error, OSError) else " is no file of credentials"
        return EngineRefused(f"credentials_file: {path}{why}")
    if isinstance(error, auth.DefaultCredentialsError | OSError | ValueError):
        return EngineRefused(f"found no Google credentials: {_REMEDY}")
    if settings.impersonate and "impersonated" in str(error):
        return EngineRefused(
            f"no permission to act as {settings.impersonate}: grant roles/iam.serviceAccountTokenCreator on it"
        )
    reason = _REASON.search(str(error))
    why = reason[1] if reason else type(error).__name__
    return EngineRefused(f"our Google credentials are of no use any more ({why}): renew them, {_REMEDY}")


def _is_network(error: BaseException) -> bool:
    """Return whether the token server did not answer, so that the credentials may be valid."""
    causes = [error, error.__cause__, *error.args]
    return any(isinstance(each, auth.TransportError) for each in causes) or bool(getattr(error, "retryable", False))
