from __future__ import annotations

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knowngood.index import index_settings

INDEX = "https://index.example/simple"


def found(pip: str = "", *more: str, tmp=None, **environ: str) -> index_settings.IndexSettings:
    files = []
    for number, text in enumerate([pip, *more] if tmp else []):
        files.append(tmp / f"pip{number}.conf")
        files[-1].write_text(text)
    return index_settings.read_index_settings({"HOME": "/nowhere", **environ}, files)


def test_a_host_without_settings_has_none():
    assert found(PATH="/bin", UV_CACHE_DIR="/x", UV_RESOLUTION="lowest") == index_settings.IndexSettings(
        env={}, files={}
    )


def test_pips_index_becomes_uvs(tmp_path):
    settings = found(
        f"""[global]
index-url = {INDEX}
extra-index-url =
    https://one.example/simple
    https://two.example/simple
trusted-host =
    one.example
    two.example:8080
timeout = 60
""",
        tmp=tmp_path,
    )
    assert settings.env == {
        "UV_DEFAULT_INDEX": INDEX,
        "UV_INDEX": "https://one.example/simple https://two.example/simple",
        "UV_INSECURE_HOST": "one.example two.example:8080",
        "UV_HTTP_TIMEOUT": "60",
    }


@pytest.mark.parametrize("key", ["index-url", "index_url", "--index-url", "Index-URL"])
def test_pip_spells_its_keys_in_several_ways(tmp_path, key):
    assert found(f"[global]\n{key} = {INDEX}\n", tmp=tmp_path).env == {"UV_DEFAULT_INDEX": INDEX}


def test_install_is_over_global_whichever_file_comes_last(tmp_path):
    first, second = f"[install]\nindex-url = {INDEX}\n", "[global]\nindex-url = https://other.example/simple\n"
    assert found(first, second, tmp=tmp_path).env["UV_DEFAULT_INDEX"] == INDEX
    assert found(second, first, tmp=tmp_path).env["UV_DEFAULT_INDEX"] == INDEX


def test_a_later_file_is_over_an_earlier_and_the_environment_over_both(tmp_path):
    first, second = "[global]\nindex-url = https://a.example\n", "[global]\nindex-url = https://b.example\n"
    assert found(first, second, tmp=tmp_path).env["UV_DEFAULT_INDEX"] == "https://b.example"
    assert found(first, second, tmp=tmp_path, PIP_INDEX_URL=INDEX).env["UV_DEFAULT_INDEX"] == INDEX


def test_uvs_own_settings_are_over_pips():
    settings = found(
        PIP_INDEX_URL="https://pip.example",
        PIP_EXTRA_INDEX_URL="https://more.example",
        UV_INDEX_URL=INDEX,
        UV_INDEX="a=" + INDEX,
    )
    assert settings.env == {"UV_INDEX_URL": INDEX, "UV_INDEX": "a=" + INDEX}


def test_the_credentials_of_a_named_index_are_forwarded():
    settings = found(UV_INDEX="corp=" + INDEX, UV_INDEX_CORP_USERNAME="me", UV_INDEX_CORP_PASSWORD="s3cret")  # noqa: S106
    assert settings.env["UV_INDEX_CORP_PASSWORD"] == "s3cret"
    assert settings.credentials("https://index.example/files/a.whl") == ("me", "s3cret")
    assert settings.credentials("https://other.example/a.whl") is None


def test_the_credentials_in_an_address():
    settings = found(PIP_INDEX_URL="https://me:p%40ss@index.example/simple")
    assert settings.credentials("https://index.example/a.whl") == ("me", "p@ss")
    assert found(PIP_INDEX_URL=INDEX).credentials("https://index.example/a.whl") is None


def test_settings_that_name_a_folder_of_this_machine_are_left_out(tmp_path):
    settings = found(
        "[global]\nindex-url = file:///srv/simple\nextra-index-url = /srv/a https://b.example\nfind-links = /srv\n",
        tmp=tmp_path,
        UV_EXTRA_INDEX_URL="file:///srv/x https://kept.example",
        UV_FIND_LINKS="/srv",
    )
    assert settings.env == {"UV_EXTRA_INDEX_URL": "https://kept.example"}


