"""Access control: principals, and the rules for what they may do."""

from mcp_workflows.access.authn.issuers import ALGORITHMS, Issuer, KeySet, account_of
from mcp_workflows.access.policy import (
    AccessRequest,
    Allow,
    Authorizer,
    PrincipalMatch,
    Rule,
    Verb,
    one_or_more,
    permits,
    permits_message,
    reaches_others,
)
from mcp_workflows.access.principal import (
    ANONYMOUS,
    LOCAL,
    PRINCIPAL_FIELDS,
    Principal,
    is_loopback,
    owner_id,
    person_of,
)
from mcp_workflows.access.signatures import check_signature

__all__ = [
    "ALGORITHMS",
    "ANONYMOUS",
    "LOCAL",
    "PRINCIPAL_FIELDS",
    "AccessRequest",
    "Allow",
    "Authorizer",
    "Issuer",
    "KeySet",
    "Principal",
    "PrincipalMatch",
    "Rule",
    "Verb",
    "account_of",
    "check_signature",
    "is_loopback",
    "one_or_more",
    "owner_id",
    "permits",
    "permits_message",
    "person_of",
    "reaches_others",
]
