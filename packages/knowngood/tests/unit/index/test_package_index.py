import pytest

from knowngood.index.package_index import configured_index, file_version

VARIABLES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL", "PIP_CONFIG_FILE")


@pytest.fixture(autouse=True)
def _bare(monkeypatch, tmp_path):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.mark.parametrize(
    ("variable", "value", "index"),
    [
        ("UV_DEFAULT_INDEX", "https://a/simple", "https://a/simple"),
        ("UV_DEFAULT_INDEX", "mirror=https://a/simple", "https://a/simple"),
        ("UV_INDEX_URL", "https://a/simple?x=y", "https://a/simple?x=y"),
        ("PIP_INDEX_URL", "https://b/simple", "https://b/simple"),
    ],
)
def test_environment_names_the_index(monkeypatch, variable, value, index):
    monkeypatch.setenv(variable, value)
    assert configured_index() == index


def test_uv_before_pip(monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", "https://b/simple")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://a/simple")
    assert configured_index() == "https://a/simple"


def test_pip_conf(tmp_path):
    conf = tmp_path / "config" / "pip" / "pip.conf"
    conf.parent.mkdir(parents=True)
    conf.write_text("[global]\nindex-url = https://c/simple\n")
    assert configured_index() == "https://c/simple"


def test_a_broken_pip_conf_is_ignored(tmp_path, monkeypatch):
    conf = tmp_path / "pip.conf"
    conf.write_text("no section\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(conf))
    assert configured_index().endswith("/simple/")


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("torch-2.10.0-3-cp311-cp311-manylinux_2_28_x86_64.whl", "2.10.0"),
        ("flash_attn-2.8.3.post2.tar.gz", "2.8.3.post2"),
        ("torch-2.0.egg", None),
        ("junk.whl", None),
    ],
)
def test_file_version(name, version):
    found = file_version(name)
    assert (str(found) if found else None) == version
