"""Payloads to JSON. The codec is the user's own code: whatever it raises, looking must not fail."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from pydantic_core import to_jsonable_python
from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure as FailureMessage
from temporalio.converter import DataConverter

from mcp_workflows.adapter import JSON


class UndecodableError(ValueError):
    """A payload of a codec or a type that we do not have; the message names its encoding."""


async def decode(converter: DataConverter, payload: Payload) -> JSON:
    """The JSON value in a payload.

    Raises:
        UndecodableError: it cannot be read here, or is no JSON value.
    """
    outcome = (await asyncio.gather(converter.decode([payload]), return_exceptions=True))[0]
    if isinstance(outcome, BaseException):
        raise UndecodableError(f"encoding {_encoding(payload)}: {type(outcome).__name__}")
    value = outcome[0]
    try:
        return to_jsonable_python(value, bytes_mode="base64", inf_nan_mode="null", fallback=_message_to_dict)
    except ValueError as error:
        raise UndecodableError(f"not a JSON value: {type(value).__name__}") from error


async def decode_known(
    converter: DataConverter, fields: Mapping[str, Payload], names: frozenset[str]
) -> dict[str, JSON]:
    """Those fields of a memo that are ours and can be read; never any other."""
    found: dict[str, JSON] = {}
    for name in names & fields.keys():
        try:
            found[name] = await decode(converter, fields[name])
        except UndecodableError:
            continue
    return found


async def decode_failure(converter: DataConverter, failure: FailureMessage) -> BaseException:
    """The exception in a failure; one of ours if a codec hides it."""
    return (await asyncio.gather(converter.decode_failure(failure), return_exceptions=True))[0]


def _encoding(payload: Payload) -> str:
    return payload.metadata.get("encoding", b"none").decode("ascii", "replace")


def _message_to_dict(value: Any) -> Any:  # Any: what pydantic_core hands to a fallback, and JSON
    if isinstance(value, Message):
        return MessageToDict(value)
    raise ValueError(f"not a JSON value: {type(value).__name__}")