@pytest.mark.parametrize("name", ["HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy", "ALL_PROXY", "HTTP_PROXY"])
def test_proxies_are_forwarded(name):
    assert found(**{name: "http://proxy.example:3128"}).env == {name: "http://proxy.example:3128"}


def test_pips_proxy_is_one_unless_the_environment_has_one(tmp_path):
    pip = "[global]\nproxy = http://p.example:1\n"
    assert found(pip, tmp=tmp_path).env == {"HTTP_PROXY": "http://p.example:1", "HTTPS_PROXY": "http://p.example:1"}
    assert found(pip, tmp=tmp_path, https_proxy="http://q.example:2").env == {"https_proxy": "http://q.example:2"}


@pytest.mark.parametrize("name", ["SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"])
def test_the_ca_file(tmp_path, name):
    path = tmp_path / "ca.pem"
    assert found(**{name: str(path)}).files == {}
    path.write_text("x")
    assert found(**{name: str(path)}).files == {"ca": path}


def test_the_users_files(tmp_path):
    (tmp_path / ".netrc").write_text("x")
    (tmp_path / "etc/uv").mkdir(parents=True)
    (tmp_path / "etc/uv/uv.toml").write_text("")
    (tmp_path / "ca").write_text("x")
    (tmp_path / "pip.conf").write_text("[global]\ncert = ~/ca\n")
    settings = index_settings.read_index_settings(
        {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "etc")}, [tmp_path / "pip.conf"]
    )
    assert settings.files["netrc"] == tmp_path / ".netrc"
    assert settings.files["uv-config"] == tmp_path / "etc/uv/uv.toml"


@pytest.mark.parametrize("data", [b"\xff\xfe\x00", b"no section\n", b"[global]\na=1\na=2\n"])
def test_a_broken_pip_file_hides_no_other(tmp_path, data):
    (tmp_path / "a").write_bytes(data)
    (tmp_path / "b").write_text(f"[global]\nindex-url = {INDEX}\n")
    settings = index_settings.read_index_settings(
        {"HOME": "/nowhere"}, [tmp_path / "a", tmp_path / "none", tmp_path / "b"]
    )
    assert settings.env == {"UV_DEFAULT_INDEX": INDEX}


def test_a_file_that_begins_with_a_byte_order_mark(tmp_path):
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbf" + f"[global]\nindex-url = {INDEX}\n".encode())
    assert index_settings.read_index_settings({"HOME": "/nowhere"}, [tmp_path / "a"]).env == {"UV_DEFAULT_INDEX": INDEX}


def test_which_files_pip_would_read(tmp_path):
    home, own = tmp_path, tmp_path / "own.conf"
    usual = index_settings._pip_files({}, home)
    assert usual[-3:-1] == [home / ".pip/pip.conf", home / ".config/pip/pip.conf"]
    assert index_settings._pip_files({"PIP_CONFIG_FILE": "/dev/null"}, home) == []
    assert index_settings._pip_files({"PIP_CONFIG_FILE": str(own)}, home) == usual
    own.write_text("")
    named = index_settings._pip_files({"PIP_CONFIG_FILE": str(own)}, home)
    assert named[-1] == own
    assert home / ".pip/pip.conf" not in named
    assert usual[-1] in named


@settings(max_examples=25, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["UV_INDEX", "HTTPS_PROXY"]), st.text(st.characters(codec="ascii", min_codepoint=32))
    )
)
def test_a_shell_reads_the_values_as_they_are(env):
    script = index_settings.IndexSettings(env=env, files={}).shell() + "".join(
        f'printf "%s\\0" "${key}"\n' for key in sorted(env)
    )
    done = subprocess.run(["sh", "-c", script], capture_output=True, check=True, env={})
    assert done.stdout.decode().split("\0")[:-1] == [env[key] for key in sorted(env)]
