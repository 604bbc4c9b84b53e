"""A custom role with the permissions that tools need, as `gcloud iam roles create --file` takes it.

Google grants roles on projects, not on workflows, so a role cannot be limited to certain workflows.

Source: https://cloud.google.com/workflows/docs/access-control
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mcp_workflows.adapter import JSON, Use
from mcp_workflows_google.settings import GoogleSettings

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A permission, and a test for the uses that need it."""

    permission: str
    to: Callable[[Use], bool]


def _starts(use: Use) -> bool:
    return not use.watches


GRANTS: Final[Sequence[Grant]] = (
    Grant(permission="workflows.callbacks.list", to=lambda use: use.answers),
    Grant(permission="workflows.callbacks.send", to=lambda use: use.answers),
    Grant(permission="workflows.executions.cancel", to=lambda use: use.cancels or _starts(use)),  # cancels duplicates
    Grant(permission="workflows.executions.create", to=_starts),
    Grant(permission="workflows.executions.get", to=lambda _: True),
    Grant(permission="workflows.executions.list", to=lambda _: True),  # finds lost starts; bulk status
    Grant(permission="workflows.workflows.get", to=lambda _: True),  # `check`
)
ANYTHING: Final = Use(tool="", workflow="")  # the needs of a labelled workflow are not known
LISTS: Final = "workflows.workflows.list"


def permissions(settings: GoogleSettings, uses: Sequence[Use]) -> Mapping[str, JSON]:
    """Return the role for these uses, and for `discover` if it is set; see `Permits.permissions`.

    With `impersonate` the role is for that account; the permission that its caller needs is logged.
    """
    found = settings.discover is not None
    all_uses = [*uses, ANYTHING] if found else uses
    needed = [grant.permission for grant in GRANTS if any(grant.to(use) for use in all_uses)]
    if settings.impersonate is not None:
        _log.warning(
            "this role is for %s; who acts as it needs roles/iam.serviceAccountTokenCreator on that account",
            settings.impersonate,
        )
    return {
        "title": "mcp-workflows",
        "description": "What mcp-workflows needs of Google Cloud Workflows for the tools of one workflows.yaml.",
        "stage": "GA",
        "includedPermissions": sorted([*needed, LISTS] if found else needed),
    }
