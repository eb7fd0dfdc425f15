"""Errors that were laid to the wrong party: another process, object, number, byte or setting is at fault."""

from __future__ import annotations

import pytest

BEGIN = "Traceback (most recent call last):\n"
NO_FILE = "FileNotFoundError: [Errno 2] No such file or directory: "
OWN = '  File "/home/u/run/train.py", line 44, in on_save\n    clean(folder)\n'
AUTO = '  File "/x/site-packages/transformers/models/auto/configuration_auto.py", line 400, in from_pretrained\n'
UNPICKLES = "UnpicklingError: Weights only load failed. WeightsUnpickler error: Unsupported operand "
ASSERT = "RuntimeError: CUDA error: device-side assert triggered\n"
ROTARY = '  File "/home/u/run/rotary.py", line 91, in rotate\n    q_embed = (q * cos) + (turn(q) * sin)\n'
SIZES = "RuntimeError: The size of tensor a (120) must match the size of tensor b (119) at non-singleton dimension 2\n"


@pytest.fixture
def first(answer):
    def ask(log):
        document = answer(log)
        return document["matches"][0] if document["matches"] else document

    return ask


def test_a_file_that_is_only_read_is_looked_for_in_the_wrong_place(first):
    answer = first(BEGIN + OWN.replace("clean(folder)", "open(path)") + NO_FILE + "'data/train.json'\n")
    assert answer["incident"] == "file-not-found"


def test_an_operand_of_a_newer_pickle_is_not_called_a_text(first):
    assert first(UNPICKLES + "149\n").get("incident") != "checkpoint-is-text"


@pytest.mark.parametrize(
    ("library", "incident"),
    [("libcurand.so.10", "nvidia-library-own-number"), ("libcublas.so.12", "nvidia-library-missing")],
)
def test_only_some_libraries_have_the_number_of_cuda(first, library, incident):
    answer = first(f"ImportError: {library}: cannot open shared object file: No such file or directory\n")
    assert answer["incident"] == incident


def test_a_model_type_that_no_release_has_is_the_projects_own(first):
    code = '    config_class = CONFIG_MAPPING[config_dict["model_type"]]\n'
    answer = first(BEGIN + AUTO + code + "KeyError: 'my-own-clip'\n")
    assert answer["component"] == "model"
    assert "has the model type `my-own-clip`" in answer["title"]


def test_a_key_that_another_line_of_an_auto_class_misses_is_no_model_type(first):
    answer = first(BEGIN + AUTO + "    value = kwargs[key]\n" + "KeyError: 'my-own-clip'\n")
    assert "model type" not in answer["title"]


def test_an_assert_is_sure_only_where_the_log_names_it(first):
    assert first(ASSERT)["certainty"] == "likely"
    named = "Indexing.cu:1236: block: [0,0,0] Assertion `srcIndex < srcSelectDimSize` failed.\n"
    answer = first(named + ASSERT)
    assert (answer["incident"], answer["certainty"]) == ("device-side-assert", "sure")


def test_a_log_that_ends_within_a_traceback_is_not_called_healthy(first):
    answer = first("step 3\n" + BEGIN + OWN)
    assert answer["outcome"] == "unknown"
    assert answer["paste"] == ["the whole traceback, with the error in its last line"]


def test_the_package_between_the_program_and_the_one_that_refuses_is_named(first):
    log = (
        '  File "/home/u/run/train.py", line 40, in <module>\n    trainer.train()\n'
        '  File "/x/site-packages/oddextra/trainer.py", line 99, in train\n    self.model.generate(**inputs)\n'
        '  File "/x/site-packages/transformers/generation/utils.py", line 1360, in _validate_model_kwargs\n'
        "    raise ValueError(\nValueError: The following `model_kwargs` are not used by the model: ['odd'] (note: "
        "typos in the generate arguments will also show up in this list)\n"
    )
    answer = first(BEGIN + log)
    assert "train.py, line 40 (trainer.train()), by way of oddextra/trainer.py, line 99 (" in answer["because"]
    assert answer["fix"][0]["note"] == "A newer oddextra, which passes what this transformers takes"


def test_of_two_packages_that_must_be_of_one_release_the_older_moves(first):
    said = "RuntimeError: flashinfer-cubin version (0.6.13) does not match flashinfer version (0.6.14).\n"
    answer = first(BEGIN + '  File "/x/site-packages/flashinfer/__init__.py", line 20, in <module>\n' + said)
    assert answer["component"] == "flashinfer-cubin"
    assert [fix["change"] for fix in answer["fix"]] == [
        {"flashinfer-cubin": "==0.6.14"},
        {"flashinfer-python": "==0.6.13"},
    ]
