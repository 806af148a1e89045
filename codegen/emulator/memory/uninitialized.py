"""The value of registers and shared memory that nothing has written yet."""

from __future__ import annotations

from typing import Final

JUNK: Final = {1: 0xDC, 2: 0xFFDC, 4: 0xFFDCFFDC, 8: 0xFFDCFFDCFFDCFFDC}
"""By size in bytes: NaN as a float of any size, and as two floats of half the size."""
