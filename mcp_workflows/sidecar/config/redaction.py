"""The composed configuration without secrets, for people.

A value from the environment or a file is shown as its `${NAME}`. A secret in the file itself, recognized by its model
or name, is replaced by stars, and so is everything under an unknown key.
"""

# pyright: reportUnknownMemberType=false
# (ruamel.yaml does not annotate the streams of its classes)

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap

from mcp_workflows.adapter.redaction import OPAQUE, mask
from mcp_workflows.sidecar.config.includes import read_config
from mcp_workflows.sidecar.config.json_schema import config_schema
from mcp_workflows.sidecar.config.yaml import Source, Where, mapping_in
from mcp_workflows.tools.json_schema import Schema

HIDDEN = "***"

_SECRET_NAME = re.compile(
    r"secret|passw|passphrase|token|(api|private|encryption|signing|access)[_-]?key|credential|authorization|cookie",
    re.IGNORECASE,
)
_NO_SECRET = re.compile(r"([_-]|^)(file|path|url|uri|endpoint|claim|header|name|type|id|sha256)$|^max_", re.IGNORECASE)
_USER_INFO = re.compile(r"(//(?:[^/@\s:]*:)?)[^/@\s]+(?=@)")
_TOKEN = re.compile(  # anywhere in a text; prose about tokens has no digits
    r"\b((?:bearer|basic)\s+)(?=[^\s'\"]*[0-9=])[^\s'\"]{8,}|\b(mcpw_)[\w-]+", re.IGNORECASE
)
_QUERY = re.compile(r"([?&][^=&#\s]*(?:secret|passw|token|key|signature)[^=&#\s]*=)[^&#\s]+", re.IGNORECASE)
_ONLY_OUTSIDE = re.compile(r"\$\{([^}:]+)(:-[^}]*)?\}|\$\{(file:[^}]+)\}")
_ADAPTER = "adapter"
_ELSEWHERE = frozenset({"$ref", "anyOf", "oneOf", "allOf", "enum", "const"})  # these restrict the value without a type
_HOLDING = ("items", "additionalProperties")
_TOOLS = frozenset({"tools", "defaults", "rules"})  # numbers in these are not secrets
_NO_SECRETS_IN = ("input", "output", "schema")  # JSON Schemas: their keys are names


@dataclass(frozen=True, slots=True, kw_only=True)
class RedactedConfig:
    """The redacted configuration, and the file and line of each tool."""

    config: Mapping[str, Any]  # Any: JSON
    places: Mapping[str, str]  # by name of the tool
    more: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    """The settings of each tool from `defaults` or `rules`, with their places."""

    def as_json(self) -> Mapping[str, Any]:
        """Return the configuration for programs."""
        tools = {name: {"place": place, "settings": self.more.get(name, {})} for name, place in self.places.items()}
        return {"config": self.config, "from": tools}

    def as_yaml(self) -> str:
        """Return the configuration for people; it is usable if nothing was replaced by stars."""
        whole = CommentedMap(self.config)
        tools = self.config.get("tools")
        if isinstance(tools, dict):
            whole["tools"] = commented = CommentedMap(cast("Mapping[str, Any]", tools))
            for name, place in self.places.items():
                more = (f"{key}: {place}" for key, place in self.more.get(name, {}).items())
                commented.yaml_set_comment_before_after_key(name, before="; ".join((place, *more)), indent=2)
        yaml = YAML()
        yaml.width, yaml.allow_unicode, yaml.default_flow_style = 10_000, True, False
        text = io.StringIO()
        yaml.dump(whole, text)
        return text.getvalue()


def redact_config(path: Path, environ: Mapping[str, str]) -> RedactedConfig:
    """Return the configuration with its included files, without unreadable values.

    Raises:
        ConfigError: one of the files cannot be read or parsed at all.
    """
    source = read_config(path, environ).source
    schema = config_schema()
    places, more = dict[str, str](), dict[str, dict[str, str]]()
    for name in mapping_in(source.data.get("tools")):
        tool: Where = ("tools", name)
        own, own_at = source.origin(tool)
        places[name] = source.problem(tool, "").place
        more[name] = {
            ".".join(map(str, where[2:])): f"{found.path}:{found.line(at)}"
            for where, (found, at) in source.moved.items()
            if where[:2] == tool != where and (found is not own or at[: len(own_at)] != own_at)
        }
    shown = _Redactor(source, schema.get("$defs", {})).value(source.data, (), [schema])
    return RedactedConfig(config=shown, places=places, more=more)


