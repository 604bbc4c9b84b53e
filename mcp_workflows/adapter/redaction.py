"""Secrets in texts and JSON: one set of rules, and the credentials that this process knows.

A known credential is masked wherever it appears. A rule recognizes the format of unknown credentials: vendor tokens,
PEM, JWT, AWS keys, `name=value`. Texts (messages, failures, logs) are masked more eagerly than outputs, which are data:
there, a value after a name such as `token` must look like a credential, and signed URLs stay usable.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, cast
from urllib.parse import quote, unquote, urlsplit

from pydantic import BaseModel, SecretStr

from mcp_workflows.adapter.boundary import JSON

STARS: Final = "***"
_BITS: Final = 6  # per base64 character

SECRET_KEY: Final = re.compile(
    r"pass(word|wd|phrase)|pwd|secret|token|api[_-]?key|authorization|cookie|credential|private[_-]?key|signature"
    r"|session",
    re.IGNORECASE,
)
"""Keys whose values are all secret."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """A pattern for credentials; the group `it`, or else the whole match, is replaced."""

    pattern: re.Pattern[str]
    hints: Sequence[str]  # each match contains one of these, in any case; they are quick to search for


_RULES: Final[Sequence[_Rule]] = tuple(
    _Rule(re.compile(pattern), hints.split())
    for hints, pattern in (
        ("private key", r"-----BEGIN [A-Z ]*PRIVATE KEY[A-Z ]*-----[\s\S]*?(?:-----END [A-Z ]+-----|\Z)"),
        ("eyj", r"(?<![\w-])eyJ[\w-]{8,}\.[\w-]{4,}\.[\w-]*"),  # a JWT
        ("bearer basic", r"(?i:\b(?:bearer|basic))\s+(?P<it>(?=\S*[\d=_-]|\S*\.\w)[\w.~+/=-]{6,})"),
        # AWS: access keys, ids of people and roles
        ("akia asia aroa aida agpa anpa", r"\bA(?:KIA|SIA|ROA|IDA|GPA|NPA)(?=\w*\d)[0-9A-Z]{16,17}\b"),
        (
            "ghp_ gho_ ghu_ ghs_ ghr_ github_pat_ glpat- xox sk- ya29. aiza npm_ hf_ dop_v1_",
            (
                r"(?<![\w-])(?:gh[pousr]_|github_pat_|glpat-|ya29\.|AIza|dop_v1_|(?:xox[a-z]-|sk-|npm_|hf_)"
                r"(?=[\w.-]*\d))[\w.-]{12,}"
            ),
        ),
        ("k_live_ k_test_ whsec_", r"\b(?:[spr]k_(?:live|test)_|whsec_)[\w+/-]{6,}={0,2}"),  # Stripe
        (
            "authorization",
            r"(?i:\bauthorization[\"']?\s*[:=]\s*[\"']?)(?P<it>(?:[A-Za-z]+[ ]+)?(?=[\w.~+/=-]*\d)[\w.~+/=-]{8,})",
        ),
        ("@", r"(?<=://)(?P<it>[^/\s@\"'<>]+)@"),  # credentials in a URL
        (
            "passw passphrase pwd secret token apikey api_key api-key private signature credential cookie sig pin",
            (
                r"(?i:(?<![\w-])[\w-]{0,60}(?:password|passwd|passphrase|pwd(?!=[/\\])|secret|token|api[_-]?key"
                r"|private[_-]?key|signature|credential|cookie|\bsig|\bpin)[\w-]{0,60})(?:\\*[\"']|%22)?[ \t]*"
                r"(?:[=:]|%3[ADad])[ \t]*(?:\\*[\"']|%22|%20)?(?P<it>(?<=[\"'])[^\"'\\\n]{4,}|[^\s\"'&,;{}<>\\]{4,})"
            ),
        ),
    )
)
"""The rules for credentials, in the order of use. Each takes linear time for any text."""

_USER_INFO: Final = _RULES[-2].pattern
_NAMED: Final = _RULES[-1].pattern
_PAGES: Final = re.compile(r"(?:next|page|continuation|sync|max|min|total|input|output|prompt|completion)_.*token")
_CREDENTIAL: Final = re.compile(  # the end of a name; `token_id`, `secret_arn` and `password_changed_at` do not match
    r"(?:passwo?rd|passwd|passphrase|pwd|secret|token|api_?key|(?:private|secret|access|signing)_?key|signature"
    r"|credential|cookie|\bsig|\bpin|authorization)s?(?:_?\d+|_value|_text|_base64|_pem)?$"
)
_WORDS: Final = re.compile(r"(?<=[a-z\d])(?=[A-Z])|-")
_PLACEHOLDER: Final = re.compile(r"\$\{|\$\(|\$[A-Z_][A-Z0-9_]*$|\{\{")
_NUMBERS: Final = re.compile(r"[\d.,:/%+-]+")
_PASSWORD: Final = re.compile(r"(?i)passw|passphrase|pwd|pin|secret")
_RANDOM: Final = re.compile(r"(?s)(?=.*[^\W\d_])(?=.*[\d=/+])\S{6,}|(?=.*[a-z])(?=.*[A-Z])\S{12,}|\S{24,}")
OPAQUE: Final = re.compile(r"(?=.*[A-Za-z])(?=.*\d)[\w+=-]{16,}")  # an environment value that is no setting
_JOINED: Final = re.compile(r"[\"'=]|%3[ADad]|\S:$")  # a name and its value, but not `name: value` in prose
_URLS: Final = re.compile(r"(https?://[^\s\"'<>]+)")
_SIGNED: Final = re.compile(
    r"(?i)https?://[^/@]*/[^@]*(?:[?&]|&amp;|\\u0026)(?:X-Amz-Signature|X-Goog-Signature|X-Oss-Signature|Signature|sig)="
)
_DISTINCT: Final = re.compile(r"(?s)(?=.*[^\W\d_])(?=.*[^A-Za-z]).{6,}|.{12,}")  # neither a word nor a short number
_LONG: Final = 12  # characters of a credential that is also masked next to letters and digits
_SHORTEST: Final = 4  # minimum characters of a masked credential
_RENEWED: Final = (
    40  # tokens kept at a time, with and without `Bearer`: they are renewed throughout the life of the process
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Secret:
    """A credential in all its forms: plain, percent-encoded, escaped, in base64."""

    text: str
    forms: Sequence[str]
    whole_word: re.Pattern[str] | None  # for a short one, which may be part of other words
    is_distinct: bool  # it cannot be an ordinary word

    @classmethod
    def of(cls, text: str) -> _Secret:
        """Return the secret with this text."""
        plain = {text, quote(text, safe=""), json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}
        is_long = len(text) >= _LONG
        forms = sorted(plain | (_encoded_cores(text.encode()) if is_long else set()), key=len, reverse=True)
        words = "|".join(map(re.escape, forms))
        return cls(
            text=text,
            forms=forms,
            whole_word=None if is_long else re.compile(rf"(?<![A-Za-z0-9])(?:{words})(?![A-Za-z0-9])"),
            is_distinct=bool(_DISTINCT.fullmatch(text)),
        )

    def mask(self, text: str) -> str:
        """Return a text with this credential masked."""
        for form in self.forms:
            if form in text:
                text = text.replace(form, STARS) if self.whole_word is None else self.whole_word.sub(STARS, text)
        return text


class KnownSecrets:
    """The credentials of this process: all those in settings, and the newest of the renewed tokens.

    One that may be an ordinary word, such as the password `postgres`, is masked only in texts, because an output is
    data.
    """

    def __init__(self) -> None:
        self._settings: dict[str, _Secret] = {}
        self._renewed: dict[str, _Secret] = {}
        self._longest_first: Sequence[_Secret] = ()  # replaced as a whole, because other threads read it

    def add(self, *secrets: str | None) -> None:
        """Add credentials: a token, `Bearer TOKEN`, a key in PEM; for a URL, its password."""
        self._remember(self._renewed, secrets)
        for oldest in list(self._renewed)[:-_RENEWED]:
            del self._renewed[oldest]
        self._sort()

    def add_all(self, settings: object) -> None:
        """Add the credentials in settings: secrets, passwords in URLs, and values whose keys mark them as secret."""
        for name, value in _values(settings):
            text = value.get_secret_value() if isinstance(value, SecretStr) else value
            is_named = name is not None and SECRET_KEY.search(name) and "{{" not in text
            if isinstance(value, SecretStr):
                is_secret = bool(name is None or is_named or OPAQUE.fullmatch(text))
            else:
                is_secret = bool(is_named and _RANDOM.fullmatch(text))
            self._remember(self._settings, [text] if is_secret else _passwords(text))
        self._sort()

    def mask(self, text: str, *, is_data: bool = True) -> str:
        """Return a text with these credentials masked."""
        for secret in self._longest_first:
            if secret.is_distinct or not is_data:
                text = secret.mask(text)
        return text

    @staticmethod
    def _remember(known: dict[str, _Secret], secrets: Iterable[str | None]) -> None:
        for secret in filter(None, secrets):
            parts = {secret.strip(), *(word for word in secret.split() if len(word) >= _LONG)}
            for part in _passwords(secret) if "://" in secret else parts:
                if len(part) >= _SHORTEST and part not in known:
                    known[part] = _Secret.of(part)

    def _sort(self) -> None:
        both = {**self._renewed, **self._settings}.values()
        self._longest_first = sorted(both, key=lambda each: len(each.text), reverse=True)


KNOWN: Final = KnownSecrets()
"""The credentials of this process: adapters add theirs, and the program those of its configuration."""


def mask(text: str) -> str:
    """Mask known credentials and matches of the rules in a text (a message, a failure, a log)."""
    found = _without_secrets(KNOWN.mask(text), _rules_for(text), is_data=False)
    return KNOWN.mask(found, is_data=False)  # last: a password such as `secret` would hide names from the rules


def mask_known(value: JSON) -> JSON:
    """Mask known credentials in JSON."""
    return _mapped(value, lambda _, text: KNOWN.mask(text))


def mask_output(value: JSON) -> JSON:
    """Mask known credentials, and what certainly looks like others, in a workflow's JSON."""
    rules = _rules_for(json.dumps(value, ensure_ascii=False))
    if not rules:
        return mask_known(value)
    return _mapped(value, lambda key, text: _of_key(key, _without_secrets(KNOWN.mask(text), rules, is_data=True)))


