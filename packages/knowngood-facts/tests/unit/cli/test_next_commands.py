"""Every command that an answer prints runs: with --dry-run where it would change something."""

from __future__ import annotations

import json
import re
import shlex
from functools import cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from knowngood.cli.main import all_commands, build_parser, main
from knowngood.core.selection import select_cells
from knowngood.project import core_facts
from knowngood.registry.image_reference import ImageReference
from knowngood_facts.compat import knowledge

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
KNOWN, FACTS = knowledge.load_knowledge(), core_facts.load_matrix_facts()

PURPOSES = "get it|add it|try|pick a cell|what there is"


@pytest.fixture(autouse=True, scope="module")
def _facts_are_read_once():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(knowledge, "load_knowledge", lambda *_, **__: KNOWN)
        patch.setattr(core_facts, "load_matrix_facts", lambda: FACTS)
        yield


def commands_in(output: str) -> list[str]:
    """Return the commands of the last lines of answers and of choices, and those in backticks of messages."""
    printed = re.findall(rf"^(?: *|then )(?:{PURPOSES}): (.*?)(?:  \(.*\))?$", output, re.MULTILINE)
    return list(dict.fromkeys([*printed, *re.findall(r"`((?:knowngood|docker) [^`]+)`", output)]))


@cache
def check_command(text: str) -> None:
    """Run a command, or check its form where running it needs a registry or the index."""
    program, *words = shlex.split(text)
    if program == "docker":
        assert words[0] == "pull"
        ImageReference.parse(words[1])
        return
    assert program == "knowngood"
    assert words[0] in all_commands()
    arguments = build_parser(words[0]).parse_args(words)
    if words[0] == "add":
        assert main([*words, "--dry-run"]) == 0, text
    elif words[0] in ("pick", "check", "cells", "api"):
        assert main(words) in (0, 1, 3), text
    elif words[0] == "build-matrix":
        assert select_cells(KNOWN.published.cells, KNOWN.published.aliases, arguments.select), text
    else:
        assert words[0] == "harvest", text


@pytest.mark.parametrize("question", QUESTIONS)
def test_every_answer_ends_in_a_command_that_works(question, capsys):
    code = main(question.split())
    output = capsys.readouterr()
    commands = commands_in(output.out + output.err)
    assert commands, (question, code, output)
    for command in commands:
        check_command(command)


@pytest.mark.parametrize("question", ["pick --gpu H100", "pick --gpu V100 --attn fa2", "check torch==2.11.0"])
def test_documents_have_the_command_too(question, capsys):
    main([*question.split(), "--json"])
    document = json.loads(capsys.readouterr().out)
    check_command(document["next"]["command"])
    for cell in document.get("cells", []):
        check_command(cell["next"]["command"])


def test_the_first_command_for_a_built_cell_builds_it(capsys):
    main(["build-matrix", "--dry-run", "t4"])
    assert "buildx build" in capsys.readouterr().out


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


GPUS = ["H100", "A100", "T4", "V100", "RTX 4090", "B200", "P100"]
PACKAGES = ["torch==2.11.0", "torch>=2.6", "transformers==4.57.6", "transformers<5", "xtuner", "openrlhf", "flash-attn"]


@given(
    st.sampled_from(["pick", "check"]),
    st.none() | st.sampled_from(GPUS),
    st.none() | st.sampled_from(["sdpa", "fa2", "flex"]),
    st.lists(st.sampled_from(PACKAGES), unique_by=lambda text: re.split("[=<>]", text)[0], min_size=1, max_size=3),
)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_commands_of_any_answer_work(capsys, command, gpu, attn, packages):
    words = [command, *(["--gpu", gpu] if gpu else []), *(["--attn", attn] if attn else []), *packages]
    capsys.readouterr()
    main(words)
    output = capsys.readouterr().out
    assert commands_in(output), words
    for text in commands_in(output):
        check_command(text)


def test_a_suggested_command_keeps_the_extras_that_were_asked_for(capsys):
    main(["check", "transformers[torch]==4.57.6", "accelerate==0.20.0"])
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.strip() == "try: knowngood check 'transformers[torch]==4.57.6' accelerate==0.26.0"
