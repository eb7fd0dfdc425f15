"""What `audit` makes of the answers of the services, in the form that they document, over HTTP on the loopback."""

from __future__ import annotations

import http.server
import json
import threading
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from knowngood.core.errors import UnknownError
from knowngood.registry import advisory_service, vulnerability_audit
from knowngood.registry.advisory_service import Vulnerability
from local_server import serving

JINJA = {
    "id": "GHSA-cpwx-vrp4-4pq7",
    "summary": "Jinja2 vulnerable to sandbox breakout through attr filter selecting format method",
    "details": "An oversight in how the Jinja sandboxed environment interacts with the `|attr` filter ...",
    "aliases": ["CVE-2025-27516"],
    "modified": "2025-09-30T15:47:10Z",
    "published": "2025-03-05T20:40:14Z",
    "database_specific": {"severity": "MODERATE", "cwe_ids": ["CWE-1336"], "github_reviewed": True},
    "references": [{"type": "ADVISORY", "url": "https://nvd.example/vuln/detail/CVE-2025-27516"}],
    "affected": [
        {
            "package": {"name": "jinja2", "ecosystem": "PyPI", "purl": "pkg:pypi/jinja2"},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "3.1.6"}]}],
            "versions": ["3.1.4", "3.1.5"],
        }
    ],
    "schema_version": "1.7.3",
    "severity": [{"type": "CVSS_V4", "score": "CVSS:4.0/AV:L/AC:L/AT:P/PR:L/UI:N/VC:H/VI:H/VA:H/SC:N/SI:N/SA:N"}],
}
PYSEC = {**JINJA, "id": "PYSEC-2025-9", "aliases": ["CVE-2025-27516", "GHSA-cpwx-vrp4-4pq7"]}
OTHER = {**JINJA, "id": "GHSA-h75v-3vvj-5mfj", "aliases": ["CVE-2024-34064"]}
PINS = [("Jinja2", "3.1.5")]


