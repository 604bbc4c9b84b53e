"""Access: who asks, how that shows, and what they may do."""

from mcp_workflows.access.authn.issuers import ALGORITHMS, Issuer, account_of
from mcp_workflows.access.authn.jwks import Keys
from mcp_workflows.access.policy import Allow, Authorizer, Rule, Verb, Whom, Wish, permits, reaches_others
from mcp_workflows.access.principal import (
    ANONYMOUS,
    LOCAL,
    PRINCIPAL_FIELDS,
    Principal,
    is_loopback,
    owner_id,
    person_of,
)

__all__ = [
    "ALGORITHMS",
    "ANONYMOUS",
    "LOCAL",
    "PRINCIPAL_FIELDS",
    "Allow",
    "Authorizer",
    "Issuer",
    "Keys",
    "Principal",
    "Rule",
    "Verb",
    "Whom",
    "Wish",
    "account_of",
    "is_loopback",
    "owner_id",
    "permits",
    "person_of",
    "reaches_others",
]
