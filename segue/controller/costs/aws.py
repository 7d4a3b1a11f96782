"""Reads spot prices from the price history of AWS, through boto3."""

from __future__ import annotations

import re
from typing import Any

from segue.clock import SystemClock
from segue.errors import MissingExtraError, PriceSourceError
from segue.spec.pool_prices import PoolSpec

try:
    import boto3
    import botocore.config
    import botocore.exceptions
    import botocore.parsers

    from segue.stores.botocore_random import use_own_random_stream
except ImportError:
    raise MissingExtraError(extra="s3", needed_for="prices from AWS") from None

_REGION = re.compile(r"[a-z]{2}(?:-[a-z]+)+-\d+")
_SYSTEMS = ("Linux/UNIX", "Linux/UNIX (Amazon VPC)")
_TIMEOUT_SECONDS = 10


def spot_prices(pools: PoolSpec) -> dict[str, float]:
    """Return the current spot price per hour of each spot pool, from the newest entry of its market's history.

    Raises:
        PriceSourceError: credentials are missing, AWS refuses or does not answer, or AWS does not know a market.
    """
    use_own_random_stream()
    source = pools.price_source
    shared = source.argument if source is not None else ""
    asked: dict[str, float] = {}
    found = {}
    for pool in pools.spot:
        market = pool.market or shared
        if market not in asked:
            asked[market] = _newest_price(market, pools)
        found[pool.deployment] = asked[market]
    return found


def _newest_price(market: str, pools: PoolSpec) -> float:
    """Return the current price of a market."""
    instance_type, zone = market.split()
    region = _REGION.match(zone)
    assert region is not None  # The spec was checked.
    try:
        answer = _client(region.group()).describe_spot_price_history(
            InstanceTypes=[instance_type],
            Filters=[{"Name": "availability-zone", "Values": [zone]}],
            ProductDescriptions=list(_SYSTEMS),
            # If the period begins now, AWS returns the current price, with the time of its last change.
            StartTime=SystemClock().now(),
        )
        newest = max(answer.get("SpotPriceHistory", ()), key=lambda item: item["Timestamp"], default=None)
    except botocore.exceptions.NoCredentialsError:
        fix = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or the machine's role."
        raise _error(pools, "boto3 finds no AWS credentials", fix) from None
    except botocore.exceptions.ClientError as error:
        why = f"AWS refuses the price history of {market} ({error.response['Error'].get('Code', 'unknown')})"
        raise _error(pools, why, "allow ec2:DescribeSpotPriceHistory, and check the market's name.") from None
    except (botocore.exceptions.BotoCoreError, botocore.parsers.ResponseParserError, ValueError) as error:
        why = f"AWS gives no price history of {market} ({str(error)[:200]})"
        raise _error(pools, why, "check the network, and AWS_ENDPOINT_URL if it is set.") from None
    price = _as_price(newest)
    if price is None:
        fix = "check the instance type and the zone, e.g. with `aws ec2 describe-spot-price-history`."
        raise _error(pools, f"AWS knows no spot price of {market}", fix)
    return price


def _client(region: str) -> Any:
    config = botocore.config.Config(
        connect_timeout=_TIMEOUT_SECONDS, read_timeout=_TIMEOUT_SECONDS, retries={"total_max_attempts": 2}
    )
    return boto3.Session().client("ec2", region_name=region, config=config)


def _as_price(item: Any) -> float | None:
    try:
        price = float(item["SpotPrice"])
    except (TypeError, KeyError, ValueError):
        return None
    return price if price > 0 else None


def _error(pools: PoolSpec, why: str, fix: str) -> PriceSourceError:
    return PriceSourceError(source=pools.prices or "", why=why, fix=fix)
