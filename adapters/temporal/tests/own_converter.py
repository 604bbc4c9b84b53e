"""What a team may name as `data_converter`: texts arrive in capitals, to tell it from the default."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.converter import (
    CompositePayloadConverter,
    DataConverter,
    DefaultPayloadConverter,
    EncodingPayloadConverter,
    JSONPlainPayloadConverter,
)

from adapters.temporal.tests.codec_server import Encryption


class Shouting(JSONPlainPayloadConverter):
    """JSON, but louder."""

    def to_payload(self, value: Any) -> Payload | None:
        return super().to_payload(value.upper() if isinstance(value, str) else value)


class ShoutingConverter(CompositePayloadConverter):
    """The default, but for JSON."""

    def __init__(self) -> None:
        others: list[EncodingPayloadConverter] = [
            each
            for each in DefaultPayloadConverter.default_encoding_payload_converters
            if each.encoding != "json/plain"
        ]
        super().__init__(*others, Shouting())


converter = DataConverter(payload_converter_class=ShoutingConverter)
encrypting = replace(converter, payload_codec=Encryption(bytes(32)))


class Converter(DataConverter):
    """A class that needs no arguments."""

    def __init__(self) -> None:
        super().__init__(payload_converter_class=ShoutingConverter)


def make() -> DataConverter:
    return converter


def broken() -> DataConverter:
    raise RuntimeError("no key")
