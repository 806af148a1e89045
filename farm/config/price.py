"""Price of CPU time: parsing of what users write, and the cost of a number of seconds."""

from __future__ import annotations

import re
from dataclasses import dataclass

PRICES = "a price such as 0.04/core-hour, $0.04/core-hour or 0.04 EUR/core-hour"
"""Description of a price, for messages."""

_CURRENCY = r"[$\u00a2-\u00a5\u20a0-\u20c0]|[A-Z]{3}"
_PRICE = re.compile(rf"({_CURRENCY})?\s?([0-9]{{1,9}}(?:\.[0-9]{{1,9}})?)\s?({_CURRENCY})?\s?/\s?core-hour")
_SECONDS_PER_HOUR = 3600


@dataclass(frozen=True)
class Price:
    """Price of one core for one hour. The currency is a name to repeat; nothing is converted."""

    per_core_hour: float
    currency: str = ""
    currency_first: bool = False
    """Whether the currency stands before the amount, as in $0.04."""

    def __str__(self) -> str:
        """The price in a form that `read_price` parses."""
        return f"{self._with_currency(f'{self.per_core_hour:.9f}'.rstrip('0').rstrip('.'))}/core-hour"

    def of(self, seconds: float) -> float:
        """Cost of CPU time, in the price's currency."""
        return seconds / _SECONDS_PER_HOUR * self.per_core_hour

    def text(self, seconds: float) -> str:
        """Cost of CPU time as $1,234.50 or 0.0012 EUR: two decimals, or two digits of a smaller amount."""
        amount = self.of(seconds)
        if 0 < amount < 0.0001:
            return f"under {self._with_currency('0.0001')}"
        return self._with_currency(f"{amount:,.2f}" if amount >= 0.1 or not amount else f"{amount:.2g}")

    def _with_currency(self, amount: str) -> str:
        space = " " if self.currency.isalpha() else ""
        return f"{self.currency}{space}{amount}" if self.currency_first else f"{amount}{space}{self.currency}"


def read_price(text: str) -> Price:
    """Parses a price per core-hour, with a currency's sign or code before or after. Raises ValueError with `PRICES`."""
    match = _PRICE.fullmatch(text.strip())
    if match is None or (match[1] and match[3]):
        raise ValueError(PRICES)
    return Price(float(match[2]), match[1] or match[3] or "", bool(match[1]))
