"""Checks of `farm verify` on a job whose layers are right."""

from __future__ import annotations

from collections.abc import Iterable

from farm.verify.layers import LayerVerification


def assert_right(found: Iterable[LayerVerification]) -> None:
    """There are some, and not one is wrong."""
    messages = [each.verification.message for each in found]
    assert messages
    assert not any(messages), messages
