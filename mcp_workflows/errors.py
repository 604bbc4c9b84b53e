"""All errors that this package raises on purpose, in one tree.

```text
WorkflowsError
├── ConfigError                  workflows.yaml, or the arguments of attach(), are wrong
├── MappingError                 a template cannot be filled in from these values
├── EngineError                  the only errors that cross the boundary of an adapter
│   ├── EngineUnavailable        the outcome is unknown: down, slow, throttled (`sent`: it may have arrived)
│   │   ├── AdapterBroke         its adapter broke the contract; the log has the stack trace
│   │   └── ResultUnavailable    the execution has succeeded, and its result cannot be read now
│   ├── EngineRefused            a definite no: bad input, no permission, no such workflow
│   │   └── StartConflict        the key is taken by an execution with another workflow or input
│   └── ExecutionNotFound        the engine has no such execution (any more)
├── StoreError
│   ├── StoreUnavailable         locked for too long,    unwritable, full
│   └── StoreUnusable            a newer version, a network file system, not a store at all
├── AccessError                  the caller is not let in; the messages are for the log, not for the caller
│   ├── TokenRefused             the token is not good
│   ├── NotAllowed               the token is good, and its owner may not do this
│   └── IssuerUnavailable        it cannot be told: its issuer cannot be asked now
│       └── KeysUnavailable      its issuer's keys cannot be had now
├── RequestError                 a JSON-RPC error for the client, with code, message, data
│   ├── LimitReached             too many tasks, calls or polls: `retry_after` seconds may help
│   └── ServerStopping           the server is about to stop, and waits for nothing any more
├── OperatorError                a command of the operator cannot be done
└── ClientError                  errors of `mcp_workflows.client`; a * is the SDK's `MCPError` too (client/requests.py)
    ├── TaskCancelled            the task that was followed was cancelled: `task_id` says which
    ├── TaskError *              a JSON-RPC error about one task
    │   ├── TaskFailed *         the task ended with a JSON-RPC error, as a plain call would have
    │   ├── TaskNotFound *       the server has no such task, or it is somebody else's
    │   │   └── TaskExpired *    the server had it, and its time to live is over
    │   └── AnswerRejected *     an answer does not fit its question; the task goes on and still asks
    ├── ForgedDelivery           an event came to a webhook that is not signed with its secret
    ├── StaleDelivery            an event came to a webhook that was signed too long ago
    ├── NotLetIn                 the server wants a token, or another one
    └── ServerUnreachable        the server does not answer, or the connection to it was lost
```

No message of these holds a token, a secret, a stack trace or another owner's data: they go to clients.
"""

from __future__ import annotations

from typing import Any


class WorkflowsError(Exception):
    """The root: `except WorkflowsError` catches all that this package raises on purpose."""


class ConfigError(WorkflowsError):
    """The configuration is wrong; the message has one line per problem."""


class MappingError(WorkflowsError):
    """A template is right, but its expression does not work on the values it got."""


class EngineError(WorkflowsError):
    """A workflow engine did not do what it was asked."""


class EngineUnavailable(EngineError):
    """The engine gave no answer, so nothing is known about the outcome.

    `sent` is False only when the request certainly never reached the engine (connection refused, unknown host): then
    nothing was started, answered or cancelled.

    `throttled` is True if the engine is there and refuses for now, or we hold back so that it need not: a caller that
    waits for an execution then goes on waiting.

    `silent` is False when the error does not tell if the engine answers: it is about this one execution, or about
    something else that is needed.
    """

    def __init__(self, message: str, *, sent: bool = True, throttled: bool = False, silent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent
        self.throttled = throttled
        self.silent = silent


class AdapterBroke(EngineUnavailable):
    """The adapter raised an error that must not cross its boundary, so nothing is known about the outcome."""


class ResultUnavailable(EngineUnavailable):
    """The execution has succeeded, and its result, which takes a further request, cannot be read now."""

    def __init__(self, message: str) -> None:
        super().__init__(message, silent=False)


class EngineRefused(EngineError):
    """The engine, or the adapter on its behalf, gave a definite no: nothing was started or changed.

    `final` is True if it is about the input itself: then no earlier attempt with it can have been accepted either.
    Otherwise (no permission, no such namespace) it says nothing about an earlier attempt whose outcome is not known.
    """

    def __init__(self, message: str, *, final: bool = False) -> None:
        super().__init__(message)
        self.final = final


class StartConflict(EngineRefused):
    """The key already belongs to an execution of another workflow or with another input."""

    def __init__(self, message: str) -> None:
        super().__init__(message, final=True)


class ExecutionNotFound(EngineError):
    """The engine has no such execution: never had, or dropped it after its retention."""


class StoreError(WorkflowsError):
    """The store did not do what it was asked."""


class StoreUnavailable(StoreError):
    """The store cannot be written or read now; trying again later may help."""


class StoreUnusable(StoreError):
    """The store cannot be used as it is: a newer version wrote it, or it lies on a network file system."""


class AccessError(WorkflowsError):
    """The caller is not let in. The message has the reason, for the log: the caller is not told."""


class TokenRefused(AccessError):
    """The token is not good: forged, expired, meant for somebody else, or no token at all."""


class NotAllowed(AccessError):
    """The token is good, and its owner may not do this."""


class IssuerUnavailable(AccessError):
    """The token cannot be checked now: its issuer cannot be asked."""


class KeysUnavailable(IssuerUnavailable):
    """The token cannot be checked now: the keys of its issuer cannot be had."""


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


LIMIT_REACHED = -32050  # of the codes that JSON-RPC leaves to servers, far from those of MCP


class LimitReached(RequestError):
    """A limit was reached; nothing was done. `retry_after`: seconds until it may work, if known."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        data = None if retry_after is None else {"retryAfterMs": round(retry_after * 1000)}
        super().__init__(LIMIT_REACHED, message, data)
        self.retry_after = retry_after


class ServerStopping(RequestError):
    """The server is about to stop, and waits for nothing any more; the workflows go on."""

    def __init__(self) -> None:
        super().__init__(INTERNAL_ERROR, "the server is stopping; the workflow goes on: ask again later")


class OperatorError(WorkflowsError):
    """A command of the operator cannot be done; nothing was changed."""


class ClientError(WorkflowsError):
    """A request of the client library failed."""


class TaskCancelled(ClientError):
    """The task that was followed was cancelled, without a result; `message` is from the server."""

    def __init__(self, task_id: str, message: str | None = None) -> None:
        super().__init__(f"the task {task_id} was cancelled" + (f": {message}" if message else ""))
        self.task_id = task_id
        self.message = message


class ForgedDelivery(ClientError):
    """A delivery to a webhook is not signed with its secret: somebody else sent it, or changed it."""


class StaleDelivery(ClientError):
    """A delivery to a webhook was signed too long ago: somebody may have kept it, and sends it again."""


class NotLetIn(ClientError):
    """The MCP server wants a token, or another one; tasks that were started there go on."""


class ServerUnreachable(ClientError):
    """The MCP server does not answer, or the connection to it was lost; tasks that were started there go on."""
