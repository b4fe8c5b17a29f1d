# SPDX-License-Identifier: Apache-2.0
"""Whether the throttle refuses those that would be late, and only those.

Twenty tenants of several weights and very different demands share 16 slots. Each
request names what it's expected to cost and costs something else in the end. The
production dispatcher and scheduler run on virtual time with an engine whose
answers take as long as they cost. The same arrivals run three times: with the
throttle; without it, where whoever waits past its target is given up; and
without it, where everybody waits to the end.

- False reject: refused, though it met its target without the throttle.
- False admit: admitted, and late. It expires in the queue and costs nothing.
- Goodput: true cost of what started in time, of what the pool can do, over the
  time in which it was offered.

    python benchmarks/throttle.py [--json] [--seeds N] [--small] [--record PATH]
"""

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from harness import deliver, measured, options_for

from taketurns.core.decision import Expired, Granted
from taketurns.core.model import PoolRules, Tenant, Ticket, Tier
from taketurns.core.scheduler import Scheduler
from taketurns.core.throttle import judge
from taketurns.dispatch import Dispatcher
from taketurns.figures import Figure, spread
from taketurns.ports.clock import VirtualClock
from taketurns.units import US_PER_S

LOADS = (0.5, 0.9, 1.1, 2.0, 5.0, 10.0)
SHAPES = ("poisson", "bursts")
SERVICES_MS = (200, 500)
TARGET_US = 2 * US_PER_S
SLOTS = 16
WEIGHTS = (1, 2, 1, 4) * 5
QUANTUM = 128
WARM_S, WINDOW_S = 10.0, 60.0
STEP_S = 10.0

FALSE_REJECTS_PERCENT = {0.5: 0.1, 0.9: 0.5}
LATE_PERCENT_MAX = 5.0
GOODPUT_OF_PEAK_MIN = 0.95
REFUSAL_US_MAX = 20_000.0

COST_MEAN = math.exp(0.125) * (0.7 * 300 + 0.3 * 1_500)
"""Of what a request is expected to cost: most are short, some are long."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request: when it arrives, whose it is, what it's expected to cost, and what it costs."""

    at_us: int
    tenant: int
    cost: int
    true_cost: int


@dataclass(slots=True)
class Outcome:
    """What became of the requests of one run, each by its place among the arrivals."""

    refused: set[int] = field(default_factory=set)
    wait_us: dict[int, int] = field(default_factory=dict)
    cpu_us: list[float] = field(default_factory=list)

    def met(self, number: int) -> bool:
        """Tell whether a request started within its target."""
        return self.wait_us.get(number, TARGET_US + 1) <= TARGET_US


@dataclass(frozen=True, slots=True)
class Scene:
    """How much is offered, in which shape, and how long a request takes in the mean.

    Attributes:
        load: Of what the pool can do.
        shape: ``poisson``, or ``bursts``: each tenant sends for half a second in
            two, four times as much.
        service_ms: Mean time of a request.
        seed: Of everything random.
        load_before: Load while the pool warms up.
        window_s: Time that counts.
    """

    load: float
    shape: str
    service_ms: int
    seed: int
    load_before: float
    window_s: float = WINDOW_S

    @property
    def requests_per_s(self) -> float:
        """What the pool can do."""
        return SLOTS * 1_000 / self.service_ms


def arrivals(scene: Scene) -> list[Request]:
    """Return the requests in the order of their arrival; the load over the window is exact."""
    draw = random.Random(f"{scene.shape} {scene.load} {scene.service_ms} {scene.seed}")
    demands = [1 / number**0.7 for number in range(1, len(WEIGHTS) + 1)]
    draw.shuffle(demands)
    found: list[Request] = []
    for tenant, demand in enumerate(demands):
        share = demand / sum(demands) * scene.requests_per_s
        for at_s in _times(scene, share, draw):
            cost = draw.lognormvariate(math.log(300 if draw.random() < 0.7 else 1_500), 0.5)
            true_cost = cost * draw.lognormvariate(-0.08, 0.4)
            found.append(
                Request(int(at_s * US_PER_S), tenant, max(1, int(cost)), max(1, int(true_cost)))
            )
    found.sort(key=lambda request: (request.at_us, request.tenant))
    offered = sum(request.true_cost for request in found if request.at_us >= WARM_S * US_PER_S)
    scale = scene.load * scene.requests_per_s * scene.window_s * COST_MEAN / offered
    return [
        Request(
            one.at_us,
            one.tenant,
            max(1, int(one.cost * scale)),
            max(1, int(one.true_cost * scale)),
        )
        for one in found
    ]


