"""A payload codec over HTTP, as used by `temporal --codec-endpoint` and the Web UI.

The protocol: POST {endpoint}/encode and /decode, `Payloads` as protobuf JSON in and out, the namespace in the header
`X-Namespace`.
Source: docs.temporal.io/codec-server.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus

import anyio
import httpx2
from google.protobuf.json_format import MessageToJson, Parse, ParseError
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.converter import PayloadCodec

from mcp_workflows.errors import ConfigError, EngineRefused, EngineUnavailable
from mcp_workflows_temporal.credentials import WatchedFiles, read_secret
from mcp_workflows_temporal.settings import CodecServer

logger = logging.getLogger(__name__)

RETRYABLE = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS})
LARGEST = 64 * 2**20  # bytes of a reply: Temporal's own messages end at 4 MiB, but payloads may be compressed
TEXTS: Mapping[int, str] = {
    HTTPStatus.UNAUTHORIZED: "it does not accept our credentials: check codec.auth",
    HTTPStatus.FORBIDDEN: "our credentials do not allow this: check codec.auth",
    HTTPStatus.NOT_FOUND: "it is not there: check codec.endpoint",
}


class RemoteCodec(PayloadCodec):
    """The configured codec server, with a time limit per request; close it with `aclose`.

    Raises:
        ConfigError: the file of its credentials cannot be read.
    """

    def __init__(self, server: CodecServer, namespace: str, seconds: float) -> None:
        self._url = server.endpoint.rstrip("/").replace("{namespace}", namespace)
        self._namespace = namespace
        self._seconds = seconds
        self._file = server.auth_file
        self._files = WatchedFiles([server.auth_file] if server.auth_file else [])
        self._auth = read_secret(server.auth_file, "codec.auth_file") if server.auth_file else None
        self._auth = server.auth.get_secret_value() if server.auth else self._auth
        self._http = httpx2.AsyncClient(timeout=seconds)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Encode payloads through /encode.

        Raises:
            EngineRefused: the server refuses.
            EngineUnavailable: the server does not reply, or its reply is invalid; nothing was sent to Temporal.
        """
        return await self._request("encode", payloads)

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Decode payloads through /decode; see `encode`."""
        return await self._request("decode", payloads)

    async def _request(self, verb: str, payloads: Sequence[Payload]) -> list[Payload]:
        if not payloads:
            return []
        answer = await self._post(verb, MessageToJson(Payloads(payloads=payloads), indent=None))
        try:
            found = list(Parse(answer, Payloads()).payloads)
        except (ParseError, UnicodeDecodeError):
            raise self._unavailable(verb, "what it answers is no list of payloads") from None
        if len(found) != len(payloads):
            raise self._unavailable(verb, f"it answers {len(found)} payloads to {len(payloads)}")
        if verb == "decode" and not all(payload.metadata.get("encoding") for payload in found):  # every payload has one
            raise self._unavailable(verb, "what it answers are no payloads")
        return found

    async def _post(self, verb: str, body: str) -> bytes:
        headers = {"Content-Type": "application/json", "X-Namespace": self._namespace}
        if auth := self._current_auth():
            headers["Authorization"] = auth
        found = bytearray()
        try:
            with anyio.fail_after(self._seconds):
                url = f"{self._url}/{verb}"
                async with self._http.stream("POST", url, content=body.encode(), headers=headers) as answer:
                    if answer.status_code != HTTPStatus.OK:
                        raise self._refusal(verb, answer.status_code)
                    async for part in answer.aiter_bytes():
                        found += part
                        if len(found) > LARGEST:
                            raise self._unavailable(verb, f"it answers more than {LARGEST >> 20} MiB")
        except (TimeoutError, httpx2.TimeoutException):
            raise self._unavailable(verb, f"no answer within {self._seconds:g} s") from None
        except httpx2.RequestError as error:
            raise self._unavailable(verb, f"it cannot be reached ({type(error).__name__})") from None
        return bytes(found)

    def _current_auth(self) -> str | None:
        if self._file and self._files.changed():
            try:
                self._auth = read_secret(self._file, "codec.auth_file")
            except ConfigError as error:
                logger.warning("%s; the credentials read before stay in use", error)
        return self._auth

    def _refusal(self, verb: str, status: int) -> EngineRefused | EngineUnavailable:
        """Return the error for a status, without the body, which may repeat the payloads."""
        reason = TEXTS.get(status, f"it answers {status}")
        if status in RETRYABLE or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return self._unavailable(verb, reason)
        return EngineRefused(f"the codec server ({verb}): {reason}")

    def _unavailable(self, verb: str, reason: str) -> EngineUnavailable:
        """Return the error for an invalid or missing reply; payloads that were not encoded were not sent."""
        return EngineUnavailable(f"the codec server ({verb}): {reason}", sent=verb != "encode")
