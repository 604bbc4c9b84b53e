"""Payloads to JSON. The codec is the user's own code: a look must not fail, whichever error it raises."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from pydantic_core import to_jsonable_python
from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure as FailureMessage
from temporalio.converter import DataConverter

from mcp_workflows.adapter import JSON
from mcp_workflows.errors import EngineError, EngineUnavailable


class UndecodableError(ValueError):
    """A payload that cannot be read here; the message names its encoding."""


async def decode(converter: DataConverter, payload: Payload) -> JSON:
    """Return the JSON value in a payload.

    Raises:
        UndecodableError: the payload cannot be read here, or is no JSON value.
        EngineUnavailable, EngineRefused: the codec gives no answer now; the payload may be readable.
    """
    outcome = (await asyncio.gather(converter.decode([payload]), return_exceptions=True))[0]
    _raise_transient(outcome)
    if isinstance(outcome, BaseException):
        raise UndecodableError(f"encoding {_encoding(payload)}: {type(outcome).__name__}")
    return _plain(outcome[0])


def _plain(value: Any) -> JSON:  # Any: a converter may return any type
    try:
        return to_jsonable_python(value, bytes_mode="base64", inf_nan_mode="null", fallback=_message_to_dict)
    except ValueError as error:
        raise UndecodableError(f"not a JSON value: {type(value).__name__}") from error


async def decode_known(
    converter_of: Callable[[], DataConverter], fields: Mapping[str, Payload], names: Sequence[str]
) -> dict[str, JSON]:
    """Return the named fields of a memo that can be read; decode no other field.

    `converter_of` is called if there is anything to decode: making a converter takes as long as decoding a field.
    """
    wanted = [name for name in names if name in fields]
    if not wanted:
        return {}
    converter = converter_of()
    if len(wanted) > 1 and (values := await _together(converter, [fields[name] for name in wanted])):
        return dict(zip(wanted, values, strict=True))
    found: dict[str, JSON] = {}
    for name in wanted:
        try:
            found[name] = await decode(converter, fields[name])
        except UndecodableError:
            continue
    return found


async def _together(converter: DataConverter, payloads: Sequence[Payload]) -> Sequence[JSON]:
    """Decode all at once, as the codec may be a remote server; return nothing if one cannot be read."""
    outcome = (await asyncio.gather(converter.decode(payloads), return_exceptions=True))[0]
    _raise_transient(outcome)
    if isinstance(outcome, BaseException) or len(outcome) != len(payloads):
        return []
    try:
        return [_plain(value) for value in outcome]
    except UndecodableError:
        return []


async def decode_failure(converter: DataConverter, failure: FailureMessage) -> BaseException:
    """Return the exception in a failure, or the error of the codec that cannot decode it.

    Raises:
        EngineUnavailable, EngineRefused: see `decode`.
    """
    outcome = (await asyncio.gather(converter.decode_failure(failure), return_exceptions=True))[0]
    _raise_transient(outcome)
    return outcome


def _raise_transient(outcome: object) -> None:
    """Raise an error that may pass: it must not decide the outcome of an execution, which is final."""
    if isinstance(outcome, EngineError):
        raise outcome
    if isinstance(outcome, OSError):  # also TimeoutError: from a user's codec that asks a key server
        raise EngineUnavailable(f"the payload codec gives no answer ({type(outcome).__name__})") from outcome


def _encoding(payload: Payload) -> str:
    return payload.metadata.get("encoding", b"none").decode("ascii", "replace")


def _message_to_dict(value: Any) -> Any:  # Any: pydantic_core gives the fallback any value
    if isinstance(value, Message):
        return _with_whole_numbers(MessageToDict(value))
    raise ValueError(f"not a JSON value: {type(value).__name__}")


def _with_whole_numbers(value: Any) -> Any:  # Any: JSON
    """Return 12 for 12.0: the numbers of a `Struct` are doubles. Source: google/protobuf/struct.proto."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, dict):
        return {key: _with_whole_numbers(item) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_with_whole_numbers(item) for item in cast("list[object]", value)]
    return value
