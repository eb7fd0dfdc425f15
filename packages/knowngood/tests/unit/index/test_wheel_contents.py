from __future__ import annotations

import hashlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from zipfile import ZipFile

import pytest
from requests.auth import _basic_auth_str

from knowngood.core.errors import KnowngoodError, MissingError
from knowngood.index import index_settings, wheel_contents
from knowngood.index.package_index import open_http_session
from knowngood.index.wheel_contents import WheelContents
from local_server import serving


def make_wheel(folder, name="a", record="a/__init__.py,sha256=x,1\na-1.dist-info/RECORD,,\n"):
    path = folder / f"{name}-1-py3-none-any.whl"
    with ZipFile(path, "w") as file:
        file.writestr(f"{name}/__init__.py", "x")
        if record is not None:
            file.writestr(f"{name}-1.dist-info/RECORD", record)
    return path, hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("path", "lands"),
    [
        ("torch/__init__.py", "torch/__init__.py"),
        ("a-1.data/purelib/a.py", "a.py"),
        ("a-1.data/platlib/a.so", "a.so"),
        ("a-1.data/scripts/run", "bin/run"),
        ("a-1.data/data/share/x", "data/share/x"),
        ("a-1.data/headers/x.h", "headers/x.h"),
    ],
)
def test_where_a_file_lands(path, lands):
    assert wheel_contents.installed_path(path) == lands


def test_a_record_without_the_wheels_own_metadata():
    record = 'a/b.py,sha256=x,3\n"a/with,comma.py",sha256=y,1\n'
    record += "a-1.dist-info/METADATA,sha256=z,1\na-1.data/scripts/r,sha256=w,1\n\n"
    assert wheel_contents.parse_record(record) == {
        "a/b.py": "sha256=x",
        "a/with,comma.py": "sha256=y",
        "bin/r": "sha256=w",
    }


def test_two_that_write_different_bytes_to_one_file_are_named():
    found = {
        "flash-attn-4": WheelContents(
            size=1, files={"flash_attn/cute/a.py": "1", "flash_attn/cute/b.py": "2", "x.py": "0"}
        ),
        "flash-attn": WheelContents(size=1, files={"flash_attn/cute/a.py": "3", "flash_attn/cute/b.py": "4"}),
        "other": WheelContents(size=1, files={"x.py": "0"}),
    }
    assert wheel_contents.describe_clobbered_files(found) == [
        "flash-attn and flash-attn-4 both write flash_attn/cute/a.py and 1 more files"
    ]


def test_the_same_bytes_clobber_nothing():
    same = WheelContents(size=1, files={"nvidia/__init__.py": "sha256=e3b0"})
    assert wheel_contents.describe_clobbered_files({"a": same, "b": same}) == []


def test_a_local_wheel_is_read_and_kept_by_its_hash(tmp_path):
    path, sha256 = make_wheel(tmp_path)
    found = wheel_contents.read_wheel_contents(path.as_uri(), sha256)
    assert found == WheelContents(size=path.stat().st_size, files={"a/__init__.py": "sha256=x"})
    path.unlink()
    assert wheel_contents.read_wheel_contents(path.as_uri(), sha256) == found


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"size": 1}', "null"])
def test_a_damaged_cache_is_read_again(tmp_path, damage):
    path, sha256 = make_wheel(tmp_path)
    found = wheel_contents.read_wheel_contents(path.as_uri(), sha256)
    wheel_contents._cache_file(sha256).write_text(damage)
    assert wheel_contents.read_wheel_contents(path.as_uri(), sha256) == found


def test_a_file_that_is_no_wheel_is_named(tmp_path):
    path = tmp_path / "a-1-py3-none-any.whl"
    path.write_bytes(b"not a zip")
    with pytest.raises(KnowngoodError, match=r"^a-1-py3-none-any.whl is not a wheel, although its sha256 is the exp"):
        wheel_contents.read_wheel_contents(path.as_uri(), hashlib.sha256(b"not a zip").hexdigest())
    path, sha256 = make_wheel(tmp_path, record=None)
    with pytest.raises(KnowngoodError, match="it has no RECORD"):
        wheel_contents.read_wheel_contents(path.as_uri(), sha256)
    assert not list(wheel_contents._cache_file("0").parent.glob("*"))


def test_several_at_once_keep_their_names(tmp_path):
    places = {name: (path.as_uri(), sha) for name in "bac" for path, sha in [make_wheel(tmp_path, name)]}
    said = []
    assert list(wheel_contents.read_contents_of_wheels(places, said.append)) == ["b", "a", "c"]
    wheel_contents.read_contents_of_wheels(places, said.append)
    assert said == ["reading the file lists of 3 wheels"]


def test_an_index_that_does_not_answer(monkeypatch):
    import requests
    import stamina

    def head(_self, url, **_):
        raise requests.ConnectionError(f"cannot reach {url}")

    monkeypatch.setattr(requests.Session, "head", head)
    stamina.set_testing(True)
    try:
        with pytest.raises(MissingError, match=r"^the index does not serve a-1-py3-none-any.whl: ") as caught:
            wheel_contents.read_wheel_contents("https://me:s3cret@index.example/a-1-py3-none-any.whl", "2" * 64)
    finally:
        stamina.set_testing(False)
    assert "s3cret" not in str(caught.value)
    assert "***@index.example" in str(caught.value)


def test_the_files_of_a_source_archive_are_not_known_before_it_is_built(monkeypatch):
    import requests

    class Head:
        headers: ClassVar = {"Content-Length": "1234"}

        def raise_for_status(self):
            pass

    monkeypatch.setattr(requests.Session, "head", lambda *_, **__: Head())
    found = wheel_contents.read_wheel_contents("https://index.example/deepspeed-0.16.2.tar.gz", "4" * 64)
    assert found == wheel_contents.WheelContents(size=1234, files={})


def test_a_session_has_the_hosts_certificates(monkeypatch, tmp_path):
    settings = index_settings.IndexSettings(env={}, files={"ca": tmp_path / "ca.pem"})
    monkeypatch.setattr(index_settings, "read_index_settings", lambda: settings)
    assert open_http_session().verify == str(tmp_path / "ca.pem")


@pytest.fixture
def logins():
    """The port of a server without encryption, and the logins that it is sent."""
    sent = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            sent.append(self.headers.get("Authorization"))
            self.send_response(204)
            self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with serving(server):
        yield server.server_port, sent


@pytest.fixture(params=["address", "netrc"])
def login_of_index(request, monkeypatch, tmp_path):
    """What stands before the host in the address of an index whose login is there, or in netrc."""
    in_address = request.param == "address"
    (tmp_path / "netrc").write_text("" if in_address else "machine 127.0.0.1 login me password pw\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    return "me:pw@" if in_address else ""


@pytest.mark.parametrize(
    ("index", "sent"),
    [
        ("http://{}127.0.0.1:{}/simple", True),
        ("https://{}127.0.0.1:{}/simple", False),
        ("http://{}127.0.0.1:1/simple", False),
        ("http://{}localhost:{}/simple", False),
    ],
)
def test_a_login_is_sent_to_the_scheme_host_and_port_of_its_index(logins, login_of_index, monkeypatch, index, sent):
    """A page over https that names a file at http:// and its own host was sent the password in clear."""
    port, seen = logins
    monkeypatch.setenv("UV_DEFAULT_INDEX", index.format(login_of_index, port))
    open_http_session().get(f"http://127.0.0.1:{port}/x-1.whl", timeout=20)
    assert seen == [_basic_auth_str("me", "pw") if sent else None]
