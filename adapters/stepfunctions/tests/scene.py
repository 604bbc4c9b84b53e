"""An adapter in front of the local engine, and how it is set up there."""

from __future__ import annotations

from typing import Any

from mcp_workflows_stepfunctions import StepFunctionsAdapter, StepFunctionsSettings

from tests.support.stepfunctions_engine import StepFunctions


def settings(engine: StepFunctions, **more: Any) -> StepFunctionsSettings:
    """Of an adapter in front of this engine; `more` is as in workflows.yaml."""
    return StepFunctionsSettings.model_validate({"endpoint_url": engine.url, "region": engine.region, **more})


def adapter(engine: StepFunctions, **more: Any) -> StepFunctionsAdapter:
    """Not entered."""
    return StepFunctionsAdapter(settings(engine, **more))
