"""Identity tokens in the form of Google's for service accounts, signed with this engine's own key."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from mcp_workflows_google_local.store import Store

LIFETIME: Final = 3600  # seconds, like Google's
ACCESS_TOKEN: Final = "local"  # replaces OAuth2; nothing here checks it  # noqa: S105
_SETTING: Final = "signing key"
_BITS: Final = 2048


class Signer:
    """Signs identity tokens; the database stores the key, so tokens stay valid after a restart."""

    def __init__(self, store: Store, issuer: str) -> None:
        self._issuer = issuer
        self._key = _key(store)
        public: Mapping[str, Any] = RSAAlgorithm.to_jwk(self._key.public_key(), as_dict=True)
        self._kid = str(public["n"])[:16]
        self.keys: Mapping[str, Any] = {"keys": [{**public, "kid": self._kid, "use": "sig", "alg": "RS256"}]}

    def identity_token(self, audience: str, account: str) -> str:
        """Return a token that identifies this service account to the audience."""
        now = int(time.time())
        subject = str(int.from_bytes(account.encode()[:8], "big"))  # Google: a number that represents the account
        claims = {
            "iss": self._issuer,
            "aud": audience,
            "azp": subject,
            "sub": subject,
            "email": account,
            "email_verified": True,
            "iat": now,
            "exp": now + LIFETIME,
        }
        return jwt.encode(claims, self._key, algorithm="RS256", headers={"kid": self._kid})


def _key(store: Store) -> rsa.RSAPrivateKey:
    kept = store.setting(_SETTING)
    if kept is not None:
        key = serialization.load_pem_private_key(kept.encode(), None)
        assert isinstance(key, rsa.RSAPrivateKey)
        return key
    key = rsa.generate_private_key(public_exponent=65537, key_size=_BITS)
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    store.set_setting(_SETTING, text)
    return key
