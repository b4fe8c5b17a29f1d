# SPDX-License-Identifier: Apache-2.0
"""What must hold between parts of the file: ranks, floors, targets, limits, names that refer.

Reads the raw values and passes over those that have the wrong type, which
are faults of their own: so that all faults of a file are found in one go.
"""

from collections.abc import Iterator, Mapping, Sequence

from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from taketurns.config import quantities
from taketurns.config.faults import path_text, shown, suggestion
from taketurns.config.fleet_faults import fleet_faults
from taketurns.config.limits import ALL, LimitConfig
from taketurns.config.model import TierConfig
from taketurns.config.yaml_tree import Data, Path
from taketurns.errors import ConfigFault

FLOORS_PERCENT_MAX = 50
"""Most that the floors of all tiers may add up to: half stays for the best tiers."""

QUEUE_TIMEOUT_S = TierConfig.model_fields["queue_timeout"].default

Found = tuple[Path, ConfigFault]


def reference_faults(data: Mapping[str, Data], written: Mapping[Path, str]) -> Iterator[Found]:
    """Yield what doesn't fit together in a file, each with the path it belongs to.

    Args:
        data: The file's values.
        written: Text as it stands in the file, of the values that ``${VAR}`` changed.
    """
    tiers, models, tenants = (_sections(data, key) for key in ("tiers", "models", "tenants"))
    yield from fleet_faults(data, models)
    yield from _ranks(tiers)
    yield from _floors(tiers)
    if tiers:
        yield from _tiers_of_tenants(tenants, tiers, written)
    if tenants:
        yield from _tenants_of_models(models, tenants, written)
    yield from _wait_targets(models, tiers, written)
    yield from _keys(tenants)
    rules = list(_rules(data))
    yield from _names_in_rules(rules, {"tenant": tenants, "tier": tiers, "model": models}, written)
    yield from _rules_that_never_apply(rules, tenants, models)
    yield from _rules_alike(rules)


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


def _wait_targets(
    models: Mapping[str, Mapping[str, Data]],
    tiers: Mapping[str, Mapping[str, Data]],
    written: Mapping[Path, str],
) -> Iterator[Found]:
    for model, section in models.items():
        targets = section.get("wait_targets")
        for tier, target in (targets if isinstance(targets, dict) else {}).items():
            path = ("models", model, "wait_targets", tier)
            if tiers and tier not in tiers:
                hint = suggestion(tier, tiers.keys(), what="tiers")
                yield _found(path, "is for a tier that there is not", hint)
                continue
            if isinstance(target, dict | list):
                continue
            try:
                target_s = quantities.duration_s(target)
                most_s = quantities.duration_s(
                    tiers.get(tier, {}).get("queue_timeout", QUEUE_TIMEOUT_S)
                )
            except PydanticCustomError:
                continue
            if target_s > most_s:
                yield _found(
                    path,
                    f"is {shown(target, path, written)}, and tiers.{tier}.queue_timeout is "
                    f"{quantities.duration_text(most_s)}",
                    "Lower it, or raise queue_timeout.",
                )


def _rules(data: Mapping[str, Data]) -> Iterator[tuple[int, LimitConfig]]:
    """Yield the limits that are well formed by themselves, each with its index."""
    listed = data.get("limits")
    for at, entry in enumerate(listed if isinstance(listed, list) else []):
        try:
            yield at, LimitConfig.model_validate(entry)
        except ValidationError:
            continue


def _names_in_rules(
    rules: Sequence[tuple[int, LimitConfig]],
    known: Mapping[str, Mapping[str, object]],
    written: Mapping[Path, str],
) -> Iterator[Found]:
    for at, rule in rules:
        for what, names in known.items():
            name = getattr(rule, what)
            if names and name != ALL and name not in names:
                path = ("limits", at, what)
                problem = f"is {shown(name, path, written)}, and there is no such {what}"
                yield _found(path, problem, suggestion(name, names.keys(), what=f"{what}s"))


def _rules_that_never_apply(
    rules: Sequence[tuple[int, LimitConfig]],
    tenants: Mapping[str, Mapping[str, Data]],
    models: Mapping[str, Mapping[str, Data]],
) -> Iterator[Found]:
    """Yield rules whose selectors exclude each other: who wrote them counts on a limit."""
    for at, rule in rules:
        tier = tenants.get(rule.tenant, {}).get("tier")
        if rule.tier != ALL and isinstance(tier, str) and tier != rule.tier:
            yield _found(
                ("limits", at, "tier"),
                f"never applies: it is {rule.tier}, and tenant {rule.tenant} is of tier {tier}",
                "Leave tier or tenant out.",
            )
        model = models.get(rule.model, {})
        endpoints, allowed = model.get("endpoints"), model.get("tenants")
        anywhere = {ALL, "tokenize"}
        if isinstance(endpoints, list) and rule.endpoint not in anywhere.union(endpoints):
            yield _found(
                ("limits", at, "endpoint"),
                f"never applies: model {rule.model} does not serve {rule.endpoint}",
                f"Write one of models.{rule.model}.endpoints, or leave model or endpoint out.",
            )
        if rule.tenant in tenants and isinstance(allowed, list) and rule.tenant not in allowed:
            yield _found(
                ("limits", at, "tenant"),
                f"never applies: tenant {rule.tenant} may not use model {rule.model}",
                f"Add it to models.{rule.model}.tenants, or leave model or tenant out.",
            )


def _rules_alike(rules: Sequence[tuple[int, LimitConfig]]) -> Iterator[Found]:
    by_selection: dict[object, int] = {}
    by_name: dict[str, int] = {}
    for at, rule in rules:
        core = rule.rule()
        first = by_selection.setdefault((core.counts, core.selector, core.shadow), at)
        if first != at:
            yield _found(
                ("limits", at),
                f"counts the same as limits[{first}], for the same requests",
                "Remove one of them, or let them differ in what they count or select.",
            )
        elif by_name.setdefault(core.name, at) != at:
            yield _found(
                ("limits", at),
                f"has the name {core.name}, and so has limits[{by_name[core.name]}]",
                "Give each rule a name of its own.",
            )
