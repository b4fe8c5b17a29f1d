# SPDX-License-Identifier: Apache-2.0
"""``taketurns explain``: what holds for a request, and with ``--admin`` what would happen to it."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import SplitResult, urlencode, urlsplit

import typer

from taketurns.cli import output
from taketurns.cli.output import Json
from taketurns.errors import TaketurnsError

if TYPE_CHECKING:
    from taketurns.config.model import Config
    from taketurns.config.served import ModelConfig
    from taketurns.core.limits import Amounts, LimitRule

ANSWER_TIMEOUT_S = 10.0
"""Longest that a gateway may take to answer."""

ANSWER_BYTES_MAX = 1024 * 1024
"""How much of its answer is read."""


class AdminError(TaketurnsError):
    """The admin side of a gateway didn't say what it was asked."""

    code = "admin_failed"


def explain(  # noqa: PLR0913 - one for each option
    file: Annotated[Path, typer.Argument(metavar="CONFIG", help="The configuration file.")],
    *,
    tenant: Annotated[str, typer.Option("--tenant", "-t", help="Who asks.")],
    endpoint: Annotated[str, typer.Option(help="For what: chat, completions, ...")],
    model: Annotated[str, typer.Option(help="Of which model.")],
    input_tokens: Annotated[int, typer.Option(min=0, help="How long the request is.")] = 100,
    max_tokens: Annotated[
        int | None,
        typer.Option(min=0, help="How long the answer may be: `max_tokens` of the request."),
    ] = None,
    inputs: Annotated[int, typer.Option(min=1, help="How many texts or documents.")] = 1,
    admin: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Ask the gateway whose admin side this is what is used."),
    ] = None,
    admin_token: Annotated[
        str | None,
        typer.Option(envvar="TAKETURNS_ADMIN_TOKEN", help="Its server.admin_token."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Say what holds for a request: its limits, tier, share, cost and queues.

    With --admin also what is used of its limits, how long it would wait, and whether it would pass.
    Nothing is sent to an engine, and nothing is counted.
    """
    from taketurns.config.load import load

    config = load(file)
    _check_names(config, tenant, endpoint, model)
    amounts = _amounts(config.models[model], input_tokens, max_tokens, inputs)
    facts = _facts(config, tenant, endpoint, model, amounts)
    now = None
    if admin is not None:
        query: dict[str, str | int] = {
            "tenant": tenant,
            "endpoint": endpoint,
            "model": model,
            "inputs": amounts.inputs,
            "input_tokens": amounts.input_tokens,
            "output_tokens": amounts.output_tokens,
        }
        now = _ask(admin, query, admin_token)
    if as_json:
        output.result_json({**facts, "now": now})
        return
    _print_facts(facts)
    if now is not None:
        _print_now(now)
    elif facts["wait_target_s"] is not None:
        output.result("\nHow long it would wait, a running gateway knows: ask it with --admin.")


def _check_names(config: "Config", tenant: str, endpoint: str, model: str) -> None:
    """See that there is such a tenant and model, and that they go together."""
    from taketurns.config.faults import suggestion

    for what, name, known in (
        ("tenant", tenant, list(config.tenants)),
        ("model", model, list(config.models)),
    ):
        if name not in known:
            hint = suggestion(name, known, what=f"{what}s")
            raise typer.BadParameter(f"there is no {what} {name!r}. {hint}", param_hint=f"--{what}")
    section = config.models[model]
    if endpoint not in section.endpoints:
        hint = suggestion(endpoint, section.endpoints, what="endpoints of this model")
        raise typer.BadParameter(
            f"model {model} does not serve {endpoint!r}. {hint}", param_hint="--endpoint"
        )
    if section.tenants is not None and tenant not in section.tenants:
        raise typer.BadParameter(
            f"for {tenant} there is no model {model}: models.{model}.tenants does not name it. "
            f"It names {', '.join(section.tenants) or 'nobody'}.",
            param_hint="--model",
        )


def _amounts(
    section: "ModelConfig", input_tokens: int, max_tokens: int | None, inputs: int
) -> "Amounts":
    """Return what the request is thought to take when it's let in."""
    from taketurns.core.lengths import OUTPUT_TOKENS_DEFAULT
    from taketurns.core.limits import Amounts

    if section.kind == "generation":
        if inputs > 1:
            raise typer.BadParameter(
                "chat and completions have no texts or documents", param_hint="--inputs"
            )
        output_tokens = OUTPUT_TOKENS_DEFAULT if max_tokens is None else max_tokens
        return Amounts(1, input_tokens, output_tokens)
    if max_tokens is not None:
        raise typer.BadParameter(
            "embeddings and rerank put no tokens out", param_hint="--max-tokens"
        )
    return Amounts(inputs, input_tokens, 0)


def _facts(
    config: "Config", tenant: str, endpoint: str, model: str, amounts: "Amounts"
) -> dict[str, Any]:
    """Return what the configuration says of a request."""
    from taketurns.config.pools import pool
    from taketurns.units import s_from_us

    who, section = config.tenants[tenant], config.models[model]
    tier = config.tiers[who.tier]
    facts = pool(config, model)
    target_us = facts.wait_target_us[who.tier]
    quantum = facts.rules.quantum
    return {
        "tenant": tenant,
        "endpoint": endpoint,
        "model": model,
        "request": amounts._asdict(),
        "suspended": who.suspended,
        "tier": who.tier,
        "rank": tier.rank,
        "floor_percent": tier.floor,
        "slot_share_percent": tier.slot_share,
        "scheduler": section.scheduler,
        "weight": who.weight,
        "cost": _cost(section, endpoint, amounts),
        "cost_unit": "thousandth of a request"
        if section.cost_or_default == "requests"
        else "token",
        "quantum": quantum,
        "per_round": quantum * who.weight,
        "min_priority": who.min_priority,
        "parallel": who.parallel if section.kind == "generation" else None,
        "queue": {
            "tenant_max": section.tenant_queue_max,
            "tenant_bytes_max": section.tenant_queue_bytes_max,
            "model_max": section.queue_max,
            "model_bytes_max": section.queue_bytes_max,
            "all_bytes_max": config.server.queued_bytes_max,
            "timeout_s": tier.queue_timeout,
        },
        "throttle": section.throttle,
        "wait_target_s": None if target_us is None else s_from_us(target_us),
        "rules": _rules(config, tenant, endpoint, model, amounts),
        "time_zone": config.time_zone,
    }


def _cost(section: "ModelConfig", endpoint: str, amounts: "Amounts") -> int:
    """Return what a request is charged when it's dispatched, all its texts together."""
    from taketurns.config.pools import cost_model

    # Each text is a ticket of its own, and so is the query of a rerank request.
    tickets = amounts.inputs + (1 if endpoint == "rerank" else 0)
    charge = cost_model(section).charge(amounts.input_tokens, amounts.output_tokens)
    return charge * tickets if section.cost_or_default == "requests" else max(tickets, charge)


def _rules(
    config: "Config", tenant: str, endpoint: str, model: str, amounts: "Amounts"
) -> list[dict[str, Any]]:
    """Return the limits that hold, each with the less specific ones that do not for its sake."""
    from taketurns.config.limits import per_of, unit_of
    from taketurns.core.limits import reserved, rules_for

    tier = config.tenants[tenant].tier
    rules = config.limit_rules()
    holding = rules_for(rules, tenant=tenant, tier=tier, model=model, endpoint=endpoint)

    def named(rule: "LimitRule") -> list[bool]:
        return [part != "" for part in rule.selector]

    def displaced(rule: "LimitRule") -> list[str]:
        return [
            other.name
            for other in rules
            if other not in holding
            and other.counts == rule.counts
            and other.applies(tenant, tier, model, endpoint)
            # One in shadow mode replaces its like only, and holds beside what is enforced.
            and (other.shadow or not rule.shadow)
            and named(rule) >= named(other)
        ]

    return [
        {
            "rule": rule.name,
            "unit": unit_of(rule),
            "max": rule.max,
            "per": per_of(rule),
            "scope": "total" if rule.total else "each",
            "mode": "shadow" if rule.shadow else "enforce",
            "takes": reserved(rule, amounts),
            "instead_of": displaced(rule),
        }
        for rule in holding
    ]


def _ask(url: str, query: dict[str, str | int], token: str | None) -> dict[str, Json]:
    """Ask a gateway's admin side what would happen to a request.

    Raises:
        AdminError: It can't be reached, refuses, or says something else.
    """
    import http.client

    parts, port = _address(url)
    if token is not None and not all("!" <= character <= "~" for character in token):
        raise typer.BadParameter(
            "must be printable ASCII without blanks: is there a line break at its end?",
            param_hint="--admin-token",
        )
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        connection = kind(parts.hostname or "", port, timeout=ANSWER_TIMEOUT_S)
        try:
            path = f"{parts.path.rstrip('/')}/limits?{urlencode(query)}"
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            body = answer.read(ANSWER_BYTES_MAX)
        finally:
            connection.close()
    except (OSError, http.client.HTTPException) as error:
        raise AdminError(
            f"the gateway at {url} does not answer: {_reason(error)}",
            hint="Does it run, and is this its admin port? `taketurns serve` prints it.",
        ) from None
    return _read(url, answer.status, body)


def _address(url: str) -> tuple[SplitResult, int | None]:
    """Return the parts of a URL and its port, both checked."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = SplitResult("", "", "", "", ""), None
    if parts.scheme not in {"http", "https"} or not parts.hostname or not url.isprintable():
        raise typer.BadParameter(
            'must be a URL such as "http://127.0.0.1:8081"', param_hint="--admin"
        )
    return parts, port


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__


def _read(url: str, status: int, body: bytes) -> dict[str, Json]:
    """Return the answer of an admin side.

    Raises:
        AdminError: It's an error, or no such answer.
    """
    try:
        read = json.loads(body)
    except ValueError:
        read = None
    told = read if isinstance(read, dict) else {}
    if status in {401, 403}:
        raise AdminError(
            f"the gateway at {url} wants its admin token ({status})",
            hint="Give server.admin_token with --admin-token, or in TAKETURNS_ADMIN_TOKEN.",
        )
    if status != 200:
        error = told.get("error")
        said = error.get("message", "") if isinstance(error, dict) else ""
        raise AdminError(
            f"the gateway at {url} answers {status}{f': {said}' if said else ''}",
            hint="Does it serve the configuration that CONFIG holds, and is this its admin port?",
        )
    rules, by = told.get("rules"), told.get("by")
    if not isinstance(rules, list) or not isinstance(by, list) or "would" not in told:
        raise AdminError(
            f"the gateway at {url} answers what can't be read here",
            hint="Is this the admin port of a taketurns gateway of this version?",
        )
    return told


def _print_facts(facts: dict[str, Any]) -> None:
    """Print what the configuration says, for people."""
    request, queue = facts["request"], facts["queue"]
    size = _many(request["input_tokens"], "input token")
    if request["output_tokens"]:
        size += f", at most {_many(request['output_tokens'], 'output token')}"
    if facts["endpoint"] in {"embeddings", "rerank"}:
        what = "text" if facts["endpoint"] == "embeddings" else "document"
        size = f"{_many(request['inputs'], what)}, {size}"
    output.result(f"{facts['tenant']} asks {facts['model']} for {facts['endpoint']} ({size})\n")
    if facts["suspended"]:
        output.result(f"{facts['tenant']} is suspended: all its keys are refused.\n")
    for label, text in [
        *_share_lines(facts),
        ("urgency", f"priority {facts['min_priority']} to 999, 0 goes first"),
        ("runs", f"at most {facts['parallel']:,} at once" if facts["parallel"] else "no cap"),
        ("waits", f"at most {_duration(queue['timeout_s'])}"),
        ("", f"its own queue: {queue['tenant_max']:,}, {_size(queue['tenant_bytes_max'])}"),
        ("", f"the model's: {queue['model_max']:,}, {_size(queue['model_bytes_max'])}"),
        ("", f"the gateway's: {_size(queue['all_bytes_max'])}"),
        ("wait target", _target(facts)),
    ]:
        output.result(f"{label:<13}{text}")
    output.result("")
    _print_rules(facts)


def _share_lines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what decides on its share, as label and text."""
    tier = f"{facts['tier']}, rank {facts['rank']}"
    if facts["floor_percent"]:
        tier += f", floor {facts['floor_percent']}%"
    if facts["slot_share_percent"] < 100:
        tier += f", at most {facts['slot_share_percent']}% of the slots"
    if facts["scheduler"] == "shared_queue":
        return [("tier", tier), ("share", "none: the model has one shared queue for all")]
    return [
        ("tier", tier),
        ("share", f"weight {facts['weight']}: {facts['per_round']:,} units a round"),
        ("costs", f"{facts['cost']:,} units (a unit is a {facts['cost_unit']})"),
    ]


def _target(facts: dict[str, Any]) -> str:
    if facts["throttle"] == "off":
        return "none: the throttle is off"
    if facts["wait_target_s"] is None:
        return "none"
    what = "refused at once" if facts["throttle"] == "enforce" else "reported"
    return f"{_duration(facts['wait_target_s'])}: {what} where it can't start in time"


def _print_rules(facts: dict[str, Any]) -> None:
    rules = facts["rules"]
    if not rules:
        output.result("No limits hold.")
        return
    output.table(
        ("LIMIT", "UNIT", "MAX", "PER", "SCOPE", "MODE", "TAKES", "INSTEAD OF"),
        [
            (
                rule["rule"],
                rule["unit"],
                f"{rule['max']:,}",
                rule["per"] or "-",
                rule["scope"],
                rule["mode"],
                f"{rule['takes']:,}",
                ", ".join(rule["instead_of"]) or "-",
            )
            for rule in rules
        ],
    )
    for rule in rules:
        if rule["takes"] > rule["max"] and rule["mode"] == "enforce":
            output.result(
                f"\nIt can never pass {rule['rule']}: it takes {rule['takes']:,}, "
                f"and the limit is {rule['max']:,}."
            )


def _print_now(now: dict[str, Any]) -> None:
    """Print what the gateway says, for people."""
    rows = [rule for rule in now["rules"] if isinstance(rule, dict)]
    output.result("")
    if rows:
        output.table(
            ("LIMIT", "USED", "OF", "FITS"),
            [
                (
                    str(rule.get("rule", "")),
                    _number(rule.get("used")),
                    _number(rule.get("limit")),
                    _fits(rule),
                )
                for rule in rows
            ],
        )
        output.result("")
    if isinstance(now.get("throttle"), dict):
        _print_throttle(now["throttle"])
    by = ", ".join(map(str, now["by"]))
    output.result(f"Now it would be {now['would']}{f' by {by}' if by else ''}.")


def _print_throttle(throttle: dict[str, Any]) -> None:
    """Print the wait that a gateway predicts, and what it's made of."""
    wait_s, target_s = throttle["predicted_wait_s"], throttle["target_s"]
    target = f"target {_duration(target_s)}"
    if wait_s is None:
        output.result(f"Predicted wait: not known yet, too little was served ({target}).")
    elif wait_s == 0:
        output.result(f"Predicted wait: none, a slot is free ({target}).")
    else:
        output.result(f"Predicted wait: {round(wait_s, 3):g}s ({target}). In front of it:")
        rows = [
            ("better tiers", throttle["better_tiers_cost"]),
            ("its tenant's own", throttle["own_cost"]),
            ("other tenants, until its turn", throttle["others_cost"]),
        ]
        for what, cost in rows:
            output.result(f"  {_number(cost):>12}  {what}")
        output.result(f"Served of its tier: {_number(throttle['cost_per_s'])} cost units a second.")
    if throttle["would"] == "refused":
        why = "what its tenant has in front" if throttle["reason"] == "share" else "no capacity"
        again = f"{round(throttle['retry_after_s'], 3):g}s"
        mode = "" if throttle["mode"] == "enforce" else " (shadow: it is only reported)"
        output.result(f"That is too late: {why}; it would pass in {again}{mode}.")
    output.result("")


def _number(value: Json) -> str:
    return f"{value:,}" if isinstance(value, int) else "?"


def _fits(rule: dict[str, Any]) -> str:
    wait_s = rule.get("wait_s")
    if wait_s is None:
        return "not known when"
    # Rounded up: nobody should come back too early. Small waits keep their milliseconds.
    exact_s = float(wait_s)
    return (
        "now" if exact_s == 0 else f"in {_duration(math.ceil(exact_s) if exact_s > 5 else exact_s)}"
    )


def _duration(seconds: float) -> str:
    from taketurns.config.quantities import duration_text

    return duration_text(seconds)


def _size(size: int) -> str:
    from taketurns.config.quantities import size_text

    return size_text(size)


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
