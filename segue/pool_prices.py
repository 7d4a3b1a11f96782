"""Pools: the Prefect deployments that run segments, and their prices per hour."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from segue.records import Capacity, FiniteValue

_NAME = r"^[^/]+/[^/]+$"


class SpotPool(FiniteValue):
    """One source of spot capacity: a zone, an instance type."""

    deployment: str = Field(pattern=_NAME, description="Deployment that runs segments on this pool.")
    price: float | None = Field(None, gt=0, description="Price per hour, in `currency`; None: pools.spot_price.")


def _as_list(given: Any) -> Any:
    if isinstance(given, str):
        return [{"deployment": given}]
    if not isinstance(given, (list, tuple)):
        raise PydanticCustomError("no_pools", "must be a deployment or a list of tables with one each")
    return given


def _each_once(pools: tuple[SpotPool, ...]) -> tuple[SpotPool, ...]:
    if not pools:
        raise PydanticCustomError("no_pool", "must name at least one deployment")
    (name, count), *_ = Counter(pool.deployment for pool in pools).most_common(1)
    if count > 1:
        facts = {"name": name, "count": count}
        raise PydanticCustomError("pool_twice", "must name each deployment once; {name} is there {count} times", facts)
    return pools


SpotPools = Annotated[
    tuple[SpotPool, ...],
    AfterValidator(_each_once),
    BeforeValidator(_as_list, json_schema_input_type=str | tuple[SpotPool, ...]),
]


class PoolSpec(FiniteValue):
    """The Prefect deployment and the price per hour of each kind of capacity."""

    spot: SpotPools = Field(
        (SpotPool(deployment="segment/spot"),),
        description="Deployment for spot capacity, or a list of deployments with prices, from which the run chooses.",
    )
    on_demand: str = Field("segment/on-demand", pattern=_NAME, description="Deployment for on-demand capacity.")
    spot_price: float = Field(1.0, gt=0, description="Spot price per hour, in `currency`.")
    on_demand_price: float = Field(3.0, gt=0, description="On-demand price per hour, in `currency`.")
    currency: str = Field("", max_length=12, description="Currency of all prices, as shown in reports.")

    @property
    def price_ratio(self) -> float:
        """On-demand price divided by the price of the cheapest spot pool (k)."""
        return self.on_demand_price / min(self.spot_pool_price(pool) for pool in self.spot)

    def spot_pool_price(self, pool: SpotPool) -> float:
        return self.spot_price if pool.price is None else pool.price

    def deployment(self, capacity: Capacity) -> str:
        """The deployment for this capacity; of several, the cheapest."""
        return min(self.spot, key=self.spot_pool_price).deployment if capacity is Capacity.SPOT else self.on_demand

    def price(self, capacity: Capacity, deployment: str) -> float:
        """Price per hour of a deployment; `spot_price` for a spot deployment that is no longer listed."""
        if capacity is not Capacity.SPOT:
            return self.on_demand_price
        listed = {pool.deployment: self.spot_pool_price(pool) for pool in self.spot}
        return listed.get(deployment, self.spot_price)
