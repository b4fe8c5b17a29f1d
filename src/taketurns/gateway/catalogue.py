# SPDX-License-Identifier: Apache-2.0
"""Which models a tenant may use, and which of them a request is for."""

from taketurns.dialects.models import ListedModel
from taketurns.errors import RequestError
from taketurns.gateway.batches import EmbeddingPool
from taketurns.gateway.build import Pools
from taketurns.gateway.generation import GenerationPool
from taketurns.gateway.routes import TOKENIZE

Pool = GenerationPool | EmbeddingPool


def pool_for(pools: Pools, model: str | None, endpoint: str, tenant: str) -> Pool:
    """Return the pool of a model that a tenant may use; of the only one, if none is named.

    Raises:
        RequestError: 404, the same for a model that isn't there and one that isn't allowed; 400
            where it doesn't serve the endpoint, or where none is named and there are several.
    """
    if model is None:
        return _only_pool(pools, endpoint, tenant)
    pool = _pool(pools, model, tenant)
    if endpoint not in pool.model.section.endpoints and endpoint != TOKENIZE:
        offered = ", ".join(pool.model.section.endpoints)
        raise RequestError(
            400,
            "wrong_endpoint",
            f"Model {model} does not serve {endpoint}.",
            param="model",
            hint=f"It serves: {offered}.",
        )
    return pool


def listed(pools: Pools, tenant: str) -> list[ListedModel]:
    """Return the models that a tenant may use."""
    return [_listed(pool) for pool in pools.all().values() if tenant in pool.model.tenants]


def listed_model(pools: Pools, name: str, tenant: str) -> ListedModel:
    """Return one of them.

    Raises:
        RequestError: 404.
    """
    return _listed(_pool(pools, name, tenant))


def _pool(pools: Pools, model: str, tenant: str) -> Pool:
    pool = pools.of(model)
    if pool is None or tenant not in pool.model.tenants:
        raise RequestError(
            404,
            "model_not_found",
            f"The model {model[:64]!r} does not exist, or you have no access to it.",
            param="model",
            hint="GET /v1/models lists those that you may use.",
        )
    return pool


def _only_pool(pools: Pools, endpoint: str, tenant: str) -> Pool:
    fitting = [
        pool
        for pool in pools.all().values()
        if endpoint in pool.model.section.endpoints and tenant in pool.model.tenants
    ]
    if len(fitting) != 1:
        raise RequestError(
            400,
            "invalid_value",
            "`model` is missing.",
            param="model",
            hint="GET /v1/models lists those that you may use.",
        )
    return fitting[0]


def _listed(pool: Pool) -> ListedModel:
    section = pool.model.section
    tokens_max = section.input_tokens_max if isinstance(pool, EmbeddingPool) else None
    return ListedModel(pool.model.name, section.owned_by, section.endpoints, tokens_max)
