# SPDX-License-Identifier: Apache-2.0
"""What a fleet can't do: one shared queue, which is there to be compared with in one process."""

from collections.abc import Iterator, Mapping

from taketurns.config.coordinator import LOCAL
from taketurns.config.faults import path_text
from taketurns.config.yaml_tree import Data, Path
from taketurns.errors import ConfigFault


def fleet_faults(
    data: Mapping[str, Data], models: Mapping[str, Mapping[str, Data]]
) -> Iterator[tuple[Path, ConfigFault]]:
    """Yield the settings of models that a coordinator can't keep to."""
    if data.get("coordinator", LOCAL) == LOCAL:
        return
    for name, section in models.items():
        if section.get("scheduler") == "shared_queue":
            path: Path = ("models", name, "scheduler")
            problem = "can't be had with a coordinator: it's there for comparison, in one process"
            hint = "Remove it, or set coordinator: local."
            yield path, ConfigFault(path_text(path), problem, hint=hint)
