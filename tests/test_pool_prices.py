"""Pools as a run spec lists them: one deployment or several, each with its price."""

from __future__ import annotations

import pytest

from segue.errors import SpecError
from segue.records import Capacity
from segue.spec import RunSpec
from segue.spec.pool_prices import PoolSpec

LEAST = {"run_id": "r", "recipe": "a.b:c", "steps": 3}
SPOT, ON_DEMAND = Capacity.SPOT, Capacity.ON_DEMAND
TOML = """
run_id = "r"
recipe = "a.b:c"
steps = 3

[pools]
on_demand_price = 4.4
currency = "EUR"

[[pools.spot]]
deployment = "segment/spot-a"
price = 1.1

[[pools.spot]]
deployment = "segment/spot-b"
"""


def pools(**fields: object) -> PoolSpec:
    return RunSpec.parse(LEAST | {"pools": fields}).pools


def test_a_deployment_alone_is_a_list_of_one():
    assert pools(spot="mine/cheap") == pools(spot=[{"deployment": "mine/cheap"}])
    assert pools().deployment(SPOT) == "segment/spot"


def test_each_capacity_has_its_deployment_and_of_several_spot_pools_the_cheapest():
    several = pools(spot=[{"deployment": "x/a", "price": 2}, {"deployment": "x/b", "price": 1}])
    assert [several.deployment(capacity) for capacity in (SPOT, ON_DEMAND)] == ["x/b", "segment/on-demand"]


def test_several_spot_pools_are_read_from_toml_and_survive_json(tmp_path):
    (tmp_path / "run.toml").write_text(TOML)
    spec = RunSpec.from_toml(tmp_path / "run.toml")
    assert [(pool.deployment, pool.price) for pool in spec.pools.spot] == [
        ("segment/spot-a", 1.1),
        ("segment/spot-b", None),
    ]
    assert RunSpec.model_validate_json(spec.model_dump_json()) == spec


def test_a_pool_without_a_price_costs_what_spot_costs_and_the_ratio_is_over_the_cheapest():
    given = pools(
        spot=[{"deployment": "x/a", "price": 1.5}, {"deployment": "x/b"}], spot_price=2.0, on_demand_price=6.0
    )
    assert [given.price(SPOT, name) for name in ("x/a", "x/b", "gone")] == [1.5, 2.0, 2.0]
    assert given.price(ON_DEMAND, "segment/on-demand") == 6.0
    assert given.price_ratio == 4.0


@pytest.mark.parametrize(
    ("spot", "said"),
    [
        ([], "pools.spot: must name at least one deployment (got "),
        (
            [{"deployment": "x/a"}, {"deployment": "x/a"}],
            "pools.spot: must name each deployment once; x/a is named 2 times",
        ),
        (3, "pools.spot: must be a deployment, or a list of tables with one deployment each (got 3)"),
        (["a"], "pools.spot.0: must be a table (got 'a'); its fields are deployment, price"),
        ("spot", "pools.spot.0.deployment: must be a deployment, as flow/name (got 'spot'); example: segment/spot"),
        ([{"deployment": "x/a", "price": 0}], "pools.spot.0.price: input should be greater than 0 (got 0)"),
        ([{"deployment": "x/a", "prize": 1}], "pools.spot.0.prize: unknown field; did you mean 'price'?"),
    ],
)
def test_wrong_pools_are_refused_with_the_fix(spot, said):
    with pytest.raises(SpecError) as caught:
        pools(spot=spot)
    assert said in str(caught.value)


def test_an_on_demand_deployment_has_flow_and_name_too():
    with pytest.raises(
        SpecError, match=r"on_demand: must be a deployment, as flow/name \(got 'od'\); example: segment/on-dem"
    ):
        pools(on_demand="od")


def test_prefect_shows_a_deployment_or_a_list_of_pools():
    fields = RunSpec.model_json_schema()["$defs"]["PoolSpec"]["properties"]
    assert [option["type"] for option in fields["spot"]["anyOf"]] == ["string", "array"]


@pytest.mark.parametrize(("given", "shown"), [({}, "USD"), ({"currency": ""}, "USD"), ({"currency": "EUR"}, "EUR")])
def test_prices_have_a_currency_also_in_logs_that_hold_none(given, shown):
    assert PoolSpec(**given).currency == shown
