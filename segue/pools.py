"""Which Prefect deployments run segments, and what an hour on each costs."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from segue.records import Capacity, FiniteValue

_NAME = r"^[^/]+/[^/]+$"


class SpotPool(FiniteValue):
    """One place to get spot capacity from: a zone, an instance type."""

    deployment: str = Field(pattern=_NAME, description="Deployment that runs segments there.")
    price: float | None = Field(None, gt=0, description="Price of an hour there; None: pools.spot_price.")


def _as_list(given: Any) -> Any:
    if isinstance(given, str):
        return [{"deployment": given}]
    if not isinstance(given, (list, tuple)):
        raise PydanticCustomError("no_pools", "is neither a deployment nor a list of tables that name one each")
    return given


def _each_once(pools: tuple[SpotPool, ...]) -> tuple[SpotPool, ...]:
    if not pools:
        raise PydanticCustomError("no_pool", "names no deployment; name one at least, or leave it out")
    (name, count), *_ = Counter(pool.deployment for pool in pools).most_common(1)
    if count > 1:
        facts = {"name": name, "count": count}
        raise PydanticCustomError("pool_twice", "names {name} {count} times; name each deployment once", facts)
    return pools


SpotPools = Annotated[
    tuple[SpotPool, ...],
    AfterValidator(_each_once),
    BeforeValidator(_as_list, json_schema_input_type=str | tuple[SpotPool, ...]),
]


class PoolSpec(FiniteValue):
    """Which Prefect deployment runs a segment on which capacity, and for how much an hour."""

    spot: SpotPools = Field(
        (SpotPool(deployment="segment/spot"),),
        description="Deployment for spot capacity; or several, each with its price, of which the run picks.",
    )
    on_demand: str = Field("segment/on-demand", pattern=_NAME, description="Deployment for on-demand capacity.")
    spot_price: float = Field(1.0, gt=0, description="Price of an hour on spot, in any money.")
    on_demand_price: float = Field(3.0, gt=0, description="Price of an hour on on-demand, in the same.")
    currency: str = Field("", max_length=12, description="What prices are in, as reports shall name it.")

    @property
    def price_ratio(self) -> float:
        """On-demand price over the price of the cheapest spot, k."""
        return self.on_demand_price / min(self.spot_pool_price(pool) for pool in self.spot)

    def spot_pool_price(self, pool: SpotPool) -> float:
        return self.spot_price if pool.price is None else pool.price

    def deployment(self, capacity: Capacity) -> str:
        """The deployment for this capacity; of several the cheapest."""
        return min(self.spot, key=self.spot_pool_price).deployment if capacity is Capacity.SPOT else self.on_demand

    def price(self, capacity: Capacity, deployment: str) -> float:
        """Of an hour there; for a spot deployment that is not listed any more, `spot_price`."""
        if capacity is not Capacity.SPOT:
            return self.on_demand_price
        listed = {pool.deployment: self.spot_pool_price(pool) for pool in self.spot}
        return listed.get(deployment, self.spot_price)
