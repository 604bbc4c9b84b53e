"""The page of an execution in the AWS console."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

_DOMAINS: Final[Mapping[str, str]] = {
    "aws": "console.aws.amazon.com",
    "aws-cn": "console.amazonaws.cn",
    "aws-us-gov": "console.amazonaws-us-gov.com",
    "aws-eusc": "console.amazonaws-eusc.eu",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Console:
    """Where the console of a Region is; `root` None: there is none (an engine of one's own, another partition)."""

    root: str | None
    region: str

    @classmethod
    def of(cls, partition: str, region: str, *, url: str | None, custom: bool) -> Console:
        """As set (`url`), or AWS's own, unless the endpoint is a custom one."""
        domain = None if custom else _DOMAINS.get(partition)
        own = f"https://{region}.{domain}" if domain else None
        return cls(root=url.rstrip("/") if url else own, region=region)

    def page(self, execution: str) -> str | None:
        """The page of an execution ARN."""
        if self.root is None:
            return None
        return f"{self.root}/states/home?region={self.region}#/v2/executions/details/{quote(execution, safe=':')}"