def _rules_for(text: str) -> Sequence[re.Pattern[str]]:
    """Return the rules that may match in a text."""
    lowered = text.lower()
    return [rule.pattern for rule in _RULES if any(hint in lowered for hint in rule.hints)]


def mask_details(value: JSON) -> JSON:
    """Mask the details of a failure: first as an output, then each text in them as a text."""
    return _mapped(mask_output(value), lambda _, text: mask(text))


def _mapped(value: JSON, text: Callable[[str, str], str], key: str = "") -> JSON:
    """Return JSON with every text and key replaced by the result of `text(key above, value)`."""
    if isinstance(value, str):
        return text(key, value)
    if isinstance(value, Mapping):
        return {text("", name): _mapped(each, text, name) for name, each in cast("Mapping[str, JSON]", value).items()}
    if isinstance(value, list | tuple):
        return [_mapped(each, text, key) for each in cast("Sequence[JSON]", value)]
    return value


def _of_key(key: str, value: str) -> str:
    """Return the value of a key, masked if needed; `{"password": "x"}` is treated as `password=x`."""
    found = _NAMED.match(f"{key}={value}") if SECRET_KEY.search(key) else None
    return value if found is None or _replaced(found, is_data=True) == found[0] else STARS


def _without_secrets(text: str, rules: Sequence[re.Pattern[str]], *, is_data: bool) -> str:
    parts = _URLS.split(text) if rules and is_data and "http" in text else [text]
    for at in range(len(parts)):
        if at % 2 == 0 or not _SIGNED.match(parts[at]):  # a temporary link is a result
            for rule in rules:
                parts[at] = rule.sub(lambda found: _replaced(found, is_data=is_data), parts[at])
    return "".join(parts)


