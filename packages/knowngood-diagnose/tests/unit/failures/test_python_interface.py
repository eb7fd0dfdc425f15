"""The three functions for programs answer as the commands do."""

import json
import re

import pytest

from knowngood import answers
from knowngood.cli import main
from knowngood.core.errors import UsageError
from knowngood.core.local_files import data_folder


def document_of(capsys, *words):
    main.main([*words, "--json"])
    return json.loads(capsys.readouterr().out)


def test_each_function_answers_as_its_command(capsys, tmp_path):
    log = tmp_path / "train.log"
    log.write_text("RuntimeError: CUDA error: no kernel image is available for execution on the device\n")
    words = ("torch==2.11.0", "--gpu", "V100")
    assert answers.check("torch==2.11.0", gpu="V100") == document_of(capsys, "check", *words)
    assert answers.pick(gpu="4090", attn="fa2") == document_of(capsys, "pick", "4090", "--attn", "fa2")
    assert answers.diagnose(log) == document_of(capsys, "diagnose", str(log))
    assert answers.diagnose(log)["schema"] == "knowngood/diagnose/1"


def test_what_cannot_be_read_is_an_exception_with_the_nearest():
    with pytest.raises(UsageError, match="the nearest name is H100") as caught:
        answers.pick(gpu="H1000")
    assert caught.value.exit_code == 2


def test_the_example_in_the_docs_runs(tmp_path, monkeypatch):
    (text,) = re.findall(r"```python\n(.*?)```", (data_folder() / "docs/commands.md").read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.log").write_text("nothing\n")
    names = {}
    exec(text.replace('check("torch', 'verdict = check("torch'), names)  # noqa: S102 - our own page
    assert names["verdict"] == "broken"