def _times(scene: Scene, share: float, draw: random.Random) -> Iterator[float]:
    """Yield when one tenant sends, in seconds."""
    at_s, burst_end_s = 0.0, 0.0
    end_s = WARM_S + scene.window_s
    bursts = scene.shape == "bursts"
    while at_s < end_s:
        if bursts and at_s >= burst_end_s:
            at_s += draw.expovariate(1 / 1.5)
            burst_end_s = at_s + draw.expovariate(1 / 0.5)
        load = scene.load_before if at_s < WARM_S else scene.load
        after_s = at_s + draw.expovariate(share * load * (4 if bursts else 1))
        if bursts and after_s > burst_end_s:
            at_s = burst_end_s
            continue
        at_s = after_s
        if at_s < end_s:
            yield at_s


class Run:
    """One run of the production dispatcher and scheduler over given arrivals.

    Args:
        scene: Where the arrivals come from.
        requests: The arrivals.
        throttle: Refuse what is predicted to be late.
        expire: Give up what has waited past its target.
    """

    def __init__(
        self, scene: Scene, requests: Sequence[Request], *, throttle: bool, expire: bool
    ) -> None:
        self.requests = requests
        self.outcome = Outcome()
        self.clock = VirtualClock()
        self.us_per_cost = scene.service_ms * 1_000 / COST_MEAN
        tenants = [Tenant(f"tenant-{n}", weight) for n, weight in enumerate(WEIGHTS)]
        rules = PoolRules(QUANTUM, min_charge=1, queue_max=10**6, throttle=throttle)
        self.scheduler = Scheduler(rules, [Tier("only")], tenants)
        self.dispatcher = Dispatcher(self.scheduler, self.clock, self._perform)
        self.dispatcher.set_engine("engine", SLOTS)
        for number, request in enumerate(requests):
            self.clock.run_until(request.at_us)
            ticket = Ticket(
                str(number),
                f"tenant-{request.tenant}",
                "only",
                request.cost,
                deadline_us=request.at_us + TARGET_US if expire else None,
            )
            if throttle and self._late(ticket, request.at_us):
                self.outcome.refused.add(number)
            else:
                self.dispatcher.submit([ticket])
        self.clock.run()

    def _late(self, ticket: Ticket, now_us: int) -> bool:
        begin = time.process_time()
        late = judge(self.scheduler.predict(ticket, now_us, target_us=TARGET_US), TARGET_US)
        self.outcome.cpu_us.append((time.process_time() - begin) * 1e6)
        return late is not None

    def _perform(self, decision: Granted | Expired) -> None:
        if isinstance(decision, Expired):
            return
        (ticket,) = decision.tickets
        request = self.requests[int(ticket.id)]
        now_us = self.clock.now_us()
        self.outcome.wait_us[int(ticket.id)] = now_us - request.at_us
        finish = partial(self.dispatcher.finish, ticket.id, cost=request.true_cost)
        self.clock.call_at(now_us + int(request.true_cost * self.us_per_cost), finish)


@dataclass(frozen=True, slots=True)
class Seen:
    """What one scene showed; shares are of the requests offered, in per cent.

    Attributes:
        false_rejects: Refused, though in time without the throttle.
        false_rejects_unexpired: The same where nobody is given up without it.
        admitted: Admitted.
        late: Late, of those admitted.
        late_without: Late without the throttle.
        goodput: Cost of what started in time, of what the pool can do.
        goodput_without: The same without the throttle.
        wait_p99_s: Wait of those admitted and in time.
        cpu_us: Time of a prediction and its verdict: mean.
        cpu_p99_us: The same, 99th percentile.
    """

    false_rejects: float
    false_rejects_unexpired: float
    admitted: float
    late: float
    late_without: float
    goodput: float
    goodput_without: float
    wait_p99_s: float
    cpu_us: float
    cpu_p99_us: float


