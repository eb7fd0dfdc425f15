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
        ("trl..x", 2, "is not a dotted Python name"),
    ],
)
def test_api_says_what_it_does_not_find(capsys, name, code, words):
    assert main(["api", name]) == code
    streams = capsys.readouterr()
    assert words in streams.out + streams.err


def test_breaks_lists_uses_with_the_releases_on_both_sides(capsys):
    code, document = ask(capsys, "breaks", "trl==0.11.4", "liger-kernel==0.1.0")
    assert code == 1
    assert {(row["module"], row["uses"], row["callees"]) for row in document["uses"] if row["in"] is None} == {
        ("trl.trainer.gkd_trainer", "liger_kernel.transformers:AutoLigerKernelForCausalLM", "until 0.1.1"),
        ("trl.trainer.sft_trainer", "liger_kernel.transformers:AutoLigerKernelForCausalLM", "until 0.1.1"),
    }
    assert main(["breaks", "trl==0.11.4", "liger-kernel==0.5.0"]) == 0
    assert "no use in trl==0.11.4 is known to break" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["trl=0.1"], 2, "'trl=0.1' is not a package or requirement"),
        (["nosuchpackage"], 3, "the atlas does not have nosuchpackage"),
        (["trl==0.0.1"], 3, "the atlas has no release of trl==0.0.1; it has 0.7.8 to"),
    ],
)
def test_breaks_refuses_what_it_cannot_look_up(capsys, words, code, message):
    assert main(["breaks", *words]) == code
    assert message in capsys.readouterr().err
