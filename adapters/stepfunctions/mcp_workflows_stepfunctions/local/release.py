"""Which moto the local engine is made of, and what to say when it is another or none."""

from __future__ import annotations

from typing import Final

MOTO: Final = "moto>=5.2.5,<5.3"  # as the extra `local` has it
_FIRST, _AFTER = (5, 2, 5), (5, 3)
INSTALL: Final = "pip install 'mcp-workflows-stepfunctions[local]'"
# the top-level modules that the extra brings
EXTRA: Final = frozenset({"antlr4", "flask", "flask_cors", "jsonata", "jsonpath_ng", "moto", "werkzeug"})


class LocalEngineError(Exception):
    """The local engine cannot start; the message says why and what to do."""


def known(version: str) -> bool:
    """Whether our additions were made for this version of moto."""
    numbers = tuple(int(part) for part in version.split(".")[:3] if part.isdecimal())
    return _FIRST <= numbers < _AFTER


def not_importable(error: ImportError) -> str:
    """Why the engine's modules could not be imported: the extra is not installed, or moto is another one."""
    missing = error.name or ""
    if isinstance(error, ModuleNotFoundError) and missing in EXTRA:
        return f"the local engine is not installed ({missing} is missing): {INSTALL}"
    return moto_changed(str(error))


def moto_changed(what: str) -> str:
    """Our additions do not fit the moto that is installed."""
    return f"the local engine is made for {MOTO} and does not fit the moto that is installed ({what}): {INSTALL}"
