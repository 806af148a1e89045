"""The token with which a Ray cluster knows who may give it work: whoever has it may run any program there."""

from __future__ import annotations

from farm.config.settings import RayAuthentication
from farm.errors import UnreachableError

WAY_OUT = (
    "put the cluster's token into ~/.ray/auth_token or name its file in RAY_AUTH_TOKEN_PATH; "
    "RAY_AUTH_MODE=disabled is for a cluster without one, in a network of its own"
)


def require_token(where: str, authentication: RayAuthentication) -> None:
    """Raises UnreachableError, in words, where a cluster's token is needed and there is none."""
    if authentication.on and authentication.token is None:
        raise UnreachableError(f"{where} wants a token, and {authentication.missing}: {WAY_OUT}")


def refusal(where: str, authentication: RayAuthentication) -> UnreachableError:
    """For a cluster that listens and lets us not in: Ray does not tell why, and it is the token nearly always."""
    sent = authentication.token if authentication.on else "no token, as RAY_AUTH_MODE asks for"
    return UnreachableError(f"{where} answers, and does not let us in with {sent}: {WAY_OUT}")


def described(authentication: RayAuthentication) -> str:
    """For `farm doctor`."""
    if not authentication.on:
        return "WITHOUT authentication: whoever reaches it may run programs there"
    return f"with {authentication.token}"
