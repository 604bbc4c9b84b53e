"""The protocol of a host, which performs the effects of a workflow and journals them for replays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from mcp_workflows_google_local import JSON

Path: TypeAlias = tuple[str | int, ...]
"""Identifies one effect in one execution, the same in every replay: branch and iteration names, then a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step, by its routine (main or a subworkflow) and its name."""

    routine: str
    step: str


class Host(Protocol):
    """Everything that is nondeterministic or has effects.

    The effects, their arguments, and their results:
        - sys.now {} -> seconds since 1970 (float).
        - uuid.generate {} -> str.
        - sys.sleep {seconds: int | float} -> None (also the delays of `retry` and sys.sleep_until).
        - sys.log {severity: str, and text: str, data or json: a value} -> None.
        - http.request {method, url (with its query), headers: {str: str}, body: base64 str | None, timeout: seconds,
            auth: {type: OIDC | OAuth2, audience?, scope?, scopes?} | None}
            -> {code: int, headers: {lower-case name: str}, body: base64 str}, for any code. The language makes the
            HttpError and decodes the body. Without a response it raises failure(tag, "...") of CONNECTION_FAILED
            (never connected), CONNECTION (connection lost), TIMEOUT or AUTH.
        - events.create_callback_endpoint {http_callback_method: str} -> {"url": str, ...}.
        - events.await_callback {callback: the map of create, timeout: seconds}
            -> {http_request: {body, headers, method, query, url}, received_time: str, type: "HTTP"}.
            Raises failure(Tag.TIMEOUT, "...") without a request.
    Raised WorkflowErrors are also results, and are journaled. Results may be kept and are never changed.
    """

    @property
    def env(self) -> Mapping[str, str]:
        """The variables for sys.get_env: Google's (GOOGLE_CLOUD_PROJECT_ID, ...), and the user's own."""
        ...

    def at(self, steps: Sequence[Step]) -> None:
        """Set the current steps: one, or one per running branch of `parallel`."""
        ...

    async def effect(self, name: str, arguments: Mapping[str, JSON], path: Path) -> JSON:
        """Perform an effect, or return its earlier result under this path.

        Raises:
            WorkflowError: the effect failed, and the workflow may catch that.
        """
        ...
