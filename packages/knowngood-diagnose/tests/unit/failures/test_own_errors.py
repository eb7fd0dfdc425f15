"""Errors of a project's own file, of pip's list of conflicts, and lines that only pass another failure on."""

from __future__ import annotations

import re

import pytest

KEY_ERROR = """Traceback (most recent call last):
  File "/home/u/proj/train.py", line 10, in <module>
    main()
  File "{file}", line 33, in main
    text = row["answer"]
KeyError: 'answer'
"""
PIP = """ERROR: pip's dependency resolver does not currently take into account all the packages that are installed.
torchvision 0.15.2 requires torch==2.0.1, but you have torch 2.1.0 which is incompatible.
"""


def test_a_key_that_a_projects_file_lacks_is_its_own_fault(answer):
    (match,) = answer(KEY_ERROR.format(file="/home/u/proj/data/loader.py"))["matches"]
    assert match["component"] == "your-code"
    assert "data/loader.py" in match["title"]
    assert "'answer'" in match["title"]


def test_the_code_that_came_with_a_model_is_the_models(answer):
    folder = "/root/.cache/huggingface/modules/transformers_modules/org/model"
    (match,) = answer(KEY_ERROR.format(file=f"{folder}/modeling_own.py"))["matches"]
    assert match["component"] == "model"


def test_an_error_inside_of_a_package_is_laid_to_the_package(answer):
    (match,) = answer(KEY_ERROR.format(file="/opt/conda/lib/python3.10/site-packages/thing/part.py"))["matches"]
    assert (match["incident"], match["component"]) == ("inner-error", "thing")


def test_an_error_inside_of_python_is_not_laid_to_the_project(answer):
    answer = answer(KEY_ERROR.format(file="/usr/lib/python3.10/json/decoder.py"))
    assert answer["outcome"] == "unknown"


def test_where_the_log_shows_no_place_the_one_trainer_of_the_log_is_named(answer):
    (match,) = answer("unsloth==2025.5.8\nTypeError: '<' not supported between instances of 'NoneType' and 'int'\n")[
        "matches"
    ]
    assert (match["incident"], match["component"]) == ("inner-error", "unsloth")


@pytest.mark.parametrize(
    ("line", "error", "outcome"),
    [
        ('raise RuntimeError("no such dataset: foo")', "RuntimeError: no such dataset: foo", "known"),
        ("x = compute(y)", "RuntimeError: something of C++ went wrong here", "unknown"),
        ("n, m = pair", "ValueError: too many values to unpack (expected 2)", "known"),
        ("x = kernel(y)", "ValueError: the values of this kernel are refused", "unknown"),
    ],
)
def test_only_errors_that_no_package_can_have_made_are_the_projects(answer, line, error, outcome):
    log = f'Traceback (most recent call last):\n  File "/home/u/proj/run.py", line 3, in main\n    {line}\n{error}\n'
    assert answer(log)["outcome"] == outcome


def test_pips_list_of_conflicts_names_the_release_that_does_not_fit(answer):
    match = answer(PIP)["matches"][0]
    assert match["component"] == "torch"
    assert match["title"] == "torchvision 0.15.2 requires torch==2.0.1, and 2.1.0 is installed"
    assert match["fix"][0]["change"] == {"torch": "==2.0.1"}


def test_what_passes_a_failure_on_comes_behind_the_failure(answer):
    passed_on = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}\n"
    first = answer(passed_on + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n")["matches"]
    assert [match["component"] for match in first] == ["gpu-memory", "vllm"]
    assert [match["component"] for match in answer(passed_on)["matches"]] == ["vllm"]


@pytest.mark.parametrize(
    ("error", "component"),
    [
        ("ImportError: cannot import name 'train_it' from 'trainer.train'", "your-code"),
        ("ModuleNotFoundError: No module named 'someproject.model.part'", "someproject"),
        ("ImportError: cannot import name 'x' from 'someproject' (/home/u/someproject/__init__.py)", "your-code"),
    ],
)
def test_a_module_of_no_known_package_is_there_and_lacks_something(answer, error, component):
    match = answer(error + "\n")["matches"][0]
    assert match["component"] == component
    assert re.search("that is (imported|installed) has not", match["title"])


@pytest.mark.parametrize(
    ("error", "component"),
    [
        ("thing.errors.ThingError: the depth of a thing is odd", "thing"),
        ("thing.errors.ThingError: odd depth", None),
        ("subprocess.ThingError: the depth of a thing is odd", None),
        ("torch.errors.ThingError: the depth of a thing is odd", None),
        ("ThingError: the depth of a thing is odd", None),
    ],
)
def test_the_class_of_an_error_says_whose_words_they_are(answer, error, component):
    assert [match["component"] for match in answer(error + "\n")["matches"]] == ([component] if component else [])


@pytest.mark.parametrize(
    ("line", "error", "component"),
    [
        ('raise ValueError("the depth of a thing is odd")', "ValueError: the depth of a thing is odd", "thing"),
        ("depth = compute(x)", "ValueError: the depth of a thing is odd", None),
        ('raise KeyError("the depth of a thing is odd")', "KeyError: 'the depth of a thing is odd'", None),
        ("raise failed", "ValueError: the worker said: see above for the reason", None),
    ],
)
def test_what_an_installed_package_raises_is_its_own_refusal(answer, line, error, component):
    file = "/opt/conda/lib/python3.10/site-packages/thing/part.py"
    log = f'Traceback (most recent call last):\n  File "{file}", line 3, in depth\n    {line}\n{error}\n'
    assert [match["component"] for match in answer(log)["matches"]] == ([component] if component else [])


@pytest.mark.parametrize(
    ("line", "components"), [("match command:", ["python"]), ("if (n := len(a)) > 1:", ["python"]), ("print(a b)", [])]
)
def test_the_syntax_of_a_newer_python_is_laid_to_python(answer, line, components):
    log = f'  File "/home/u/proj/run.py", line 3\n    {line}\n          ^\nSyntaxError: invalid syntax\n'
    assert [match["component"] for match in answer(log)["matches"]] == components
