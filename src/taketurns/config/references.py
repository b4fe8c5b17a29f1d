# SPDX-License-Identifier: Apache-2.0
"""What must hold between parts of the file: ranks, floors, and names that refer to others.

Reads the raw values and passes over those that have the wrong type, which
are faults of their own: so that all faults of a file are found in one go.
"""

from collections.abc import Iterator, Mapping

from pydantic_core import PydanticCustomError

from taketurns.config import quantities
from taketurns.config.faults import path_text, shown, suggestion
from taketurns.config.yaml_tree import Data, Path
from taketurns.errors import ConfigFault

FLOORS_PERCENT_MAX = 50
"""Most that the floors of all tiers may add up to: half stays for the best tiers."""

Found = tuple[Path, ConfigFault]


def reference_faults(data: Mapping[str, Data], written: Mapping[Path, str]) -> Iterator[Found]:
    """Yield what doesn't fit together in a file, each with the path it belongs to.

    Args:
        data: The file's values.
        written: Text as it stands in the file, of the values that ``${VAR}`` changed.
    """
    tiers, models, tenants = (_sections(data, key) for key in ("tiers", "models", "tenants"))
    yield from _ranks(tiers)
    yield from _floors(tiers)
    if tiers:
        yield from _tiers_of_tenants(tenants, tiers, written)
    if tenants:
        yield from _tenants_of_models(models, tenants, written)
    yield from _keys(tenants)


def _sections(data: Mapping[str, Data], key: str) -> dict[str, Mapping[str, Data]]:
    """Return the named sections under a key; what is no mapping counts as empty."""
    named = data.get(key)
    if not isinstance(named, dict):
        return {}
    return {name: value if isinstance(value, dict) else {} for name, value in named.items()}


def _found(path: Path, problem: str, hint: str) -> Found:
    return path, ConfigFault(path_text(path), problem, hint=hint)


def _ranks(tiers: Mapping[str, Mapping[str, Data]]) -> Iterator[Found]:
    holder: dict[int, str] = {}
    for name, tier in tiers.items():
        try:
            rank = quantities.whole(tier.get("rank"))
        except PydanticCustomError:
            continue
        if rank in holder:
            yield _found(
                ("tiers", name, "rank"),
                f"is {rank}, and so is that of {holder[rank]}",
                f"Give each tier a rank of its own, such as {max(holder) + 1}.",
            )
        else:
            holder[rank] = name


def _floors(tiers: Mapping[str, Mapping[str, Data]]) -> Iterator[Found]:
    total = 0
    for tier in tiers.values():
        try:
            total += quantities.percent(tier.get("floor", 0))
        except PydanticCustomError:
            continue
    if total > FLOORS_PERCENT_MAX:
        yield _found(
            ("tiers",),
            f"have floors of {total}% together, and at most {FLOORS_PERCENT_MAX}% can be promised",
            "Lower the floors of some tiers.",
        )


def _tiers_of_tenants(
    tenants: Mapping[str, Mapping[str, Data]],
    tiers: Mapping[str, object],
    written: Mapping[Path, str],
) -> Iterator[Found]:
    for name, tenant in tenants.items():
        tier = tenant.get("tier")
        if isinstance(tier, str) and tier not in tiers:
            path = ("tenants", name, "tier")
            problem = f"is {shown(tier, path, written)}, and there is no such tier"
            yield _found(path, problem, suggestion(tier, tiers.keys(), what="tiers"))


def _tenants_of_models(
    models: Mapping[str, Mapping[str, Data]],
    tenants: Mapping[str, object],
    written: Mapping[Path, str],
) -> Iterator[Found]:
    for model, section in models.items():
        named = section.get("tenants")
        for at, tenant in enumerate(named if isinstance(named, list) else []):
            if isinstance(tenant, str) and tenant not in tenants:
                path = ("models", model, "tenants", at)
                problem = f"is {shown(tenant, path, written)}, and there is no such tenant"
                yield _found(path, problem, suggestion(tenant, tenants.keys(), what="tenants"))


def _keys(tenants: Mapping[str, Mapping[str, Data]]) -> Iterator[Found]:
    holder: dict[str, str] = {}
    for name, tenant in tenants.items():
        lines = tenant.get("keys")
        for at, line in enumerate(lines if isinstance(lines, list) else []):
            if not isinstance(line, str):
                continue
            public_id = line.partition(":")[0]
            if public_id in holder:
                yield _found(
                    ("tenants", name, "keys", at),
                    f"has the same public id as a key of {holder[public_id]}",
                    "A key belongs to one tenant: remove it here or there.",
                )
            else:
                holder[public_id] = name
