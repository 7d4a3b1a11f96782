"""Durations as people read them: the same words wherever segue reports one."""

from __future__ import annotations

import pytest

from segue.units import duration, money, size


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.000_02, "0.02 ms"),
        (0.0099, "9.9 ms"),
        (0.01, "0.01 s"),
        (2.54, "2.5 s"),
        (9.99, "10 s"),
        (84.4, "84 s"),
        (119.9, "120 s"),
        (120, "2 min"),
        (297, "5 min"),
        (250, "4.2 min"),
        (599.9, "10 min"),
        (7199, "120 min"),
        (7200, "2.0 h"),
        (71.9 * 3600, "71.9 h"),
        (72 * 3600, "3.0 days"),
        (-60, "-60 s"),
        (-7200, "-2.0 h"),
    ],
)
def test_a_duration_is_written_in_the_unit_that_fits_it(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("count_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (27_900, "28 kB"), (3.42e9, "3.4 GB"), (5e16, "50000 TB")],
)
def test_a_size_is_written_in_the_unit_that_fits_it(count_bytes, text):
    assert size(count_bytes) == text


@pytest.mark.parametrize(
    ("amount", "currency", "text"),
    [(3.456, "EUR", "3.46 EUR"), (0.01234, "EUR", "0.0123 EUR"), (0, "EUR", "0.00 EUR"), (2, "", "2.00 USD")],
)
def test_an_amount_has_a_currency_also_where_an_old_record_names_none(amount, currency, text):
    assert money(amount, currency) == text
