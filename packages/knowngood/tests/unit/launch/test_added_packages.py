"""Packages that a user adds to a cell: what is read, what is refused, what the resolver is asked, what is kept."""

from __future__ import annotations

import pytest

from knowngood.core.errors import KnowngoodError, UsageError
from knowngood.launch import added_packages
from knowngood.launch.added_packages import AddedPackage, UnfitCellError
from knowngood.lock import resolver
from knowngood.lock.resolver import NoSolutionError, PinnedFile
from samples import FA2, FA4

TRL = PinnedFile(name="trl", version="1.16.0", url="https://user:geheim@index.example/trl.whl", sha256="a" * 64)


@pytest.fixture(autouse=True)
def newest(monkeypatch):
    """The newest release of each package on the index."""
    releases = {"trl": "1.16.0", "rouge-score": "0.1.2"}
    monkeypatch.setattr(added_packages, "find_newest_release", releases.get)


@pytest.fixture
def answers(monkeypatch):
    """The resolver's answer, and what it was asked."""
    requests = []

    def resolve(request):
        requests.append(request)
        torch = PinnedFile(name="torch", version="2.11.0", url="https://index.example/torch.whl", sha256="b" * 64)
        return [torch, TRL]

    monkeypatch.setattr(resolver, "resolve_distributions", resolve)
    return requests


def test_only_what_the_cell_lacks_is_added_and_its_pins_are_constraints(home, lock_of, answers):
    lock = lock_of(FA4)
    added = added_packages.resolve_added_packages(home.matrix, lock, ["trl==1.16"])
    assert added == (AddedPackage(name="trl", version="1.16.0", sha256="a" * 64),)
    [request] = answers
    assert request.requirements == ("trl==1.16",)
    assert set(request.constraints) == {f"{item.name}=={item.version}" for item in lock.distributions}
    assert request.python == lock.cell.python


def test_the_same_question_is_not_resolved_again_and_keeps_no_address(home, lock_of, answers):
    lock = lock_of(FA4)
    first = added_packages.resolve_added_packages(home.matrix, lock, ["trl==1.16"])
    assert added_packages.resolve_added_packages(home.matrix, lock, ["trl==1.16"]) == first
    assert len(answers) == 1
    [kept] = added_packages._resolutions().iterdir()
    assert "geheim" not in kept.read_text()
    kept.write_text("damaged")
    assert added_packages.resolve_added_packages(home.matrix, lock, ["trl==1.16"]) == first
    assert len(answers) == 2
    added_packages.resolve_added_packages(home.matrix, lock, ["trl==1.17"])
    assert len(answers) == 3


def test_a_wheel_that_was_compiled_here_is_not_asked_of_the_index(home, lock_of, answers):
    lock = lock_of(FA2)
    assert any(item.made_here for item in lock.distributions)
    added_packages.resolve_added_packages(home.matrix, lock, ["trl", "flash-attn>=2"])
    assert answers[0].requirements == ("trl", f"transformers=={lock.cell.transformers}")
    assert "flash-attn" in answers[0].excludes
    assert not any(text.startswith("flash-attn==") for text in answers[0].constraints)


def test_a_version_of_the_cell_does_not_move(home, lock_of, answers):
    lock = lock_of(FA4)
    with pytest.raises(KnowngoodError, match=r"transformers<4 does not fit: .* has transformers .*do not move"):
        added_packages.resolve_added_packages(home.matrix, lock, ["transformers<4"])
    assert answers == []
    added_packages.resolve_added_packages(home.matrix, lock, [f"transformers=={lock.cell.transformers}"])


def test_what_the_cell_has_is_not_asked_of_the_index(home, lock_of, answers):
    lock = lock_of(FA4)
    assert added_packages.resolve_added_packages(home.matrix, lock, ["numpy", "torch>=2"]) == ()
    assert answers == []
    added_packages.resolve_added_packages(home.matrix, lock, ["numpy[more]", "torch"])
    assert answers[0].requirements[:1] == ("numpy[more]",)


def test_what_contradicts_the_lock_through_others_is_refused_with_the_reason(home, lock_of, monkeypatch):
    def fail(_request):
        raise NoSolutionError("nothing satisfies x==1: because x==1 depends on transformers<4")

    monkeypatch.setattr(resolver, "resolve_distributions", fail)
    with pytest.raises(KnowngoodError, match=r"x==1 cannot be added.*do not move.*x==1 depends on transformers<4"):
        added_packages.resolve_added_packages(home.matrix, lock_of(FA4), ["x==1"])


