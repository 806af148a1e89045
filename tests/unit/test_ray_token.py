"""Ray's token comes from a file or the environment; without one a message says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from farm.config.settings import RayAuthentication, ray_authentication
from farm.errors import UnreachableError
from farm.executors.ray.connection import describe_authentication, require_token

TOKEN = "b7-a-token-that-nobody-may-see"


def environment(home: Path, **variables: str) -> dict[str, str]:
    return {"HOME": str(home), **variables}


def test_the_token_is_looked_for_where_ray_does_in_its_order(tmp_path: Path) -> None:
    default = tmp_path / ".ray" / "auth_token"
    default.parent.mkdir()
    default.write_text(TOKEN)
    named = tmp_path / "token"
    named.write_text(f"{TOKEN}\n")
    assert ray_authentication(environment(tmp_path)).token == f"the token in {default}"
    path = environment(tmp_path, RAY_AUTH_TOKEN_PATH=str(named))
    assert ray_authentication(path).token == f"the token in {named}"
    assert ray_authentication(path | {"RAY_AUTH_TOKEN": TOKEN}).token == "the token in RAY_AUTH_TOKEN"


def test_authentication_is_on_unless_it_is_switched_off(tmp_path: Path) -> None:
    assert ray_authentication(environment(tmp_path)).on
    assert ray_authentication(environment(tmp_path, RAY_AUTH_MODE="token")).on
    assert not ray_authentication(environment(tmp_path, RAY_AUTH_MODE="disabled")).on


def test_no_token_is_an_error_that_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError, match=r"requires a token, but .*/\.ray/auth_token cannot be read"):
        require_token("the Ray cluster at a:1", ray_authentication(environment(tmp_path)))
    (tmp_path / "empty").write_text("\n")
    found = ray_authentication(environment(tmp_path, RAY_AUTH_TOKEN_PATH=str(tmp_path / "empty")))
    with pytest.raises(UnreachableError, match=r"empty is empty. Put the cluster's token into ~/.ray/auth_token"):
        require_token("the Ray cluster at a:1", found)


def test_a_named_file_that_is_missing_is_no_reason_to_take_another(tmp_path: Path) -> None:
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text(TOKEN)
    assert ray_authentication(environment(tmp_path, RAY_AUTH_TOKEN_PATH=str(tmp_path / "gone"))).token is None


def test_a_cluster_without_authentication_needs_no_token_and_is_told_of() -> None:
    off = RayAuthentication(on=False, token=None, missing="none")
    require_token("the Ray cluster at a:1", off)
    assert describe_authentication(off).startswith("WITHOUT authentication")


def test_the_token_itself_is_never_said(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    for variables in ({"RAY_AUTH_TOKEN": TOKEN}, {"RAY_AUTH_TOKEN_PATH": str(tmp_path / "token")}):
        found = ray_authentication(environment(tmp_path, **variables))
        assert TOKEN not in repr(found) + describe_authentication(found)
