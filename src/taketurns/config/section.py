# SPDX-License-Identifier: Apache-2.0
"""The base of every part of the configuration file."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Base of every part of the file: no unknown keys, no changes afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
