"""Every command that an answer prints runs: with --dry-run where it would change something."""

from __future__ import annotations

import json
import re
import shlex

import pytest

import advice
from advice import commands_in, follow_command
from knowngood.cli.main import main
from knowngood.core.cell import parse_cell

QUESTIONS = [
    "pick",
    "pick --gpu H100 --attn fa2",
    "pick --gpu V100",
    "pick --gpu V100 --attn fa2 transformers==5.17.0",
    "pick --gpu H100 xtuner transformers==5.23.0",
    "pick --gpu H100 xtuner xformers",
    "pick --gpu H100 xtuner==0.1.21",
    "pick --gpu A100 openrlhf --with dtype=bf16",
    "pick --gpu T4 --driver 535.104.05 --with model=qwen2",
    "pick --gpu H100 vllm",
    "pick --gpu GH200",
    "pick --gpu MI300X",
    "pick --python 3.12 --gpu H100",
    "pick torch==2.99",
    "pick flash-attn==2.6.3 flash-attn-4==4.0.0b36",
    "pick transformer-engine-cu12 --gpu H100",
    "check --gpu H100 torch==2.11.0 transformers==5.17.0",
    "check --gpu H100 torch==2.14.1 transformers==5.17.0",
    "check --gpu V100 torch==2.11.0 transformers==5.17.0",
    "check --gpu H100 torch==2.14.1 transformers==5.17.0 --python 3.12",
    "check torch==2.6.0 triton==3.1.0",
    "check torch==2.11.0+cu126 flash-attn==2.8.3",
    "check torch==2.99",
    "check torch==2.11.0 tokenizers==0.22.1",
    "check tokenizers==0.22.1",
    "check --gpu GH200 torch==2.11.0",
    "build --plan sm90-cu132-torch2.15.0-tf5.23.0-fa0-triton3.9.0-py311",
    "build sm90-cu132-torch2.15.0-tf5.23.0-fa0-triton3.9.0-py311",
    "export sm90-cu132-torch2.15.0-tf5.23.0-fa0-triton3.9.0-py311",
    "lock sm90-cu132-torch2.15.0-tf5.23.0-fa0-triton3.9.0-py311",
    "smoke sm90-cu132-torch2.15.0-tf5.23.0-fa0-triton3.9.0-py311",
    "add --dry-run sm90-cu130-torch2.15.0-tf5.23.0-fa0-triton3.6.0-py311",
    "add --dry-run --gpu H100",
    "add --dry-run --gpu V100 --attn fa2",
]


@pytest.fixture(autouse=True, scope="module")
def _offline():
    with pytest.MonkeyPatch.context() as patch:
        advice.stay_offline(patch)
        yield


@pytest.mark.parametrize("question", ["pick --gpu H100", "pick --gpu V100 --attn fa2", "check torch==2.11.0"])
def test_documents_have_the_command_too(question, capsys):
    main([*question.split(), "--json"])
    document = json.loads(capsys.readouterr().out)
    follow_command(document["next"]["command"])
    for cell in document.get("cells", []):
        follow_command(cell["next"]["command"])


def test_the_first_command_for_a_built_cell_runs_it_and_says_what_that_costs(capsys):
    main(["pick", "--gpu", "T4"])
    command = r"  run it: knowngood run sm75\S+ -- python train\.py"
    times = r"\d+ to \d+ minutes to build, by \d+ rebuilds on [\d to]+ cores"
    cost = rf"    \([\d.]+ GB to fetch, up to [\d.]+ GB of disk, {times}\)"
    assert re.search(f"^{command}\n{cost}$", capsys.readouterr().out, re.MULTILINE)


def test_a_cell_that_ran_on_a_cpu_only_is_unseen_on_a_gpu(capsys):
    main(["pick", "--gpu", "T4"])
    assert "(seen training on a CPU only; unseen on a GPU)" in capsys.readouterr().out.splitlines()[0]


def test_the_state_of_the_setting_stands_below_each_cell(capsys):
    main(["pick", "--gpu", "H100", "--attn", "fa2"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("  fa2: seen training on a GPU of this architecture; there it refuses fp32/dense")
    assert "  fa2: predicted to train; unseen" in lines


def test_what_is_unknown_is_said_first(capsys):
    assert main(["pick", "--gpu", "H100", "no-such-package"]) == 3
    assert capsys.readouterr().out.startswith("unknown: there are no facts about no-such-package")


def test_the_nearest_release_is_tried_before_leaving_out_what_was_asked_for(capsys):
    main(["pick", "--gpu", "H100", "xtuner", "transformers==5.23.0"])
    assert capsys.readouterr().out.splitlines()[-1] == "try: knowngood pick --gpu H100 xtuner transformers==4.48.0"


@pytest.mark.parametrize("words", [*map(shlex.split, QUESTIONS), *advice.make_requests(60, seed=46)], ids=shlex.join)
def test_every_command_of_an_answer_can_be_followed(words, capsys):
    code = main(words)
    output = capsys.readouterr()
    text = output.out + output.err
    assert "Traceback" not in text
    commands = commands_in(text)
    assert commands or code == 0, text
    added = re.search(r"then run it: knowngood build-matrix (?:--compile )?(\S+)", text)
    for command in commands:
        follow_command(command, (parse_cell(added[1]),) if added else ())


def test_a_suggested_command_keeps_the_extras_that_were_asked_for(capsys):
    main(["check", "transformers[torch]==4.57.6", "accelerate==0.20.0"])
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.strip() == "try: knowngood check 'transformers[torch]==4.57.6' accelerate==0.26.0"


def test_where_a_repository_is_named_a_pull_is_what_it_costs(monkeypatch, capsys):
    monkeypatch.setenv("KNOWNGOOD_REPOSITORY", "registry.example/team/knowngood")
    main(["pick", "--gpu", "T4"])
    assert ", nobody measured how long a pull takes)\n" in capsys.readouterr().out
