"""IAM policy documents, as short as they can be: IAM counts characters.

Source: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_grammar.html
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mcp_workflows.adapter import JSON

VERSION: Final = "2012-10-17"  # of the policy language
LARGEST: Final = 6_144  # characters of a managed policy, white space not counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """Actions on resources; `sid` says in a word what for."""

    sid: str
    actions: tuple[str, ...]
    resources: frozenset[str]
    condition: Mapping[str, Mapping[str, JSON]] | None = None


def document(allowed: Iterable[Allowed]) -> Mapping[str, JSON]:
    """The policy: one statement for all that has the same resources and condition, the same text each time."""
    together: dict[str, list[Allowed]] = defaultdict(list)
    for each in allowed:
        together[json.dumps([sorted(each.resources), each.condition], sort_keys=True)].append(each)
    taken: set[str] = set()
    return {"Version": VERSION, "Statement": [_statement(group, taken) for group in together.values()]}


def _statement(group: Sequence[Allowed], taken: set[str]) -> Mapping[str, JSON]:
    name = "".join(dict.fromkeys(each.sid for each in group))
    sid = next(each for each in (name, *(f"{name}{n}" for n in range(2, len(taken) + 3))) if each not in taken)
    taken.add(sid)
    statement = {
        "Sid": sid,
        "Effect": "Allow",
        "Action": sorted({action for each in group for action in each.actions}),
        "Resource": sorted(group[0].resources),
    }
    return statement if group[0].condition is None else {**statement, "Condition": group[0].condition}
