"""`diagnose` explains an error by the words that a package's own source has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Answer = Callable[[str], dict[str, Any]]
TRACEBACK = """\
Traceback (most recent call last):
  File "/home/user/train.py", line 26, in <module>
    trainer = SFTTrainer(
  File "/home/user/v/lib/python3.10/site-packages/{file}", line 297, in {function}
    {code}
"""


def test_a_message_that_tells_its_remedy_is_passed_on(answer: Answer) -> None:
    above = TRACEBACK.format(file="trl/trainer/sft_trainer.py", function="__init__", code="raise ValueError(")
    text = "Packing is not supported for vision datasets. Please set `packing=False` in the SFTConfig."
    (match,) = answer(f"{above}ValueError: {text}\n")["matches"]
    assert match["component"] == "your-code"
    assert "`self._is_vision_dataset and args.packing`" in match["because"]
    assert "train.py, line 26" in match["because"]
    assert "Please set `packing=False`" in match["fix"][0]["note"]


def test_a_check_that_is_gone_is_a_reason_to_upgrade(answer: Answer) -> None:
    above = TRACEBACK.format(file="trl/trainer/sft_trainer.py", function="__init__", code="raise ValueError(")
    text = (
        "You passed `packing=False` to the SFTTrainer/SFTConfig, but you didn't pass a `dataset_text_field` or "
        "`formatting_func` argument."
    )
    (match,) = answer(f"trl==0.9.6\n{above}ValueError: {text}\n")["matches"]
    assert any("trl" in fix.get("change", {}) for fix in match["fix"])


def test_a_missing_package_is_told_by_the_condition(answer: Answer) -> None:
    above = TRACEBACK.format(file="accelerate/accelerator.py", function="__init__", code="raise ImportError(")
    text = "DeepSpeed is not installed => run `pip install deepspeed` or build it from source."
    (match,) = answer(f"{above}ImportError: {text}\n")["matches"]
    assert (match["component"], match["kind"]) == ("deepspeed", "not-installed")
    assert match["fix"][0]["change"] == {"deepspeed": "*"}


def test_an_assert_without_words_is_explained_by_its_condition(answer: Answer) -> None:
    code = "assert param.ds_status is not ZeroParamStatus.INFLIGHT"
    above = TRACEBACK.format(file="deepspeed/runtime/zero/partition_parameters.py", function="part", code=code)
    (match,) = answer(f"{above}AssertionError\n")["matches"]
    assert match["component"] == "deepspeed"
    assert "`param.ds_status is not ZeroParamStatus.INFLIGHT`" in match["because"]


def test_the_users_own_words_are_no_packages(answer: Answer) -> None:
    text = "Packing is not supported for vision datasets. Please set `packing=False` in the SFTConfig."
    log = (
        f'Traceback (most recent call last):\n  File "/home/user/train.py", line 26, in <module>\nValueError: {text}\n'
    )
    assert answer(log)["outcome"] == "unknown"


def test_what_python_says_is_nobodys_message(answer: Answer) -> None:
    assert answer("AttributeError: 'OwnThing' object has no attribute 'own_name'\n")["outcome"] == "unknown"


def test_a_bare_exception_has_its_words_too(answer: Answer) -> None:
    above = TRACEBACK.format(file="accelerate/utils/launch.py", function="launch", code="raise Exception(")
    (match,) = answer(f"{above}Exception: nothing that any package says\n")["matches"]
    assert (match["component"], match["line"]) == ("accelerate", 6)
    assert "nothing that any package says" in match["title"]


def test_a_general_text_without_a_traceback_is_nobodys(answer: Answer) -> None:
    answer = answer("ValueError: this thing of mine does not support the other thing that you gave it, for no reason\n")
    assert answer["matches"] == []


def test_a_bare_assertion_error_is_an_error(answer: Answer) -> None:
    log = 'Traceback (most recent call last):\n  File "/home/user/train.py", line 3, in <module>\nAssertionError\n'
    assert answer(log)["outcome"] == "unknown"
