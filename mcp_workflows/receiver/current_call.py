"""The current call: state that the two parts of the middleware and the server's own tool functions share."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import anyio

from mcp_workflows.access import Principal
from mcp_workflows.receiver.context import Context
from mcp_workflows.receiver.tool_list import Offer
from mcp_workflows.wire.commands import CallOutcome


@dataclass(slots=True)
class CurrentCall:
    """The tools at the time of the call, and its `requestState` in plain text, incoming and then outgoing.

    While a tool function of the server runs, also its context, and the outcome if it handed over.
    """

    offer: Offer
    principal: Principal
    request_state: str | None = None
    is_offered: bool = False  # the caller may call the tool
    began: float = field(default_factory=anyio.current_time)  # on the event loop's clock
    ctx: Context | None = None
    has_handed_over: bool = False
    outcome: CallOutcome | None = None


_call: ContextVar[CurrentCall] = ContextVar("mcp_workflows_call")


def current_call() -> CurrentCall | None:
    """Return the current call, if there is one."""
    return _call.get(None)


@contextmanager
def as_current_call(call: CurrentCall) -> Generator[None]:
    """Make this the current call of the body."""
    token = _call.set(call)
    try:
        yield
    finally:
        _call.reset(token)
