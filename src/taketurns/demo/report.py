# SPDX-License-Identifier: Apache-2.0
"""What the demo found, as figures for programs and as tables for people.

"Allowed" is what scene 1 promises: twice B's latency alone, plus one batch
(:attr:`taketurns.demo.records.BatchPace.batch_s`), all measured in the same run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from taketurns.demo.records import Served, backlogged, both, jain, of, shares
from taketurns.demo.scenes import Burst, Tiers
from taketurns.figures import Figure, figure, median

ALLOWED = "at most 2 x B alone + one batch"


@dataclass(frozen=True, slots=True)
class Run:
    """All scenes, played once.

    Attributes:
        fair: Scene 1 with the scheduler.
        shared: Scene 1 with the single shared queue.
        strict: Scene 2 without a floor.
        floor: Scene 2 with one.
    """

    fair: Burst
    shared: Burst
    strict: Tiers
    floor: Tiers


Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A table for people.

    Attributes:
        title: A sentence.
        heads: Of the columns.
        rows: As many cells as heads in each.
        notes: Sentences below it.
    """

    title: str
    heads: Row
    rows: Sequence[Row]
    notes: Sequence[str]


def allowed(seen: Burst, of_latencies: Callable[[Sequence[float]], float]) -> float:
    """Return the most that B's median or worst latency may be."""
    return 2 * of_latencies(seen.alone_s) + seen.pace.batch_s


def burst_shares(seen: Burst) -> dict[str, float]:
    """Return the tenants' shares of service while B had requests in the queue."""
    spans = both(backlogged(of(seen.served, "a")), backlogged(of(seen.served, "b")))
    return shares(seen.served, ("a", "b"), spans, batch_s=seen.pace.batch_s)


def tier_shares(seen: Tiers) -> dict[str, float]:
    """Return the tenants' shares of service while both had requests in the queue."""
    return shares(
        seen.served, ("enterprise", "trial"), contended(seen.served), batch_s=seen.batch_s
    )


def contended(served: Sequence[Served]) -> list[tuple[float, float]]:
    """Return when both tenants of scene 2 had requests in the queue."""
    return both(backlogged(of(served, "enterprise")), backlogged(of(served, "trial")))


def waits(served: Sequence[Served], tenant: str) -> list[float]:
    """Return how long a tenant's requests waited in the queue, in seconds."""
    return [request.wait_s for request in of(served, tenant)]


def contended_waits(seen: Tiers, tenant: str) -> list[float]:
    """Return the waits of the requests that came while both tenants had work; never empty."""
    spans = contended(seen.served)
    found = [
        request.wait_s
        for request in of(seen.served, tenant)
        if any(begin <= request.arrived_s <= end for begin, end in spans)
    ]
    return found or waits(seen.served, tenant)


def figures(runs: Sequence[Run]) -> list[Figure]:
    """Return the figures of one or more runs: medians over the runs, and their spread."""
    return [
        *_latency_figures(runs),
        *_wait_figures(runs),
        *_service_figures(runs),
        *_tier_figures(runs),
    ]


def _latency_figures(runs: Sequence[Run]) -> list[Figure]:
    requests = len(runs[0].fair.alone_s)
    found = [
        figure(
            "batch",
            [run.fair.pace.batch_s for run in runs],
            "s",
            note=f"mean time from one batch to the next over the middle half of A's flood, "
            f"{runs[0].fair.pace.items:.1f} texts a batch",
        )
    ]
    kinds: tuple[tuple[str, Callable[[Sequence[float]], float]], ...]
    kinds = (("median", median), ("worst", max))
    for name, kind in kinds:
        note = f"{name} of {requests} requests a run, from send to answer"
        most = [allowed(run.fair, kind) for run in runs]
        beside = [kind(run.fair.beside_s) for run in runs]
        found += [
            figure(
                f"b_alone_latency_{name}", [kind(run.fair.alone_s) for run in runs], "s", note=note
            ),
            figure(f"b_latency_{name}", beside, "s", at_most=most, note=f"{note}; {ALLOWED}"),
            figure(
                f"b_latency_{name}_of_allowed",
                [value / limit for value, limit in zip(beside, most, strict=True)],
                note="1 or less is within the promise",
            ),
            figure(
                f"shared_queue_b_latency_{name}",
                [kind(run.shared.beside_s) for run in runs],
                "s",
                note=note,
            ),
            figure(
                f"shared_queue_b_latency_{name}_of_allowed",
                [kind(run.shared.beside_s) / allowed(run.shared, kind) for run in runs],
                note="the same rule, with B alone and the batch as measured in this gateway",
            ),
        ]
    return found


def _wait_figures(runs: Sequence[Run]) -> list[Figure]:
    found = []
    for schedule, seen in (
        ("", [run.fair for run in runs]),
        ("shared_queue_", [run.shared for run in runs]),
    ):
        for tenant in ("b", "a"):
            each = [waits(one.served, tenant) for one in seen]
            note = f"in the gateway's queue, by its log; {len(each[0])} requests a run"
            found += [
                figure(
                    f"{schedule}{tenant}_wait_median", [median(x) for x in each], "s", note=note
                ),
                figure(f"{schedule}{tenant}_wait_worst", [max(x) for x in each], "s", note=note),
            ]
    return found