class _Redactor:
    """One pass over the values."""

    def __init__(self, source: Source, shared: Schema) -> None:
        self._source = source
        self._shared = shared
        self._written: dict[int, Mapping[Where, str]] = {}

    def value(self, value: Any, where: Where, schemas: Sequence[Schema]) -> Any:  # any JSON value
        variants = [each for schema in schemas for each in self._variants(schema)]
        if isinstance(value, dict):
            return self._mapping(cast("Mapping[str, Any]", value), where, variants)
        if isinstance(value, list):
            if variants and not any(_takes(each, "array") for each in variants):
                return HIDDEN
            items = cast("Sequence[Any]", value)
            if where[-1] == "command":
                return [self._argument(items, index, where) for index in range(len(items))]
            below = [each["items"] for each in variants if isinstance(each.get("items"), dict)]
            return [self.value(item, (*where, index), below) for index, item in enumerate(items)]
        inner = [each[word] for each in variants for word in _HOLDING if isinstance(each.get(word), dict)]
        whole = [*variants, *(each for schema in inner for each in self._variants(schema))]  # one for a list
        secret = any(each.get("format") == "password" for each in whole) or _named_secret(where)
        plain = isinstance(value, bool | None) or (not isinstance(value, str) and where[0] in _TOOLS)
        return self._scalar(value, where, secret=secret and not plain)

    def _mapping(self, entries: Mapping[str, Any], where: Where, variants: Sequence[Schema]) -> Mapping[str, Any]:
        """Return the entries by the models of their keys; those of an engine only by the model of its adapter."""
        constants = [each.get("properties", {}).get(_ADAPTER, {}).get("const") for each in variants]
        allowed = (None, entries.get(_ADAPTER))
        fitting = [each for each, adapter in zip(variants, constants, strict=True) if adapter in allowed]
        shown: dict[str, Any] = {}
        for key, entry in entries.items():
            here, schemas = (*where, key), list(_under(fitting, key))
            free = not variants or any(_open(each, free=where[:1] != () and where[0] in _TOOLS) for each in fitting)
            if schemas or free or key == _ADAPTER:
                shown[key] = self.value(entry, here, schemas)
            elif isinstance(entry, dict | list):
                shown[key] = HIDDEN
            else:
                shown[key] = self._scalar(entry, here, secret=True)
        return shown

    def _scalar(self, value: Any, where: Where, *, secret: bool) -> Any:  # any JSON scalar
        written = value if isinstance(value, str) and self._source.is_unreadable(where) else self._as_written(where)
        if secret:
            return _only_outside(written) if written else HIDDEN
        if not isinstance(value, str):
            return value
        text = written or value.replace("${", "$${")
        text = _TOKEN.sub(lambda found: f"{found[1] or found[2]}{HIDDEN}", text)
        return _QUERY.sub(rf"\g<1>{HIDDEN}", _USER_INFO.sub(rf"\g<1>{HIDDEN}", text))

    def _argument(self, items: Sequence[Any], index: int, where: Where) -> Any:  # Any: JSON scalars
        """Return a word of a command; the value of an option such as `--token` is secret."""
        word, option = items[index], str(items[index - 1]) if index else ""
        is_value = option.startswith("-") and "=" not in option and not str(word).startswith("-")
        shown = self._scalar(word, (*where, index), secret=is_value and _named_secret((option,)))
        if not isinstance(word, str) or shown == HIDDEN or shown != word.replace("${", "$${"):
            return shown
        return HIDDEN if OPAQUE.fullmatch(word) and not word.startswith("-") else mask(shown)

    def _as_written(self, where: Where) -> str | None:
        """Return the text with its `${NAME}` if a value was substituted, else None."""
        source, at = self._source.origin(where)
        if id(source) not in self._written:
            self._written[id(source)] = {each.where: each.around for each in source.substitutions}
        return self._written[id(source)].get(at)

    def _variants(self, schema: Schema) -> Iterator[Schema]:
        """Yield a schema and those it refers to; recursion ends with the value."""
        if isinstance(reference := schema.get("$ref"), str):
            yield from self._variants(self._shared.get(reference.rpartition("/")[2], {}))
        for word in ("anyOf", "oneOf", "allOf"):
            for each in schema.get(word, ()):
                yield from self._variants(each)
        yield schema


def _under(schemas: Sequence[Schema], key: str) -> Iterator[Schema]:
    for schema in schemas:
        found = schema.get("properties", {}).get(key, schema.get("additionalProperties"))
        if isinstance(found, dict):
            yield cast("Schema", found)


def _takes(schema: Schema, kind: str) -> bool:
    """True if the schema itself, without the schemas it refers to, allows a value of this JSON type."""
    types = schema.get("type")
    if types is None:
        return not schema.keys() & _ELSEWHERE
    return types == kind or (isinstance(types, list) and kind in types)


def _open(schema: Schema, *, free: bool) -> bool:
    """True if the schema allows unknown keys; with `free`, also besides keys that it names."""
    if not _takes(schema, "object"):
        return False
    return schema.get("additionalProperties", "properties" not in schema) is True and (
        free or "properties" not in schema
    )


def _named_secret(where: Where) -> bool:
    """True if the key, or the key of the list, is the name of a secret or of a header."""
    keys = [each for each in where if isinstance(each, str)]
    is_claim = keys[-4::2] == ["allow", "claims"]  # such as `token_use`: rules contain no secrets
    if not keys or is_claim or any(each in _NO_SECRETS_IN for each in keys[2:]):
        return False
    return keys[-2:-1] == ["headers"] or (bool(_SECRET_NAME.search(keys[-1])) and not _NO_SECRET.search(keys[-1]))


def _only_outside(written: str) -> str:
    """Return the placeholder of a secret, without the text around it and its default."""
    match = _ONLY_OUTSIDE.fullmatch(written)
    if not match:
        return HIDDEN
    name, default, file = match.groups()
    return f"${{{name or file}{f':-{HIDDEN}' if default else ''}}}"
