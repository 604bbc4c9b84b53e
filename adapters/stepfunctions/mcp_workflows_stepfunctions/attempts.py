"""The attempts of one call; botocore retries by itself, and reports only the last attempt."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false
# Reason: botocore has no types; what comes from it is Any, and is turned into types of our own at once.

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

from botocore.exceptions import ClientError, ConnectTimeoutError, EndpointConnectionError, ProxyConnectionError
from botocore.parsers import ResponseParserError

NOT_SENT: Final = (EndpointConnectionError, ConnectTimeoutError, ProxyConnectionError)
THROTTLING: Final = frozenset(
    {"ThrottlingException", "Throttling", "ThrottledException", "RequestThrottledException", "RequestThrottled"}
    | {"TooManyRequestsException", "RequestLimitExceeded", "BandwidthLimitExceeded", "LimitExceededException"}
    | {"SlowDown", "PriorRequestNotComplete", "TransactionInProgressException", "KmsThrottlingException"}
    | {"ProvisionedThroughputExceededException", "EC2ThrottledException"}
)
_SERVER_ERROR: Final = 500
_PAUSE: Final = 0.2  # seconds: the longest pause after an attempt that was not throttled
_VERBOSE_LOGGERS: Final = (  # at DEBUG they log requests and answers: task tokens, inputs, signatures
    *("botocore.endpoint", "botocore.parsers", "botocore.auth", "botocore.hooks", "botocore.httpsession"),
    *("botocore.client", "botocore.awsrequest", "botocore.regions", "botocore.retries.standard"),
)
_TRACEBACK_LOGGERS: Final = ("botocore.credentials", "botocore.tokens")  # at WARNING, with a stack trace each time


@dataclass(slots=True, kw_only=True)
class Attempts:
    """The attempts of one call, in the thread that makes it."""

    deadline: float  # of `time.monotonic`: no attempt begins that could not end by then
    longest: float  # seconds that one attempt may take
    made: int = 0
    answered: int = 0
    unsent: int = 0
    throttled: int = 0

    def count(self) -> None:
        """Count an attempt that begins."""
        self.made += 1

    def record_outcome(self, status: int, code: str | None, error: Exception | None) -> None:
        """Record the end of an attempt: an answer with its HTTP status and AWS's code, or an exception."""
        self.answered += error is None and status < _SERVER_ERROR  # after a server error, AWS may have done it
        self.unsent += isinstance(error, NOT_SENT)
        self.throttled += code in THROTTLING

    @property
    def reached(self) -> bool:
        """True if an attempt may have reached the engine."""
        return self.made > self.unsent

    @property
    def is_in_doubt(self) -> bool:
        """True if an attempt may have reached the engine and its outcome is unknown."""
        return self.made > self.unsent + self.answered

    def is_too_late(self, code: str | None) -> bool:
        """Return True if there is no time for another attempt after the longest pause of botocore."""
        pause = 2.0 ** (self.made - 1) if code in THROTTLING else _PAUSE
        return time.monotonic() + pause + self.longest > self.deadline


CURRENT: ContextVar[Attempts | None] = ContextVar("mcp_workflows_stepfunctions_attempts", default=None)


def track_attempts(client: Any) -> Any:  # Any: a botocore client has no types
    """Return the same client, which from now on reports its attempts to the `CURRENT` call."""
    client.meta.events.register_first("before-send", _before_send)
    client.meta.events.register_first("needs-retry", _needs_retry)
    return client


def send(client: Any, operation: str, params: Mapping[str, Any], attempts: Attempts) -> Mapping[str, Any]:
    """Make the call in this thread. Any: as boto3 takes and returns them.

    Raises:
        Exception: those of `errors.FOREIGN`.
    """
    CURRENT.set(attempts)
    call = getattr(client, operation)
    try:
        reply: Mapping[str, Any] = call(**params)
    except (AttributeError, TypeError, LookupError, RecursionError):
        raise ResponseParserError from None  # JSON, but no answer of AWS: boto3 fails in many ways
    shape = client.meta.service_model.operation_model(client.meta.method_to_api_mapping[operation]).output_shape
    expected: Collection[str] = shape.required_members if shape else ()
    if expected and not any(member in reply for member in expected):
        raise ResponseParserError  # 200 from a server that is not AWS: boto3 accepts it
    return reply


def _before_send(**_: Any) -> None:
    if attempts := CURRENT.get():
        attempts.count()


def _needs_retry(
    response: Any, caught_exception: Exception | None, operation: Any, **_: Any
) -> None:  # Any: as botocore emits it
    attempts = CURRENT.get()
    if attempts is None:
        return
    answer = response[1] if response else {}
    code = answer["Error"].get("Code") if "Error" in answer else None
    attempts.record_outcome(response[0].status_code if response else 0, code, caught_exception)
    if not attempts.is_too_late(code):
        return
    if caught_exception is not None:
        raise caught_exception
    if code is not None:
        raise ClientError(answer, operation.name)


class _NotOurCalls(logging.Filter):
    """A log filter that drops debug lines of our calls."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno > logging.DEBUG or CURRENT.get() is None


_NOT_OUR_CALLS: Final = _NotOurCalls()


def _without_trace(record: logging.LogRecord) -> bool:
    """Drop the stack trace of a missing credential: the error of our call gives the reason."""
    if CURRENT.get() is not None:
        record.exc_info = None
    return True


def silence_botocore() -> None:
    """Keep requests, answers and stack traces of our calls out of botocore's log: they contain task tokens."""
    for name in _VERBOSE_LOGGERS:
        logging.getLogger(name).addFilter(_NOT_OUR_CALLS)
    for name in _TRACEBACK_LOGGERS:
        logging.getLogger(name).addFilter(_without_trace)
