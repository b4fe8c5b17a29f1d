# SPDX-License-Identifier: Apache-2.0
"""What limits cost: CPU time to admit and settle a request, and memory for each rule and tenant.

Many tenants send in turn, one request each, at a steady rate of them all
together; every request is admitted, by a plan that is kept for its tenant as
the gateway keeps them, and settled. The rules are those that
providers publish: requests and tokens in a minute, requests at once, and then
by the hour, the day and the month. Nothing is refused, since what is admitted
costs more.

Time is the process's own CPU time: one core, whatever else the machine does.

    python benchmarks/limits.py [--json] [--rounds N] [--record PATH]
"""

import gc
import time
import tracemalloc

from harness import deliver, measured, options_for

from taketurns.core.limits import Admitted, Amounts, Ledger, LimitRule, Span, Unit
from taketurns.figures import Figure, median

TENANTS = 10_000
REQUESTS = 20_000
REQUESTS_PER_S = 1_000
US_MAX_BY_RULES = {1: 3.0, 3: 6.0, 6: 10.0}
BYTES_MAX = 10_000

SECOND_US = 1_000_000
MANY = 10**9
RULES = (
    LimitRule("tokens a minute", Unit.TOKENS, Span.SLIDING, MANY, 60 * SECOND_US),
    LimitRule("requests a minute", Unit.REQUESTS, Span.SLIDING, MANY, 60 * SECOND_US),
    LimitRule("parallel", Unit.REQUESTS, Span.PARALLEL, MANY),
    LimitRule("tokens an hour", Unit.TOKENS, Span.SLIDING, MANY, 3_600 * SECOND_US),
    LimitRule("requests a day", Unit.REQUESTS, Span.SLIDING, MANY, 86_400 * SECOND_US),
    LimitRule("tokens a month", Unit.TOKENS, Span.MONTH, MANY),
)
RESERVED = Amounts(1, 400, 300)
USED = Amounts(1, 400, 180)
MONTH = "2026-11"


class Traffic:
    """A ledger, and requests of all tenants in turn."""

    def __init__(self, rules: int) -> None:
        ledger = Ledger()
        self.plans = [ledger.plan(RULES[:rules], f"tenant-{number}") for number in range(TENANTS)]
        self.sent = 0

    def us_per_request(self, requests: int) -> float:
        """Admit and settle requests, and return the CPU time of one, in microseconds."""
        numbers = range(self.sent, self.sent + requests)
        self.sent += requests
        each_us = SECOND_US // REQUESTS_PER_S
        arrivals = [(self.plans[number % TENANTS], number * each_us) for number in numbers]
        begin = time.process_time()
        for plan, now_us in arrivals:
            admitted = plan.admit(RESERVED, now_us=now_us, month=MONTH)
            assert isinstance(admitted, Admitted)
            admitted.settle(USED)
        return (time.process_time() - begin) / requests * 1e6


def bytes_held(*, requests: int, tenants: int = 1_000) -> float:
    """Return what a sliding window holds for one rule and tenant after so many requests.

    Args:
        requests: Of each tenant, evenly over one period.
        tenants: How many to take the mean of.
    """
    (rule,) = RULES[:1]
    names = [f"tenant-{number}" for number in range(tenants)]
    ledger = Ledger()
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for number in range(requests):
        for order, name in enumerate(names):
            now_us = number * rule.period_us // requests + order
            admitted = ledger.admit((rule,), name, RESERVED, now_us=now_us, month=MONTH)
            assert isinstance(admitted, Admitted)
            admitted.settle(USED)
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return (after - before) / tenants


def measure(rounds: int) -> list[Figure]:
    """Measure everything; each round measures all sizes, so that they see the same machine."""
    traffic = {rules: Traffic(rules) for rules in US_MAX_BY_RULES}
    us: dict[int, list[float]] = {rules: [] for rules in traffic}
    for one in traffic.values():
        one.us_per_request(REQUESTS)
    for _ in range(rounds):
        for rules, one in traffic.items():
            us[rules].append(one.us_per_request(REQUESTS))
    figures = [
        measured(
            f"us_per_request_{rules}_rules",
            us[rules],
            "us",
            f"<= {us_max:g}",
            reached=median(us[rules]) <= us_max,
            note=f"admit + settle, {TENANTS} tenants, {REQUESTS} requests a round, one core",
        )
        for rules, us_max in US_MAX_BY_RULES.items()
    ]
    for name, requests in (("quiet", 1), ("busy", 600)):
        size = bytes_held(requests=requests)
        figures.append(
            measured(
                f"bytes_per_rule_and_{name}_tenant",
                [size],
                "B",
                f"<= {BYTES_MAX}",
                reached=size <= BYTES_MAX,
                note=f"sliding window in tokens, {requests} requests of each tenant in a period",
            )
        )
    return figures


def main() -> None:
    """Measure, print, and record where asked."""
    parser = options_for(__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="rounds to take the median of")
    options = parser.parse_args()
    deliver(measure(options.rounds), options)


if __name__ == "__main__":
    main()
