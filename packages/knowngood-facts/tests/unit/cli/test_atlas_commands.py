"""`api` and `breaks` as commands, on the atlas of this checkout."""

from __future__ import annotations

import json

import pytest

from knowngood.cli.main import main


def ask(capsys, *words):
    code = main([*words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_api_tells_since_when_a_name_is_there(capsys):
    code, document = ask(capsys, "api", "trl.core.top_k_top_p_filtering")
    assert code == 0
    assert document["present"] == [{"since": None, "until": "0.13.0"}]
    assert main(["api", "trl.core.top_k_top_p_filtering"]) == 0
    assert "until 0.13.0 of trl" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("trl.NoSuchThing", 1, "in no release read of trl"),
        ("nosuchpackage.Thing", 3, "the atlas does not have nosuchpackage"),
        ("nosuchtype", 3, "nor has transformers any model type, attention"),
        ("trl..x", 2, "is not a dotted Python name"),
        ("KeyError: 'qwen3'", 2, "an error message is for `knowngood diagnose`"),
        ("datasets.load_dataset(trust_remote_code)", 0, "not named, but `**kwargs` takes any keyword: since 4.0.0"),
        ("trl.SFTTrainer(nothing)", 1, "the parameter nothing of trl.SFTTrainer: in no release read"),
        ("transformers.DynamicCache.seen_tokens", 0, "or `__getattr__`, may have it): 4.54.0 to 4.55.4"),
    ],
)
def test_api_says_what_it_does_not_find(capsys, name, code, words):
    assert main(["api", name]) == code
    streams = capsys.readouterr()
    assert words in streams.out + streams.err


@pytest.mark.parametrize(
    ("key", "title", "since"),
    [
        ("qwen3", "the model type qwen3", "4.51.0"),
        ("adamw_torch", "the optimizer adamw_torch", None),
        ("flash_attention_2", "the attention function flash_attention_2", "4.51.0"),
        ("cosine", "the scheduler cosine", None),
        ("eval_strategy", "the training argument eval_strategy", "4.41.0"),
        ("xlm-roberta", "the model type xlm-roberta", None),
    ],
)
def test_api_answers_about_the_registries_of_transformers(capsys, key, title, since):
    code, document = ask(capsys, "api", key)
    assert (code, document["name"]) == (0, title)
    assert document["present"] == [{"since": since, "until": None}]


def test_api_shows_the_words_of_a_deprecation_and_where_the_name_went(capsys):
    _, document = ask(capsys, "api", "transformers.Trainer.__init__")
    assert any("deprecate_kwarg('tokenizer'" in row["words"] for row in document["deprecations"])
    _, document = ask(capsys, "api", "transformers.models.auto.configuration_auto.CONFIG_MAPPING_NAMES[qwen3]")
    assert document["elsewhere"][0]["at"] == "transformers.models.auto.auto_mappings:CONFIG_MAPPING_NAMES[qwen3]"


def test_api_answers_about_a_parameter(capsys):
    code, document = ask(capsys, "api", "trl.SFTTrainer(dataset_text_field)")
    assert (code, document["present"]) == (0, [{"since": None, "until": "0.12.2"}])
    assert any("'dataset_text_field'" in row["words"] for row in document["deprecations"])
    assert ask(capsys, "api", "transformers.Trainer(processing_class=)")[1]["present"][0]["since"] == "4.46.1"


def test_api_shows_which_parameters_came_and_went(capsys):
    _, document = ask(capsys, "api", "huggingface_hub.hf_hub_download")
    rows = {row["name"]: row["in"] for row in document["parameters"]}
    assert rows["force_filename"] == [{"since": None, "until": "0.36.2"}]
    assert rows["tqdm_class"] == [{"since": "1.1.0", "until": None}]
    assert main(["api", "huggingface_hub.hf_hub_download"]) == 0
    text = capsys.readouterr().out
    assert "  parameter tqdm_class: since 1.1.0\n" in text
    assert text.count("  (repo_id,") == 1


def test_a_decorator_is_no_kind_of_a_name(capsys):
    assert ask(capsys, "api", "transformers.utils.is_flash_attn_available")[1]["kinds"] == [
        {"kind": "function", "in": [{"since": None, "until": "4.38.2"}]}
    ]


def test_api_asks_every_package_that_shares_a_module(capsys):
    code, document = ask(capsys, "api", "flash_attn.cute.block_sparse_utils")
    assert (code, document["package"]) == (0, "flash-attn-4")
    assert ask(capsys, "api", "flash_attn.flash_attn_func")[1]["package"] == "flash-attn"


def test_breaks_lists_uses_with_the_releases_on_both_sides(capsys):
    code, document = ask(capsys, "api", "--breaks", "trl==0.11.4", "liger-kernel==0.1.0")
    assert code == 1
    assert {(row["module"], row["uses"], row["callees"]) for row in document["uses"] if row["in"] is None} == {
        ("trl.trainer.gkd_trainer", "liger_kernel.transformers:AutoLigerKernelForCausalLM", "until 0.1.1"),
        ("trl.trainer.sft_trainer", "liger_kernel.transformers:AutoLigerKernelForCausalLM", "until 0.1.1"),
    }
    assert main(["api", "--breaks", "trl==0.11.4", "liger-kernel==0.5.0"]) == 0
    assert "no use in trl==0.11.4 is known to break" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["trl=0.1"], 2, "'trl=0.1' is not a package or requirement"),
        (["nosuchpackage"], 3, "the atlas does not have nosuchpackage"),
        (["trl", "nosuchpackage"], 3, "the atlas does not have nosuchpackage"),
        (["trl==0.0.1"], 3, "the atlas has no release of trl==0.0.1; it has 0.7.8 to"),
    ],
)
def test_breaks_refuses_what_it_cannot_look_up(capsys, words, code, message):
    assert main(["api", "--breaks", *words]) == code
    assert message in capsys.readouterr().err
