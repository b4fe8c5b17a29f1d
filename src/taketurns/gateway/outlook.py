# SPDX-License-Identifier: Apache-2.0
"""What would happen to a request at present, for people: its limits, and the wait before it."""

from collections.abc import Mapping

from taketurns.config.limits import unit_of
from taketurns.core.cost import REQUEST_COST
from taketurns.core.limit_rules import Amounts
from taketurns.core.model import PRIORITY_DEFAULT, Ticket
from taketurns.core.throttle import judge
from taketurns.errors import RequestError
from taketurns.gateway.batches import EmbeddingPool
from taketurns.gateway.gateway import Gateway
from taketurns.gateway.generation import GenerationPool
from taketurns.units import s_from_us

_AMOUNTS = ("inputs", "input_tokens", "output_tokens")


def outlook(gateway: Gateway, asked: Mapping[str, str], now_us: int) -> dict[str, object]:
    """Return how limits and throttle stand to a request. Nothing is counted.

    Args:
        gateway: Whose.
        asked: ``tenant``, ``endpoint`` and ``model``, and how much it takes: ``inputs``,
            ``input_tokens``, ``output_tokens``.
        now_us: The time.

    Raises:
        RequestError: 404 where there's no such tenant; 400: an amount is no number.
    """
    name, model = asked.get("tenant", ""), asked.get("model", "")
    tenant = gateway.config.tenants.get(name)
    if tenant is None:
        raise RequestError(404, "tenant_not_found", "There is no such tenant.", param="tenant")
    admission = gateway.admission
    endpoint = asked.get("endpoint", "")
    rules = admission.rules(tenant=name, tier=tenant.tier, endpoint=endpoint, model=model)
    amounts = Amounts(*(_count(asked, what) for what in _AMOUNTS))
    statuses = admission.statuses(rules, name, amounts)
    by = [item.rule.name for item in statuses if item.wait_us != 0 and not item.rule.shadow]
    throttle = None
    pool = gateway.pools.of(model)
    if pool is not None:
        throttle = _throttle(gateway, pool, name, endpoint, amounts, now_us)
    if throttle is not None and throttle["would"] == "refused" and throttle["mode"] == "enforce":
        by.append("throttle")
    return {
        "rules": [
            {
                "rule": status.rule.name,
                "unit": unit_of(status.rule),
                "limit": status.rule.max,
                "used": status.used,
                "wait_s": None if status.wait_us is None else s_from_us(status.wait_us),
                "mode": "shadow" if status.rule.shadow else "enforce",
            }
            for status in statuses
        ],
        "throttle": throttle,
        "would": "refused" if by else "admitted",
        "by": by,
    }


def _throttle(
    gateway: Gateway,
    pool: GenerationPool | EmbeddingPool,
    name: str,
    endpoint: str,
    amounts: Amounts,
    now_us: int,
) -> dict[str, object] | None:
    """Return what the throttle would say; None where the tenant's tier has no target."""
    tenant = gateway.config.tenants[name]
    model = pool.model
    target_us = model.wait_target_us[tenant.tier]
    if target_us is None:
        return None
    # Each text is a ticket of its own, and so is the query of a rerank request.
    tickets = amounts.inputs + (endpoint == "rerank")
    cost = max(tickets, model.cost.charge(amounts.input_tokens, amounts.output_tokens))
    if model.section.cost_or_default == "requests":
        cost = REQUEST_COST * tickets
    last = cost // tickets
    priority = max(tenant.min_priority, PRIORITY_DEFAULT)
    ticket = Ticket("", name, tenant.tier, last, priority=priority)
    scheduler = pool.turns.scheduler
    found = scheduler.predict(ticket, now_us, target_us=target_us, ahead=cost - last, counts=False)
    late = judge(found, target_us)
    return {
        "mode": model.section.throttle,
        "target_s": s_from_us(target_us),
        "predicted_wait_s": None if found.wait_us is None else s_from_us(found.wait_us),
        "better_tiers_cost": found.better_tiers,
        "own_cost": found.own,
        "others_cost": found.others,
        "cost_per_s": found.cost_per_s,
        "would": "admitted" if late is None else "refused",
        "reason": None if late is None else late.reason.value,
        "retry_after_s": None if late is None else s_from_us(late.retry_after_us),
    }


def _count(asked: Mapping[str, str], name: str) -> int:
    text = asked.get(name, "1" if name == "inputs" else "0")
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        raise RequestError(400, "invalid_value", f"{name} must be a whole number.", param=name)
    return max(1, int(text)) if name == "inputs" else int(text)
