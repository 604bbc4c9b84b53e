"""`mcp-workflows init --add`: the workflows of an API become drafts of tools, with the inputs that it knows."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from adapters.http.tests.scripted import scene
from mcp_workflows.kit.tooling import Discovered, Discovers

DEPLOY = """
on:
  workflow_dispatch:
    inputs:
      version: {description: What to deploy, required: true, type: string}
      environment: {type: choice, options: [staging, production], default: staging}
      dry: {type: boolean, default: false}
      mcp_key: {type: string}
"""
GITLAB_CI = """
spec:
  inputs:
    environment: {description: Where to, options: [staging, production]}
    replicas: {type: number, default: 2}
---
build: {script: make}
"""


async def drafts(preset: str, replies: Mapping[str, Any], **settings: Any) -> Sequence[Discovered]:
    async with scene(preset, "any", **settings) as found:
        found.vendor.replies.update(replies)
        assert isinstance(found.adapter.tooling, Discovers)
        return await found.adapter.tooling.discover()


async def test_github_has_the_inputs_in_the_file_of_the_workflow() -> None:
    repository = "/repos/acme/shop"
    listed = [
        {"id": 7, "name": "Deploy", "path": ".github/workflows/deploy.yml", "state": "active"},
        {"id": 8, "name": "Tests", "path": ".github/workflows/tests.yml", "state": "active"},
        {"id": 9, "name": "Old", "path": ".github/workflows/old.yml", "state": "disabled_manually"},
    ]
    replies = {
        f"GET {repository}/actions/workflows": {"workflows": listed},
        f"GET {repository}/contents/.github/workflows/deploy.yml": DEPLOY,
        f"GET {repository}/contents/.github/workflows/tests.yml": "on: [push]",
    }
    [deploy] = await drafts("github-actions", replies, vars={"owner": "acme", "repo": "shop"})
    assert (deploy.workflow, deploy.title) == ("7", "Deploy")
    assert deploy.input == {
        "type": "object",
        "properties": {
            "version": {"type": "string", "description": "What to deploy"},
            "environment": {"type": "string", "enum": ["staging", "production"], "default": "staging"},
            "dry": {"type": "boolean", "default": False},
        },
        "required": ["version"],
    }


async def test_gitlab_has_the_inputs_in_the_head_of_its_file() -> None:
    project = "/api/v4/projects/5"
    replies = {
        f"GET {project}": {"default_branch": "main", "name": "Shop", "description": "The shop"},
        f"GET {project}/repository/files/.gitlab-ci.yml/raw": GITLAB_CI,
    }
    [found] = await drafts("gitlab-ci", replies, vars={"project": "5"})
    assert (found.workflow, found.title, found.description) == ("main", "Shop", "The shop")
    assert found.input == {
        "type": "object",
        "properties": {
            "environment": {"type": "string", "description": "Where to", "enum": ["staging", "production"]},
            "replicas": {"type": "number", "default": 2},
        },
        "required": ["environment"],
    }


async def test_jenkins_has_the_parameters_of_its_jobs() -> None:
    parameters = [
        {"name": "VERSION", "type": "StringParameterDefinition", "defaultParameterValue": {"value": "1.0"}},
        {"name": "TARGET", "type": "ChoiceParameterDefinition", "choices": ["a", "b"], "description": "Where to"},
        {"name": "MCP_KEY", "type": "StringParameterDefinition"},
    ]
    job = {
        "fullName": "team/app/fix%2Fx",
        "fullDisplayName": "Fix",
        "property": [{}, {"parameterDefinitions": parameters}],
    }
    empty: Any = {"fullName": "empty", "fullDisplayName": "Empty", "jobs": []}
    team = {"fullName": "team", "jobs": [{"fullName": "team/app", "jobs": [job]}, empty]}
    top = {"fullName": "release", "fullDisplayName": "Release"}
    release, found = await drafts("jenkins", {"GET /api/json": {"jobs": [top, team]}})
    assert (release.workflow, found.workflow, found.title) == ("release", "team/app/fix%2Fx", "Fix")
    assert found.input == {
        "type": "object",
        "properties": {
            "VERSION": {"type": "string", "default": "1.0"},
            "TARGET": {"type": "string", "description": "Where to", "enum": ["a", "b"]},
        },
    }


async def test_airflow_has_params_with_schemas() -> None:
    replies = {
        "GET /api/v2/dags": {"dags": [{"dag_id": "etl", "description": "Nightly"}]},
        "GET /api/v2/dags/etl/details": {
            "params": {"rows": {"value": 10, "schema": {"type": "integer"}, "description": "How many"}}
        },
    }
    [found] = await drafts("airflow", replies)
    assert (found.workflow, found.description) == ("etl", "Nightly")
    assert found.input == {
        "type": "object",
        "properties": {"rows": {"type": "integer", "description": "How many", "default": 10}},
    }


async def test_prefect_has_a_json_schema() -> None:
    schema = {"type": "object", "properties": {"rows": {"type": "integer"}}, "required": ["rows"]}
    listed = [{"id": "5f", "name": "nightly", "description": None, "parameter_openapi_schema": schema}]
    [found] = await drafts("prefect", {"POST /api/deployments/filter": listed})
    assert (found.workflow, found.title, found.input) == ("5f", "nightly", schema)


@pytest.mark.parametrize("broken", ["on: [", "a: &a [*a", "<html>", ""])
async def test_a_file_that_cannot_be_read_leaves_the_workflow_out(broken: str) -> None:
    assert await deployments(broken) == []


async def deployments(text: str) -> Sequence[Discovered]:
    """The drafts of a repository whose one workflow has this file."""
    replies: dict[str, Any] = {
        "GET /repos/acme/shop/actions/workflows": {
            "workflows": [{"id": 7, "name": "Deploy", "path": "a.yml", "state": "active"}]
        },
        "GET /repos/acme/shop/contents/a.yml": text,
    }
    return await drafts("github-actions", replies, vars={"owner": "acme", "repo": "shop"})


async def test_a_github_workflow_without_inputs_takes_none() -> None:
    [deploy] = await deployments("on: {workflow_dispatch:, push:}")
    assert deploy.input == {"type": "object", "properties": {}}


async def test_a_file_whose_aliases_stand_for_very_many_values_is_left_out() -> None:
    lines = ["a0: &a0 [x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 8)), "on: *a7"]
    began = time.process_time()
    assert await deployments("\n".join(lines)) == []
    assert time.process_time() - began < 2  # 5 s and more, once
