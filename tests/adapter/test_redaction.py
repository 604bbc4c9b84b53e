"""Secrets in texts and outputs: what is masked, and what stays as it is."""

from __future__ import annotations

import base64
import json
import time
from urllib.parse import quote

import pytest
from pydantic import BaseModel, SecretStr

from mcp_workflows.adapter.redaction import KNOWN, KnownSecrets, mask, mask_known, mask_output

TOKEN = "tok-S3CRET-canary-0123456789"
PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA\n-----END RSA PRIVATE KEY-----"

SECRETS = {
    PEM: PEM,
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln": "eyJ",
    "key AKIAIOSFODNN7EXAMPLE is used": "AKIAIOSFODNN7EXAMPLE",
    "pushed with ghp_0123456789abcdefABCDEF": "ghp_",
    "glpat-0123456789abcdefghij": "glpat",
    "aws_secret_access_key=wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY": "wJalr",
    "password=hunter22": "hunter22",
    '{"password": "correct horse battery"}': "horse",
    "cannot connect to postgresql://orders:pw12@db/orders": "pw12",
    "Authorization: Bearer opaque-token-abc": "opaque",
    "https://api.example.com/x?api_key=abc123def456": "abc123def456",
    '{"password": "$ecret1"}': "ecret1",
    "password=$Tr0ub4dor": "Tr0ub4dor",
    "DB_PASSWORD: (hunter2!)": "hunter2",
    "Authorization: Token 9944b09199c62bcf": "9944b0",
    "authorization=abcdef0123456789": "abcdef01",
    '{"accessToken": "abcdef1234567"}': "abcdef1234567",
}

PLAIN = [
    "Invalid token: expected END",
    "total_tokens: 15234 of max_tokens=4096",
    "the basic setup. Basic plans",
    "cookie: missing",
    "secret_name=prod/orders1 token_type=bearer",
    "task-learn and disk-space-monitoring",
    "3f2b8c1e-7d5a-4b1f-9c3e-0a1b2c3d4e5f",
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "mailto a@example.com, ssh://git@github.com/acme/orders",
    "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
    "shipping: design=blue",
    '{"next_page_token": "CAEQAA123", "token": "order"}',
    '{"passwordChangedAt": "2026-11-27", "tokenId": "tok-12345678", "secretArn": "arn:aws:x:secret-1a2b"}',
    '{"tokenAddress": "0x52908400098527886E0F7030069857D2", "signatureAlgorithm": "SHA256withRSA"}',
    "tokenizer: cl100k_base, secretary=anna.b1, cookie_policy=v2.strict, pinned=v1.2.3-beta",
    "-----BEGIN PGP PUBLIC KEY BLOCK-----\nmQENB\n-----BEGIN CHAPTER ONE-----\nIt was a dark night",
    "hf_transformers_model_x npm_config_registry_url desk-sk-learning-rate-schedule AIDAPASSENGERSHIPNAME",
    "serviceAccountToken:\n  expirationSeconds: 3600",
    "https://b.s3.amazonaws.com/x?X-Amz-Date=2&amp;X-Amz-Signature=abcdef0123456789",
    "https://b.s3.amazonaws.com/x?X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F1&X-Amz-Signature=abcdef0123456789",
]


@pytest.mark.parametrize("text", SECRETS)
def test_credentials_are_masked_in_texts_and_outputs(text: str) -> None:
    assert SECRETS[text] not in mask(text)
    assert SECRETS[text] not in json.dumps(mask_output({"a": [text]}))


@pytest.mark.parametrize("text", PLAIN)
def test_ordinary_outputs_stay_as_they_are(text: str) -> None:
    assert mask_output({"a": text}) == {"a": text}


def test_the_key_of_an_output_says_what_its_value_is() -> None:
    output = {
        "access_token": "abcdef1234567",
        "headers": {"set-cookie": "sid=abc123; Path=/"},
        "token_count": 7,
        "n": 1,
    }
    masked = {"access_token": "***", "headers": {"set-cookie": "***"}, "token_count": 7, "n": 1}
    assert mask_output(output) == masked


@pytest.mark.parametrize(
    "form",
    [
        TOKEN,
        quote(TOKEN + "/", safe=""),
        base64.b64encode(f"user:{TOKEN}".encode()).decode(),
        base64.b64encode(f"x{TOKEN}".encode()).decode(),
        json.dumps({"t": TOKEN}),
    ],
)
def test_a_known_credential_is_masked_in_every_form(form: str) -> None:
    KNOWN.add(f"Bearer {TOKEN}")
    for found in (mask(f"<{form}>"), json.dumps(mask_output({form: form})), json.dumps(mask_known([form]))):
        assert TOKEN not in found
        assert "S3CRET" not in found
        assert form not in found


def test_a_password_that_is_a_word_is_masked_in_texts_alone() -> None:
    known = KnownSecrets()
    known.add("postgresql://postgres:postgres@db/orders", "hunter22")
    assert known.mask("a backup of postgres by hunter22") == "a backup of postgres by ***"
    assert known.mask("a backup of postgres", is_data=False) == "a backup of ***"
    assert known.mask("hunter2200 and postgresql", is_data=False) == "hunter2200 and postgresql"


def test_renewed_tokens_are_forgotten_in_time_and_those_of_the_settings_never() -> None:
    known = KnownSecrets()
    known.add_all({"password": "s3t-in-the-settings"})
    for number in range(1000):
        known.add(f"Bearer renewed-token-{number}")
    shown = known.mask("s3t-in-the-settings renewed-token-999 renewed-token-0")
    assert shown == "*** *** renewed-token-0"


def test_the_credentials_of_settings_are_found_wherever_they_are() -> None:
    class Inner(BaseModel):
        password: SecretStr

    class Settings(BaseModel):
        auth: Inner
        proxy: SecretStr
        env: dict[str, SecretStr]
        headers: dict[str, str]

    known = KnownSecrets()
    known.add_all(
        Settings(
            auth=Inner(password=SecretStr("p4ssword-one")),
            proxy=SecretStr("http://me:pr0xy%2Fpass@proxy:3128"),
            env={"API_TOKEN": SecretStr("t0ken-of-env"), "REGION": SecretStr("eu-west-1"), "MODE": SecretStr("debug")},
            headers={"x-api-key": "k3y-of-header", "accept": "application/json"},
        )
    )
    shown = known.mask("p4ssword-one pr0xy/pass t0ken-of-env eu-west-1 debug k3y-of-header application/json")
    assert shown == "*** *** *** eu-west-1 debug *** application/json"


@pytest.mark.parametrize(
    "piece", ["-eyJ", "token", "a-token ", "://a", "https://a/?sig", "-----BEGIN A", "token=' ", "AKIA"]
)
def test_no_text_takes_long(piece: str) -> None:
    text = piece * (200_000 // len(piece))
    began = time.process_time()
    mask_output({"a": text})
    mask(text)
    assert time.process_time() - began < 3
