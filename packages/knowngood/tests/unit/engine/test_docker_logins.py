"""Docker's config.json: a damaged one is named with its place, and never shown."""

from __future__ import annotations

import base64
import json

import pytest

from knowngood.core.errors import InputError
from knowngood.engine.docker_logins import check_docker_config
from knowngood.registry.registry_client import RegistryLogin

SECRET = "hunter2hunter2"


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    return tmp_path / "config.json"


def auth(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "1:1: the file must be an object"),
        ("{", "1:2: not well-formed JSON"),
        ("[" * 100_000, "nested more than 40 deep"),
        (json.dumps({"auths": []}), "1:11: auths must be an object"),
        (json.dumps({"auths": {"h": SECRET}}), "the login of h must be an object"),
        (json.dumps({"auths": {"h": {"auth": auth(SECRET)}}}), "1:26: the `auth` of h must be USER:PASSWORD in base64"),
        (json.dumps({"auths": {"h": {"auth": f"{SECRET}!"}}}), "the `auth` of h must be USER:PASSWORD in base64"),
        (json.dumps({"auths": {"h": {"auth": f"ü{SECRET}"}}}), "the `auth` of h must be"),
        (json.dumps({"auths": {"h": {"auth": 5}}}), "the `auth` of h must be"),
        (json.dumps({"credsStore": 5}), "credsStore must be text"),
        (json.dumps({"credHelpers": {"h": 5}}), "the helper of h must be text"),
    ],
)
def test_a_damaged_config_is_named_and_not_shown(config, content, message):
    config.write_text(content)
    for use in (check_docker_config, RegistryLogin("h")._read_credentials):
        with pytest.raises(InputError) as raised:
            use()
        assert f"{config}:" in str(raised.value)
        assert message in str(raised.value)
        assert "run `docker login` again" in str(raised.value)
        assert SECRET not in str(raised.value)
        assert auth(SECRET) not in str(raised.value)


def test_a_sound_config_is_read_and_none_is_needed(config):
    check_docker_config()
    assert RegistryLogin("h")._read_credentials() == {}
    login = {
        "auths": {"h": {"auth": auth(f"bob:{SECRET}")}, "other": {}},
        "currentContext": "x",
        "HttpHeaders": {"a": "b"},
    }
    config.write_text(json.dumps(login))
    check_docker_config()
    assert RegistryLogin("h")._read_credentials()["username"] == "bob"
