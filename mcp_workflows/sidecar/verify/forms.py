"""The forms in which a known text is looked for: plain, percent-encoded, escaped, in base64 and in hex."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Self

from mcp_workflows.adapter.redaction import encoded_cores

_BEFORE: Final = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrtbf])|(?<=%[0-9A-Fa-f]{2})|(?<=\\u[0-9A-Fa-f]{4}))"
_AFTER: Final = r"(?![A-Za-z0-9])"
_ALPHABET: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_")
_RUNS: Final = (re.compile(r"[A-Za-z0-9+/_-]{8,}={0,2}"), re.compile(r"[A-Za-z0-9+_-]{8,}={0,2}"))
_ESCAPES: Final = {"\n": "n", "\r": "r", "\t": "t"}


@dataclass(frozen=True, slots=True)
class Forms:
    """The patterns for one text; `encoded` finds the part of a base64 text that does not depend on what is around."""

    plain: re.Pattern[str]
    encoded: re.Pattern[str] | None

    @classmethod
    def of(cls, text: str, *, is_word: bool, is_encoded: bool = True) -> Self:
        """Return the forms of a text; a word is found only where no letter or digit is next to it."""
        spelled = "".join(map(_character, text))
        plain = f"{_BEFORE}{spelled}{_AFTER}" if is_word else spelled
        if not is_encoded:
            return cls(re.compile(plain, re.IGNORECASE), None)
        cores = {core for each in (text, text.lower(), text.upper()) for core in encoded_cores(_bytes(each))}
        encoded = "|".join(re.escape(core).replace(r"\+", "[+-]").replace("/", "[/_]") for core in sorted(cores))
        return cls(re.compile(f"{plain}|{_bytes(text).hex()}", re.IGNORECASE), re.compile(encoded))

    def search(self, text: str) -> bool:
        """Return whether the text is there in any form."""
        return bool(self.plain.search(text) or (self.encoded and self.encoded.search(text)))

    def replace_encoded(self, text: str, placeholder: str) -> str:
        """Replace each run of base64 characters that has the text in it."""
        parts, done = list[str](), 0
        for found in self.encoded.finditer(text) if self.encoded else ():
            begin, end = found.span()
            if begin < done:
                continue
            while begin > done and text[begin - 1] in _ALPHABET:
                begin -= 1
            while end < len(text) and text[end] in _ALPHABET:
                end += 1
            while end < len(text) and text[end] == "=":
                end += 1
            parts += text[done:begin], placeholder
            done = end
        return "".join([*parts, text[done:]])


def replace_decoded(text: str, clean: Callable[[str], str]) -> str:
    """Replace each run of base64 that is a printable text by what `clean` makes of that text, in base64 again."""

    def replace(found: re.Match[str]) -> str:
        run = found[0]
        bare = run.rstrip("=")
        is_url = "-" in bare or "_" in bare
        try:
            padded = bare + "=" * (-len(bare) % 4)
            decoded = base64.b64decode(padded, altchars=b"-_" if is_url else None, validate=True).decode()
        except (binascii.Error, ValueError):
            return run
        if not re.sub(r"[\r\n\t]", "", decoded).isprintable() or (cleaned := clean(decoded)) == decoded:
            return run
        encode = base64.urlsafe_b64encode if is_url else base64.b64encode
        again = encode(cleaned.encode()).decode()
        return again if run != bare or len(bare) % 4 == 0 else again.rstrip("=")

    for pattern in _RUNS:
        text = pattern.sub(replace, text)
    return text


def unwrapped(text: str) -> Sequence[str]:
    """Return a text and all texts that are in it in base64, also in base64 of base64."""
    found = [text]

    def keep(inner: str) -> str:
        found.append(inner)
        return inner

    for each in found:
        replace_decoded(each, keep)
    return found


def _character(character: str) -> str:
    """Return the pattern for one character, as it is, percent-encoded (several times) or escaped (likewise)."""
    found = [re.escape(character), "".join(f"%(?:25)*{byte:02x}" for byte in _bytes(character))]
    if character == " ":
        found.append(r"\+")
    elif character == "\\":
        found = [r"\\+", found[1]]
    elif character in _ESCAPES:
        found.append(rf"\\+{_ESCAPES[character]}")
    elif character in "\"'/":
        found[0] = rf"\\*{found[0]}"
    units = character.encode("utf-16-be", "surrogatepass").hex()
    found.append("".join(rf"\\+u{units[at : at + 4]}" for at in range(0, len(units), 4)))
    return f"(?:{'|'.join(found)})"


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
