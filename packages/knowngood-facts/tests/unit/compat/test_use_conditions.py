"""The values of `--with`, in every spelling, against the real rules."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from knowngood.cli.main import main
from knowngood.core.errors import UsageError
from knowngood.evidence.model_judgement import model_name_of_type
from knowngood_facts.compat import knowledge
from knowngood_facts.compat.query import Query
from knowngood_facts.compat.use_conditions import condition_forms, parse_model, settle_query
from samples import ROOT

UNIVERSE = knowledge.load_knowledge().universe


def settle(**conditions: str) -> Query:
    return settle_query(
        UNIVERSE, Query(conditions={key.replace("__", "."): text for key, text in conditions.items()})
    ).query


@pytest.mark.parametrize("value", ["fa2", "FA2", "flash_attention_2", "flash-attention-2", "flash_attn"])
@pytest.mark.parametrize("key", ["attn", "attn_implementation"])
def test_an_attention_setting_among_the_conditions_is_the_attention_setting(key: str, value: str):
    assert settle(**{key: value}) == Query(attn="fa2")


def test_an_attention_setting_that_is_stated_twice():
    assert settle_query(UNIVERSE, Query(attn="fa2", conditions={"attn": "flash_attention_2"})).query == Query(
        attn="fa2"
    )
    with pytest.raises(UsageError, match="stated twice: sdpa and fa2"):
        settle_query(UNIVERSE, Query(attn="sdpa", conditions={"attn": "fa2"}))


@pytest.mark.parametrize(
    ("key", "written", "value"),
    [
        ("dtype", "bfloat16", "bf16"),
        ("dtype", "torch.bfloat16", "bf16"),
        ("dtype", "BF16", "bf16"),
        ("dtype", "bf16-pure", "bf16"),
        ("dtype", "fp16_pure", "fp16-pure"),
        ("dtype", "half", "fp16"),
        ("dtype", "float32", "fp32"),
        ("weights", "float32", "fp32"),
        ("weights", "bf16", "bf16"),
        ("weights-file", "pickle", "bin"),
        ("weights-file", "safetensors", "safetensors"),
        ("padding", "Right", "right"),
        ("padding", "left", "left"),
        ("packing", "yes", "true"),
        ("packing", "position_ids", "position-ids"),
        ("packing", "False", "false"),
        ("use_cache", "True", "true"),
        ("head-dim", "0128", "128"),
        ("dropout", "0.10", "0.1"),
        ("dropout", "1e-1", "0.1"),
        ("dropout", "0", "0"),
        ("trainer", "TRL", "trl"),
        ("cp_comm_type", "all-gather", "all_gather"),
        ("cp_comm_type", "p2p", "p2p"),
        ("model", "Qwen/Qwen2.5-7B", "qwen2"),
    ],
)
def test_a_value_in_the_form_in_which_rules_ask_for_it(key: str, written: str, value: str):
    assert settle(**{key: written}).conditions == {key: value}


def test_a_key_in_another_spelling():
    assert settle(**{"use-cache": "1"}).conditions == {"use_cache": "true"}
    assert settle(torch_dtype="float16").conditions == {"dtype": "fp16"}


@pytest.mark.parametrize(
    ("key", "written", "message"),
    [
        ("dtype", "bf61", "nearest is bf16"),
        ("dtype", "int8", "known: bf16, fp16, fp16-pure"),
        ("padding", "rigth", "nearest is right"),
        ("packing", "maybe", "known: .*true, false"),
        ("deepspeed", "perhaps", "deepspeed cannot be 'perhaps'"),
        ("head-dim", "wide", "head-dim is a whole number"),
        ("head-dim", "-3", "head-dim is a whole number"),
        ("context-parallel", "1.5", "context-parallel is a whole number"),
        ("dropout", "2", "dropout is a number from 0 to 1"),
        ("trainer", "transfomers", "nearest is transformers"),
        ("model", "qwen22", "nearest is qwen2"),
        ("attn", "fa5", "there is no attention setting"),
    ],
)
def test_an_unknown_value_is_refused_with_the_nearest(key: str, written: str, message: str):
    with pytest.raises(UsageError, match=message):
        settle(**{key: written})


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("Qwen/Qwen2.5-7B", "qwen2"),
        ("qwen2.5", "qwen2"),
        ("Qwen2", "qwen2"),
        ("qwen2-7b-instruct", "qwen2"),
        ("Qwen/Qwen2.5-Coder-32B-Instruct", "qwen2"),
        ("Qwen2ForCausalLM", "qwen2"),
        ("Qwen/QwQ-32B", "qwen2"),
        ("Qwen/Qwen1.5-7B", "qwen2"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "qwen2"),
        ("Qwen/Qwen1.5-MoE-A2.7B", "qwen2-moe"),
        ("Qwen2-57B-A14B", "qwen2-moe"),
        ("qwen2_moe", "qwen2-moe"),
        ("Qwen2MoeForCausalLM", "qwen2-moe"),
        ("Qwen/Qwen2-VL-7B-Instruct", "qwen2-vl"),
        ("Qwen/Qwen2.5-VL-7B-Instruct", "qwen2-5-vl"),
        ("qwen2_5_vl", "qwen2-5-vl"),
        ("Qwen/Qwen3-8B", "qwen3"),
        ("Qwen/Qwen3-30B-A3B", "qwen3-moe"),
        ("Qwen/Qwen-7B", "qwen"),
        ("meta-llama/Llama-3.1-8B", "llama"),
        ("LlamaForCausalLM", "llama"),
        ("mistralai/Mixtral-8x7B-v0.1", "mixtral"),
        ("internlm/internlm2-7b", "internlm2"),
        ("google/gemma-4-12b-it", "gemma4"),
        ("google/gemma-3n-E4B", "gemma3n"),
        ("gemma4_text", "gemma4"),
        ("tiiuae/falcon-mamba-7b", "falcon-mamba"),
        ("LiquidAI/LFM2-8B-A1B", "lfm2-moe"),
        ("allenai/Olmo-3-7B", "olmo3"),
        ("someone/my-finetune", None),
    ],
)
def test_the_architecture_of_a_model(text: str, model: str | None):
    assert parse_model(text, UNIVERSE.models) == model


def test_every_model_type_that_was_run_is_an_architecture_of_its_own():
    for folder in (ROOT / "evidence/models").iterdir():
        assert parse_model(folder.name, UNIVERSE.models) == model_name_of_type(folder.name), folder.name


def test_a_model_whose_name_does_not_say_its_architecture_is_left_open():
    settled = settle_query(UNIVERSE, Query(conditions={"model": "someone/my-finetune", "dtype": "bf16"}))
    assert settled.query.conditions == {"dtype": "bf16"}
    assert "does not say the model's architecture" in settled.notes[0]


def test_every_value_that_a_rule_names_is_accepted():
    for key, form in condition_forms(UNIVERSE).items():
        for name in form.names if key not in ("attn", "model") else ():
            assert settle(**{key: name}).conditions == {key: name}
        assert form.names or form.boolean or form.number


def test_the_same_question_has_the_same_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """By `--attn`, by `--with`, and in a batch."""

    def ask(*words: str) -> str:
        assert main(["check", "--json", "torch==2.11.0", "flash-attn==2.8.3", "--gpu", "V100", *words]) == 1
        return capsys.readouterr().out

    wanted = ask("--attn", "fa2")
    assert ask("--with", "attn=fa2") == wanted
    assert ask("--with", "attn=flash_attention_2") == wanted
    query = {"gpu": "V100", "packages": {"torch": "2.11.0", "flash-attn": "2.8.3"}}
    lines = [{**query, "with": {"attn": "flash_attention_2"}}, {**query, "with": {"dtype": "bf61"}}]
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert main(["check", "--batch", str(tmp_path / "q.jsonl")]) == 2
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    alone = json.loads(wanted)
    # A line of a batch has no next command and no schema, and all have one root.
    del alone["next"], alone["sources"], alone["schema"]
    assert first == alone
    assert (second["exit"], "nearest is bf16" in second["error"]) == (2, True)
