"""Servers that answer without end, too slowly, or with the address of another place."""

from __future__ import annotations

import contextlib
import gzip
import io
import itertools
import socket
import threading
import time
import zipfile

import pytest
import requests

from knowngood.core.errors import KnowngoodError, MissingError, NetworkError
from knowngood.index import package_index, remote_archive, server_answers, wheel_contents
from knowngood.index.artefact import UnreadableError
from knowngood.index.server_answers import UnsafeAddressError
from knowngood.registry import wheel_supply
from knowngood.registry.image_reference import Repository
from knowngood.registry.manifests import (
    INDEX_MEDIA_TYPE,
    MANIFEST_MEDIA_TYPE,
    DamagedContentError,
    Descriptor,
    parse_image_configuration,
)
from knowngood.registry.registry_client import Registry

MANIFEST = f"HTTP/1.1 200 OK\r\nContent-Type: {MANIFEST_MEDIA_TYPE}\r\n".encode()
CHUNK = b"10000\r\n" + b"a" * 0x10000 + b"\r\n"
DEEP = b'{"a":' * 200_000


@pytest.fixture
def serve():
    """Answer every connection with some pieces; `serve(pieces, pause)` gives the address."""
    with contextlib.ExitStack() as stack:

        def start(pieces, pause=0.0):
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            threading.Thread(target=run, args=(listener, pieces, pause), daemon=True).start()
            return f"127.0.0.1:{listener.getsockname()[1]}"

        def run(listener, pieces, pause):
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with contextlib.suppress(OSError), connection:
                        connection.recv(1 << 16)
                        for piece in pieces:
                            connection.sendall(piece)
                            time.sleep(pause)

        yield start


def whole(data: bytes, head: bytes = MANIFEST) -> list[bytes]:
    return [head + f"Content-Length: {len(data)}\r\n\r\n".encode(), data]


def registry(address: str) -> Registry:
    return Registry(Repository.parse(f"http://{address}/team/images"), attempts=1)


def test_an_answer_arrives_as_it_was_sent(serve):
    assert registry(serve(whole(b"{}"))).manifest("a").data == b"{}"
    chunks = [MANIFEST + b"Transfer-Encoding: chunked\r\n\r\n", CHUNK, b"2\r\nbc\r\n0\r\n\r\n"]
    assert registry(serve(chunks)).manifest("a").data == b"a" * 0x10000 + b"bc"
    packed = gzip.compress(b"packed")
    assert registry(serve(whole(packed, MANIFEST + b"Content-Encoding: gzip\r\n"))).manifest("a").data == b"packed"


@pytest.mark.parametrize("kind", ["chunked", "without a length", "gzip"])
def test_a_manifest_without_end_is_not_read_to_it(serve, kind):
    bomb = gzip.compress(b"\0" * (64 << 20))
    pieces = {
        "chunked": itertools.chain([MANIFEST + b"Transfer-Encoding: chunked\r\n\r\n"], itertools.repeat(CHUNK)),
        "without a length": itertools.chain([MANIFEST + b"\r\n"], itertools.repeat(b"a" * 0x10000)),
        "gzip": whole(bomb, MANIFEST + b"Content-Encoding: gzip\r\n"),
    }[kind]
    with pytest.raises(DamagedContentError, match=r"the answer is longer than 4,194,304 bytes"):
        registry(serve(pieces)).manifest("a")


def test_a_blob_has_no_more_bytes_than_its_descriptor_says(serve):
    head = b"HTTP/1.1 200 OK\r\n\r\n"
    for read in (Registry.read, Registry.check):
        pieces = itertools.chain([head], itertools.repeat(b"a" * 0x10000))
        with pytest.raises(DamagedContentError, match=r"serves more than the 5 bytes that sha256:"):
            read(registry(serve(pieces)), Descriptor.of(b"hello", "x"))
    assert registry(serve(whole(b"hello", head[:-2]))).read(Descriptor.of(b"hello", "x")) == b"hello"
    large = Descriptor(media="x", digest="sha256:" + "0" * 64, size=1 << 40)
    with pytest.raises(DamagedContentError, match="is too large to read"):
        registry("127.0.0.1:9").read(large)


