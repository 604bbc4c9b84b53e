"""The meaning of the errors of an MCP server: the table of this adapter.

Sources: JSON-RPC 2.0, section 5.1; MCP, tools, error handling.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import anyio
import httpx2
import mcp_types as types
from mcp.client.auth import OAuthFlowError
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from mcp_workflows.adapter.display_text import cleaned
from mcp_workflows.adapter.redaction import KNOWN
from mcp_workflows.client import AnswerRejected, TaskNotFound
from mcp_workflows.client.follower import bare
from mcp_workflows.client.http import UNREACHED
from mcp_workflows.client.requests import LOST, OVER
from mcp_workflows.errors import (
    ClientError,
    EngineError,
    EngineRefused,
    EngineUnavailable,
    ExecutionNotFound,
    MappingError,
    NotLetIn,
    ServerUnreachable,
)
from mcp_workflows.kit.expressions import Scope
from mcp_workflows_mcp.reply import Reply

_LONGEST: Final = 300  # characters of a message
_NOT_LET_IN: Final = "not let in"
_SESSION_ENDED: Final = "Session terminated"
_HTTP_ERROR: Final = "Server returned an error response"  # of the SDK: a status of 400 or more without JSON-RPC
_IS_SESSION: Final = re.compile(r"\bsession\b", re.IGNORECASE)
_OF_SESSIONS: Final = frozenset({types.CONNECTION_CLOSED, types.REQUEST_TIMEOUT, types.INVALID_REQUEST})
"""Codes of servers that do not know the session, such as those of the TypeScript SDK after a restart."""
_REFUSED: Final[Mapping[int, bool]] = {
    types.INVALID_PARAMS: True,
    types.METHOD_NOT_FOUND: False,
    types.URL_ELICITATION_REQUIRED: False,
}
"""JSON-RPC errors that are definite refusals; True: because of the input."""
_IS_REFUSAL: Final = re.compile(
    r"\b4(?!08|25|29)\d\d\b|validation error|invalid (arguments?|params?|parameters?|input)|unknown tool"
    r"|unauthori[sz]ed|forbidden|permission denied|bad request",
    re.IGNORECASE,
)
"""Texts of errors that say that nothing was done; any other text leaves it unknown."""


UNEXPECTED: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ClientError,
    ExceptionGroup,
    LookupError,
    MCPError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    anyio.EndOfStream,
    httpx2.HTTPError,
)
"""Errors in our code or the SDK's that no input should cause."""


def ends_connection(error: BaseException) -> bool:
    """True if the connection is unusable."""
    if isinstance(error, ServerUnreachable):
        return f"({OVER})" in str(error)
    return isinstance(error, MCPError) and error.message in {OVER, _SESSION_ENDED}


def knows_no_session(error: BaseException) -> bool:
    """True if a server over HTTP probably does not know the session; it may have restarted."""
    return isinstance(error, MCPError) and error.code in _OF_SESSIONS and bool(_IS_SESSION.search(error.message))


def is_no_answer(error: BaseException) -> bool:
    """True if HTTP answered instead of the server: a proxy did, or the server does not know the session."""
    return isinstance(error, MCPError) and error.message == _HTTP_ERROR


def is_reply(error: MCPError) -> bool:
    """True if a JSON-RPC error is the server's answer to a call; False: the outcome is unknown, or we have no
    access."""
    is_lost = error.code in LOST - {types.INTERNAL_ERROR} or error.message == _SESSION_ENDED or is_no_answer(error)
    return not (is_lost or isinstance(error, ClientError) or error.message.startswith(_NOT_LET_IN))


