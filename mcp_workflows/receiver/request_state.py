"""The call at hand, for what happens between the two parts of the middleware: the server's own tool functions."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from mcp_workflows.receiver.context import Context
from mcp_workflows.receiver.tool_list import Offer
from mcp_workflows.wire.commands import CallOutcome


@dataclass(slots=True)
class CurrentCall:
    """What was offered when the call came, and its `requestState` in plain text, in and then out.

    While a tool function of the server's own runs, also its context, and what came of it if it handed over.
    """

    offer: Offer
    text: str | None = None
    offered: bool | None = None  # whether the tool is there for the caller, once that was asked
    ctx: Context | None = None
    handed: bool = False
    outcome: CallOutcome | None = None


_call: ContextVar[CurrentCall] = ContextVar("mcp_workflows_call")


def current_call() -> CurrentCall | None:
    """The call at hand, if there is one."""
    return _call.get(None)


@contextmanager
def having(call: CurrentCall) -> Generator[None]:
    """This is the call at hand."""
    token = _call.set(call)
    try:
        yield
    finally:
        _call.reset(token)
