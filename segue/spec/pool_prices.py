"""Defines pools: the Prefect deployments that run segments, and the prices of these pools per hour."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from segue.records import Capacity, FiniteValue
from segue.units import DEFAULT_CURRENCY

_NAME = r"^[^/]+/[^/]+$"
_MARKET = r"^[a-z0-9-]+\.[a-z0-9-]+ [a-z]{2}(-[a-z]+)+-\d[a-z0-9-]*[a-z]$"
_MOST_RATIO = 1e6
"""Largest ratio of two prices. Larger ratios give the same choice, but a plan needs a finite ratio."""
_SPOT_PRICE, _ON_DEMAND_PRICE = 1.0, 3.0
_SOURCE = re.compile(r"(file|cmd):\s*(\S.*)|aws(?::\s*(\S.*))?", re.DOTALL)
AWS_CURRENCY = "USD"


class PriceSource(NamedTuple):
    """The source of current prices."""

    kind: Literal["file", "cmd", "aws"]
    argument: str
    """For `file` the path, for `cmd` the command, and for `aws` the spot market of pools without a `market`."""


def _transfer_price(pool: str) -> Any:
    # Left out if it is not set: older versions refuse a record with a field that they do not know.
    return Field(
        0.0,
        ge=0,
        exclude_if=lambda price: not price,
        description=f"Price per GB (10^9 bytes) of data between the machines of {pool} and the store, in either "
        "direction, in `currency`, e.g. if the machines and the store are in different regions.",
    )


class SpotPool(FiniteValue):
    """One source of spot capacity, for example one instance type in one zone."""

    deployment: str = Field(pattern=_NAME, description="Deployment that runs segments on this pool.")
    price: float | None = Field(None, gt=0, description="Price per hour, in `currency`; None: pools.spot_price.")
    market: str | None = Field(
        None, pattern=_MARKET, description="AWS spot market, for prices = 'aws': instance type and zone."
    )
    transfer_price_per_gb: float = _transfer_price("this pool")


def _as_list(given: Any) -> Any:
    if isinstance(given, str):
        return [{"deployment": given}]
    if not isinstance(given, (list, tuple)):
        raise PydanticCustomError("no_pools", "must be a deployment, or a list of tables with one deployment each")
    return given


def _each_once(pools: tuple[SpotPool, ...]) -> tuple[SpotPool, ...]:
    if not pools:
        raise PydanticCustomError("no_pool", "must name at least one deployment")
    (name, count), *_ = Counter(pool.deployment for pool in pools).most_common(1)
    if count > 1:
        facts = {"name": name, "count": count}
        raise PydanticCustomError("pool_twice", "must name each deployment once; {name} is named {count} times", facts)
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
    spot_price: float = Field(_SPOT_PRICE, gt=0, description="Spot price per hour, in `currency`.")
    on_demand_price: float = Field(_ON_DEMAND_PRICE, gt=0, description="On-demand price per hour, in `currency`.")
    on_demand_transfer_price_per_gb: float = _transfer_price("the on-demand pool")
    currency: str = Field(DEFAULT_CURRENCY, max_length=12, description="Currency of all prices, shown with every cost.")
    prices: str | None = Field(
        None,
        description="Source of current prices, which replace the prices in this table: 'file: PATH', 'cmd: "
        "COMMAND', or "
        "'aws' with the market of each spot pool; None: the prices in this table are used.",
    )
    prices_every_seconds: float = Field(
        900.0, gt=0, description="Shortest time in seconds between two requests to the source of prices."
    )

    @field_validator("currency")
    @classmethod
    def _is_named(cls, currency: str) -> str:
        return currency.strip() or DEFAULT_CURRENCY  # Older logs have no currency.

    @field_validator("prices")
    @classmethod
    def _is_a_source(cls, prices: str | None, info: ValidationInfo) -> str | None:
        found = _SOURCE.fullmatch(prices.strip()) if prices is not None else None
        if prices is None or not {"spot", "currency"} <= info.data.keys():
            return prices
        if found is None:
            text = "must be 'file: PATH', 'cmd: COMMAND', 'aws', or 'aws: INSTANCE_TYPE ZONE'"
            raise PydanticCustomError("prices", text)
        if found[1] is None:
            why = _why_no_market(found[3], info.data["spot"], info.data["currency"])
            if why is not None:
                raise PydanticCustomError("prices", "{why}", {"why": why})
        return prices.strip()

    @model_validator(mode="after")
    def _fits_its_source(self) -> Self:
        source = self.price_source
        is_aws = source is not None and source.kind == "aws"
        if is_aws and "on_demand_price" not in self.model_fields_set:
            raise PydanticCustomError("prices", "AWS gives only spot prices; set on_demand_price too")
        if not is_aws and any(pool.market is not None for pool in self.spot):
            raise PydanticCustomError(
                "prices", "a spot pool has a market, which is used only with prices = 'aws'; set prices too"
            )
        return self

    @property
    def price_source(self) -> PriceSource | None:
        """The source of current prices. The value is None if the prices in the spec are used."""
        found = _SOURCE.fullmatch(self.prices) if self.prices is not None else None
        if found is None:
            return None
        if found[1] is None:
            return PriceSource("aws", found[3] or "")
        return PriceSource("file" if found[1] == "file" else "cmd", found[2])

    @property
    def has_own_prices(self) -> bool:
        """Whether the user gave any prices. If the value is false, all prices are defaults that segue made up."""
        listed = any(pool.price is not None for pool in self.spot)
        is_default = (self.spot_price, self.on_demand_price) == (_SPOT_PRICE, _ON_DEMAND_PRICE)
        return listed or self.prices is not None or not is_default

    @property
    def deployments(self) -> tuple[str, ...]:
        """All deployments that run segments, with the on-demand deployment as the last."""
        return (*(pool.deployment for pool in self.spot), self.on_demand)

    @property
    def has_transfer_prices(self) -> bool:
        """Whether any pool has a price for data transfer to and from the store."""
        return bool(self.on_demand_transfer_price_per_gb) or any(pool.transfer_price_per_gb for pool in self.spot)

    def transfer_price_per_gb(self, capacity: Capacity, deployment: str) -> float:
        """Return the price of a GB of data between the machines of a deployment and the store."""
        if capacity is not Capacity.SPOT:
            return self.on_demand_transfer_price_per_gb
        return next((pool.transfer_price_per_gb for pool in self.spot if pool.deployment == deployment), 0.0)

    def at(self, prices: Mapping[str, float]) -> PoolSpec:
        """Return a copy of these pools with the given prices, by deployment. Other deployments keep their prices."""
        spot = tuple(
            pool.model_copy(update={"price": prices.get(pool.deployment, self.spot_pool_price(pool))})
            for pool in self.spot
        )
        on_demand = prices.get(self.on_demand, self.on_demand_price)
        return self.model_copy(update={"spot": spot, "on_demand_price": on_demand})

    @property
    def price_ratio(self) -> float:
        """The price of on-demand divided by the price of the cheapest spot pool (k). See `ratio_to`."""
        return self.ratio_to(min(self.spot_pool_price(pool) for pool in self.spot))

    def ratio_to(self, spot_price: float) -> float:
        """Return the price of on-demand divided by a spot price, up to a maximum. A larger ratio would change no
        decision."""
        return min(self.on_demand_price / spot_price, _MOST_RATIO)

    def spot_pool_price(self, pool: SpotPool) -> float:
        return self.spot_price if pool.price is None else pool.price

    def deployment(self, capacity: Capacity) -> str:
        """Return the deployment for this capacity. If there are several deployments, return the cheapest."""
        return min(self.spot, key=self.spot_pool_price).deployment if capacity is Capacity.SPOT else self.on_demand

    def price(self, capacity: Capacity, deployment: str) -> float:
        """Return the price per hour of a deployment. For a spot deployment that is not in the list, return
        `spot_price`.
        """
        if capacity is not Capacity.SPOT:
            return self.on_demand_price
        listed = {pool.deployment: self.spot_pool_price(pool) for pool in self.spot}
        return listed.get(deployment, self.spot_price)


def _why_no_market(shared: str | None, pools: tuple[SpotPool, ...], currency: str) -> str | None:
    """Return why AWS cannot give the prices of these pools. Return None if AWS can give them."""
    if shared is not None and re.fullmatch(_MARKET, shared) is None:
        return f"{shared!r} must be an instance type and a zone, as in 'aws: g5.xlarge us-east-1a'"
    without = [pool.deployment for pool in pools if pool.market is None] if shared is None else []
    if without:
        return f"no market is given for {' and '.join(without)}; set pools.spot.market, or 'aws: INSTANCE_TYPE ZONE'"
    if currency != AWS_CURRENCY:
        return (
            f"prices of AWS are in {AWS_CURRENCY}, and pools.currency is {currency}; give all prices in {AWS_CURRENCY}"
        )
    return None
