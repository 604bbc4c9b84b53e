"""text.*, json.*, base64.*, hash.*: strings and bytes. Regular expressions are Python's, without what RE2 lacks."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
from collections.abc import Callable, Sequence
from typing import Final
from urllib.parse import quote, quote_plus, unquote_plus

from mcp_workflows_google_local import JSON
from mcp_workflows_google_local.language.errors import Tag, failure
from mcp_workflows_google_local.language.functions import Function, need
from mcp_workflows_google_local.language.values import has_bytes

_ALGORITHMS: Final = ("MD5", "SHA1", "SHA224", "SHA256", "SHA384", "SHA512")
_CODECS: Final = {"UTF-8": "utf-8", "UTF-16": "utf-16", "ISO-8859-1": "iso-8859-1", "US-ASCII": "ascii"}
_BEYOND_RE2: Final = re.compile(r"\(\?(?:<?[=!]|\()|\\[1-9]|[*+?}]\+|\(\?>")


def _regex(function: str, pattern: JSON) -> re.Pattern[str]:
    need(function, "string", regexp=pattern)
    if _BEYOND_RE2.search(pattern):
        raise failure(Tag.VALUE, f"{function}: look-around and back references are not in RE2")
    try:
        return re.compile(pattern)
    except re.error as error:
        raise failure(Tag.VALUE, f"{function}: invalid regular expression: {error.msg}") from None


def _found(matches: Sequence[re.Match[str]]) -> JSON:
    return [{"index": match.start(), "match": match[0]} for match in matches]


def _find_all(source: JSON, substr: JSON) -> JSON:
    need("text.find_all", "string", source=source, substr=substr)
    return _found(list(re.finditer(re.escape(str(substr)), source)))


def _find_all_regex(source: JSON, regexp: JSON) -> JSON:
    need("text.find_all_regex", "string", source=source)
    return _found(list(_regex("text.find_all_regex", regexp).finditer(source)))


def _match_regex(source: JSON, regexp: JSON) -> JSON:
    need("text.match_regex", "string", source=source)
    return _regex("text.match_regex", regexp).search(source) is not None


def _replace_all(source: JSON, substr: JSON, repl: JSON) -> JSON:
    need("text.replace_all", "string", source=source, substr=substr, repl=repl)
    return source.replace(substr, repl)


def _replace_all_regex(source: JSON, regexp: JSON, repl: JSON) -> JSON:
    need("text.replace_all_regex", "string", source=source, repl=repl)
    return _regex("text.replace_all_regex", regexp).sub(lambda found: repl, source)  # no back references, as Google


def _split(source: JSON, separator: JSON) -> JSON:
    need("text.split", "string", source=source, separator=separator)
    return source.split(separator) if separator else list(source)


def _substring(source: JSON, start: JSON, end: JSON) -> JSON:
    need("text.substring", "string", source=source)
    need("text.substring", "integer", start=start, end=end)
    if not 0 <= start <= end <= len(source):
        raise failure(Tag.INDEX, f"text.substring: {start} to {end} is not in a string of {len(source)}")
    return source[start:end]


def _codec(function: str, charset: JSON) -> str:
    need(function, "string", charset=charset)
    if charset.upper() not in _CODECS:
        raise failure(Tag.VALUE, f"{function}: unknown charset: this engine has {', '.join(_CODECS)}")
    return _CODECS[charset.upper()]


def _decode(data: JSON, charset: JSON = "UTF-8") -> JSON:
    need("text.decode", "bytes", data=data)
    try:
        return data.decode(_codec("text.decode", charset))
    except UnicodeDecodeError:
        raise failure(Tag.VALUE, f"text.decode: the bytes are not {charset}") from None


def _encode(data: JSON, charset: JSON = "UTF-8") -> JSON:
    need("text.encode", "string", data=data)
    try:
        return data.encode(_codec("text.encode", charset))
    except UnicodeEncodeError:
        raise failure(Tag.VALUE, f"text.encode: the string cannot be {charset}") from None


def _of_string(name: str, apply: Callable[[str], JSON]) -> Function:
    def pure(source: JSON) -> JSON:
        need(name, "string", source=source)
        return apply(source)

    return Function(name=name, required=("source",), pure=pure)


def encoded(value: JSON, indent: int | None = None) -> str:
    """Return the JSON of a value.

    Raises:
        WorkflowError: TypeError, it contains bytes.
    """
    if has_bytes(value):
        raise failure(Tag.TYPE, "bytes cannot be JSON-encoded: use base64.encode")
    separators = (",", ": ") if indent else (",", ":")
    return json.dumps(value, ensure_ascii=False, separators=separators, indent=indent)


def decoded(data: JSON) -> JSON:
    """Return the value of a JSON text or its bytes.

    Raises:
        WorkflowError: ValueError, the text is not JSON.
    """
    if not isinstance(data, bytes):
        need("json.decode", "string", data=data)
    try:
        return json.loads(data, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise failure(Tag.VALUE, "json.decode: the data is not JSON") from None


def _json_encode(data: JSON, indent: JSON = None) -> JSON:
    return encoded(data, _indent(indent)).encode()


def _json_encode_to_string(data: JSON, indent: JSON = None) -> JSON:
    return encoded(data, _indent(indent))


def _no_constant(name: str) -> JSON:
    raise ValueError(name)


def _indent(value: JSON) -> int | None:
    if value is None or value is False:
        return None
    if value is True:
        return 2
    need("json.encode", "integer", indent=value)
    return int(value)


def _decode_64(data: JSON, padding: JSON = True) -> JSON:
    need("base64.decode", "string", data=data)
    need("base64.decode", "boolean", padding=padding)
    text = data if padding else data + "=" * (-len(data) % 4)
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise failure(Tag.VALUE, "base64.decode: the data is not Base64") from None


def _encode_64(data: JSON, padding: JSON = True) -> JSON:
    need("base64.encode", "bytes", data=data)
    need("base64.encode", "boolean", padding=padding)
    text = base64.b64encode(data).decode()
    return text if padding else text.rstrip("=")


def _algorithm(function: str, algorithm: JSON) -> str:
    need(function, "string", algorithm=algorithm)
    if algorithm not in _ALGORITHMS:
        raise failure(Tag.VALUE, f"{function}: unknown algorithm: it is one of {', '.join(_ALGORITHMS)}")
    return str(algorithm).lower()


def _checksum(data: JSON, algorithm: JSON) -> JSON:
    need("hash.compute_checksum", "bytes", data=data)
    return hashlib.new(_algorithm("hash.compute_checksum", algorithm), data).digest()


def _hmac(key: JSON, data: JSON, algorithm: JSON) -> JSON:
    need("hash.compute_hmac", "bytes", key=key, data=data)
    return hmac.digest(key, data, _algorithm("hash.compute_hmac", algorithm))


TEXT: Final[Sequence[Function]] = (
    Function(name="base64.decode", required=("data",), optional=("padding",), pure=_decode_64),
    Function(name="base64.encode", required=("data",), optional=("padding",), pure=_encode_64),
    Function(name="hash.compute_checksum", required=("data", "algorithm"), pure=_checksum),
    Function(name="hash.compute_hmac", required=("key", "data", "algorithm"), pure=_hmac),
    Function(name="json.decode", required=("data",), pure=decoded),
    Function(name="json.encode", required=("data",), optional=("indent",), pure=_json_encode),
    Function(name="json.encode_to_string", required=("data",), optional=("indent",), pure=_json_encode_to_string),
    Function(name="text.decode", required=("data",), optional=("charset",), pure=_decode),
    Function(name="text.encode", required=("data",), optional=("charset",), pure=_encode),
    Function(name="text.find_all", required=("source", "substr"), pure=_find_all),
    Function(name="text.find_all_regex", required=("source", "regexp"), pure=_find_all_regex),
    Function(name="text.match_regex", required=("source", "regexp"), pure=_match_regex),
    Function(name="text.replace_all", required=("source", "substr", "repl"), pure=_replace_all),
    Function(name="text.replace_all_regex", required=("source", "regexp", "repl"), pure=_replace_all_regex),
    Function(name="text.split", required=("source", "separator"), pure=_split),
    Function(name="text.substring", required=("source", "start", "end"), pure=_substring),
    _of_string("text.to_lower", str.lower),
    _of_string("text.to_upper", str.upper),
    _of_string("text.url_decode", unquote_plus),
    _of_string("text.url_encode", lambda text: quote(text, safe="")),
    _of_string("text.url_encode_plus", quote_plus),
)
