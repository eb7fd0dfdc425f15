from __future__ import annotations

import hashlib
import http.server

import pytest

from knowngood.core.errors import CorruptArchiveError
from knowngood.images import image_build
from knowngood.lock.cell_lock import Distribution
from local_server import serving

WHEEL = "tiny-1.0-py3-none-any.whl"
GOOD, BAD = b"the wheel", b"the whxel"


@pytest.fixture
def served(monkeypatch):
    """Serve an index with one wheel, and give the list of bodies: the answers to the next requests for the wheel."""
    bodies: list[bytes] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_args):
            pass

        def do_GET(self):
            body = bodies.pop(0) if self.path.endswith(".whl") else f'<a href="/{WHEEL}">{WHEEL}</a>'.encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"http://127.0.0.1:{server.server_address[1]}/simple")
    with serving(server):
        yield bodies


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def distribution() -> Distribution:
    return Distribution(name="tiny", version="1.0", file=WHEEL, sha256=sha256(GOOD), size=len(GOOD))


def work(failures: int, runs: list[int], name: str = WHEEL):
    def build() -> str:
        runs.append(len(runs))
        if len(runs) <= failures:
            raise CorruptArchiveError(name, detail="Bad CRC")
        return "built"

    return build


@pytest.mark.parametrize("name", [WHEEL, "tiny==1.0"])
def test_a_wheel_that_the_index_serves_damaged_is_named_with_both_hashes(served, name):
    served.append(BAD)
    runs: list[int] = []
    with pytest.raises(CorruptArchiveError) as caught:
        image_build.repeat_after_damage(work(9, runs, name), [distribution()], print)
    assert len(runs) == 1
    assert caught.value.exit_code == 1
    assert str(caught.value).startswith(
        f"{WHEEL} is a corrupt archive (Bad CRC): sha256 expected: {sha256(GOOD)}, found: {sha256(BAD)}; the index"
    )


def test_a_wheel_that_was_damaged_on_the_way_is_fetched_once_more(served):
    served.append(GOOD)
    runs: list[int] = []
    assert image_build.repeat_after_damage(work(1, runs), [distribution()], print) == "built"
    assert len(runs) == 2


def test_a_wheel_that_arrives_corrupt_twice_ends_the_build(served):
    served += [GOOD, GOOD]
    runs: list[int] = []
    with pytest.raises(CorruptArchiveError, match="found: unknown; the index serves the right bytes when it is asked"):
        image_build.repeat_after_damage(work(9, runs), [distribution()], print)
    assert len(runs) == 2


def test_an_index_that_no_longer_lists_the_wheel_leaves_the_hash_unknown(served):
    runs: list[int] = []
    other = Distribution(name="tiny", version="2.0", file="tiny-2.0-py3-none-any.whl", sha256="a" * 64, size=1)
    with pytest.raises(CorruptArchiveError, match=r"found: unknown; the index does not list tiny-2\.0"):
        image_build.repeat_after_damage(work(9, runs, other.file), [other], print)
    assert (len(runs), served) == (1, [])


def test_an_archive_that_is_not_in_the_lock_is_named_as_the_build_did(served):
    runs: list[int] = []
    with pytest.raises(CorruptArchiveError, match="setuptools==1 is a corrupt archive"):
        image_build.repeat_after_damage(work(9, runs, "setuptools==1"), [distribution()], print)
    assert (len(runs), served) == (1, [])
