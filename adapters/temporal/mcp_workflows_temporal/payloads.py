"""Payloads to JSON, failures to text. The codec is the user's code: whatever it raises, a poll must not fail."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from mcp_workflows_temporal_worker.contract import PROTOCOL_ERROR
from pydantic_core import to_jsonable_python
from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure as FailureMessage
from temporalio.api.workflow.v1 import WorkflowExecutionInfo
from temporalio.converter import DataConverter, DefaultFailureConverter, DefaultPayloadConverter
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    ChildWorkflowError,
    FailureError,
    NexusOperationError,
    RetryState,
)
from temporalio.exceptions import TimeoutError as TemporalTimeoutError

from mcp_workflows.adapter import JSON, Failure
from mcp_workflows.adapter.display_text import without_zero_fractions
from mcp_workflows.errors import EngineError, EngineUnavailable
from mcp_workflows_temporal.client import Frontend

T = TypeVar("T")


class UndecodableError(ValueError):
    """A payload that cannot be read here; the message names its encoding."""


async def decode(converter: DataConverter, payload: Payload) -> JSON:
    """Return the JSON value in a payload.

    Raises:
        UndecodableError: the payload cannot be read here, or is not a JSON value.
        EngineUnavailable, EngineRefused: the codec does not reply now; the payload may be readable.
    """
    outcome = await _outcome(converter.decode([payload]))
    if isinstance(outcome, BaseException):
        encoding = payload.metadata.get("encoding", b"none").decode("ascii", "replace")
        raise UndecodableError(f"encoding {encoding}: {type(outcome).__name__}")
    return _plain(outcome[0])


async def read_memo(frontend: Frontend, info: WorkflowExecutionInfo, *names: str) -> dict[str, JSON]:
    """Return the readable fields with these names in an execution's memo; decode no other field.

    All are decoded together, as the codec may be a remote server; one by one if one of them is unreadable.
    """
    fields = info.memo.fields
    wanted = [name for name in names if name in fields]
    if not wanted:
        return {}  # without a converter: creating one takes as long as decoding a field
    converter = frontend.converter(info.execution.workflow_id)
    outcome = await _outcome(converter.decode([fields[name] for name in wanted])) if len(wanted) > 1 else ()
    found: dict[str, JSON] = {}
    for number, name in enumerate(wanted):
        try:
            if isinstance(outcome, BaseException) or len(outcome) != len(wanted):
                found[name] = await decode(converter, fields[name])
            else:
                found[name] = _plain(outcome[number])
        except UndecodableError:
            continue
    return found


async def decode_failure(converter: DataConverter, failure: FailureMessage) -> BaseException:
    """Return the exception in a failure, or the error of the codec that cannot decode it; changes the failure in place.

    Raises:
        EngineUnavailable, EngineRefused: see `decode`.
    """
    return await _outcome(converter.decode_failure(failure))


async def read_failure(converter: DataConverter, failure: FailureMessage) -> Failure:
    """Return the reason for a failure in its author's words; see `decode_failure`."""
    own = FailureMessage()
    own.CopyFrom(failure)
    error = await decode_failure(converter, own)
    return failure_of(error if isinstance(error, FailureError) else plain_failure(failure))


class _ReadablePayloads(DefaultPayloadConverter):
    def from_payloads(self, payloads: Sequence[Payload], type_hints: list[type] | None = None) -> list[Any]:
        try:
            return super().from_payloads(payloads, type_hints)
        except Exception:  # noqa: BLE001  # converters document no errors
            return []


def plain_failure(failure: FailureMessage) -> BaseException:
    """Return the exception in a failure without its encoded details; the rest is plain.

    If its worker also encodes messages, the text is the SDK's placeholder: `Encoded failure`.
    """
    return DefaultFailureConverter().from_failure(failure, _ReadablePayloads())


async def _outcome(awaited: Awaitable[T]) -> T | BaseException:
    """Return the result of the user's code, or the error that it raises.

    Raises:
        EngineUnavailable, EngineRefused: a transient error, which must not decide the outcome of an execution.
    """
    try:
        return await awaited
    except EngineError:
        raise
    except OSError as error:  # also TimeoutError: from a user's codec that calls a key server
        raise EngineUnavailable(f"the payload codec does not answer ({type(error).__name__})") from error
    except Exception as error:  # noqa: BLE001  # the user's code
        return error


