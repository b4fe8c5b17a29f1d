# SPDX-License-Identifier: Apache-2.0
"""The file's JSON Schema, for editors that check and complete YAML."""

from typing import Any

from taketurns.config.model import Config


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the configuration file."""
    schema = Config.model_json_schema()
    schema["title"] = "taketurns.yaml"
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
