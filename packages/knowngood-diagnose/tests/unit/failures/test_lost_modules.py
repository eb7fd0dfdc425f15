"""Modules and names that are not there: whose they are, where they went, and which package installs them."""

from __future__ import annotations

import pytest

TRACEBACK = 'Traceback (most recent call last):\n  File "{file}", line 13, in <module>\n    {code}\n{error}\n'
PACKAGES = "/usr/local/lib/python3.11/site-packages"


@pytest.fixture
def ask(first_match):
    def diagnose(file: str, code: str, error: str):
        return first_match(TRACEBACK.format(file=file, code=code, error=error))

    return diagnose


def notes(match):
    return " ".join(fix["note"] for fix in match["fix"])


@pytest.mark.parametrize(
    ("code", "module", "package"),
    [
        ("from google.protobuf import descriptor as _descriptor", "google", "protobuf"),
        ("import cv2", "cv2", "opencv-python"),
        ("from PIL import Image", "PIL", "pillow"),
        ("from bs4 import BeautifulSoup", "bs4", "beautifulsoup4"),
        ("import sklearn.metrics", "sklearn", "scikit-learn"),
    ],
)
def test_the_package_of_a_module_is_told_by_the_files_of_its_wheel(ask, code, module, package):
    match = ask(f"{PACKAGES}/thing/part.py", code, f"ModuleNotFoundError: No module named '{module}'")
    assert match["component"] == package
    assert f"pip install {package}" in notes(match)


def test_a_part_of_a_shared_folder_that_is_not_installed_is_named(ask):
    error = "ModuleNotFoundError: No module named 'google.protobuf'"
    match = ask(f"{PACKAGES}/thing/part.py", "from google.protobuf import descriptor", error)
    assert (match["component"], match["kind"]) == ("protobuf", "not-installed")


def test_a_module_with_a_submodule_of_its_name_is_a_package(ask):
    error = "ModuleNotFoundError: No module named 'rouge_score'"
    match = ask(f"{PACKAGES}/thing/a.py", "from rouge_score import rouge_scorer", error)
    assert (match["component"], match["certainty"]) == ("rouge_score", "likely")


def test_a_package_that_the_index_has_only_by_name_comes_from_its_repository(ask):
    match = ask("/home/u/run.py", "from apex import amp", "ModuleNotFoundError: No module named 'apex'")
    assert match["component"] == "apex"
    assert "git+https://github.com/NVIDIA/apex" in notes(match)
    assert "pip install apex)" in notes(match)  # as what not to do


def test_a_moved_module_is_named_with_its_new_place_and_an_older_release(ask):
    match = ask(
        f"{PACKAGES}/simpletransformers/model.py",
        "from transformers.models.mmbt.configuration_mmbt import MMBTConfig",
        "ModuleNotFoundError: No module named 'transformers.models.mmbt'",
    )
    assert "transformers.models.deprecated.mmbt" in match["title"]
    assert "An older transformers" in notes(match)
    assert "mamba" not in str(match)


def test_releases_that_the_python_of_the_log_cannot_have_are_no_cause(first_match):
    match = first_match(
        "Traceback (most recent call last):\n"
        '  File "<stdin>", line 1, in <module>\n'
        "ImportError: cannot import name 'glue_compute_metrics' from 'transformers' "
        "(/opt/conda/lib/python3.7/site-packages/transformers/__init__.py)\n"
    )
    assert match["kind"] == "api-not-yet"
    assert "3.7" in match["because"]
    assert any("transformers" in fix.get("change", {}) for fix in match["fix"])


def test_what_a_package_asks_only_where_another_is_installed_ends_without_that(ask):
    match = ask(
        f"{PACKAGES}/transformers/trainer.py",
        "from apex import amp",
        f"ImportError: cannot import name 'amp' from 'apex' ({PACKAGES}/apex/__init__.py)",
    )
    assert {"transformers": ">=4.53.0"} in [fix.get("change") for fix in match["fix"]]
    assert "pip uninstall apex" in notes(match)
