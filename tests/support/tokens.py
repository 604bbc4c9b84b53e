"""An issuer of OpenID Connect tokens: a server of its keys, which can be down or slow, and tokens good and bad."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from tests.support.child_processes import free_port

ISSUER = "https://issuer.example"
AUDIENCE = "https://workflows.example/engines/here"
ACCOUNT = "orders@demo.iam.gserviceaccount.com"
CLAIMS: Mapping[str, Any] = {"iss": ISSUER, "aud": AUDIENCE, "sub": "1", "email": ACCOUNT, "email_verified": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class Signer:
    """A private key, and how it is published."""

    name: str
    algorithm: str
    key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey

    @property
    def published(self) -> Mapping[str, Any]:
        """Its public key as JWK."""
        if isinstance(self.key, rsa.RSAPrivateKey):
            public = RSAAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
        elif isinstance(self.key, ed25519.Ed25519PrivateKey):
            public = OKPAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
        else:
            public = ECAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
        return {**public, "kid": self.name, "use": "sig", "alg": self.algorithm}

    @property
    def pem(self) -> bytes:
        """Its public key as text, which some take for a secret."""
        return self.key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )

    def token(
        self,
        *,
        without: Sequence[str] = (),
        kid: str | None = None,
        header: Mapping[str, Any] | None = None,
        **claims: Any,
    ) -> str:
        """A good token, but for what is given or left out."""
        now = time.time()
        whole = {**CLAIMS, "iat": now - 60, "exp": now + 3600, **claims}
        sent = {name: value for name, value in whole.items() if name not in without}
        said = {"kid": kid or self.name, **(header or {})}
        head = {name: value for name, value in said.items() if value is not None}
        return jwt.encode(sent, self.key, self.algorithm, headers=head)


_MADE: Mapping[str, Callable[[], rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey]] = {
    "RS": lambda: rsa.generate_private_key(65537, 2048),
    "PS": lambda: rsa.generate_private_key(65537, 2048),
    "ES": lambda: ec.generate_private_key(ec.SECP256R1()),
    "Ed": ed25519.Ed25519PrivateKey.generate,
}


@cache
def signer(name: str, algorithm: str = "RS256") -> Signer:
    """The same for the same name."""
    return Signer(name=name, algorithm=algorithm, key=_MADE[algorithm[:2]]())


def by_hand(header: Mapping[str, Any], claims: Mapping[str, Any], secret: bytes | None = None) -> str:
    """A token that no library would make; with a secret it is signed with that by HS256."""
    parts = [_encoded(json.dumps(part).encode()) for part in (header, claims)]
    signed = ".".join(parts).encode()
    signature = b"" if secret is None else hmac.new(secret, signed, hashlib.sha256).digest()
    return f"{signed.decode()}.{_encoded(signature)}"


def _encoded(part: bytes) -> str:
    return base64.urlsafe_b64encode(part).rstrip(b"=").decode()


@dataclass(slots=True, kw_only=True)
class KeyServer:
    """Serves the keys of many issuers, each at a path of its own."""

    address: str
    keys: dict[str, Sequence[Signer]] = field(default_factory=dict[str, Sequence[Signer]])
    raw: dict[str, bytes] = field(default_factory=dict[str, bytes])  # instead of keys
    hanging: dict[str, threading.Event] = field(default_factory=dict[str, threading.Event])
    fetches: Counter[str] = field(default_factory=Counter[str])
    asked: dict[str, Callable[[Mapping[str, str], str], Any]] = field(  # by form and `Authorization`; None: 500
        default_factory=dict[str, Callable[[Mapping[str, str], str], Any]]
    )

    def publish(self, path: str, *signers: Signer) -> str:
        """These keys at this path, and no others; the URL."""
        self.keys[path] = signers
        return f"{self.address}/{path}"

    def told(self, path: str, form: Mapping[str, str], known: str) -> bytes | None:
        """What is answered to a form; None: 500."""
        self.fetches[path] += 1
        if path in self.hanging:
            self.hanging[path].wait(30)
        found = self.asked[path](form, known) if path in self.asked else None
        return found if found is None or isinstance(found, bytes) else json.dumps(found).encode()

    def answer(self, path: str) -> bytes | None:
        """What is sent; None: 500."""
        self.fetches[path] += 1
        if path in self.hanging:
            self.hanging[path].wait(30)
        if path in self.raw:
            return self.raw[path]
        signers = self.keys.get(path)
        return None if signers is None else json.dumps({"keys": [each.published for each in signers]}).encode()


@pytest.fixture(scope="session")
def key_server() -> Generator[KeyServer]:
    """One for all tests: each takes a path of its own."""
    port = free_port()
    served = KeyServer(address=f"http://127.0.0.1:{port}")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(served.answer(self.path.strip("/")))

        def do_POST(self) -> None:
            form = dict(parse_qsl(self.rfile.read(int(self.headers["Content-Length"])).decode()))
            self._send(served.told(self.path.strip("/"), form, self.headers.get("Authorization", "")))

        def _send(self, body: bytes | None) -> None:
            with suppress(OSError):  # who asked has left
                self.send_response(500 if body is None else 200)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(body or b"")

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # its name there
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
