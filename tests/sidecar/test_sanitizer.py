"""What a recording must not tell does not get into it, however it is wrapped."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, quote_plus

import pytest

from mcp_workflows.sidecar.verify.forms import Forms
from mcp_workflows.sidecar.verify.sanitizer import NotSanitizedError, Sanitizer


def sanitized(value: Any, **private: str) -> Any:
    return Sanitizer({text: kind for kind, text in private.items()}).sanitize(value)


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
TOKEN = "AQCEAAAAKgAAAAMAAAAAAAAAAeL9zX0h3VbM7bqW1nRkQ2tYp5sD8fGj0aKc4xUvZoIyEwTlPm6HrSd+N9/aB=="
ARN = "arn:aws:states:eu-west-1:424242424242:stateMachine:refund"

HOSTILE: Mapping[str, tuple[Any, str]] = {
    "a token in JSON in a text": ({"input": json.dumps({"auth": {"token": "tok-4711-abc"}})}, "4711"),
    "a token in JSON in JSON in a text": ({"a": json.dumps({"b": json.dumps({"password": "hunter22"})})}, "hunter22"),
    "a token in JSON in base64": ({"data": encoded(json.dumps({"api_key": "k-99-zz"}))}, "k-99-zz"),
    "a secret below a key that names it": ({"secrets": {"db": {"one": "s3cr3t-1"}}}, "s3cr3t-1"),
    "a token as a key": ({f"Bearer {JWT}": 1}, JWT),
    "an account in an ARN in an error": ({"cause": f"{ARN} does not exist"}, "424242424242"),
    "an account apart from its ARN": ({"arn": ARN, "owner": "424242424242", "n": 424242424242}, "424242424242"),
    "credentials in a URL": ("cannot reach https://deploy:pa55w0rd@git.acme.corp/x", "pa55w0rd"),
    "the host of a URL": ("cannot reach https://deploy:pa55w0rd@git.acme.corp/x", "git.acme.corp"),
    "a host apart from its URL": (["http://git.acme.corp:8080/a", "lookup git.acme.corp: no such host"], "acme"),
    "a signature in a query": ("https://x.example.org/a?sig=AbC123%2Fzz&x=1", "AbC123"),
    "a token in a query": ("GET /log?access_token=zzz-1-zzz", "zzz-1-zzz"),
    "a password in prose": ("login failed: password=hunter22, try again", "hunter22"),
    "a header in prose": ("sent Authorization: Bearer abc.def-123", "abc.def-123"),
    "basic credentials": ("Authorization: Basic dXNlcjpwYXNzd29yZA==", "dXNlcjpwYXNzd29yZA"),
    "a key of AWS": ("denied for AKIAIOSFODNN7EXAMPLE", "AKIAIOSFODNN7EXAMPLE"),
    "a token of GitHub": ("remote: ghp_16C7e42F292c6912E7710c838347Ae178B4a", "ghp_"),
    "a token of GitLab": ("remote: glpat-abcdefghijklmnopqrst", "glpat-"),
    "a key in PEM": ("-----BEGIN PRIVATE KEY-----\nMIIE\nzzzz\n-----END PRIVATE KEY-----", "MIIE"),
    "a task token": (
        {"Detail": {"x": TOKEN}},
        "AQCEAAAAKgAAAAMAAAAAAAAAAeL9zX0h3VbM7bqW1nRkQ2tYp5sD8fGj0aKc4xUvZoIyEwTlPm6",
    ),
    "an e-mail address": ("approved by Jane.Doe+x@acme.co.uk", "Jane"),
    "an e-mail address in a URL": ("/users?mail=jane%40acme.com", "jane"),
    "a host in an error": ("dial tcp db7.acme.io:5432: refused", "acme"),
    "a host inside of a company": ("lookup db7.shop.internal: no such host", "db7"),
    "a host in capitals": (["http://git.acme.io/a", "GIT.ACME.IO is down"], "ACME"),
    "a secret key of AWS": ("used wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY to sign", "K7MDENG"),
    "a dictionary of Python": ("{'token': 'abc-123', 'user': 1}", "abc-123"),
    "a variable": ("AWS_SECRET_ACCESS_KEY=zz/zz", "zz/zz"),
    "a cookie": ({"headers": {"set-cookie": ["sid=abc123; Path=/"]}}, "abc123"),
    "a worker": ({"identity": "4711@build-host-3"}, "build-host-3"),
    "a project of Google": ("projects/acme-prod-1/locations/x: denied for acme-prod-1", "acme-prod-1"),
    "a person's folder": ("in /home/jdoe42/app/main.py and C:\\Users\\jdoe42\\x", "jdoe42"),
    "a folder of a machine": ("in /var/lib/acme/run.log", "acme"),
    "an address": ("connect to 10.1.2.3:443 and fd12:3456:789a::1", "10.1.2.3"),
    "an address of IPv6": ("connect to 10.1.2.3:443 and fd12:3456:789a::1", "fd12"),
    "a subscription of Azure": ("/subscriptions/8a1f0b54-1111-4222-8333-944455556666/x", "8a1f0b54"),
    "a hash as a token": ("key 0123456789abcdef0123456789abcdef01234567", "0123456789abcdef"),
    "the lines of a stack trace": ({"Cause": json.dumps({"stackTrace": ["File /app/x.py"]})}, "/app/x.py"),
    "places in files": ({"failure": {"stackTrace": 'File "/app/x.py"'}}, "/app/x.py"),
    "a header as a pair of keys": ([{"name": "Authorization", "value": "zz-top-1"}], "zz-top-1"),
    "a variable as a pair of keys": ({"Key": "DB_PASSWORD", "Value": "swordfish"}, "swordfish"),
    "a header as a list": ({"headers": [["Cookie", "sid=abc"]]}, "abc"),
    "a key auth": ({"auth": "swordfish"}, "swordfish"),
    "a key bearer": ({"x-bearer": "swordfish"}, "swordfish"),
    "a key pwd": ({"dbpwd": "swordfish"}, "swordfish"),
    "a key pin": ({"userPin": ["swordfish"]}, "swordfish"),
    "a number under a secret key": ({"pin": 4711, "secrets": [{"n": 4711}]}, "4711"),
    "an account as a number": ({"owner": 424242424242}, "424242424242"),
    "an account after an underscore": ("no acct_424242424242.", "424242424242"),
    "JSON after a blank": ({"input": ' {"token": {"a": "swordfish"}}'}, "swordfish"),
    "JSON in an error": ('refused: {"name": "Authorization", "value": "swordfish"} (400)', "swordfish"),
    "escaped JSON in an error": (r"refused: {\"password\": \"swordfish\"}", "swordfish"),
    "an e-mail address in base64": (encoded("jane@acme.com"), "jane"),
    "an e-mail address in base64 in prose": (f"no user {encoded('jane@acme.com')} here", "jane"),
    "a bare host": ("db01.acme.com is down", "acme"),
    "a bare host of a country": ("asked db.acme.co.uk, then eu.db.acme.io.", "acme"),
    "a folder of an image": ("in /app/acme/main.py", "acme"),
    "a file of settings": ("in /etc/acme/x.conf", "acme"),
    "a volume": ("in /Volumes/acme/x", "acme"),
    "a drive": (r"in D:\projects\acme\x.py", "acme"),
    "a drive with slashes": ("in D:/projects/acme/x.py", "acme"),
    "an e-mail address in an encoded URL": ("/users?to=%2Fx%3Fmail%3Djane%2540acme.com", "jane%"),
    "percent-encoded JSON": ("/a?b=%7B%22password%22%3A%22swordfish%22%7D", "swordfish"),
    "a key of Stripe": ("key " + "sk_" + "live_swordfish1", "swordfish"),
    "a secret of Stripe's webhooks": ("whsec_swordfish1", "swordfish"),
    "a key in PEM that is cut": ("-----BEGIN RSA PRIVATE KEY-----\nMIIEswordfish", "MIIE"),
    "a short hash as a token": ("key 0123456789abcdef0123456789abcdef", "0123456789abcdef"),
    "a project at the end": ("denied for projects/acme-prod", "acme"),
    "a person with two names": ("in /Users/jane doe/app and C:\\Users\\jane doe\\x", "doe"),
    "a person with two names at the end": ("in /Users/jane doe", "doe"),
    "a person in a query": ("GET https://x.example.org/a?user=jane&x=1", "jane"),
}


@pytest.mark.parametrize(("value", "private"), HOSTILE.values(), ids=HOSTILE)
def test_nothing_private_is_left(value: Any, private: str) -> None:
    found = json.dumps(sanitized(value))
    assert private not in found
    wrapped = [base64.b64decode(each) for each in found.split('"') if len(each) % 4 == 0 and BASE64.fullmatch(each)]
    assert not [each for each in wrapped if private.encode() in each]


SECRET = "s3cr3t/pass wörd"
FORMS: Mapping[str, Any] = {
    "plain": f"a {SECRET} b",
    "next to letters": f"x{SECRET}y9",
    "in capitals": SECRET.upper(),
    "as a key": {SECRET: 1},
    "percent-encoded": quote(SECRET),
    "percent-encoded with its slash": f"?a={quote(SECRET, safe='')}&b",
    "percent-encoded as a form": quote_plus(SECRET),
    "percent-encoded twice": quote(quote(SECRET, safe=""), safe=""),
    "escaped": json.dumps(json.dumps(f"a\n{SECRET}"))[1:],
    "with an escaped letter": r"\u00733cr3t/pass wörd",
    "after an escaped new line": rf"a\n{SECRET}",
    "in base64": encoded(SECRET),
    "in base64 in prose": f"header {encoded('user:' + SECRET)} refused",
    "in base64 as a key": {encoded(SECRET): 1},
    "in base64 of base64": encoded(f"a {encoded(SECRET)}"),
    "in base64 for URLs": base64.urlsafe_b64encode(f"??{SECRET}??".encode()).decode().rstrip("="),
    **{
        f"in base64 of bytes, after {n}": base64.b64encode(b"\xff" * n + SECRET.encode() + b"\xfe").decode()
        for n in range(3)
    },
    "in hex": SECRET.encode().hex(),
    "in hex, in capitals": f"x{SECRET.encode().hex().upper()}f",
}


@pytest.mark.parametrize("value", FORMS.values(), ids=FORMS)
def test_a_known_secret_is_found_in_every_form(value: Any) -> None:
    found = json.dumps(Sanitizer({SECRET: "secret"}).sanitize(value), ensure_ascii=False)
    assert "secret-1" in found or encoded("secret-1").rstrip("=") in found or "secret-1" in "".join(unwrapped(found))
    assert not Forms.of(SECRET, is_word=False).search("".join([found, *unwrapped(found)]))


def unwrapped(text: str) -> list[str]:
    """What is in base64 in a text, also in base64 there."""
    runs = [each for each in BASE64.findall(text) if len(each) > 7]
    inner = [base64.b64decode(each + "==", altchars=b"-_").decode("utf-8", "replace") for each in runs]
    return [*inner, *(deeper for each in inner for deeper in unwrapped(each))]


@pytest.mark.parametrize("value", FORMS.values(), ids=FORMS)
def test_a_recording_with_a_known_secret_in_any_form_is_not_written(
    value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unchanged(_: Sanitizer, value: Any, **__: Any) -> Any:  # a defect
        return value

    monkeypatch.setattr(Sanitizer, "_value", unchanged)
    with pytest.raises(NotSanitizedError, match=r"private \(secret\)"):
        Sanitizer({SECRET: "secret"}).sanitize(value)


def test_a_known_secret_that_is_a_word_of_placeholders_is_replaced() -> None:
    assert sanitized(["the secret", "a host"], secret="secret", host="host") == ["the secret-1", "a host-1.example"]


def test_two_keys_with_one_placeholder_keep_both_entries() -> None:
    found = Sanitizer({"hunter22": "secret"}).sanitize({"hunter22": 1, "HUNTER22": 2, "Hunter22": 3})
    assert found == {"secret-1": 1, "secret-1 (2)": 2, "secret-1 (3)": 3}


def test_what_is_no_json_becomes_a_text_that_says_so() -> None:
    found = sanitized({"a": object(), "b": b"\xffabc", "c": "x\ud800", "d": float("nan"), "e": (1,), 2: "\udfff"})
    assert found == {
        "a": "(not JSON: object)",
        "b": "(not JSON: 4 bytes)",
        "c": r"(not valid Unicode) x\ud800",
        "d": "(not JSON: float)",
        "e": [1],
        "2": r"(not valid Unicode) \udfff",
    }


def test_a_text_has_one_placeholder_everywhere() -> None:
    found = sanitized([f"{ARN} is denied", json.dumps({"arn": ARN}), encoded(json.dumps({"arn": ARN}))])
    assert found[0] == "arn:aws:states:eu-west-1:000000000001:stateMachine:refund is denied"
    assert (
        json.loads(found[1]) == json.loads(base64.b64decode(found[2])) == {"arn": found[0].removesuffix(" is denied")}
    )


def test_two_texts_have_two_placeholders() -> None:
    assert sanitized(["a@acme.org", "b@acme.org", "a@acme.org"]) == [
        "user-1@example.com",
        "user-2@example.com",
        "user-1@example.com",
    ]


def test_what_is_known_to_be_private_is_replaced_wherever_it_stands() -> None:
    found = sanitized({"acme": ["for acme, again", encoded(json.dumps(["acme"]))], "acmes": 1}, project="acme")
    assert found == {"project-1": ["for project-1, again", encoded(json.dumps(["project-1"]))], "acmes": 1}


def test_a_recording_that_keeps_what_is_private_is_not_written() -> None:
    sanitizer = Sanitizer({"acme": "project"})
    sanitizer._placeholders.add("acme")  # pyright: ignore[reportPrivateUsage]  # a defect
    with pytest.raises(NotSanitizedError, match=r"private \(project\)"):
        sanitizer.sanitize({"a": "acme"})


@pytest.mark.parametrize(
    "value",
    [
        {"eventTime": "2026-11-25T08:40:49.207076718Z", "eventId": "12", "taskId": "1049803"},
        {"runId": "01a211dd-5b37-7129-ac96-b3248ce40a8d", "attempt": 1, "done": True, "none": None},
        {"metadata": {"encoding": encoded("json/plain")}, "data": encoded('{"text":"hi"}')},
        {"type": "TaskStateEntered", "input": '{"text": "hi"}', "duration": "12:30:45"},
        {"message": "the card was declined", "url": "https://json-schema.org/draft/2020-12/schema"},
        {"a": "reply.body is not java.net.UnknownHostException", "b": "pydantic 2.12.4, asyncio.run, app.main:main"},
        {"type": "io.temporal.Failure", "@type": "type.googleapis.com/google.protobuf.Struct", "s": "{{ x.acme.com }}"},
        {"resource": "arn:aws:states:::aws-sdk:eventbridge:putEvents", "name": "pin the token", "value": "2"[:0]},
        {"required": ["token", "text"], "pinned": "yes", "author": "nobody", "n": 1764060049207, "x": 0.123456789012},
        {"status": "{{reply.body.state}}", "token": "{{reply.body.next}}", "taskToken.$": "$$.Task.Token"},
    ],
)
def test_what_is_not_private_stays_as_it_is(value: Any) -> None:
    assert sanitized(value) == value


def test_what_is_sanitized_already_stays_as_it_is() -> None:
    sanitizer = Sanitizer({})
    once = sanitizer.sanitize([each for each, _ in HOSTILE.values()])
    assert sanitizer.sanitize(once) == once
