"""Webhook signatures: proof that the sender knows the secret and wrote the body."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from mcp_workflows.adapter.capabilities import SharedSecret, Signature, standard_signature
from mcp_workflows.errors import TokenRefused

_FRESH: Final = 300.0  # maximum seconds between the clocks of sender and receiver, from standardwebhooks.com
_PREFIX: Final = "whsec_"  # of a secret in base64


def check_signature(shared: SharedSecret, headers: Mapping[str, str], body: bytes) -> None:
    """Check that the body was signed with the secret; header names are in lower case.

    Raises:
        TokenRefused: the signature is missing, wrong or too old.
    """
    if not _CHECKS[shared.signature](shared.secret, headers, body):
        raise TokenRefused(f"its signature ({shared.signature.value}) is missing or wrong")


def _hub(secret: str, headers: Mapping[str, str], body: bytes) -> bool:
    digest = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return _same(headers.get("x-hub-signature-256", ""), f"sha256={digest}")


def _gitlab(secret: str, headers: Mapping[str, str], body: bytes) -> bool:
    return _same(headers.get("x-gitlab-token", ""), secret)


def _bearer(secret: str, headers: Mapping[str, str], body: bytes) -> bool:
    kind, _, token = headers.get("authorization", "").partition(" ")
    return kind.lower() == "bearer" and _same(token.strip(), secret)


def _standard(secret: str, headers: Mapping[str, str], body: bytes) -> bool:
    sent_at = headers.get("webhook-timestamp", "")
    if not sent_at.isdecimal() or abs(time.time() - int(sent_at)) > _FRESH:
        return False
    expected = standard_signature(_key(secret), headers.get("webhook-id", ""), sent_at, body)
    return any(_same(each, expected) for each in headers.get("webhook-signature", "").split())


def _key(secret: str) -> bytes:
    if secret.startswith(_PREFIX):
        with suppress(ValueError):
            return base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    return secret.encode()


def _same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(), expected.encode())


_CHECKS: Final[Mapping[Signature, Callable[[str, Mapping[str, str], bytes], bool]]] = {
    Signature.HUB: _hub,
    Signature.GITLAB: _gitlab,
    Signature.STANDARD: _standard,
    Signature.BEARER: _bearer,
}
