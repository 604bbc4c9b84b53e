"""Workflows that play the parts of the tests, as anybody would write them."""

from __future__ import annotations

from textwrap import indent as indented
from typing import Final

from mcp_workflows_google.tooling.embed import add_subworkflows

ECHO: Final = """
main:
  params: [args]
  steps:
    - answer:
        return: ${args}
"""

DECLINES: Final = """
main:
  params: [args]
  steps:
    - charging:
        raise: {code: 402, message: the card was declined, tags: [CardDeclined]}
"""

FOREVER: Final = """
main:
  params: [args]
  steps:
    - sleeping:
        call: sys.sleep
        args: {seconds: 3600}
"""

NAP: Final = """
main:
  params: [args]
  steps:
    - napping:
        call: sys.sleep
        args: {seconds: 1}
    - done:
        return: {rested: true}
"""

FENCED: Final = add_subworkflows("""
main:
  params: [args]
  steps:
    - claiming:
        call: mcp_claim
        result: claimed
    - fence:
        switch:
          - condition: ${not(claimed.claimed)}
            return: {lost: true}
    - charging:
        call: http.post
        args:
          url: ${args.shop}
          body: {charged: true}
    - done:
        return: {charged: true}
""")


def _asking(step: str, indent: int, key: str, message: str, *, result: str = "answer") -> str:
    """A step that asks a person, so far in."""
    lines = f"""
- {step}:
    call: mcp_elicit
    args:
      key: {key}
      message: {message}
      requested_schema: {{type: object, properties: {{answer: {{type: string}}}}, required: [answer]}}
    result: {result}
"""
    return indented(lines.strip("\n"), " " * indent)


ASKS: Final = add_subworkflows(f"""
main:
  params: [args]
  steps:
{_asking("asking", 4, "ship", "Ship it?")}
    - done:
        return: ${{answer}}
""")

ASKS_TWO: Final = add_subworkflows(f"""
main:
  params: [args]
  steps:
    - both:
        parallel:
          branches:
            - first:
                steps:
{_asking("ask_first", 18, "ship", "Ship it?", result="one")}
            - second:
                steps:
{_asking("ask_second", 18, "really", "Really?", result="two")}
    - done:
        return: {{asked: 2}}
""")

GATED: Final = """
main:
  params: [args]
  steps:
    - opening:
        call: events.create_callback_endpoint
        args: {http_callback_method: POST}
        result: callback
    - await_approval:
        call: events.await_callback
        args: {callback: "${callback}", timeout: 3600}
        result: request
    - done:
        return: ${request.http_request.body}
"""