def test_an_error_without_end_is_not_read_to_it(serve):
    pieces = itertools.chain([b"HTTP/1.1 403 Forbidden\r\n\r\n"], itertools.repeat(b"a" * 0x10000))
    with pytest.raises(MissingError, match="this login may not do that"):
        registry(serve(pieces)).check(Descriptor.of(b"hello", "x"))


@pytest.mark.parametrize("part", ["head", "body", "whole"])
def test_one_byte_after_another_is_no_answer(serve, monkeypatch, part):
    monkeypatch.setattr(server_answers, "HEAD_SECONDS", 0.5)
    monkeypatch.setattr(server_answers, "WHOLE_SECONDS" if part == "whole" else "PACE_SECONDS", 0.5)
    begun = MANIFEST if part == "head" else MANIFEST + b"Content-Length: 100000\r\n\r\n"
    start = time.monotonic()
    with pytest.raises(MissingError, match="the request failed after 1 attempts"):
        registry(serve(itertools.chain([begun], itertools.repeat(b"a")), pause=0.05)).manifest("a")
    assert time.monotonic() - start < 60  # the whole body would take more than an hour


@pytest.mark.parametrize(
    ("header", "waits"),
    [("nan", False), ("inf", True), ("-1", False), ("1e999", False), ("9" * 400, False), ("2", False), ("999", True)],
)
def test_no_time_to_wait_is_a_traceback(serve, header, waits):
    head = f"HTTP/1.1 503 Busy\r\nRetry-After: {header}\r\nContent-Length: 0\r\n\r\n".encode()
    with pytest.raises(MissingError) as raised:
        registry(serve([head])).manifest("a")
    assert ("asks to wait" in str(raised.value)) == (waits and header != "inf")


@pytest.mark.parametrize("data", [DEEP, b"[" * 200_000, b"[]", b"null", b'{"config": 1}', b'{"layers": {}}', b"\xff"])
def test_a_manifest_that_is_none_is_a_sentence(serve, data):
    with pytest.raises(DamagedContentError, match=r"the manifest sha256:.* is malformed"):
        registry(serve(whole(data))).manifest("a").blobs()
    index = MANIFEST.replace(MANIFEST_MEDIA_TYPE.encode(), INDEX_MEDIA_TYPE.encode())
    with pytest.raises(KnowngoodError, match="malformed"):
        _ = registry(serve(whole(data, index))).manifest("a").document


@pytest.mark.parametrize(
    "data", [DEEP, b"[]", b'{"config": []}', b'{"config": {"Labels": []}}', b'{"config": {"Env": 1}}']
)
def test_a_configuration_that_is_none_is_a_sentence(data):
    with pytest.raises(KnowngoodError, match="the configuration of the image is malformed"):
        parse_image_configuration(data)


@pytest.mark.parametrize("kind", ["json", "deep", "gzip", "endless"])
def test_a_page_of_the_index_is_bounded_too(serve, monkeypatch, kind):
    monkeypatch.setattr(package_index.server_answers, "LARGEST_PAGE", 1 << 20)
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.pypi.simple.v1+json\r\n"
    bomb = gzip.compress(b"\0" * (4 << 20))
    pieces, reason = {
        "json": (whole(b'{"files": 1}', head), "does not parse"),
        "deep": (whole(DEEP, head), "it is malformed .*nested more than 40 deep"),
        "gzip": (
            whole(bomb, head + b"Content-Encoding: gzip\r\n"),
            "longer than 1,048,576",
        ),
        "endless": (itertools.chain([head + b"\r\n"], itertools.repeat(b"a" * 0x10000)), "longer than 1,048,576"),
    }[kind]
    with pytest.raises(UnreadableError, match=reason):
        package_index.SimpleIndex(f"http://{serve(pieces)}/simple/").files("tinylib")


def test_a_file_of_a_place_has_no_more_bytes_than_it_should(serve, tmp_path):
    head = b"HTTP/1.1 200 OK\r\n\r\n"
    address = serve(itertools.chain([head], itertools.repeat(b"a" * 0x10000)))
    with pytest.raises(MissingError, match=r"x\.whl is longer there than the 5 bytes that it should have"):
        wheel_supply.download_file(f"http://{address}/x.whl", tmp_path / "x.whl", 5)
    assert (tmp_path / "x.whl").stat().st_size <= 5