def _service_figures(runs: Sequence[Run]) -> list[Figure]:
    found = []
    for schedule, seen in (
        ("", [run.fair for run in runs]),
        ("shared_queue_", [run.shared for run in runs]),
    ):
        each = [burst_shares(one) for one in seen]
        found += [
            figure(
                f"{schedule}b_share",
                [100 * one["b"] for one in each],
                "%",
                note="of the tokens dispatched while B had a request in the queue; an equal "
                "share is 50, and B asks for five texts at a time",
            ),
            figure(
                f"{schedule}jain",
                [jain(one) for one in each],
                note="Jain's index of A's and B's service over the same time; 0.5: one got all",
            ),
            figure(f"{schedule}throughput", [one.pace.texts_per_s for one in seen], "texts/s"),
        ]
    return found


def _tier_figures(runs: Sequence[Run]) -> list[Figure]:
    found = []
    for name, seen in (
        ("strict", [run.strict for run in runs]),
        ("floor", [run.floor for run in runs]),
    ):
        each = [tier_shares(one) for one in seen]
        floor = f"the trial tier's floor is {seen[0].floor_percent} %"
        found += [
            figure(
                f"{name}_trial_share",
                [100 * one["trial"] for one in each],
                "%",
                note=f"of the tokens dispatched while both tiers had requests queued; {floor}",
            ),
            figure(f"{name}_jain", [jain(one) for one in each], note="over the same time"),
        ]
        for tenant in ("enterprise", "trial"):
            of_tenant = [contended_waits(one, tenant) for one in seen]
            found.append(
                figure(
                    f"{name}_{tenant}_wait_median",
                    [median(one) for one in of_tenant],
                    "s",
                    note=f"in the queue, requests that came in that time: {len(of_tenant[0])}",
                )
            )
    return found


def tables(found: Sequence[Figure]) -> list[Table]:
    """Return the figures as tables for people."""
    by_name = {item.name: item for item in found}
    return [_burst_table(by_name), _tier_table(by_name)]


def _burst_table(by_name: dict[str, Figure]) -> Table:
    def row(what: str, *names: str) -> Row:
        return (what, *(shown(by_name[name]) if name else "" for name in names))

    rows = []
    for name in ("median", "worst"):
        rows.append(
            row(
                f"B's latency, {name}",
                f"b_alone_latency_{name}",
                f"b_latency_{name}",
                f"shared_queue_b_latency_{name}",
            )
        )
        target = by_name[f"b_latency_{name}"]
        limit = seconds(float(target.target.removeprefix("<= ")))
        shared = by_name[f"shared_queue_b_latency_{name}"].value
        over = by_name[f"shared_queue_b_latency_{name}_of_allowed"].value
        rows.append(
            (
                "  allowed",
                "",
                f"{limit}: {'reached' if target.reached else 'MISSED'}",
                f"{seconds(shared / over)}: {over:.0f} times it",
            )
        )
    for tenant in ("b", "a"):
        for name in ("median", "worst"):
            wait = f"{tenant}_wait_{name}"
            rows.append(
                row(
                    f"{tenant.upper()}'s wait in the queue, {name}",
                    "",
                    wait,
                    f"shared_queue_{wait}",
                )
            )
    for what, name in (
        ("B's share while it waited", "b_share"),
        ("Jain's index in that time", "jain"),
        ("Texts a second", "throughput"),
    ):
        rows.append(row(what, "", name, f"shared_queue_{name}"))
    return Table(
        "Scene 1: tenant B sends five texts at a time into tenant A's flood",
        ("", "B alone", "scheduler", "one shared queue"),
        rows,
        (
            f"Allowed: twice B's latency alone plus one batch, here {shown(by_name['batch'])}.",
            "B's share of service is counted while it waited; an equal share is 50 %.",
        ),
    )


def _tier_table(by_name: dict[str, Figure]) -> Table:
    rows = [
        (what, shown(by_name[f"strict_{name}"]), shown(by_name[f"floor_{name}"]))
        for what, name in (
            ("Trial's share of service", "trial_share"),
            ("Jain's index of the two tiers", "jain"),
            ("Enterprise's wait, median", "enterprise_wait_median"),
            ("Trial's wait, median", "trial_wait_median"),
        )
    ]
    return Table(
        "Scene 2: an enterprise tenant's work amid a trial tenant's flood",
        ("", "strict order", "20 % floor for trial"),
        rows,
        (
            "Counted over the time in which both had requests in the queue.",
            "Tiers aren't meant to be equal: Jain's index is 0.5 where one gets all.",
        ),
    )


def shown(item: Figure) -> str:
    """Return a figure for people: its value, and the spread where there were several runs."""
    low, high = item.spread
    value = _value(item.value, item.unit)
    if item.n == 1:
        return value
    return f"{value} ({_value(low, item.unit)} to {_value(high, item.unit)})"


def _value(value: float, unit: str) -> str:
    if unit == "s":
        return seconds(value)
    if unit == "%":
        return f"{value:.1f} %"
    return f"{value:.0f}" if unit else f"{value:.2f}"


def seconds(value: float) -> str:
    """Return a time for people, in milliseconds below a second."""
    return f"{value:.1f} s" if value >= 1 else f"{1000 * value:.0f} ms"
