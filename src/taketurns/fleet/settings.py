# SPDX-License-Identifier: Apache-2.0
"""What all pools of a gateway in a fleet have in common."""

from dataclasses import dataclass, field
from typing import Literal

from taketurns.fleet.link import Link

OnStoreError = Literal["local", "closed", "open"]


@dataclass(slots=True)
class FleetSettings:
    """One gateway in a fleet.

    Attributes:
        gateway: Its name: no other process has it, nor had it before.
        link: The connection to the coordinator.
        on_store_error: While the coordinator doesn't answer: ``local`` goes on with a share of
            the slots, ``open`` with all of them, ``closed`` refuses.
        expected_gateways: How many there are at least; None: as many as were last known.
        switches: How often a pool went on alone.
    """

    gateway: str
    link: Link
    on_store_error: OnStoreError = "local"
    expected_gateways: int | None = None
    switches: int = field(default=0, init=False)

    def went_alone(self) -> None:
        """Count that a pool goes on alone."""
        self.switches += 1