def resolve_from(days, asked):
    """A resolver that finds trl 0.11.4, and that 1.16.0 does not go with a cell."""

    def resolve(request):
        asked.append(request.requirements)
        if any(text == "trl==1.16.0" for text in request.requirements):
            raise NoSolutionError("because datasets depends on fsspec<=2026.4.0")
        files = {"transformers": ("5.17.0", days["transformers"]), "trl": ("0.11.4", days["trl"])}
        return [
            PinnedFile(name=name, version=version, url="https://x/x.whl", sha256="a" * 64, uploaded=day)
            for name, (version, day) in files.items()
        ]

    return resolve


def test_a_release_of_another_time_is_refused_with_the_reason_and_not_kept(home, lock_of, monkeypatch):
    days, asked = {"transformers": "2026-09-01", "trl": "2024-10-15"}, []
    monkeypatch.setattr(resolver, "resolve_distributions", resolve_from(days, asked))
    for _ in range(2):
        with pytest.raises(
            UnfitCellError,
            match=r"newest trl .* is 0.11.4 of 2024-10-15, .* transformers 5.17.0 of 2026-09-01; 1.16.0 "
            r".*fsspec<=2026.4.0; .*--with trl==0.11.4",
        ):
            added_packages.resolve_added_packages(home.matrix, lock_of(FA4), ["trl"])
    assert asked[2:] == asked[:2]
    added = added_packages.resolve_added_packages(home.matrix, lock_of(FA4), ["trl==0.11.4"])
    assert [item.version for item in added] == ["0.11.4"]  # named, it is what was wanted


@pytest.mark.parametrize(
    "days",
    [
        {"transformers": "2026-09-01", "trl": "2025-09-01"},
        {"transformers": "2026-09-01", "trl": ""},
        {"transformers": "", "trl": "2024-10-15"},
    ],
)
def test_a_release_of_the_last_year_is_taken_and_so_is_one_without_a_day(home, lock_of, monkeypatch, days):
    monkeypatch.setattr(resolver, "resolve_distributions", resolve_from(days, []))
    [added] = added_packages.resolve_added_packages(home.matrix, lock_of(FA4), ["trl"])
    assert added.version == "0.11.4"


def test_the_newest_release_of_all_is_taken_however_old_it_is(home, lock_of, monkeypatch):
    old = PinnedFile(name="rouge-score", version="0.1.2", url="https://x/x", sha256="a" * 64, uploaded="2022-07-22")
    own = PinnedFile(name="transformers", version="5.17.0", url="https://x/x", sha256="b" * 64, uploaded="2026-09-01")
    monkeypatch.setattr(resolver, "resolve_distributions", lambda _request: [old, own])
    [added] = added_packages.resolve_added_packages(home.matrix, lock_of(FA4), ["rouge_score"])
    assert added.version == "0.1.2"


def test_a_text_that_is_no_requirement_is_refused(home, lock_of):
    with pytest.raises(UsageError, match="'trl=1' is not a requirement"):
        added_packages.resolve_added_packages(home.matrix, lock_of(FA4), ["trl=1"])


def test_the_file_beside_the_script_is_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").touch()
    program = ["torchrun", "--nproc-per-node", "8", "code/train.py", "other.py"]
    assert added_packages.find_requirements_file(program) is None
    file = tmp_path / "code/requirements.txt"
    file.write_text("# mine\ntrl==1.16  # for SFT\n\ndatasets>=4 \\\n    --hash=sha256:00\n")
    path = added_packages.find_requirements_file(program)
    assert path is not None
    assert path.resolve() == file
    assert added_packages.read_requirement_file(file) == ("trl==1.16", "datasets>=4")
    assert added_packages.find_requirements_file(["python", "-c", "x"]) is None


@pytest.mark.parametrize("line", ["-e .", "--index-url https://index.example/", "-r more.txt", "./wheel.whl"])
def test_an_option_in_the_file_is_refused(tmp_path, line):
    file = tmp_path / "requirements.txt"
    file.write_text(f"trl\n{line}\n")
    with pytest.raises(UsageError, match=r"requirements.txt:2: .*--no-requirements"):
        added_packages.read_requirement_file(file)
