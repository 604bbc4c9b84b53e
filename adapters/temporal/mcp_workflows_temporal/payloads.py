"""Payloads to JSON. The codec is the user's own code: whatever it raises, looking must not fail."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
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
    """A payload of a codec or a type that we do not have; the message names its encoding."""


async def decode(converter: DataConverter, payload: Payload) -> JSON:
    """The JSON value in a payload.

    Raises:
        UndecodableError: it cannot be read here, or is no JSON value.
        EngineUnavailable, EngineRefused: the codec gives no answer now, which says nothing about the payload.
    """
    outcome = (await asyncio.gather(converter.decode([payload]), return_exceptions=True))[0]
    _raise_passing(outcome)
    if isinstance(outcome, BaseException):
        raise UndecodableError(f"encoding {_encoding(payload)}: {type(outcome).__name__}")
    return _plain(outcome[0])


def _plain(value: Any) -> JSON:  # Any: whatever a converter makes of a payload
    try:
        return to_jsonable_python(value, bytes_mode="base64", inf_nan_mode="null", fallback=_message_to_dict)
    except ValueError as error:
        raise UndecodableError(f"not a JSON value: {type(value).__name__}") from error


async def decode_known(
    converter: DataConverter, fields: Mapping[str, Payload], names: frozenset[str]
) -> dict[str, JSON]:
    """Those fields of a memo that are ours and can be read; never any other."""
    wanted = sorted(names & fields.keys())
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
    """All of them in one go, as a codec may be a server far away; nothing if one cannot be read."""
    outcome = (await asyncio.gather(converter.decode(payloads), return_exceptions=True))[0]
    _raise_passing(outcome)
    if isinstance(outcome, BaseException) or len(outcome) != len(payloads):
        return []
    try:
        return [_plain(value) for value in outcome]
    except UndecodableError:
        return []


async def decode_failure(converter: DataConverter, failure: FailureMessage) -> BaseException:
    """The exception in a failure; one of ours if a codec hides it.

    Raises:
        EngineUnavailable, EngineRefused: see `decode`.
    """
    outcome = (await asyncio.gather(converter.decode_failure(failure), return_exceptions=True))[0]
    _raise_passing(outcome)
    return outcome


def _raise_passing(outcome: object) -> None:
    """What passes must not decide how an execution ended: an end is kept for ever."""
    if isinstance(outcome, EngineError):
        raise outcome
    if isinstance(outcome, OSError):  # also TimeoutError: a codec of the user's own that asks a key server
        raise EngineUnavailable(f"the payload codec gives no answer ({type(outcome).__name__})") from outcome


def _encoding(payload: Payload) -> str:
    return payload.metadata.get("encoding", b"none").decode("ascii", "replace")


def _message_to_dict(value: Any) -> Any:  # Any: what pydantic_core hands to a fallback, and JSON
    if isinstance(value, Message):
        return _with_whole_numbers(MessageToDict(value))
    raise ValueError(f"not a JSON value: {type(value).__name__}")


def _with_whole_numbers(value: Any) -> Any:  # Any: JSON
    """The numbers of a `Struct` are doubles: 12 came as 12.0. Source: google/protobuf/struct.proto."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, dict):
        return {key: _with_whole_numbers(item) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_with_whole_numbers(item) for item in cast("list[object]", value)]
    return value
