"""The seal: with a key, only what it covers proves a tier; an edited fact and a new run are shown as unsigned."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil

import pytest

from knowngood.cli import main
from knowngood.core import local_files
from knowngood.core.cell import parse_cell
from knowngood.core.errors import KnowngoodError
from knowngood.evidence import model_runs, run_evidence, sealed_files
from knowngood.evidence.run_evidence import Evidence, RunPlace, Tier
from knowngood.project import release_seal, release_signers
from knowngood.project.checkout import Project
from knowngood.registry.image_release import read_release_proof
from knowngood_facts.compat import knowledge
from knowngood_pages import catalog_collection
from samples import FA0, MATRIX, ROOT

DIGEST = "sha256:" + "d" * 64
FACT = "packages/knowngood-facts/facts/x.json"


def run(hour: int, *, gpu=True, ok=True) -> Evidence:
    report = {
        "verdict": {"ok": ok, "domain": "none" if ok else "image", "text": ""},
        "suite_hash": "5" * 64,
        "environment": {"sm": "sm_90" if gpu else None, "gpu": "NVIDIA H100" if gpu else None},
        "checks": [{"setting": "sdpa", "outcome": "pass" if ok else "fail", "topic": "training", "id": "x"}],
    }
    where = RunPlace.CONTAINER_GPU if gpu else RunPlace.CONTAINER_CPU
    when = f"2026-11-21T{hour}:00:00+00:00"
    return Evidence(cell=FA0, where=where, image=DIGEST, when=when, node={}, command=("pytest",), report=report)


@pytest.fixture
def keyed(home, tmp_path, monkeypatch):
    """The project, with a matrix.yaml that names a key, a fact, and the private key for the commands."""
    release_signers.make_key_pair(tmp_path / "a.key", home.root / "a.pub", None)
    monkeypatch.setenv(release_signers.SIGNING_KEY_VARIABLE, str(tmp_path / "a.key"))
    (home.root / "matrix.yaml").write_text(f"publish: {{key: a.pub}}\n{MATRIX}")
    (home.root / "packages/knowngood-facts/facts").mkdir(parents=True)
    (home.root / "packages/knowngood-facts/facts/x.json").write_text("{}")
    return home


def store(project, *runs):
    return [run_evidence.store_evidence(item, project.evidence) for item in runs]


def seal(capsys, *words):
    code = main.main(["keys", "seal", "--json", *words])
    return code, json.loads(capsys.readouterr().out)


def tier() -> tuple[Tier, tuple[str, ...]]:
    published = knowledge.load_knowledge().published
    return published.tier(FA0), published.standing(FA0).unsigned


def proof(project):
    return read_release_proof(Project(project.root), parse_cell(FA0), DIGEST)


def test_a_hand_made_run_raises_a_tier_only_without_a_key(keyed, capsys):
    store(keyed, run(10, gpu=False))
    assert seal(capsys)[0] == 0
    assert tier() == (Tier.TRAINS_ON_CPU, ())
    (forged,) = store(keyed, run(11))
    name = f"{FA0}/{forged.name}"
    assert tier() == (Tier.TRAINS_ON_CPU, (name,))
    assert proof(keyed).tier is Tier.TRAINS_ON_CPU
    assert [len(item.outcomes) for item in knowledge.load_knowledge().published.valid_runs(FA0)] == [1]
    standings = catalog_collection.read_cell_standings(keyed.evidence, Project(keyed.root).seal)
    assert standings[FA0][0].tier(locked=False) is Tier.TRAINS_ON_CPU

    assert seal(capsys)[0] == 0
    assert tier() == (Tier.TRAINS_ON_GPU, ())
    assert proof(keyed).tier is Tier.TRAINS_ON_GPU

    (keyed.root / "seal.json").unlink()
    (keyed.root / "matrix.yaml").write_text(MATRIX)
    assert tier() == (Tier.TRAINS_ON_GPU, ()), "without a key everything works as before"
    assert proof(keyed).tier is Tier.TRAINS_ON_GPU


def test_where_a_key_is_named_no_cache_says_what_the_rules_mean(keyed):
    cache = local_files.cache_folder() / "yaml.json"
    knowledge.load_knowledge()
    assert not cache.exists()
    (keyed.root / "matrix.yaml").write_text(MATRIX)
    knowledge.load_knowledge()
    assert cache.exists()


def test_cells_shows_the_unsigned_run(keyed, capsys):
    store(keyed, run(10, gpu=False))
    seal(capsys)
    (forged,) = store(keyed, run(11))
    assert main.main(["cells", FA0, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (cell,) = document["cells"]
    assert (cell["tier"], cell["unsigned"]) == ("trains-on-cpu", [f"{FA0}/{forged.name}"])
    assert any("unsigned: seal.json does not cover this run" in note for note in document["left_out"])


def test_a_run_without_a_seal_proves_nothing(keyed):
    store(keyed, run(10))
    assert tier()[0] in (Tier.NONE, Tier.RESOLVED)
    with pytest.raises(KnowngoodError, match=r"is not proven: .*unsigned: seal.json does not cover this run"):
        proof(keyed)


def test_a_red_run_counts_before_it_is_sealed(keyed, capsys):
    store(keyed, run(10))
    seal(capsys)
    store(keyed, run(11, gpu=False, ok=False))
    assert tier()[0] is Tier.BUILT
    with pytest.raises(KnowngoodError, match=r"the newest run of .* failed"):
        proof(keyed)


def test_a_ledger_that_was_edited_covers_nothing(keyed, capsys):
    folder = keyed.evidence / FA0
    (path,) = store(keyed, run(10))
    old = path.rename(folder / "20261121T100000Z-555555555555.json")

    def name_in_ledger():
        digest = hashlib.sha256(old.read_bytes()).hexdigest()
        (keyed.evidence / "SHA256SUMS").write_text(f"{digest}  {FA0}/{old.name}\n")

    name_in_ledger()
    seal(capsys)
    assert tier()[0] is Tier.TRAINS_ON_GPU
    old.write_text(old.read_text().replace("H100", "H999"))
    name_in_ledger()
    actual, unsigned = tier()
    assert unsigned == (f"{FA0}/{old.name}",)
    assert actual is not Tier.TRAINS_ON_GPU


def forge_list(root, _key):
    path = root / "seal.json"
    path.write_text(path.read_text().replace("facts/x.json", "facts/y.json"))


def forge_signature(root, folder):
    other = folder / "other.key"
    release_signers.make_key_pair(other, folder / "other.pub", None)
    release_seal.write_release_seal(root, release_signers.load_signing_key(other))


def remove_signature(root, _key):
    (root / "seal.json.sig").unlink()


def break_signature(root, _key):
    (root / "seal.json.sig").write_text("not base64!")


@pytest.mark.parametrize(
    ("forge", "words"),
    [
        (forge_list, "is not signed with a.pub, or was changed"),
        (forge_signature, "is not signed with a.pub, or was changed"),
        (remove_signature, "there is no seal.json.sig"),
        (break_signature, "is not written in base64"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_forged_seal_covers_nothing(keyed, tmp_path, capsys, forge, words):
    store(keyed, run(10))
    seal(capsys)
    assert tier()[0] is Tier.TRAINS_ON_GPU
    forge(keyed.root, tmp_path)
    assert tier()[0] is not Tier.TRAINS_ON_GPU
    code, document = seal(capsys, "--check")
    assert (code, document["valid"]) == (1, False)
    assert words in document["defect"]
    assert main.main(["check", "torch==2.11.0", "--json"]) == 0
    assert any(words in note for note in json.loads(capsys.readouterr().out)["notes"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"schema": "knowngood/seal/1", "files": {"a": 1}}', "seal.json:1:47: files.a must be text"),
        ('{"schema": "knowngood/seal/1", "files": {}, "files": {}}', "the key 'files' is given twice"),
        ('{"schema": "knowngood/seal/9", "files": {}}', "schema must be 'knowngood/seal/1'"),
        ('{"schema": "knowngood/seal/1"}', "the key 'files' is missing"),
    ],
)
def test_a_signed_seal_with_a_defect_is_an_error_with_its_place(keyed, tmp_path, capsys, text, words):
    key = release_signers.load_signing_key(tmp_path / "a.key")
    (keyed.root / "seal.json").write_text(text)
    (keyed.root / "seal.json.sig").write_bytes(base64.b64encode(key.sign_bytes(text.encode())))
    assert main.main(["keys", "seal", "--check"]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert "`knowngood keys seal` writes it again" in err


def test_a_seal_that_is_no_file_is_said_so(keyed, capsys):
    (keyed.root / "seal.json").mkdir()
    assert main.main(["check", "torch==2.11.0"]) == 2
    assert "seal.json:1:1: the file cannot be read (Is a directory)" in capsys.readouterr().err


def test_an_edited_fact_is_shown_as_unsigned(keyed, capsys):
    assert seal(capsys)[1]["files"] == 1
    known = {"schema": "knowngood/keys-seal/1", "valid": True, "files": 1}
    code, document = seal(capsys, "--check")
    assert (code, document) == (
        0,
        {**known, "changed": [], "missing": [], "unsigned": [], "sources": document["sources"]},
    )
    (keyed.root / "packages/knowngood-facts/facts/x.json").write_text('{"forged": 1}')
    (keyed.root / "packages/knowngood-facts/rules").mkdir(parents=True)
    (keyed.root / "packages/knowngood-facts/rules/new.yaml").write_text("")
    code, document = seal(capsys, "--check")
    assert (code, document["changed"], document["unsigned"]) == (1, [FACT], ["packages/knowngood-facts/rules/new.yaml"])
    main.main(["check", "torch==2.11.0", "--json"])
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert f"{FACT}: unsigned: it was changed after seal.json was signed" in notes
    assert "packages/knowngood-facts/rules/new.yaml: unsigned: seal.json does not name it" in notes
    shutil.rmtree(keyed.root / "packages/knowngood-facts/facts")
    assert seal(capsys, "--check")[1]["missing"] == [FACT]


def test_sealing_needs_a_key(home, capsys, monkeypatch):
    monkeypatch.delenv(release_signers.SIGNING_KEY_VARIABLE, raising=False)
    assert seal(capsys)[0] == 2
    assert not (home.root / "seal.json").exists()
    code, document = seal(capsys, "--check")
    assert (code, "everything here is unsigned" in document["error"]) == (2, True)


def test_this_repository_is_unsigned():
    assert Project(ROOT).seal is None
    assert not (ROOT / "seal.json").exists()


def red_run_after(keyed, capsys):
    """A sealed good run with a sealed red one after it; returns the file of the red one."""
    store(keyed, run(10))
    (red,) = store(keyed, run(11, ok=False))
    assert seal(capsys)[0] == 0
    assert tier()[0] is not Tier.TRAINS_ON_GPU
    return red


def shown_by(capsys, *words):
    main.main([*words, "--json"])
    return json.loads(capsys.readouterr().out)


def assert_nothing_is_proven(project, capsys, words):
    """`cells`, `pick`, `publish`, `check` and the pages say nothing of a cell that has lost a run."""
    document = shown_by(capsys, "cells", FA0)
    assert document["cells"][0]["tier"] not in {"trains-on-gpu", "trains-on-cpu"}
    assert document["cells"][0]["attention"] == {}
    assert any(words in note for note in document["left_out"])
    assert main.main(["cells", FA0]) == 1
    capsys.readouterr()
    picked = {cell["id"]: cell["tier"] for cell in shown_by(capsys, "pick", "--gpu", "sm_90")["cells"]}
    assert "trains-on-gpu" not in picked.values()
    with pytest.raises(KnowngoodError, match=words):
        proof(project)
    assert knowledge.load_knowledge().published.valid_runs(FA0) == []
    standings = catalog_collection.read_cell_standings(project.evidence, Project(project.root).seal)
    assert standings[FA0][0].tier(locked=False) is Tier.NONE


def test_a_red_run_that_was_removed_from_under_the_seal_proves_nothing(keyed, capsys):
    red_run_after(keyed, capsys).unlink()
    assert_nothing_is_proven(keyed, capsys, "missing, although seal.json names it")


def test_a_red_run_that_was_removed_from_under_the_ledger_proves_nothing(keyed, capsys):
    red = red_run_after(keyed, capsys)
    (keyed.root / "matrix.yaml").write_text(MATRIX)  # without a key
    ledger = keyed.evidence / "SHA256SUMS"
    ledger.write_text(sealed_files.render_ledger(keyed.evidence))
    red.unlink()
    assert sealed_files.render_ledger(keyed.evidence) == ledger.read_text(), "a line stays when its file goes"
    assert_nothing_is_proven(keyed, capsys, "missing, although SHA256SUMS names it")


def test_a_run_that_was_edited_and_renamed_to_its_digest_is_missed_by_the_ledger(home, capsys):
    (red,) = store(home, run(11, ok=False))
    (home.evidence / "SHA256SUMS").write_text(sealed_files.render_ledger(home.evidence))
    forged = red.read_text().replace('"ok": false', '"ok": true').replace('"fail"', '"pass"')
    red.unlink()
    sealed_files.write_sealed_json(red.parent, red.stem.rpartition("-")[0], forged)
    assert_nothing_is_proven(home, capsys, "missing, although SHA256SUMS names it")


def test_all_runs_of_a_cell_that_were_removed_are_missed(keyed, capsys):
    red_run_after(keyed, capsys)
    shutil.rmtree(keyed.evidence / FA0)
    assert_nothing_is_proven(keyed, capsys, "missing, although seal.json names it")


def test_a_run_of_a_model_that_was_removed_takes_the_others_with_it(home):
    folder = home.evidence / "models/qwen2"
    paths = [sealed_files.write_sealed_json(folder, f"2026112{day}T100000Z-5", f'{{"day": {day}}}') for day in (1, 2)]
    (home.evidence / "SHA256SUMS").write_text(sealed_files.render_ledger(home.evidence))
    paths[0].unlink()
    runs, (note,) = model_runs.load_model_runs(home.evidence)
    assert runs == []
    assert "missing, although SHA256SUMS names it" in note


def test_without_a_key_a_tier_is_called_unsigned_once(home, capsys):
    store(home, run(10))
    for words in (["cells"], ["pick", "--gpu", "sm_90"]):
        assert main.main(words) == 0
        assert capsys.readouterr().out.count(sealed_files.UNSIGNED_EVIDENCE) == 1
        assert shown_by(capsys, *words)["signed"] is False