class Server(http.server.ThreadingHTTPServer):
    """Gives the next of `answers`, (status, headers, body), to each query, and the last one again."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers = [(200, {}, b"{}")]
        self.queries = []

    def give(self, *documents, status=200, **headers):
        self.queries.clear()
        self.answers = [
            (status, headers, item if isinstance(item, bytes) else json.dumps(item).encode()) for item in documents
        ]

    def handle_error(self, request, client_address):
        """Ignore errors: a client that waited too long is gone."""


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_args):
        pass

    def do_POST(self):
        self.server.queries.append(json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}"))
        status, headers, body = self.server.answers[0]
        if len(self.server.answers) > 1:
            self.server.answers.pop(0)
        if status == 0:
            threading.Event().wait(3)
            return
        names = {"Content-Type": "application/json", "Content-Length": str(len(body))} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        self.send_response_only(status)
        for name, value in names.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST  # noqa: N815


@pytest.fixture
def osv(monkeypatch, tmp_path):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(advisory_service, "_TIMEOUT", (1.0, 0.5))
    monkeypatch.setattr(advisory_service, "cache_folder", lambda: tmp_path / "cache")
    server = Server()
    monkeypatch.setenv("PIP_AUDIT_OSV_URL", f"http://127.0.0.1:{server.server_port}/v1/query")
    with serving(server):
        yield server


def ask():
    return advisory_service.find_osv_vulnerabilities(PINS)[0]


def test_the_query_is_written_as_documented(osv):
    assert ask() == {"jinja2==3.1.5": []}
    assert osv.queries == [{"package": {"name": "jinja2", "ecosystem": "PyPI"}, "version": "3.1.5"}]


def test_a_vulnerability_is_named_once_with_its_fix(osv):
    osv.give({"vulns": [JINJA, PYSEC]})
    known = Vulnerability(
        package="jinja2",
        version="3.1.5",
        id="PYSEC-2025-9",
        aliases=("CVE-2025-27516", "GHSA-cpwx-vrp4-4pq7"),
        fixed="3.1.6",
    )
    assert ask() == {"jinja2==3.1.5": [known]}


@pytest.mark.parametrize("affected", [[], None, [{**JINJA["affected"][0], "ranges": []}]])
def test_a_vulnerability_without_a_fix_is_one(osv, affected):
    osv.give({"vulns": [{**JINJA, "affected": affected}]})
    assert [(item.id, item.fixed) for item in ask()["jinja2==3.1.5"]] == [("CVE-2025-27516", None)]


def test_a_withdrawn_vulnerability_is_none(osv):
    osv.give({"vulns": [{**JINJA, "withdrawn": "2025-10-01T00:00:00Z"}]})
    assert ask() == {"jinja2==3.1.5": []}


def test_every_page_is_read(osv):
    osv.give({"next_page_token": "t1"}, {"vulns": [JINJA], "next_page_token": "t2"}, {"vulns": [OTHER]})
    assert sorted(item.id for item in ask()["jinja2==3.1.5"]) == ["CVE-2024-34064", "CVE-2025-27516"]
    assert [query.get("page_token") for query in osv.queries] == [None, "t1", "t2"]


NO_ANSWERS = {
    "pages without an end": ([{"next_page_token": "t"}], {}, "has no last page"),
    "400": ([{"code": 3, "message": "Invalid version."}], {"status": 400}, "does not answer: 400"),
    "404": ([b""], {"status": 404}, "does not answer: 404"),
    "500": ([b""], {"status": 500}, "does not answer: 500"),
    "HTML": ([b"<html>log in</html>"], {"Content_Type": "text/html; charset=utf-8"}, "in JSON: text/html of 19 bytes"),
    "an error with 200": ([{"code": 5, "message": "not found"}], {}, "code, message, which is no list"),
    "an answer to a batch": ([{"results": [{"vulns": [{"id": "GHSA-1"}]}]}], {}, "results, which is no list"),
    "half a document": ([json.dumps({"vulns": [JINJA]}).encode()[:400]], {}, "does not answer in JSON"),
    "half an answer": ([b'{"vulns": ['], {"Content_Length": "4000"}, "does not answer"),
    "null": ([None], {}, "with a JSON object"),
    "a list": ([[]], {}, "with a JSON object"),
    "vulnerabilities that are none": ([{"vulns": ["GHSA-1"]}], {}, "cannot be read"),
    "a vulnerability without an id": ([{"vulns": [{"aliases": []}]}], {}, "cannot be read"),
    "another schema": ([{"vulns": [{**JINJA, "schema_version": "2.0.0"}]}], {}, "has schema 2.0.0"),
    "nesting without end": ([b"[" * 200_000], {}, "does not answer in JSON"),
    "nothing in time": ([b""], {"status": 0}, "does not answer"),
}


@pytest.mark.parametrize("name", NO_ANSWERS)
def test_what_is_no_answer_is_never_no_vulnerability(osv, name):
    documents, headers, message = NO_ANSWERS[name]
    osv.give(*documents, **headers)
    with pytest.raises(UnknownError, match=message):
        ask()


def test_a_busy_service_is_asked_again(osv):
    osv.answers = [(503, {}, b""), (429, {}, b""), (200, {}, json.dumps({"vulns": [JINJA]}).encode())]
    assert len(ask()["jinja2==3.1.5"]) == 1


def look(notes):
    return vulnerability_audit.answer_or_kept(
        "OSV", advisory_service.osv_keys(PINS), lambda: advisory_service.find_osv_vulnerabilities(PINS), notes
    )


def test_what_was_answered_earlier_is_shown_as_stale_when_nobody_answers(osv, monkeypatch):
    notes: list[str] = []
    osv.give(b"", status=500)
    assert look(notes) == []
    assert notes == ["OSV does not answer: 500 Internal Server Error"]
    osv.give({"vulns": [JINJA]})
    first = look([])
    osv.give(b"", status=500)
    notes.clear()
    assert look(notes) == first
    day = datetime.now(UTC).date().isoformat()
    assert notes[0].endswith(f"; what is shown of it is stale, of {day}, for 1 of 1 packages")
    monkeypatch.setattr(advisory_service, "osv_keys", lambda _: ["jinja2==3.1.6"])
    assert look(notes) == [], "an answer about another version is none"


@pytest.mark.parametrize("header", ["Last_Modified", "Date"])
@pytest.mark.parametrize(("days", "stale"), [(6, False), (8, True)])
def test_old_data_are_called_stale_with_their_day(osv, header, days, stale):
    when = datetime.now(UTC) - timedelta(days=days)
    osv.give({}, **{header: format_datetime(when, usegmt=True)})
    notes: list[str] = []
    assert look(notes) == []
    text = f"the data of OSV are stale: of {when:%Y-%m-%d}, {days} days old; newer ones are not known"
    assert notes == ([text] if stale else [])


def test_a_tracker_that_answers_something_else_is_unknown(osv):
    url = f"http://127.0.0.1:{osv.server_port}/tracker"
    for body in (b"<html>", b"[]", b'{"gcc-12": {"CVE'):
        osv.give(body)
        with pytest.raises(UnknownError, match="security tracker does not answer"):
            advisory_service.ask_advisory_service("Debian's security tracker", url)