def test_a_file_without_end_is_not_read_for_its_hash(serve, monkeypatch):
    monkeypatch.setattr(server_answers, "LARGEST_FILE", 1 << 20)
    address = serve(itertools.chain([b"HTTP/1.1 200 OK\r\n\r\n"], itertools.repeat(b"a" * 0x10000)))
    with pytest.raises(NetworkError, match=r"the index does not serve x\.whl: AnswerTooLargeError"):
        remote_archive.read_remote_hash(f"http://{address}/x.whl")


@pytest.mark.parametrize("length", ["x", "9" * 5000, "-1"])
def test_a_wheel_of_no_size_is_not_served(serve, length):
    address = serve([f"HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n".encode()])
    with pytest.raises(MissingError, match=r"the index does not serve x\.whl"):
        wheel_contents.read_wheel_contents(f"http://{address}/x.whl", "0" * 64)


def test_a_record_that_unpacks_to_too_much_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(wheel_contents, "TEXT_LIMIT", 10)
    with zipfile.ZipFile(tmp_path / "x.whl", "w") as wheel:
        wheel.writestr("x-1.dist-info/RECORD", b"x" * 11)
    with pytest.raises(KnowngoodError, match="its RECORD is too large"):
        wheel_contents.read_wheel_contents((tmp_path / "x.whl").as_uri(), "0" * 64)


def test_a_host_that_no_name_server_can_have_is_refused(serve):
    """It passes for an address until it is asked for: a traceback of urllib3, which the fuzzer found."""
    target = f"http://{'9' * 400}:9/v2/upload".encode()
    head = b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\nLocation: " + target + b"\r\n\r\n"
    with pytest.raises(UnsafeAddressError, match="is not an address of HTTP"):
        registry(serve([head])).put(Descriptor.of(b"hello", "x"), lambda: contextlib.closing(io.BytesIO(b"hello")))


class TestAddresses:
    @pytest.mark.parametrize(
        ("current", "target"),
        [
            ("https://a.example/v2/", "http://a.example/v2/upload"),
            ("https://a.example/v2/", "http://a.example:443/v2/upload"),
            ("https://a.example/v2/", "//[/"),
            ("https://a.example/v2/", "file:///etc/passwd"),
            ("http://127.0.0.1/v2/", "ftp://127.0.0.1/"),
            ("http://127.0.0.1/v2/", "http://127.0.0.1:99999/"),
        ],
    )
    def test_an_address_without_encryption_or_of_no_server_is_refused(self, current, target):
        with pytest.raises(UnsafeAddressError, match=r"without encryption; nothing was sent|is not an address of HTTP"):
            server_answers.follow_address(current, target)

    def test_the_origin_is_scheme_host_and_port(self):
        origin = server_answers.parse_origin("https://a.example/x")
        assert origin == server_answers.parse_origin("https://u@A.example:443/y?z")
        for other in ("http://a.example/x", "https://a.example:5000/x", "https://b.example/x", "http://a.example:443/"):
            assert server_answers.parse_origin(other) != origin
        assert server_answers.follow_address("https://a.example/v2/x/", "/y") == "https://a.example/y"
        assert server_answers.follow_address("https://a.example/v2/", "https://s3.example/y") == "https://s3.example/y"

    def test_a_redirect_out_of_https_is_not_followed(self, monkeypatch):
        """The adapter sees the answer to an https address; nothing here has a certificate, so the sending is faked."""

        def answer(_self, request, *_words, **_more):
            response = requests.Response()
            response.status_code, response.url = 302, request.url
            response.headers["Location"] = "http://a.example/simple/"
            response.raw = io.BytesIO()
            return response

        monkeypatch.setattr(server_answers.HTTPAdapter, "send", answer)
        with pytest.raises(UnsafeAddressError, match=r"leads to http://a.example, without encryption"):
            server_answers.bound_session(requests.Session()).get("https://a.example/simple/")
        monkeypatch.setenv("UV_DEFAULT_INDEX", "https://a.example/simple/")
        with pytest.raises(UnreadableError, match="it leads to an address without encryption"):
            package_index.SimpleIndex().files("tinylib")
