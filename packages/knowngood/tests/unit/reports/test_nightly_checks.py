"""The nightly checks that use services, with a fake index and fake databases."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from packaging.version import Version

from knowngood.core.cell import parse_cell
from knowngood.core.errors import MissingError
from knowngood.images import verification
from knowngood.images.verification import Verification, VerificationOutcome
from knowngood.index.artefact import PublishedFile, UnansweredError, UnreadableError
from knowngood.registry import vulnerability_audit
from knowngood.registry.vulnerability_audit import AuditReport as Audited
from knowngood.registry.vulnerability_audit import Vulnerability
from knowngood.reports.nightly_checks import AuditCheck, ImageChecks, LockedFilesCheck
from samples import FA2, FA4


class Index:
    """Every file of a lock, but for the projects that something is wrong with."""

    session = None

    def __init__(self, locked, **wrong):
        self.locked, self.wrong, self.asked = locked, wrong, []

    def files(self, project):
        self.asked.append(project)
        if isinstance(error := self.wrong.get(project), Exception):
            raise error
        return tuple(
            PublishedFile(name=item.file, url="", sha256=item.sha256, version=Version("1"), yanked=False)
            for item in self.locked.distributions
            if item.name == project
        )


@pytest.fixture
def ask(home, lock_of, tmp_path):
    def files(**wrong):
        index = Index(lock_of(FA4), **wrong)
        return LockedFilesCheck(here=home, cells=[parse_cell(FA4)], wheelhouse=tmp_path, index=index)(
            print
        ), index.asked

    return files


def test_each_project_is_read_once(ask):
    result, asked = ask()
    assert (result.outcome, result.findings) == ("all there", ())
    assert len(asked) == len(set(asked)) == int(result.note.split()[0])


def test_a_project_that_is_gone_and_one_without_answer_are_different_findings(ask):
    result, _ = ask(
        torch=UnreadableError("the registry has no project torch (404)"), transformers=UnansweredError("no answer")
    )
    assert result.outcome == "1 gone, 1 unanswered"
    assert [item.severity for item in result.findings] == ["error", "unknown"]


def test_a_compiled_wheel_that_the_wheelhouse_lacks_is_not_called_all_there(home, lock_of, tmp_path):
    def check(wheels):
        index = Index(lock_of(FA2))
        return LockedFilesCheck(here=home, cells=[parse_cell(FA2)], wheelhouse=wheels, index=index)(print)

    result = check(tmp_path)
    assert (result.outcome, result.findings[0].severity) == ("1 not-compared", "warning")
    (wheel,) = [item for item in lock_of(FA2).distributions if item.made_here]
    (tmp_path / wheel.file).write_bytes(b"another wheel")
    assert check(tmp_path).outcome == "1 hash-changed"


@pytest.mark.parametrize(
    ("outcome", "note"), [(VerificationOutcome.STALE, "changed since it was recorded: suite"), ("unrecorded", "")]
)
def test_a_rebuild_without_a_record_to_compare_with_says_so(monkeypatch, outcome, note):
    verdict = Verification(cell=FA4, outcome=VerificationOutcome(outcome), note=note)
    monkeypatch.setattr(verification, "verify_cell", lambda *_, **_more: verdict)
    attempt = ImageChecks(line=SimpleNamespace()).rebuild(FA4, print)
    assert attempt.ok
    assert "there is nothing to compare a rebuild with" in attempt.data["unexamined"]


def audit(monkeypatch, report, earlier):
    monkeypatch.setattr(vulnerability_audit, "audit_cells", lambda *_: (report, 5))
    here = SimpleNamespace()
    return AuditCheck(here=here, cells=[], earlier=earlier)(print)


def audited(*ids, unanswered=()):
    found = tuple(Vulnerability(package="a", version="1", id=name) for name in ids)
    return Audited(open=found, accepted=(), unanswered=unanswered, unused=())


def test_the_audit_reports_what_is_new_and_what_is_gone(monkeypatch):
    result = audit(monkeypatch, audited("CVE-1", "CVE-2"), {"a 1 CVE-1": "2026-11-01", "a 1 CVE-0": "2026-11-01"})
    assert result.outcome == "2 open, 1 new"
    assert result.data == {"gone": ["a 1 CVE-0"]}


def test_nothing_is_gone_when_not_all_is_known(monkeypatch):
    result = audit(monkeypatch, audited(unanswered=("no answer",)), {"a 1 CVE-0": "2026-11-01"})
    assert (result.outcome, result.data) == ("0 open, 0 new, not all known", {"gone": []})


def test_an_audit_that_cannot_run_is_not_good(monkeypatch):
    def ask(*_):
        raise MissingError("auditing wheels needs pip-audit")

    monkeypatch.setattr(vulnerability_audit, "audit_cells", ask)
    result = AuditCheck(here=SimpleNamespace(), cells=[])(print)
    assert (result.outcome, result.findings[0].severity) == ("not known", "missing")