def request_error(error: BaseException, *, sent: bool = True) -> EngineError:
    """Return the meaning of a request's error; `sent`: the request may have had an effect."""
    said = _said(error)
    match error:
        case TaskNotFound():
            return ExecutionNotFound(said)
        case AnswerRejected():
            return EngineRefused(said)
        case MCPError():
            return _mcp_error(error, said, sent=sent)
        case httpx2.TransportError():
            return EngineUnavailable(f"no answer ({type(error).__name__})", sent=sent)
        case ClientError():
            sent = sent and f"({UNREACHED}" not in str(error)
            return EngineUnavailable(said, sent=sent, silent="no answer" in str(error))
        case _:  # of the SDK: a result that does not fit the protocol
            return EngineUnavailable(f"its answer does not keep to the protocol: {said}", silent=False)


def _mcp_error(error: MCPError, said: str, *, sent: bool) -> EngineError:
    if error.message.startswith(_NOT_LET_IN):
        return EngineRefused(f"{said} (auth)")
    if error.code in _REFUSED:
        return EngineRefused(f"it says: {said}", final=_REFUSED[error.code])
    if error.message == _SESSION_ENDED:  # HTTP 404: nothing was done
        return EngineUnavailable(f"no answer ({said})", sent=False)
    if error.code in LOST - {types.INTERNAL_ERROR}:
        return EngineUnavailable(f"no answer ({said})", sent=sent and not error.message.startswith(UNREACHED))
    return EngineUnavailable(f"it says: {said} ({error.code})", sent=sent, silent=False)


def connection_error(error: BaseException, last_line: str) -> EngineError:
    """Return the meaning of a connection's error; `last_line` is the last output of the program."""
    match found := bare(error):
        case EngineError():
            return found
        case OAuthFlowError():
            return EngineRefused(f"auth: no token can be had ({_said(found)})")
        case FileNotFoundError() | PermissionError() | NotADirectoryError():
            return EngineUnavailable(f"its program cannot be started: {found.strerror} (command, cwd)", sent=False)
        case httpx2.TransportError():
            return EngineUnavailable(f"no answer ({type(found).__name__})", sent=False)
        case MCPError() if found.message.startswith(_NOT_LET_IN):
            return EngineRefused(f"{_said(found)} (auth)")
        case MCPError():
            last = f"; its program said last: {last_line}" if last_line else ""
            said = _said(found)
            return EngineUnavailable(f"no MCP server answers there ({said}){last}", sent=False)
        case NotLetIn():
            return EngineRefused(f"{_NOT_LET_IN}: {_said(found)} (auth)")
        case TimeoutError():
            last = f"; its program said last: {last_line}" if last_line else ""
            return EngineUnavailable(f"it does not answer the first request{last}", sent=False)
        case ValidationError() | RuntimeError():
            return EngineUnavailable("it does not keep to the protocol", sent=False)
        case _:
            return EngineUnavailable(f"the connection broke ({type(found).__name__})", sent=False)


def change_error(reply: Reply) -> EngineError:
    """Return the error for an error result of a start, an answer or a cancellation."""
    text = f"its tool answered with an error: {reply.reason}"
    if reply.code is not None and reply.code in _REFUSED:
        return EngineRefused(text, final=_REFUSED[reply.code])
    return EngineRefused(text) if _IS_REFUSAL.search(reply.text) else EngineUnavailable(text, silent=False)


def describe_error(reply: Reply) -> EngineUnavailable:
    """Return the error for an error result of a poll."""
    return EngineUnavailable(f"its tool answered with an error: {reply.reason}", silent=False)


def holds(condition: str | None, scope: Scope) -> bool:
    """Return whether the condition holds for a reply; no condition never holds.

    Raises:
        EngineUnavailable: the condition fails on this reply.
    """
    try:
        return condition is not None and scope.is_true(condition)
    except MappingError as error:
        raise EngineUnavailable(f"its reply cannot be read: {error}", silent=False) from None


def _said(error: BaseException) -> str:
    """Return the first line of an error's text, without our credentials."""
    lines = KNOWN.mask(error.message if isinstance(error, MCPError) else str(error)).splitlines()
    return cleaned(lines[0], _LONGEST) if lines else ""
