"""Sizes and durations: one spelling for every option and setting."""

from __future__ import annotations

import pytest

from cli.options.parse import bytes_of, seconds_of
from farm.config.price import read_price
from farm.config.settings import load_settings
from farm.config.units import format_bytes, format_seconds, read_bytes, read_seconds
from farm.errors import UsageError

SIZES = {
    "500GB": 500 * 10**9,
    "500GiB": 500 * 2**30,
    "8 GiB": 2**33,
    "1.5MB": 1_500_000,
    "512mib": 2**29,
    "4KB": 4000,
    "812B": 812,
    "2TiB": 2**41,
    "0": 0,
}
DURATIONS = {
    "90d": 90 * 86_400,
    "12h": 43_200,
    "15min": 900,
    "15m": 900,
    "10s": 10,
    "1h30m": 5400,
    "1.5 h": 5400,
    "0.5s": 0.5,
    "2 d 3 h": 183_600,
    "0": 0,
}
NO_SIZES = ["", "8", "8 gigs", "-1GB", "GB", "8Gi", "1e3MB", "8GB2", "nan", "٣GB"]
NO_DURATIONS = ["", "30", "-1s", "soon", "5 weeks", "s", "1h30", "inf", "1e3s"]


@pytest.mark.parametrize(("text", "count"), SIZES.items())
def test_a_size_is_a_number_and_its_unit(text: str, count: int) -> None:
    assert read_bytes(text) == count


@pytest.mark.parametrize(("text", "seconds"), DURATIONS.items())
def test_a_duration_is_numbers_and_their_units(text: str, seconds: float) -> None:
    assert read_seconds(text) == seconds


@pytest.mark.parametrize("text", NO_SIZES)
def test_anything_else_is_no_size_and_the_error_names_the_forms(text: str) -> None:
    with pytest.raises(ValueError, match="a size such as 500GB, 8GiB or 512MiB"):
        read_bytes(text)


@pytest.mark.parametrize("text", NO_DURATIONS)
def test_anything_else_is_no_duration_and_the_error_names_the_forms(text: str) -> None:
    with pytest.raises(ValueError, match="a duration such as 90d, 12h, 15min or 10s"):
        read_seconds(text)


@pytest.mark.parametrize(
    ("count", "text"),
    [(500 * 2**30, "500 GiB"), (500 * 10**9, "500 GB"), (16_000_000, "16 MB"), (1234, "1234 B"), (0, "0 B")],
)
def test_a_size_is_shown_exactly_and_can_be_read_again(count: int, text: str) -> None:
    assert format_bytes(count) == text
    assert read_bytes(text) == count


@pytest.mark.parametrize(
    ("seconds", "text"), [(90 * 86_400, "90 d"), (600, "10 min"), (5400, "90 min"), (0.5, "0.5 s"), (0, "0 s")]
)
def test_a_duration_is_shown_in_its_largest_whole_unit_and_can_be_read_again(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text
    assert read_seconds(text) == seconds


@pytest.mark.parametrize("text", ["500GB", "500GiB", "1.5TB"])
def test_a_setting_and_an_option_read_the_same_size(text: str) -> None:
    assert load_settings({"FARM_STORE_SIZE": text}).store_bytes == bytes_of("--max-size", text)


@pytest.mark.parametrize("text", ["90d", "15min", "90m", "3600s"])
def test_a_setting_and_an_option_read_the_same_duration(text: str) -> None:
    assert load_settings({"FARM_JOB_TIMEOUT": text}).job_timeout_seconds == seconds_of("--older-than", text)


def test_the_error_of_an_option_names_it_and_the_forms() -> None:
    with pytest.raises(UsageError, match="--max-size 8: expected a size such as"):
        bytes_of("--max-size", "8")
    with pytest.raises(UsageError, match=r"--budget 0: expected a duration .*, of at least 1 s"):
        seconds_of("--budget", "0", least=1)


@pytest.mark.parametrize(
    ("text", "of_an_hour"),
    [
        ("0.04/core-hour", "0.04"),
        ("$0.04/core-hour", "$0.04"),
        ("1200.50 EUR/core-hour", "1,200.50 EUR"),
        ("GBP 0.5 / core-hour", "GBP 0.50"),
        ("0.0312\N{EURO SIGN}/core-hour", "0.031\N{EURO SIGN}"),
        ("0.00000001/core-hour", "under 0.0001"),
        ("0/core-hour", "0.00"),
    ],
)
def test_a_price_keeps_its_currency_and_can_be_read_again(text: str, of_an_hour: str) -> None:
    price = read_price(text)
    assert price.text(3600) == of_an_hour
    assert read_price(str(price)) == price


@pytest.mark.parametrize(
    "text",
    [
        *("0.04", "0.04/hour", "-1/core-hour", "nan/core-hour", "inf/core-hour", "1e9/core-hour", "$1$/core-hour"),
        *("1e400/core-hour", f"{'9' * 10}/core-hour", "\x1b[1m1/core-hour", "<b>1/core-hour"),
        "\N{ARABIC-INDIC DIGIT ONE}/core-hour",
    ],
)
def test_a_price_in_another_form_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"environment FARM_PRICE: invalid value .* expected a price such as"):
        load_settings({"FARM_PRICE": text})
