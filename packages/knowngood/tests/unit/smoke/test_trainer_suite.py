"""The suite of a cell whose trainer has checks: the smoke suite with `trainer_tests/` in it."""

from __future__ import annotations

import shutil

import pytest

from knowngood.core.cell import parse_cell
from knowngood.project.checkout import Project
from knowngood.smoke.suite_files import find_cell_suite, has_trainer_checks, hash_suite, read_suite_files
from samples import FA4, ROOT

TRL, SWIFT = parse_cell(f"{FA4}-trl1.16.0"), parse_cell(f"{FA4}-ms-swift4.6.0")


@pytest.fixture
def project(tmp_path):
    shutil.copytree(ROOT / "smoke_tests/smoke_tests", tmp_path / "smoke_tests/smoke_tests")
    (tmp_path / "smoke_tests/trainer_tests").mkdir()
    for name in ("README.md", "shared.py", "trl_checks.py", "trl_sft.py", "axolotl_checks.py", "axolotl_sft.py"):
        (tmp_path / "smoke_tests/trainer_tests" / name).write_text("1\n")
    (tmp_path / "smoke_tests/trainer_tests" / ".trl_sft.py.swp").write_text("litter")
    return Project(tmp_path)


def test_a_cell_with_checks_of_its_trainer_has_a_suite_with_them_and_what_trainers_share(project):
    folder = find_cell_suite(project, TRL)
    own = {f"smoke_tests/trainers/{name}.py": b"1\n" for name in ("shared", "trl_checks", "trl_sft")}
    assert read_suite_files(folder) == read_suite_files(project.suite) | own
    assert find_cell_suite(project, TRL) == folder
    assert hash_suite(folder) != hash_suite(project.suite)


@pytest.mark.parametrize("cell", [parse_cell(FA4), SWIFT, parse_cell(f"{FA4}-xtuner0.2.0")])
def test_every_other_cell_has_the_suite_as_it_is(project, cell):
    assert find_cell_suite(project, cell) == project.suite
    assert not has_trainer_checks(project, cell)


def test_the_name_of_a_trainer_is_that_of_a_module(project):
    (project.trainer_suite / "ms_swift_checks.py").touch()
    assert has_trainer_checks(project, SWIFT)


def test_a_change_of_the_checks_is_another_suite_for_cells_with_the_trainer_only(project):
    plain, before = hash_suite(find_cell_suite(project, parse_cell(FA4))), hash_suite(find_cell_suite(project, TRL))
    (project.trainer_suite / "trl_sft.py").write_text("2\n")
    assert hash_suite(find_cell_suite(project, TRL)) != before
    assert hash_suite(find_cell_suite(project, parse_cell(FA4))) == plain


def test_a_new_trainer_leaves_the_suites_of_the_others_as_they_are(project):
    before = hash_suite(find_cell_suite(project, TRL))
    for name in ("ms_swift_checks.py", "ms_swift_sft.py"):
        (project.trainer_suite / name).touch()
    assert hash_suite(find_cell_suite(project, TRL)) == before
    assert hash_suite(find_cell_suite(project, SWIFT)) != before


def test_what_two_trainers_share_is_in_the_suites_of_those_that_name_it(project):
    before = hash_suite(find_cell_suite(project, TRL))
    (project.trainer_suite / "rollouts.py").write_text("1\n")
    (project.trainer_suite / "axolotl_checks.py").write_text('USES = ("rollouts",)\n')
    assert hash_suite(find_cell_suite(project, TRL)) == before
    (project.trainer_suite / "trl_checks.py").write_text('"""Checks."""\nUSES = ("rollouts",)\n')
    assert "smoke_tests/trainers/rollouts.py" in read_suite_files(find_cell_suite(project, TRL))


def test_a_project_without_checks_of_trainers(tmp_path):
    assert find_cell_suite(Project(tmp_path), TRL) == tmp_path / "smoke_tests/smoke_tests"