def _plain(value: Any) -> JSON:  # Any: a converter may return any type
    try:
        return to_jsonable_python(value, bytes_mode="base64", inf_nan_mode="null", fallback=_message_to_dict)
    except ValueError as error:
        raise UndecodableError(f"not a JSON value: {type(value).__name__}") from error


def _message_to_dict(value: Any) -> Any:  # Any: pydantic_core gives the fallback any value
    if isinstance(value, Message):
        # The numbers of a `Struct` are doubles. Source: google/protobuf/struct.proto.
        return without_zero_fractions(MessageToDict(value))
    raise ValueError(f"not a JSON value: {type(value).__name__}")


def as_mapping(value: JSON) -> Mapping[str, JSON]:
    """Return an object; any other value counts as an empty one."""
    return cast("Mapping[str, JSON]", value) if isinstance(value, dict) else {}


def as_text(value: JSON) -> str | None:
    """Return a text; any other value counts as None."""
    return value if isinstance(value, str) else None


def failure_of(error: BaseException) -> Failure:
    """Return the reason for a failure in its author's words: no class names, wrappers or stack traces.

    An `McpError` has a code and optional data; without an integer code it is an ordinary failure. `details` are those
    of the application error: a list. `step` is the innermost activity, child workflow or Nexus operation.
    """
    chain = list(_causes(error))
    step = next(filter(None, map(_step, reversed(chain))), None)
    with_text = [(cause, text) for cause in chain if (text := _text(cause, step))]
    texts = [text for _, text in with_text]
    first = next((cause for cause in chain if isinstance(cause, ApplicationError)), None)
    text = texts[0] if texts else "the workflow failed without a reason"
    if len(texts) > 1 and texts[1] not in text:
        text = f"{text}: {texts[1]}"
    found = Failure(
        text=text,
        kind=_kind(first or (with_text[0][0] if with_text else error)),
        retryable=False if any(map(_is_final, chain[: chain.index(first) + 1 if first else None])) else None,
        step=step and step.partition(" ")[2],
    )
    details = _details(first)
    if details and first is not None and first.type == PROTOCOL_ERROR:
        code, *rest = details
        if isinstance(code, int) and not isinstance(code, bool):
            return replace(found, code=code, data=rest[0] if rest else None)
    return replace(found, details=details)


def _details(error: ApplicationError | None) -> JSON:
    """Return the details of an error as JSON; None if there are none, or they are not JSON."""
    try:
        return _plain(list(error.details)) if error and error.details else None
    except UndecodableError:
        return None


def _is_final(error: BaseException) -> bool:
    """True if the author of the error, or the policy of its step, excluded a retry."""
    if isinstance(error, ActivityError | ChildWorkflowError):
        return error.retry_state is RetryState.NON_RETRYABLE_FAILURE
    return isinstance(error, ApplicationError) and error.non_retryable


def _step(error: BaseException) -> str | None:
    """Return the step in which an error was raised, preceded by its kind."""
    if isinstance(error, ActivityError):
        return f"activity {error.activity_type}"
    if isinstance(error, ChildWorkflowError):
        return f"workflow {error.workflow_type}"
    return f"operation {error.operation}" if isinstance(error, NexusOperationError) else None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the chain of causes from the outside in.

    It ends at an application error that was raised from a Python exception, which is an internal detail.
    """
    while error is not None:
        yield error
        inner = error.__cause__
        if isinstance(error, ApplicationError) and isinstance(inner, ApplicationError):
            return
        error = inner


def _text(error: BaseException, step: str | None) -> str | None:
    """Return the text of one error in the chain of a step; wrappers have none."""
    if isinstance(error, ActivityError | ChildWorkflowError | NexusOperationError):
        return None
    if isinstance(error, TemporalTimeoutError):
        kind = error.type.name.lower().replace("_", " ") if error.type else "no answer in time"
        return f"{step or 'a step'} timed out ({kind})"
    return (error.message if isinstance(error, FailureError) else str(error)) or _kind(error)


def _kind(error: BaseException) -> str | None:
    return error.type if isinstance(error, ApplicationError) else type(error).__name__