def look(scene: Scene, *, from_s: float = 0.0, to_s: float | None = None) -> Seen:
    """Run one scene three times; count what arrives in a part of its window."""
    requests = arrivals(scene)
    with_it = Run(scene, requests, throttle=True, expire=True).outcome
    without = Run(scene, requests, throttle=False, expire=True).outcome
    unexpired = Run(scene, requests, throttle=False, expire=False).outcome
    to_s = scene.window_s if to_s is None else to_s
    begin_us, end_us = (WARM_S + from_s) * US_PER_S, (WARM_S + to_s) * US_PER_S
    counted = [n for n, one in enumerate(requests) if begin_us <= one.at_us < end_us]
    admitted = [n for n in counted if n not in with_it.refused]
    refused = [n for n in counted if n in with_it.refused]
    capacity = scene.requests_per_s * (to_s - from_s) * COST_MEAN
    waits = sorted(with_it.wait_us[n] for n in admitted if with_it.met(n))
    cpu = sorted(with_it.cpu_us)

    def percent(of: Sequence[int], holds: Callable[[int], bool]) -> float:
        return 100 * sum(holds(n) for n in of) / len(counted)

    def good(outcome: Outcome) -> float:
        return sum(requests[n].true_cost for n in counted if outcome.met(n)) / capacity

    return Seen(
        false_rejects=percent(refused, without.met),
        false_rejects_unexpired=percent(refused, unexpired.met),
        admitted=100 * len(admitted) / len(counted),
        late=100 * sum(not with_it.met(n) for n in admitted) / len(admitted),
        late_without=percent(counted, lambda n: not without.met(n)),
        goodput=good(with_it),
        goodput_without=good(without),
        wait_p99_s=waits[len(waits) * 99 // 100] / US_PER_S,
        cpu_us=sum(cpu) / len(cpu),
        cpu_p99_us=cpu[len(cpu) * 99 // 100],
    )


def measure(*, seeds: int, small: bool) -> list[Figure]:
    """Look at every scene with every seed."""
    loads = (0.9, 2.0, 10.0) if small else LOADS
    window_s = 20.0 if small else WINDOW_S
    found: list[Figure] = []
    cpu: list[float] = []
    cpu_p99: list[float] = []
    for service_ms in SERVICES_MS[:1] if small else SERVICES_MS:
        for shape in SHAPES:
            seen = {
                load: [
                    look(Scene(load, shape, service_ms, seed, load, window_s))
                    for seed in range(seeds)
                ]
                for load in loads
            }
            peaks = [max(seen[load][seed].goodput for load in loads) for seed in range(seeds)]
            for load in loads:
                name = f"{shape}_{service_ms}ms_{load:g}x"
                found += _figures(name, load, seen[load], peaks)
                cpu += [one.cpu_us for one in seen[load]]
                cpu_p99 += [one.cpu_p99_us for one in seen[load]]
    found += [_figure("prediction_mean", cpu, "us", note="predict and judge, CPU time")]
    found += [_figure("prediction_p99", cpu_p99, "us", at_most=REFUSAL_US_MAX)]
    for shape in SHAPES:
        for part, from_s, to_s in (("first", 0.0, STEP_S), ("after", STEP_S, None)):
            scenes = [Scene(10.0, shape, 200, seed, 0.5, 3 * STEP_S) for seed in range(seeds)]
            late = [look(scene, from_s=from_s, to_s=to_s).late for scene in scenes]
            note = f"load steps from 0.5x to 10x; {part} {STEP_S:g} s, of those admitted"
            found.append(_figure(f"{shape}_step_late_{part}", late, "%", note=note))
    return found


def _figures(name: str, load: float, seen: list[Seen], peaks: list[float]) -> list[Figure]:
    goodput = [one.goodput for one in seen]
    of_peak = [value / peak for value, peak in zip(goodput, peaks, strict=True)]
    overload = load >= 2
    return [
        _figure(
            f"{name}_false_rejects",
            [one.false_rejects for one in seen],
            "%",
            at_most=FALSE_REJECTS_PERCENT.get(load),
            note="of those offered; against the same queue without the throttle",
        ),
        _figure(
            f"{name}_false_rejects_unexpired",
            [one.false_rejects_unexpired for one in seen],
            "%",
            note="of those offered; against a queue in which everybody waits to the end",
        ),
        _figure(f"{name}_admitted", [one.admitted for one in seen], "%"),
        _figure(
            f"{name}_false_admits",
            [one.late for one in seen],
            "%",
            at_most=LATE_PERCENT_MAX if overload else None,
            note="late, of those admitted",
        ),
        _figure(f"{name}_late_without", [one.late_without for one in seen], "%"),
        _figure(f"{name}_goodput", goodput, note="of what the pool can do"),
        _figure(f"{name}_goodput_without", [one.goodput_without for one in seen]),
        _figure(
            f"{name}_goodput_of_peak",
            of_peak,
            at_least=GOODPUT_OF_PEAK_MIN if overload else None,
        ),
        _figure(
            f"{name}_wait_p99",
            [one.wait_p99_s for one in seen],
            "s",
            note="of those that started; whoever waits longer than the target is given up",
        ),
    ]


def _figure(
    name: str,
    values: Sequence[float],
    unit: str = "",
    *,
    at_most: float | None = None,
    at_least: float | None = None,
    note: str = "",
) -> Figure:
    """Return a figure whose target every seed has to meet."""
    low, high = spread(values)
    target, reached = "", None
    if at_most is not None:
        target, reached = f"<= {at_most:g}", high <= at_most
    elif at_least is not None:
        target, reached = f">= {at_least:g}", low >= at_least
    return measured(name, values, unit, target, reached=reached, note=note)


def main() -> None:
    """Measure, print, and record where asked."""
    parser = options_for(__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="arrivals to average over")
    parser.add_argument("--small", action="store_true", help="few loads, a short window")
    options = parser.parse_args()
    deliver(measure(seeds=options.seeds, small=options.small), options)


if __name__ == "__main__":
    main()
