"""The credentials of calls: those that boto3 finds, and the role assumed with them, both at the first call.

boto3 would search for credentials when it creates a client, possibly over the network.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false
# Reason: botocore has no types; its values are Any, and are converted to our types at once.

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from botocore.credentials import AssumeRoleCredentialFetcher, Credentials, DeferredRefreshableCredentials
from botocore.exceptions import CredentialRetrievalError, NoCredentialsError

from mcp_workflows.adapter.redaction import KNOWN
from mcp_workflows_stepfunctions.settings import AssumeRole

_EARLY: Final = 900  # seconds before its end at which a session is renewed, as in botocore
MAX_SESSIONS: Final = 1000  # sessions of callers to keep
_CALLER: ContextVar[str | None] = ContextVar("mcp_workflows_stepfunctions_caller", default=None)
_RETRY_AFTER: Final = 2.0  # seconds: the last source is a metadata service, which may be absent


class LazyCredentials(Credentials):  # type: ignore[misc]  # botocore has no types
    """The credentials of boto3's own chain, found by the first call, and searched again if there were none."""

    def __init__(self, chain: Any) -> None:  # Any: botocore's CredentialResolver
        super().__init__("", "", method="found-later")
        self._chain = chain
        self._found: Any = None  # botocore's Credentials
        self._missed = float("-inf")
        self._lock = threading.Lock()

    def get_frozen_credentials(self) -> Any:
        """Return the credentials. Any: botocore's ReadOnlyCredentials.

        Raises:
            NoCredentialsError: there are none.
            CredentialRetrievalError: a credential_process of the profile, for example, returns something else.
        """
        try:
            with self._lock:
                if self._found is None and time.monotonic() - self._missed > _RETRY_AFTER:
                    self._found = self._chain.load_credentials()
                    self._missed = float("-inf") if self._found else time.monotonic()
                found = self._found
            if found is None:
                raise NoCredentialsError
            return _known(found.get_frozen_credentials())
        except (ValueError, LookupError, TypeError, AttributeError):
            raise CredentialRetrievalError(provider="not readable", error_msg="") from None

    def forget(self) -> None:
        """Search again at the next call: AWS has rejected these, and their file may have changed."""
        with self._lock:
            self._found = None


def _known(frozen: Any) -> Any:  # Any: botocore's ReadOnlyCredentials
    """Return the same credentials; all texts mask them from now on."""
    KNOWN.add(frozen.secret_key, frozen.token)
    return frozen


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedCredentials:
    """A resolver of credentials for botocore that returns the given ones."""

    credentials: Credentials

    def load_credentials(self) -> Credentials:
        """Return the credentials, as botocore's resolver does."""
        return self.credentials


class _Session(DeferredRefreshableCredentials):  # type: ignore[misc]  # botocore has no types
    """A session of a role. Botocore would renew one of 15 minutes at each call, as it always has less than 15 left."""

    def __init__(self, refresh: Callable[[], Any], early: int) -> None:  # Any: what botocore's fetchers return
        super().__init__(refresh_using=refresh, method="assume-role")
        self._advisory_refresh_timeout = early
        self._mandatory_refresh_timeout = early * 2 // 3


class CallerCredentials(Credentials):  # type: ignore[misc]  # botocore has no types
    """The usual credentials; within `acting_as`, those of a session of the role for this caller."""

    def __init__(self, usual: Credentials, session: Callable[[str], Credentials]) -> None:
        super().__init__("", "", method="per-caller")
        self._usual = usual
        self._session = session
        self._sessions: OrderedDict[str, Credentials] = OrderedDict()  # most recently used last
        self._finding = threading.Lock()

    def get_frozen_credentials(self) -> Any:
        """Return the credentials of the call in this thread. Any: botocore's ReadOnlyCredentials."""
        caller = _CALLER.get()
        return _known((self._usual if caller is None else self._of(caller)).get_frozen_credentials())

    def _of(self, caller: str) -> Credentials:
        """Return the credentials of a caller without a call, so that no caller waits for the session of another."""
        with self._finding:
            found = self._sessions.pop(caller, None) or self._session(caller)
            self._sessions[caller] = found
            if len(self._sessions) > MAX_SESSIONS:
                self._sessions.popitem(last=False)
        return found


@contextmanager
def acting_as(caller: str | None) -> Generator[None]:
    """Make the calls within this context for a caller, whom AWS CloudTrail names; None: no caller."""
    token = _CALLER.set(caller)
    try:
        yield
    finally:
        _CALLER.reset(token)


class _BriefClient:
    """A client of STS for one call."""

    def __init__(self, client: Any) -> None:  # Any: botocore has no types
        self._client = client

    def assume_role(self, **arguments: Any) -> Any:
        """Assume a role and close the client. Any: as botocore's fetcher calls it."""
        try:
            return self._client.assume_role(**arguments)
        finally:
            self._client.close()


def role_credentials(role: AssumeRole, own: Credentials, make: Callable[..., Any]) -> Credentials:
    """Return credentials of the role. Any: `make` creates a client of STS with given credentials.

    The first call assumes the role, and later calls renew it in time, always in the thread of the call.
    """
    wanted = {
        "RoleSessionName": role.session_name,
        "ExternalId": role.external_id,
        "SourceIdentity": role.source_identity,
        "DurationSeconds": int(role.duration.total_seconds()),
    }
    early = min(_EARLY, int(role.duration.total_seconds()) // 3)
    fetcher = AssumeRoleCredentialFetcher(
        client_creator=partial(_brief, make),
        source_credentials=own,
        role_arn=role.arn,
        extra_args={key: value for key, value in wanted.items() if value is not None},
        expiry_window_seconds=early,
    )
    return _Session(fetcher.fetch_credentials, early)


def _brief(make: Callable[..., Any], service: str, **keys: str | None) -> _BriefClient:
    return _BriefClient(make(service, **keys))
