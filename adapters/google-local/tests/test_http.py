"""The http library of the local engine: requests that are really made, and the tokens they carry."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jwt
import pytest
from google.cloud.workflows.executions_v1 import Execution

from tests.support.google_engine import ACCOUNT, GoogleEngine
from tests.support.google_local_flows import FETCH
from tests.support.google_local_listener import Listener, listening

State = Execution.State


@pytest.fixture(scope="module")
def fetch(google_engine: GoogleEngine) -> str:
    return google_engine.deploy("fetch", FETCH)


@pytest.fixture
def listener() -> Iterator[Listener]:
    with listening() as listener:
        yield listener


def fetched(engine: GoogleEngine, fetch: str, url: str, *, auth: Any = None, timeout: float = 10) -> Execution:
    return engine.ended(engine.execute(fetch, {"url": url, "auth": auth, "timeout": timeout}))


def test_a_request_is_made_and_its_response_read(google_engine: GoogleEngine, fetch: str, listener: Listener) -> None:
    reply = json.loads(fetched(google_engine, fetch, f"{listener.url}/order?n=1").result)
    (came,) = listener.requests
    assert (came["method"], came["path"], json.loads(came["body"])) == ("POST", "/order?n=1", {"order": 7})
    assert came["headers"]["X-Shop"] == "here"
    assert came["headers"]["User-Agent"].startswith("GoogleCloudWorkflows")
    assert "Authorization" not in came["headers"]
    assert (reply["code"], reply["body"]) == (200, json.loads(json.dumps(came)))


@pytest.mark.parametrize("audience", [None, "https://shop.example"])
def test_oidc_is_a_token_that_our_keys_verify(
    google_engine: GoogleEngine, fetch: str, listener: Listener, audience: str | None
) -> None:
    auth = {"type": "OIDC", **({"audience": audience} if audience else {})}
    assert fetched(google_engine, fetch, f"{listener.url}/order?n=1", auth=auth).state == State.SUCCEEDED
    scheme, _, token = listener.requests[0]["headers"]["Authorization"].partition(" ")
    key = jwt.PyJWKClient(f"{google_engine.url}/oauth2/v3/certs").get_signing_key_from_jwt(token)
    required = ["iss", "sub", "aud", "iat", "exp"]
    claims = jwt.decode(
        token,
        key.key,
        algorithms=["RS256"],
        audience=audience or f"{listener.url}/order",
        issuer=google_engine.url,
        options={"require": required},
    )
    assert scheme == "Bearer"
    assert (claims["email"], claims["email_verified"], claims["exp"] - claims["iat"]) == (ACCOUNT, True, 3600)


@pytest.mark.parametrize(
    ("path", "tag", "message"),
    [
        ("/status/503", "HttpError", "503"),
        ("/slow", "TimeoutError", "timed out"),
        ("/cut", "ConnectionError", "the connection broke"),
    ],
)
def test_what_goes_wrong_is_an_error_of_the_workflow(
    google_engine: GoogleEngine, fetch: str, listener: Listener, path: str, tag: str, message: str
) -> None:
    found = fetched(google_engine, fetch, f"{listener.url}{path}", timeout=0.3)
    payload = json.loads(found.error.payload)
    assert (found.state, tag in payload["tags"], message in payload["message"]) == (State.FAILED, True, True), payload
