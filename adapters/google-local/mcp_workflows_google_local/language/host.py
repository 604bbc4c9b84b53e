"""The protocol of a host: it carries out the effects of a workflow, and journals them for replays."""

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
    """Everything that is not deterministic or touches the world.

    The effects, their arguments, and what they answer:
        sys.now {} -> seconds since 1970 (float)
        uuid.generate {} -> str
        sys.sleep {seconds: int | float} -> None (also the delays of `retry` and sys.sleep_until)
        sys.log {severity: str, and text: str, data or json: a value} -> None
        http.request {method, url (with its query), headers: {str: str}, body: base64 str | None, timeout: seconds,
            auth: {type: OIDC | OAuth2, audience?, scope?, scopes?} | None}
            -> {code: int, headers: {lower-case name: str}, body: base64 str} whatever the code is: the language makes
            the HttpError and decodes the body. Without a response it raises failure(tag, "...") of CONNECTION_FAILED
            (never connected), CONNECTION (lost on the way), TIMEOUT or AUTH.
        events.create_callback_endpoint {http_callback_method: str} -> {"url": str, ...}
        events.await_callback {callback: the map of create, timeout: seconds}
            -> {http_request: {body, headers, method, query, url}, received_time: str, type: "HTTP"}.
            Raises failure(Tag.TIMEOUT, "...") when nothing came.
    Raised WorkflowErrors are results too, to be journaled like them. Answers may be kept and are never changed.
    """

    @property
    def env(self) -> Mapping[str, str]:
        """The variables that sys.get_env reads: those of Google (GOOGLE_CLOUD_PROJECT_ID, ...), and the user's own."""
        ...

    def at(self, steps: Sequence[Step]) -> None:
        """These are the current steps now: one, or as many as branches of `parallel` run."""
        ...

    async def effect(self, name: str, arguments: Mapping[str, JSON], path: Path) -> JSON:
        """Do it, or answer what it answered before under this path.

        Raises:
            WorkflowError: it failed, and the workflow may catch that.
        """
        ...
