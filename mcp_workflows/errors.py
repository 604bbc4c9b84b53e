"""All errors that this package raises on purpose, in one tree.

```text
WorkflowsError
├── ConfigError                  workflows.yaml, or the arguments of attach(), are wrong
├── MappingError                 a template cannot be filled in from these values
├── EngineError                  the only errors that leave an adapter
│   ├── EngineUnavailable        the outcome is unknown: down, slow, throttled (`sent`: it may have arrived)
│   │   ├── AdapterBroke         its adapter broke the contract; the log has the stack trace
│   │   └── ResultUnavailable    the execution has succeeded, but its result cannot be read now
│   ├── EngineRefused            definitely refused: bad input, no permission, no such workflow
│   │   └── StartConflict        the key is taken by an execution with another workflow or input
│   └── ExecutionNotFound        the engine has no such execution, or no longer
├── StoreError
│   ├── StoreUnavailable         locked for too long, unwritable, full
│   └── StoreUnusable            a newer version, a network file system, not a store at all
├── AccessError                  the caller is refused; the messages are for the log, not for the caller
│   ├── TokenRefused             the token is invalid
│   ├── NotAllowed               the token is valid, but its owner may not do this
│   └── IssuerUnavailable        the token cannot be checked: its issuer is unavailable
│       └── KeysUnavailable      the issuer's keys are unavailable
├── RequestError                 a JSON-RPC error for the client, with code, message, data
│   ├── LimitReached             too many tasks, calls or polls: `retry_after` seconds may help
│   └── ServerStopping           the server is about to stop and ends all waiting
├── OperatorError                an operator's command cannot be executed
└── ClientError                  errors of `mcp_workflows.client`; *: also an `MCPError` (client/requests.py)
    ├── TaskCancelled            the followed task, `task_id`, was cancelled
    ├── TaskError *              a JSON-RPC error about one task
    │   ├── TaskFailed *         the task ended with a JSON-RPC error, as a plain call would have
    │   ├── TaskNotFound *       the server has no such task, or it has another owner
    │   │   └── TaskExpired *    the server had it, but its time to live is over
    │   └── AnswerRejected *     an answer does not fit its question; the question stays open
    ├── ForgedDelivery           a delivery to a webhook is not signed with its secret
    ├── StaleDelivery            a delivery to a webhook was signed too long ago
    ├── NotLetIn                 the server requires a token, or another one
    └── ServerUnreachable        the server does not answer, or the connection to it was lost
```

No message of these contains a token, a secret, a stack trace or another owner's data, because most reach clients.
"""

from __future__ import annotations

from typing import Any


class WorkflowsError(Exception):
    """The root: `except WorkflowsError` catches every error that this package raises on purpose."""


class ConfigError(WorkflowsError):
    """The configuration is wrong; the message has one line per problem."""


class MappingError(WorkflowsError):
    """A template is valid, but its expression does not work on these values."""


class EngineError(WorkflowsError):
    """A workflow engine did not do what was requested."""


class EngineUnavailable(EngineError):
    """The engine gave no answer, so the outcome is unknown.

    `sent` is False only when the request certainly never reached the engine (connection refused, unknown host): then
    nothing was started, answered or cancelled.

    `throttled` is True if the engine refuses only for now, or we hold back to avoid that. A caller that waits for an
    execution then keeps waiting.

    `silent` is False when the error does not show whether the engine answers, because it concerns this execution, or
    something else that is needed.
    """

    def __init__(self, message: str, *, sent: bool = True, throttled: bool = False, silent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent
        self.throttled = throttled
        self.silent = silent


class AdapterBroke(EngineUnavailable):
    """The adapter raised an error that must not leave it, so the outcome is unknown."""


class ResultUnavailable(EngineUnavailable):
    """The execution has succeeded, but its result, which needs a further request, cannot be read now."""

    def __init__(self, message: str) -> None:
        super().__init__(message, silent=False)


class EngineRefused(EngineError):
    """The engine, or the adapter on its behalf, definitely refused: nothing was started or changed.

    `final` is True if the input itself is the reason: then no earlier attempt with it can have been accepted either.
    Otherwise (no permission, no such namespace) an earlier attempt with an unknown outcome may have been accepted.
    """

    def __init__(self, message: str, *, final: bool = False) -> None:
        super().__init__(message)
        self.final = final


class StartConflict(EngineRefused):
    """The key already belongs to an execution of another workflow or with another input."""

    def __init__(self, message: str) -> None:
        super().__init__(message, final=True)


class ExecutionNotFound(EngineError):
    """The engine has no such execution: it never had, or dropped it after its retention."""


class StoreError(WorkflowsError):
    """The store did not do what was requested."""


class StoreUnavailable(StoreError):
    """The store cannot be written or read now; a later retry may help."""


class StoreUnusable(StoreError):
    """The store must not be used: a newer version wrote it, or it is on a network file system."""


class AccessError(WorkflowsError):
    """The caller is refused. The message has the reason, only for the log."""


class TokenRefused(AccessError):
    """The token is invalid: forged, expired, meant for another server, or missing."""


class NotAllowed(AccessError):
    """The token is valid, but its owner may not do this."""


class IssuerUnavailable(AccessError):
    """The token cannot be checked now: its issuer is unavailable."""


class KeysUnavailable(IssuerUnavailable):
    """The token cannot be checked now: its issuer's keys are unavailable."""


METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603


class RequestError(WorkflowsError):
    """A JSON-RPC error for the client: `code`, `message` and optional `data` (JSON)."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:  # Any: any JSON value
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


LIMIT_REACHED = -32050  # one of the codes that JSON-RPC leaves to servers, far from MCP's


class LimitReached(RequestError):
    """A limit was reached; nothing was done. `retry_after`: seconds until it may work, if known."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        data = None if retry_after is None else {"retryAfterMs": round(retry_after * 1000)}
        super().__init__(LIMIT_REACHED, message, data)
        self.retry_after = retry_after


class ServerStopping(RequestError):
    """The server is about to stop and ends all waiting; the workflows continue."""

    def __init__(self) -> None:
        super().__init__(INTERNAL_ERROR, "the server is stopping; the workflow goes on: ask again later")


class OperatorError(WorkflowsError):
    """An operator's command cannot be executed; nothing was changed."""


class ClientError(WorkflowsError):
    """A request of the client library failed."""


class TaskCancelled(ClientError):
    """The followed task was cancelled, without a result; `message` is from the server."""

    def __init__(self, task_id: str, message: str | None = None) -> None:
        super().__init__(f"the task {task_id} was cancelled" + (f": {message}" if message else ""))
        self.task_id = task_id
        self.message = message


class ForgedDelivery(ClientError):
    """A delivery to a webhook is not signed with its secret: it was forged or changed."""


class StaleDelivery(ClientError):
    """A delivery to a webhook was signed too long ago: it may be a replay."""


class NotLetIn(ClientError):
    """The MCP server requires a token, or another one; tasks started there continue."""


class ServerUnreachable(ClientError):
    """The MCP server does not answer, or the connection was lost; tasks started there continue."""
