"""Definitions that are parsed at the same time.

Each execution parses its machine's definition as it starts. Moto notes which query language it is in (JSONPath or
JSONata) in one list for all of them: executions that start together read each other's, and a definition that is
refused spoils all later ones.
"""

from __future__ import annotations

from typing import Any

from moto.stepfunctions.parser.asl.parse.preprocessor import Preprocessor

from mcp_workflows_stepfunctions.local.patching import replace, required

_LANGUAGES = "_query_language_per_scope"


def install() -> None:
    """Give each parse a list of its own."""
    required(Preprocessor, _LANGUAGES)
    replace(Preprocessor, "__init__", _begin)


def _begin(preprocessor: Any) -> None:
    setattr(preprocessor, _LANGUAGES, [])
