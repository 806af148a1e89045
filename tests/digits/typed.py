"""Commands as a person types them."""

from __future__ import annotations

from cli.main import run


def typed(*arguments: str) -> None:
    """Runs `farm` with these arguments and shows what was typed. Raises RuntimeError if it fails."""
    print(f"\n$ farm {' '.join(arguments)}", flush=True)
    if code := run(arguments):
        raise RuntimeError(f"farm {arguments[0]} ended with exit code {code}")
