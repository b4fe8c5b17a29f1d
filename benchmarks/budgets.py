# SPDX-License-Identifier: Apache-2.0
"""What each cost model makes fair: the shares of short and of long answers, and their gap.

Virtual time over the production scheduler and the production cost models. An
engine of 16 slots gives each running request one token a step. Both tenants
always have requests waiting, all with prompts of 200 tokens. One has answers of
about 40 tokens, the other of about 400; in a second run the other's are 20 or
780 by chance, so that no average foretells them.

*Service* is what was delivered: a prompt when it's dispatched, an output token
when it's produced, at twice a prompt token's cost. The *gap* is the largest
difference between the two tenants' service at any time after the first tenth,
in output tokens of one request: the mean answer of the long one is 1.

    python benchmarks/budgets.py [--json] [--steps N] [--record PATH]
"""

import random

from harness import deliver, options_for

from taketurns.core.cost import (
    REQUEST_COST,
    TOKENS_PER_ROUND,
    CostModel,
    EmaCost,
    RequestsCost,
    TokensCost,
)
from taketurns.core.decision import Granted
from taketurns.core.lengths import OutputLengths
from taketurns.core.model import PoolRules, Ticket, Tier
from taketurns.core.scheduler import Scheduler
from taketurns.figures import Figure
from taketurns.gateway.metering import stride

SLOTS = 16
PROMPT = 200
SHORT, LONG = "short", "long"
QUEUED = 32
STEP_US = 20_000
MEAN_LONG = 400

MODELS: dict[str, tuple[CostModel, int]] = {
    "requests": (RequestsCost(), REQUEST_COST),
    "tokens": (TokensCost(), TOKENS_PER_ROUND),
    "ema, horizon 0": (EmaCost(horizon=0), TOKENS_PER_ROUND),
    "ema, horizon 24": (EmaCost(), TOKENS_PER_ROUND),
    "ema, horizon 64": (EmaCost(horizon=64), TOKENS_PER_ROUND),
    "ema, horizon 1M": (EmaCost(horizon=1_000_000), TOKENS_PER_ROUND),
}
"""Cost model and quantum, as they are by default."""


class Run:
    """One engine under two tenants."""

    def __init__(self, cost: CostModel, quantum: int, *, steady: bool) -> None:
        self._cost = cost
        self._stride = stride(quantum, 2)
        self._steady = steady
        self._dice = random.Random(3)
        self._lengths = OutputLengths()
        self._scheduler = Scheduler(
            PoolRules(quantum, debt_rounds=1_000, tenant_queue_max=100), [Tier("t")]
        )
        self._scheduler.set_engine("gpu", SLOTS)
        self._running: dict[str, list[int]] = {}
        self._expected: dict[str, int] = {}
        self._numbers = 0
        self.service = {SHORT: 0, LONG: 0}
        self.requests = {SHORT: 0, LONG: 0}

    def step(self, now_us: int) -> None:
        """Let every running request produce a token; start what can be started."""
        for ticket_id, state in list(self._running.items()):
            tenant, expected = ticket_id.split()[0], self._expected[ticket_id]
            state[0] += 1
            self.service[tenant] += 2
            if state[0] >= state[1]:
                self._end(ticket_id, tenant)
            elif state[0] % self._stride == 0:
                standing = self._cost.running(PROMPT, state[0], expected)
                if standing is not None:
                    self._scheduler.settle(ticket_id, standing)
        for tenant in (SHORT, LONG):
            while self._waiting(tenant) < QUEUED:
                self._submit(tenant)
        for decision in self._scheduler.advance(now_us):
            assert isinstance(decision, Granted)
            (ticket,) = decision.tickets
            self._running[ticket.id] = [0, self._length(ticket.tenant)]
            self.service[ticket.tenant] += PROMPT

    def _waiting(self, tenant: str) -> int:
        return sum(1 for name in self._expected if name.startswith(tenant)) - sum(
            1 for name in self._running if name.startswith(tenant)
        )

    def _submit(self, tenant: str) -> None:
        self._numbers += 1
        expected = self._lengths.expected(tenant)
        ticket = Ticket(
            f"{tenant} {self._numbers}", tenant, "t", cost=self._cost.charge(PROMPT, expected)
        )
        assert self._scheduler.submit(ticket) is None
        self._expected[ticket.id] = expected

    def _length(self, tenant: str) -> int:
        if tenant == SHORT:
            return self._dice.randint(30, 50)
        return self._dice.randint(350, 450) if self._steady else self._dice.choice((20, 780))

    def _end(self, ticket_id: str, tenant: str) -> None:
        produced, _ = self._running.pop(ticket_id)
        self._scheduler.finish(ticket_id, cost=self._cost.used(PROMPT, produced))
        self._lengths.seen(tenant, produced)
        del self._expected[ticket_id]
        self.requests[tenant] += 1


def measure(name: str, steps: int, *, steady: bool) -> list[Figure]:
    """Run one cost model, and return its figures."""
    cost, quantum = MODELS[name]
    run = Run(cost, quantum, steady=steady)
    begun = steps // 10
    lead: list[int] = []
    at_begin: tuple[dict[str, int], dict[str, int]] = ({}, {})
    for number in range(steps):
        run.step(number * STEP_US)
        if number == begun:
            at_begin = dict(run.service), dict(run.requests)
        if number >= begun:
            service, first = run.service, at_begin[0]
            short, long = service[SHORT] - first[SHORT], service[LONG] - first[LONG]
            lead.append(short - long)
    short, long = (run.service[tenant] - at_begin[0][tenant] for tenant in (SHORT, LONG))
    done = [run.requests[tenant] - at_begin[1][tenant] for tenant in (SHORT, LONG)]
    where = "steady" if steady else "changing"
    share = 100 * short / (short + long)
    gap = (max(lead) - min(lead)) / (2 * MEAN_LONG + PROMPT)
    fair = None if name == "requests" else abs(share - 50) <= 3
    target = "" if fair is None else "47..53"
    return [
        figure(f"{name}, {where}: service of short", share, "%", target, reached=fair),
        figure(f"{name}, {where}: requests of short", 100 * done[0] / sum(done), "%"),
        figure(f"{name}, {where}: gap", gap, "long requests"),
    ]


def figure(
    name: str, value: float, unit: str, target: str = "", *, reached: bool | None = None
) -> Figure:
    """Return a figure of one run: it's the same in each."""
    value = round(value, 2)
    return Figure(name, value, unit, target, reached, 1, (value, value), "")


def main() -> None:
    parser = options_for(__doc__)
    parser.add_argument("--steps", type=int, default=30_000, help="tokens that each slot gives")
    options = parser.parse_args()
    figures = [
        one
        for steady in (True, False)
        for name in MODELS
        for one in measure(name, options.steps, steady=steady)
    ]
    deliver(figures, options)


if __name__ == "__main__":
    main()
