"""The command `mcp-workflows token`: bearer tokens."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from mcp_workflows.access.authn.verifier import make_token, sha256_of
from mcp_workflows.sidecar.cli.app import app


@app.command()
def token(
    name: Annotated[str, typer.Argument(help="The client's name in rules and records, such as ci.")],
    scope: Annotated[list[str] | None, typer.Option(help="A scope of the token; can be repeated.")] = None,
    subject: Annotated[str | None, typer.Option(help="The person, for a personal token.")] = None,
) -> None:
    """Create a bearer token. Print it once, on standard output, with the lines for workflows.yaml."""
    made = make_token()
    entry = {"name": name, "sha256": sha256_of(made)}
    entry |= {"subject": subject} if subject else {}
    line = json.dumps({**entry, **({"scopes": scope} if scope else {})}, ensure_ascii=False)  # JSON is YAML
    typer.echo("The token, which is not stored and not shown again:", err=True)
    typer.echo(made)
    typer.echo("\nFor workflows.yaml, which needs only its hash:", err=True)
    typer.echo(f"\nserver:\n  auth:\n    tokens:\n      - {line}", err=True)
