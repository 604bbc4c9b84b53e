"""States that authors copy into their machines to ask people: see `mcp-workflows docs stepfunctions-contract`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from typing import Final

FILES: Final[Mapping[str, str]] = {
    "asl": "ask.asl.json",
    "asl-jsonata": "ask-jsonata.asl.json",
    "asl-sqs": "ask-sqs.asl.json",
    "asl-sqs-jsonata": "ask-sqs-jsonata.asl.json",
    "asl-lambda": "ask-lambda.asl.json",
    "asl-lambda-jsonata": "ask-lambda-jsonata.asl.json",
}


def read_embedded_files() -> Mapping[str, str]:
    """Return the text of each file, by language."""
    folder = resources.files("mcp_workflows_stepfunctions") / "embedded"
    return {language: (folder / name).read_text("utf-8") for language, name in FILES.items()}
