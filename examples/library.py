# SPDX-License-Identifier: Apache-2.0
"""Two tenants share one engine: the small one's requests don't wait behind the large one's.

python examples/library.py
"""

import asyncio

from taketurns import PoolRules, Tenant, Tier, TurnRefusedError, Turns


async def call_engine(engine: str, prompt: str) -> str:
    """Stand in for a real engine: put your client's call here."""
    await asyncio.sleep(0.01)
    return f"{prompt} on {engine}"


async def ask(turns: Turns, tenant: str, prompt: str) -> None:
    """Wait for a turn, run in it, and give the slot back."""
    try:
        async with turns.turn(tenant, tier="standard", cost=len(prompt)) as turn:
            print(await call_engine(turn.engine, prompt))
    except TurnRefusedError as refused:
        print(f"{prompt}: {refused}. {refused.hint}")


async def main() -> None:
    """Let the large tenant send eight requests at once, and then the small one two."""
    rules = PoolRules(quantum=7, tenant_queue_max=6)
    turns = Turns(rules, [Tier("standard")], [Tenant("large", weight=2)])
    turns.set_engine("gpu-0", slots=1)
    async with asyncio.TaskGroup() as tasks:
        for number in range(1, 9):
            tasks.create_task(ask(turns, "large", f"large {number}"))
        for number in range(1, 3):
            tasks.create_task(ask(turns, "small", f"small {number}"))
    turns.close()


asyncio.run(main())
