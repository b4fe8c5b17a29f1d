# SPDX-License-Identifier: Apache-2.0
"""What Cohere's endpoints have in common: priority, finish reasons, counts.

Source: Cohere's API reference, v1 and v2, checked against the official Python client.
"""

from collections.abc import Mapping

PRIORITY_DEFAULT = 0
"""Priority of a request that names none: the most urgent, as Cohere documents it."""

FINISH_REASONS: Mapping[str, str] = {
    "stop": "COMPLETE",
    "length": "MAX_TOKENS",
    "tool_calls": "TOOL_CALL",
    "function_call": "TOOL_CALL",
    "content_filter": "ERROR",
}
"""Cohere's finish reasons by OpenAI's."""


def meta(version: str, **units: float) -> dict[str, object]:
    """Return the ``meta`` of an answer.

    Args:
        version: ``1`` or ``2``.
        units: What is billed, such as ``input_tokens``.
    """
    return {"api_version": {"version": version}, "billed_units": units}
