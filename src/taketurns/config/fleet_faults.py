# SPDX-License-Identifier: Apache-2.0
"""What a fleet can't do: settings of models that need one process to decide."""

from collections.abc import Iterator, Mapping

from taketurns.config.coordinator import LOCAL
from taketurns.config.faults import path_text
from taketurns.config.yaml_tree import Data, Path
from taketurns.errors import ConfigFault

ALONE = "Remove it, or set coordinator: local."

NOT_SHARED = {
    "scheduler": ("round_robin", "drr"),
}
"""Settings of a model that a coordinator doesn't know, and the values that ask nothing of it."""


def fleet_faults(
    data: Mapping[str, Data], models: Mapping[str, Mapping[str, Data]]
) -> Iterator[tuple[Path, ConfigFault]]:
    """Yield the settings of models that a coordinator can't keep to."""
    if data.get("coordinator", LOCAL) == LOCAL:
        return
    for name, section in models.items():
        for key, harmless in NOT_SHARED.items():
            if key in section and section[key] not in harmless:
                yield _fault(("models", name, key), ALONE)
        batch = section.get("batch")
        if isinstance(batch, dict) and batch.get("linger") not in {None, 0, "0", "0s", "0ms"}:
            yield _fault(("models", name, "batch", "linger"), ALONE)


def _fault(path: Path, hint: str) -> tuple[Path, ConfigFault]:
    problem = "can't be had with a coordinator: one process alone can keep to it"
    return path, ConfigFault(path_text(path), problem, hint=hint)
