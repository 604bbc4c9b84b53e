"""Evaluation of JSONata without Java; moto needs a JVM for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from jsonata import JException, Jsonata
from moto.stepfunctions.parser.asl.eval import states, variable_store
from moto.stepfunctions.parser.asl.jsonata import jsonata as expressions

from mcp_workflows_stepfunctions_local.patches import replace


def evaluate(expression: str) -> Any:
    """Return the value of an expression as plain JSON.

    Raises:
        JSONataException: the expression cannot be parsed or evaluated.
    """
    try:
        value: Any = Jsonata(expression).evaluate(None)
        return json.loads(json.dumps(value, default=_plain))
    except (JException, ArithmeticError, LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise expressions.JSONataException(str(getattr(error, "error", "UNKNOWN")), str(error)) from error


def declare(bindings: Mapping[str, Any]) -> str:
    """Return variables as JSONata declarations; moto does not escape texts, so a quotation mark in a value broke it."""
    return "".join(
        f"{name}:={json.dumps(value, separators=(',', ':'), default=str)};" for name, value in bindings.items()
    )


def install() -> None:
    """Replace moto's evaluation of JSONata."""
    replace(expressions, "_eval_jsonata", evaluate)
    for module in (states, variable_store):
        replace(module, "encode_jsonata_variable_declarations", declare)


def _plain(value: Any) -> Any:
    """Return JSON for a value that JSON lacks: the library's own sequences become lists, functions become text."""
    return list(value) if hasattr(value, "__iter__") else str(value)
