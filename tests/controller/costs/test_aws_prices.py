"""Spot prices of AWS: from moto's server, and from answers as AWS gives them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from segue.controller.costs.prices import read_prices
from segue.errors import PriceSourceError, SpecError
from segue.spec import RunSpec
from segue.spec.pool_prices import PoolSpec

MARKETS = [
    {"deployment": "segment/spot-a", "market": "m5.large us-east-1a"},
    {"deployment": "segment/spot-b", "market": "m5.large us-east-1b"},
]
RECORDED = """<?xml version="1.0" encoding="UTF-8"?>
<DescribeSpotPriceHistoryResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">
    <requestId>2eb3fcc4-9b5f-4a4b-8c33-5d1a9b1f8a3d</requestId>
    <spotPriceHistorySet>{items}</spotPriceHistorySet>
    <nextToken/>
</DescribeSpotPriceHistoryResponse>"""
ITEM = """<item>
    <instanceType>g5.xlarge</instanceType>
    <productDescription>{system}</productDescription>
    <spotPrice>{price}</spotPrice>
    <timestamp>{at}</timestamp>
    <availabilityZone>us-east-1a</availabilityZone>
</item>"""
REFUSED = """<?xml version="1.0" encoding="UTF-8"?>
<Response><Errors><Error><Code>UnauthorizedOperation</Code><Message>You are not authorized.</Message></Error></Errors>
<RequestID>0d3f</RequestID></Response>"""


def pools(**fields: object) -> PoolSpec:
    common = {"prices": "aws: g5.xlarge us-east-1a", "on_demand_price": 1.006, "currency": "USD"}
    return PoolSpec.model_validate(common | fields)


def item(price: object, at: str = "2026-11-24T10:00:00.000Z", system: str = "Linux/UNIX") -> str:
    return ITEM.format(price=price, at=at, system=system)


@contextmanager
def answering(body: str, status: str = "200 OK") -> Iterator[tuple[str, list[str]]]:
    """A server that answers each request so; its address, and the requests that it got."""
    listener = socket.create_server(("127.0.0.1", 0))
    seen: list[str] = []
    answer = f"HTTP/1.1 {status}\r\nContent-Type: text/xml\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"

    def serve() -> None:
        with suppress(OSError):  # The listener is closed at the end.
            while True:
                connection, _ = listener.accept()
                with connection, suppress(OSError):
                    connection.settimeout(10)
                    seen.append(_request(connection))
                    connection.sendall((answer + body).encode())

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", seen
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def _request(connection: socket.socket) -> str:
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(1 << 16)
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
    )
    while len(body) < length:
        body += connection.recv(1 << 16)
    return body.decode()


def ask(monkeypatch: pytest.MonkeyPatch, body: str, status: str = "200 OK", **fields: object) -> dict[str, float]:
    with answering(body, status) as (url, _):
        monkeypatch.setenv("AWS_ENDPOINT_URL_EC2", url)
        return read_prices(pools(**fields))


@pytest.mark.matrix
def test_moto_gives_a_price_for_each_spot_pool(moto_url, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_EC2", moto_url)
    found = read_prices(pools(prices="aws", spot=MARKETS))
    assert found == {"segment/spot-a": 1e-05, "segment/spot-b": 1e-05, "segment/on-demand": 1.006}


@pytest.mark.matrix
def test_a_market_that_does_not_exist_is_named(moto_url, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_EC2", moto_url)
    with pytest.raises(PriceSourceError, match=r"AWS knows no spot price of m5\.nothing us-east-1a"):
        read_prices(pools(prices="aws: m5.nothing us-east-1a"))


def test_the_newest_price_of_the_answer_counts(aws_keys, monkeypatch):
    items = item("0.4012", "2026-11-24T09:00:00.000Z") + item("0.4257", "2026-11-24T10:00:00.000Z")
    items += item("0.3990", "2026-11-23T10:00:00.000Z", "Linux/UNIX (Amazon VPC)")
    found = ask(monkeypatch, RECORDED.format(items=items))
    assert found == {"segment/spot": 0.4257, "segment/on-demand": 1.006}


@pytest.mark.matrix
def test_the_request_names_the_market_and_begins_now(aws_keys, monkeypatch):
    with answering(RECORDED.format(items=item("0.4"))) as (url, seen):
        monkeypatch.setenv("AWS_ENDPOINT_URL_EC2", url)
        read_prices(pools())
    (request,) = seen
    for part in ("DescribeSpotPriceHistory", "g5.xlarge", "us-east-1a", "Linux%2FUNIX", "StartTime="):
        assert part in request


def test_pools_with_one_market_cause_one_request(aws_keys, monkeypatch):
    spot = [{"deployment": "x/a"}, {"deployment": "x/b"}]
    with answering(RECORDED.format(items=item("0.4"))) as (url, seen):
        monkeypatch.setenv("AWS_ENDPOINT_URL_EC2", url)
        assert read_prices(pools(spot=spot)) == {"x/a": 0.4, "x/b": 0.4, "segment/on-demand": 1.006}
    assert len(seen) == 1


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("body", "status", "why"),
    [
        (REFUSED, "403 Forbidden", "AWS refuses the price history of g5.xlarge us-east-1a (UnauthorizedOperation)"),
        (RECORDED.format(items=""), "200 OK", "AWS knows no spot price of g5.xlarge us-east-1a"),
        (RECORDED.format(items=item("")), "200 OK", "AWS knows no spot price of g5.xlarge us-east-1a"),
        (RECORDED.format(items=item("free")), "200 OK", "AWS knows no spot price of g5.xlarge us-east-1a"),
        ("<html>login</html>", "200 OK", "AWS"),
        ("not xml", "200 OK", "AWS gives no price history of g5.xlarge us-east-1a"),
    ],
    ids=["refused", "none", "empty", "no number", "a page", "no xml"],
)
def test_any_other_answer_is_an_error_with_a_fix(aws_keys, monkeypatch, body, status, why):
    with pytest.raises(PriceSourceError) as raised:
        ask(monkeypatch, body, status)
    assert why in str(raised.value)
    assert " Fix: " in str(raised.value)


@pytest.mark.matrix
def test_no_server_is_an_error_with_a_fix(aws_keys, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setenv("AWS_ENDPOINT_URL_EC2", f"http://127.0.0.1:{listener.getsockname()[1]}")
    with pytest.raises(PriceSourceError, match="gives no price history"):
        read_prices(pools())


def test_missing_credentials_are_named(monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(PriceSourceError, match="boto3 finds no AWS credentials"):
        read_prices(pools())


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"prices": "aws"}, "no market is given for segment/spot"),
        ({"prices": "aws: g5"}, "must be an instance type and a zone"),
        ({"prices": "aws: g5.xlarge us-east-1a", "on_demand_price": None}, "set on_demand_price too"),
        ({"prices": "aws: g5.xlarge us-east-1a", "currency": "EUR"}, "prices of AWS are in USD"),
        ({"prices": "https://prices"}, "must be 'file: PATH', 'cmd: COMMAND', 'aws'"),
        ({"spot": [{"deployment": "a/b", "market": "g5.xlarge us-east-1a"}]}, "which is used only with prices = 'aws'"),
        ({"spot": [{"deployment": "a/b", "market": "g5"}]}, "must be an instance type and a zone (got 'g5')"),
    ],
)
def test_a_wrong_declaration_is_refused(fields, why):
    given = {name: value for name, value in ({"on_demand_price": 1.0} | fields).items() if value is not None}
    with pytest.raises(SpecError) as raised:
        RunSpec.parse({"run_id": "r", "recipe": "a.b:c", "steps": 3, "pools": given})
    assert why in str(raised.value)


def test_a_declaration_survives_json():
    spec = RunSpec.parse({"run_id": "r", "recipe": "a.b:c", "steps": 3, "pools": pools().model_dump()})
    assert RunSpec.model_validate_json(spec.model_dump_json()) == spec