def _replaced(found: re.Match[str], *, is_data: bool) -> str:
    """Return a match with its credential masked, or unchanged if it has none."""
    group = "it" if "it" in found.re.groupindex else 0
    begin, end = (each - found.start() for each in found.span(group))
    whole, before, value = found[0], found[0][:begin], found[group]
    if found.re is _USER_INFO:
        is_secret = ":" in value or not is_data
    elif found.re is _NAMED:
        is_secret = _is_credential(before, value, is_data=is_data)
    else:
        is_secret = not before or not is_data or len(value) >= _LONG
    return f"{before}{STARS}{whole[end:]}" if is_secret else whole


def _is_credential(name: str, value: str, *, is_data: bool) -> bool:
    """Return True if the value after a name such as `token=` is a credential, not a count, word or placeholder."""
    words = _WORDS.sub("_", re.split(r"[^\w-]", name, maxsplit=1)[0]).lower()
    if not _CREDENTIAL.search(words) or _PAGES.match(words) or _PLACEHOLDER.match(value):
        return False
    is_joined, is_password = bool(_JOINED.search(name)), bool(_PASSWORD.search(name))
    if _NUMBERS.fullmatch(value):
        return is_password and (is_joined or not is_data)
    return bool(_RANDOM.fullmatch(value)) or (is_joined and (is_password or not is_data))


def _values(found: object, name: str | None = None) -> Iterator[tuple[str | None, SecretStr | str]]:
    """Yield all texts in settings, those in a mapping with their key."""
    if isinstance(found, SecretStr | str):
        yield name, found
    elif isinstance(found, Mapping):
        for key, each in cast("Mapping[object, object]", found).items():
            yield from _values(each, str(key))
    elif isinstance(found, list | tuple):
        for each in cast("Sequence[object]", found):
            yield from _values(each, name)
    elif isinstance(found, BaseModel):
        for field in type(found).model_fields:
            yield from _values(getattr(found, field))


def _passwords(text: str) -> Sequence[str]:
    """Return the password in a URL, both as written and decoded."""
    with suppress(ValueError):
        if "://" in text and (password := urlsplit(text.strip()).password):
            return [password, unquote(password)]
    return ()


def _encoded_cores(text: bytes) -> set[str]:
    """Return the base64 characters that depend only on the text, at each of the three alignments."""
    found = set[str]()
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + text).decode()
        found.add(encoded[-(-before * 8 // _BITS) : (before + len(text)) * 8 // _BITS])
    return found
