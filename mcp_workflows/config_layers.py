"""Settings of a tool that stand in several places: defaults under it, its own, rules over it.

A setting is taken whole from the uppermost place that has it: nobody could read a policy that is put together from
three places. A setting left empty is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeAlias

from mcp_workflows.config_source import Source, Where

Settings: TypeAlias = Mapping[str, Any]  # Any: any JSON value; checked by the models of the config


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Some settings, and where they stand."""

    source: Source
    where: Where
    values: Settings
    default: bool = False  # it says nothing of a tool that it does not count for


def merge(layers: Sequence[Layer]) -> tuple[Settings, Mapping[str, tuple[Source, Where]]]:
    """The settings of all of them, later ones over earlier ones, and where each of them comes from."""
    on_top: dict[str, Layer] = {}
    for layer in layers:
        for key, value in layer.values.items():
            if value is not None or key not in on_top:
                on_top[key] = layer
    own_first = sorted(layers, key=lambda layer: layer.default)
    values = {key: on_top[key].values[key] for layer in own_first for key in layer.values}
    counting = {key: on_top[key] for key in values if not on_top[key].default or counts(key, values)}
    origins = {key: (layer.source, (*layer.where, key)) for key, layer in counting.items()}
    return {key: values[key] for key in counting}, origins


def counts(key: str, settings: Settings) -> bool:
    """Whether a default says anything about a tool of these settings; written out it would be a mistake there."""
    needs = _ONLY_FOR.get(key)
    return needs is None or needs(settings)


def _optional(settings: Settings) -> bool:
    return bool(settings.get("tasks", "optional") == "optional")


def _is_task(settings: Settings) -> bool:
    return bool(settings.get("tasks") != "forbidden")


def _watches(settings: Settings) -> bool:
    return bool(settings.get("kind") == "watch")


def _starts(settings: Settings) -> bool:
    return not _watches(settings)


def _may_cancel(settings: Settings) -> bool:
    return _starts(settings) or settings.get("allow_cancel") is True


_ONLY_FOR: Mapping[str, Callable[[Settings], bool]] = {
    "fallback": _optional,
    "wait": lambda settings: _optional(settings) and settings.get("fallback", "tools") == "tools",
    "adaptive": _is_task,
    "allow_answer": _watches,
    "allow_cancel": _watches,
    "input": _starts,
    "args": _starts,
    "send": _starts,
    "ask": _starts,
    "dedupe": _starts,
    "on_behalf_of": _starts,
    "cancel": _may_cancel,
    "cancel_on_disconnect": _may_cancel,
    "on_expire": _may_cancel,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """The platform's own: what lies under every tool, and what lies over those whose names fit."""

    defaults: Settings = field(default_factory=dict[str, Any])
    rules: Mapping[str, Settings] = field(default_factory=dict[str, Settings])

    def over(self, name: str, found: Settings, *, known: Collection[str]) -> Settings:
        """The settings of a tool that stands in no file, with those of these that are known."""
        layers = [self.defaults, found, *(self.rules[pattern] for pattern in self.rules_for(name))]
        ours = [{key: value for key, value in layer.items() if key in known or layer is found} for layer in layers]
        nowhere = Source(path=Path(), data={}, lines={}, substitutions=(), problems=(), lost=frozenset())
        return merge([Layer(source=nowhere, where=(), values=each, default=each is ours[0]) for each in ours])[0]

    def rules_for(self, name: str) -> Sequence[str]:
        """The patterns that fit this name, in the order of the file."""
        return [pattern for pattern in self.rules if fnmatchcase(name, pattern)]
