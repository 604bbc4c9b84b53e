"""A local engine for workflows of Google Cloud Workflows: for development and tests, without an account."""

from typing import Any, TypeAlias

JSON: TypeAlias = Any  # any JSON value: its shape is checked where it is used
