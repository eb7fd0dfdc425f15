"""Errors about names, diagnosed by the atlas: what is computed, and what is not claimed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from knowngood.cli.main import main

CASES = yaml.safe_load((Path(__file__).parents[1] / "logs" / "names.yaml").read_text(encoding="utf-8"))
ONE = """\
title: nothing
kind: config
component: nothing
signatures: [a failure that no log has]
because: It is here because a folder of incidents must have one.
fix: [{note: none}]
source: none
confidence: reported
range_from: thread
"""


@pytest.fixture
def diagnose(tmp_path, capsys):
    """Diagnose a log by the atlas alone."""
    folder = tmp_path / "incidents"
    folder.mkdir()
    (folder / "nothing.yaml").write_text(ONE)

    def answer(text):
        log = tmp_path / "train.log"
        log.write_text(text)
        main(["diagnose", str(log), "--json", "--incidents", str(folder)])
        return json.loads(capsys.readouterr().out)

    return answer


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_atlas_gives_the_cause(case, diagnose):
    document = diagnose(case["log"])
    if case["kind"] == "none":
        assert not document["matches"]
        return
    first = document["matches"][0]
    assert first["kind"] == case["kind"], first
    assert len(document["matches"]) == 1
    if "component" in case:
        assert first["component"] == case["component"]
    if "changes" in case:
        assert [fix["change"] for fix in first["fix"] if "change" in fix] == case["changes"]
    if case.get("all_go_with_the_log"):
        assert not [fix["broken_by"] for fix in first["fix"] if fix.get("broken_by")]
    if "note" in case:
        assert case["note"] in json.dumps(first)


SITE = "/home/user/v/lib/python3.10/site-packages"


def test_a_name_that_a_package_left_out_is_laid_to_the_package_that_is_not_installed(diagnose):
    log = (
        'Traceback (most recent call last):\n  File "/content/sft.py", line 112, in <module>\n    get_peft_config(a)\n'
        f'  File "{SITE}/trl/trainer/utils.py", line 718, in get_peft_config\n    peft_config = LoraConfig(\n'
        "NameError: name 'LoraConfig' is not defined\n"
    )
    (match,) = diagnose(log)["matches"]
    assert (match["component"], match["kind"], match["fix"][0]["change"]) == ("peft", "not-installed", {"peft": "*"})


def test_a_name_that_your_own_file_lacks_is_your_own(diagnose):
    log = 'Traceback (most recent call last):\n  File "/home/user/train.py", line 3, in <module>\n    go(x)\n'
    (match,) = diagnose(f"{log}NameError: name 'go' is not defined\n")["matches"]
    assert match["component"] == "your-code"


def test_too_many_positional_arguments_are_laid_to_the_release_that_takes_fewer(diagnose):
    log = (
        f'Traceback (most recent call last):\n  File "{SITE}/transformers/trainer.py", line 3, in train\n    f(a)\n'
        "TypeError: _unsloth_get_batch_samples() takes 3 positional arguments but 4 were given\n"
    )
    (match,) = diagnose(log)["matches"]
    assert match["component"] in {"unsloth", "unsloth-zoo"}
    assert "4 positional arguments" in match["title"]


def test_a_module_that_nobody_knows_may_be_a_folder_of_the_project(diagnose):
    (match,) = diagnose("ModuleNotFoundError: No module named 'my_own_folder'\n")["matches"]
    assert match["component"] == "my_own_folder"
    assert any("PYTHONPATH" in fix["note"] for fix in match["fix"])


OWN = (
    'Traceback (most recent call last):\n  File "/home/user/train.py", line 5, in main\n    x = model.device\n'
    f'  File "{SITE}/torch/nn/modules/module.py", line 1940, in __getattr__\n    raise AttributeError(\n'
)


def test_a_class_of_unknown_origin_is_not_explained_without_a_traceback(diagnose):
    assert not diagnose("AttributeError: 'FreeTypeFont' object has no attribute 'getodd'\n")["matches"]


def test_a_keyword_that_no_release_takes_is_said_to_be_that(diagnose):
    log = (
        'Traceback (most recent call last):\n  File "/home/user/train.py", line 5, in main\n    load(odd_compile=1)\n'
        f'  File "{SITE}/transformers/models/auto/auto_factory.py", line 564, in from_pretrained\n'
        "    return model_class.from_pretrained(path, *model_args, config=config, **kwargs)\n"
        "TypeError: ModernBertForSequenceClassification.__init__() got an unexpected keyword argument 'odd_compile'\n"
    )
    (match,) = diagnose(log)["matches"]
    assert match["component"] == "your-code"
    assert match["title"].startswith("No release of transformers since")
    assert "train.py passes it in main, line 5" in match["because"]


def test_a_keyword_of_a_class_that_came_with_a_model_is_the_models(diagnose):
    log = (
        'Traceback (most recent call last):\n  File "/c/transformers_modules/odd/modeling_odd.py", line 5, in f\n'
        "    return OddL(size=3)\nTypeError: OddL.__init__() got an unexpected keyword argument 'size'\n"
    )
    (match,) = diagnose(log)["matches"]
    assert match["component"] == "model"


def test_an_own_class_does_not_hide_a_later_error(diagnose):
    log = OWN + "AttributeError: 'MyOddModel' object has no attribute 'device'\nRuntimeError: the widget exploded\n"
    assert not diagnose(log)["matches"]


def test_the_frames_of_windows_are_read(diagnose):
    log = (
        'Traceback (most recent call last):\n  File "C:\\Users\\user\\train.py", line 3, in <module>\n    go(x)\n'
        "NameError: name 'go' is not defined\n"
    )
    (match,) = diagnose(log)["matches"]
    assert match["component"] == "your-code"


def test_a_module_that_every_release_has_may_be_there_by_halves(diagnose):
    (match,) = diagnose("ModuleNotFoundError: No module named 'flash_attn.flash_attn_interface'\n")["matches"]
    assert match["component"] == "flash-attn"
    assert "by halves" in match["title"]
    assert "Reinstall it whole" in match["fix"][0]["note"]
