"""Presets: definitions of well-known APIs, as files of this package or of the user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, cast

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError
from ruamel.yaml import YAML
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from mcp_workflows.adapter import JSON, closest
from mcp_workflows.kit.expressions import as_object
from mcp_workflows.kit.tooling import Preset

_FOLDER: Final = files("mcp_workflows_http") / "preset_files"
_ENDINGS: Final = (".yaml", ".yml")  # of a user's own file
_ABOUT: Final = "about"  # the preset's description of itself: its engine, its first version, and how it was tested


def preset_names() -> Sequence[str]:
    """Return the names of the presets of this package."""
    return sorted(each.name.removesuffix(".yaml") for each in _FOLDER.iterdir() if each.name.endswith(".yaml"))


def read_preset(name: str, folder: Path = Path()) -> Mapping[str, JSON]:
    """Return a preset by its name, or by a file path relative to the folder.

    Raises:
        ValueError: there is none, or it is not YAML.
    """
    if name.endswith(_ENDINGS):
        place: Any = folder / name
    elif name in preset_names():
        place = _FOLDER / f"{name}.yaml"
    else:
        meant = closest(name, preset_names())
        hint = f"did you mean {meant!r}?" if meant else f"there are {', '.join(preset_names())}."
        raise ValueError(f"there is no {name!r}; {hint} A file of your own ends with .yaml")
    try:
        found = YAML(typ="safe").load(place.read_text(encoding="utf-8"))  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    except OSError as error:
        raise ValueError(f"{name} cannot be read: {error.strerror}") from None
    except MarkedYAMLError as raised:
        fault: Any = raised  # its class has no types
        mark = fault.problem_mark or fault.context_mark
        of_values = isinstance(raised, DuplicateKeyError)  # its text contains the values of both keys
        what = "a key is there twice" if of_values else ", ".join(filter(None, (fault.context, fault.problem)))
        raise ValueError(f"{name}:{mark.line + 1 if mark else 1}: not YAML: {what}") from None
    except (YAMLError, UnicodeDecodeError, RecursionError):
        raise ValueError(f"{name} is not YAML") from None
    if not isinstance(found, dict):
        raise ValueError(f"{name} is no mapping")
    return cast("Mapping[str, JSON]", found)


def presets() -> Mapping[str, Preset]:
    """Return the presets of this package by name."""
    return {name: _preset(name) for name in preset_names()}


def _preset(name: str) -> Preset:
    about = cast("Mapping[str, str]", read_preset(name)[_ABOUT])
    known = {key: about[key] for key in ("title", "verified", "since", "notes")}
    text = (_FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    return Preset(text=text, **known)


def with_preset(written: object, folder: Path) -> object:
    """Return the settings over those of their preset, key by key.

    Raises:
        ValidationError: there is no such preset.
    """
    if not isinstance(written, dict):
        return written
    settings = cast("Mapping[str, JSON]", written)
    name = settings.get("preset")
    if not isinstance(name, str):
        return settings
    try:
        preset = {key: value for key, value in read_preset(name, folder).items() if key != _ABOUT}
    except ValueError as error:
        raise ValidationError.from_exception_data("preset", [_of_preset(str(error), name)]) from None
    return _merged(preset, settings)


def with_places_in_preset(error: ValidationError, written: object, folder: Path) -> ValidationError:
    """Return the error with the file and line of each problem in a user's own preset file."""
    settings = as_object(cast("JSON", written)) or {}
    name = settings.get("preset")
    if not isinstance(name, str) or not name.endswith(_ENDINGS):
        return error
    preset: Any = YAML().load((folder / name).read_text(encoding="utf-8"))  # pyright: ignore[reportUnknownMemberType]
    details: list[InitErrorDetails] = []
    for each in error.errors(include_url=False):
        place, what = each["loc"], _WORDS.get(each["type"], each["msg"].removeprefix("Value error, "))
        at = (*place, what.split()[0].rstrip(":"))  # a message about several settings begins with one of them
        steps = _followed(preset, at)
        detail: InitErrorDetails = {"type": each["type"], "loc": place, "input": each["input"]}
        if len(steps) > len(_followed(settings, at)):
            line = steps[-1][0].lc.key(steps[-1][1])[0] + 1
            text = ": ".join(filter(None, (f"{name}:{line}", ".".join(map(str, place)), what)))
            detail = _of_preset(text, name)
        elif "ctx" in each:
            detail["ctx"] = each["ctx"]
        details.append(detail)
    return ValidationError.from_exception_data(error.title, details)


def _of_preset(text: str, name: str) -> InitErrorDetails:
    """Return an error about the setting `preset`: a problem in its file has no place in workflows.yaml."""
    return {"type": PydanticCustomError("preset", "{text}", {"text": text}), "loc": ("preset",), "input": name}


def _followed(value: Any, place: Sequence[str | int]) -> Sequence[tuple[Any, str | int]]:  # any YAML value
    """Return each mapping on the way to a place, with the key that leads on."""
    steps: list[tuple[Any, str | int]] = []
    for key in place:
        found = as_object(value) or {}
        if key in found:
            steps.append((found, key))
            value = found[str(key)]
    return steps


_WORDS: Final = {"extra_forbidden": "unknown key", "missing": "is missing"}
_WHOLE: Final = frozenset({"request", "handle", "output", "json", "same", "auth"})  # replaced as a whole


def _merged(preset: Mapping[str, JSON], own: Mapping[str, JSON]) -> Mapping[str, JSON]:
    merged = {**preset}
    for key, value in own.items():
        known = preset.get(key)
        both = isinstance(known, dict) and isinstance(value, dict) and key not in _WHOLE
        merged[key] = _merged(cast("Mapping[str, JSON]", known), cast("Mapping[str, JSON]", value)) if both else value
    return merged
