# SPDX-License-Identifier: Apache-2.0
"""Carries a scheduler's decisions out as soon as they can be made.

There is no ``async`` and no lock here, on purpose. Every method runs to its
end without giving way, so under asyncio each is atomic, and a simulator can
drive the very same code with no event loop at all.
"""

from collections.abc import Callable, Sequence

from taketurns.core.decision import Ended, Expired, Granted, Outcome, Refused
from taketurns.core.model import Tenant, Ticket
from taketurns.core.scheduler import Scheduler
from taketurns.ports.clock import Clock, Timer

Perform = Callable[[Granted | Expired], None]


class Dispatcher:
    """Drives one scheduler: every event is followed by the decisions it makes possible.

    Args:
        scheduler: The pool's scheduler; nobody else calls what changes it.
        clock: Source of time and of the alarm for deadlines.
        perform: Carries one decision out, and must not raise: decisions after it
            would be lost. It may call back into the dispatcher: what that
            decides is performed after what stands already.
    """

    def __init__(self, scheduler: Scheduler, clock: Clock, perform: Perform) -> None:
        self.scheduler = scheduler
        self._clock = clock
        self._perform = perform
        self._timer: Timer | None = None
        self._wake_us = 0
        self._pumping = False
        self._again = False

    def submit(self, tickets: Sequence[Ticket]) -> Refused | None:
        """Queue tickets, all or none of them.

        Returns:
            None where all were queued, else the first refusal.

        Raises:
            ValueError: A ticket can't be queued, see :meth:`Scheduler.submit`.
        """
        queued = 0
        try:
            for ticket in tickets:
                refused = self.scheduler.submit(ticket)
                if refused is not None:
                    self._withdraw(tickets[:queued])
                    return refused
                queued += 1
        except ValueError:
            self._withdraw(tickets[:queued])
            raise
        if not self.scheduler.settled:
            self.pump()
        return None

    def cancel(self, ticket_ids: Sequence[str]) -> list[Ticket]:
        """Take waiting tickets out, and return those that were waiting."""
        found = [self.scheduler.cancel(ticket_id) for ticket_id in ticket_ids]
        # A ticket that leaves may have stood in front of one that fits.
        self.pump()
        return [ticket for ticket in found if ticket is not None]

    def change(self, ticket_id: str, *, priority: int, deadline_us: int | None) -> bool:
        """Give a waiting ticket another priority and deadline; False where it isn't waiting."""
        changed = self.scheduler.change(ticket_id, priority=priority, deadline_us=deadline_us)
        self.pump()
        return changed

    def settle(self, ticket_id: str, cost: int) -> None:
        """Let a running ticket's charge stand at ``cost``. Raises KeyError if it isn't running."""
        self.scheduler.settle(ticket_id, cost)

    def finish(
        self,
        ticket_id: str,
        outcome: Outcome = Outcome.COMPLETED,
        *,
        cost: int | None = None,
        executed: bool = True,
    ) -> Ended:
        """Settle a running ticket for good, see :meth:`Scheduler.finish`; use what that frees."""
        ended = self.scheduler.finish(ticket_id, outcome, cost=cost, executed=executed)
        self.pump()
        return ended

    def set_tenant(self, tenant: Tenant) -> None:
        """Set a tenant's weight and cap."""
        self.scheduler.set_tenant(tenant)
        self.pump()

    def set_quantum(self, quantum: int) -> None:
        """Set the quantum."""
        self.scheduler.set_quantum(quantum)
        self.pump()

    def set_engine(self, name: str, slots: int) -> None:
        """Add an engine or resize it."""
        self.scheduler.set_engine(name, slots)
        self.pump()

    def remove_engine(self, name: str) -> None:
        """Start nothing more on an engine."""
        self.scheduler.remove_engine(name)

    def pump(self) -> None:
        """Carry out what is due and set the alarm for what is not."""
        if self._pumping:
            self._again = True
            return
        self._pumping = True
        try:
            self._again = True
            while self._again:
                self._again = False
                for decision in self.scheduler.advance(self._clock.now_us()):
                    self._perform(decision)
        finally:
            self._pumping = False
        self._set_alarm()

    def close(self) -> None:
        """Take the alarm back; nothing is called after this."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _withdraw(self, tickets: Sequence[Ticket]) -> None:
        for ticket in tickets:
            self.scheduler.cancel(ticket.id)

    def _set_alarm(self) -> None:
        wake_us = self.scheduler.next_wake_us()
        if self._timer is not None:
            # One that comes early does no harm: then it's set anew.
            if wake_us is not None and self._wake_us <= wake_us:
                return
            self.close()
        if wake_us is not None:
            self._wake_us = wake_us
            self._timer = self._clock.call_at(wake_us, self._alarm)

    def _alarm(self) -> None:
        self._timer = None
        self.pump()
