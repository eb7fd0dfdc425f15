"""Failures of which a signature knows only the kind: the words, the numbers and the line of code say the reason."""

from __future__ import annotations

import pytest

from knowngood_diagnose.failures import narrowed_reasons

BEGIN = "Traceback (most recent call last):\n"
OWN = '  File "/home/u/run/train.py", line 44, in main\n'
TORCH = '  File "/x/site-packages/torch/nn/modules/module.py", line 1518, in _call_impl\n'
LOAD = (
    OWN
    + "    model.load_state_dict(weights)\nRuntimeError: Error(s) in loading state_dict for M:\n\tsize mismatch for "
)
SHAPES = (
    "copying a param with shape torch.Size([{}]) from checkpoint, the shape in current model is torch.Size([{}]).\n"
)
CASES = {
    "model-divided": (
        LOAD + "proj.weight: " + SHAPES.format("4096, 4096", "0"),
        ("your-code", "sure", "ZeRO-3", "GatheredParameters"),
    ),
    "file-empty": (
        LOAD + "proj.weight: " + SHAPES.format("0", "4096, 4096"),
        ("deepspeed", "sure", "empty", "zero_to_fp32"),
    ),
    "adapter-rank": (
        LOAD + "q_proj.lora_A.default.weight: " + SHAPES.format("16, 4096", "8, 4096"),
        ("model", "sure", "rank", "adapter_config"),
    ),
    "vocabulary": (
        LOAD + "model.embed_tokens.weight: " + SHAPES.format("32001, 4096", "32000, 4096"),
        ("model", "sure", "32001", "resize_token_embeddings"),
    ),
    "head": (
        LOAD + "classifier.weight: " + SHAPES.format("5, 768", "2, 768"),
        ("model", "sure", "5 outputs", "num_labels"),
    ),
    "shapes-open": (
        OWN + "    y = a + b\nRuntimeError: The size of tensor a (3) must match the size of tensor b (4) at "
        "non-singleton dimension 1\n",
        ("your-code", "likely", "shapes", "configuration"),
    ),
    "positions": (
        TORCH + '  File "/x/site-packages/transformers/models/whisper/modeling_whisper.py", line 865, in forward\n'
        "    hidden_states = inputs_embeds + positions\nRuntimeError: The size of tensor a (504) must "
        "match the size of "
        "tensor b (448) at non-singleton dimension 1\n",
        ("your-code", "sure", "448 positions", "filter"),
    ),
    "features": (
        TORCH + "    return F.linear(input, self.weight, self.bias)\n"
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (77x1024 and 768x320)\n",
        ("your-code", "sure", "1024 features", "configuration"),
    ),
    "channels": (
        TORCH + "RuntimeError: Given groups=1, weight of size [64, 3, 7, 7], expected input[1, 4, 224, 224] to have 3 "
        "channels, but got 4 channels instead\n",
        ("your-code", "sure", "takes 3 channels", "RGB"),
    ),
    "labels-for-tokens": (
        TORCH + "ValueError: Expected input batch_size (8) to match target batch_size (4096).\n",
        ("your-code", "sure", "8 predictions and 4096 labels", "settings"),
    ),
    "json-lines": (
        OWN + "    rows = json.load(file)\n"
        '  File "/usr/lib/python3.10/json/decoder.py", line 340, in decode\n    raise '
        'JSONDecodeError("Extra data", s)\n'
        "json.decoder.JSONDecodeError: Extra data: line 2 column 1 (char 85)\n",
        ("data", "sure", "one JSON object on each line", "lines=True"),
    ),
    "json-array": (
        OWN + "    rows = [json.loads(line) for line in file]\n"
        '  File "/usr/lib/python3.10/json/decoder.py", line 355, in raw_decode\n    raise JSONDecodeError\n'
        "json.decoder.JSONDecodeError: Expecting value: line 2 column 1 (char 2)\n",
        ("data", "sure", "one JSON document over many lines", "json.dumps"),
    ),
    "mixed-types": (
        OWN + "pyarrow.lib.ArrowInvalid: Could not convert '-0.2' with type str: tried to convert to double\n",
        ("data", "sure", "different types", "one type"),
    ),
    "none-passed": (
        OWN + "    dist.init_process_group('nccl', init_method=url)\nTypeError: __init__(): incompatible constructor "
        "arguments. The following argument types are supported:\n    1. torch.distributed.TCPStore(arg0: "
        "str, arg1: int)\n"
        "\nInvoked with: None, 8000\n",
        ("your-code", "sure", "address of the first process", "127.0.0.1"),
    ),
    "other-release": (
        OWN + "TypeError: causal_conv1d_fwd(): incompatible function arguments. The following argument types are "
        "supported:\n    1. (arg0: torch.Tensor, arg1: bool) -> torch.Tensor\n\nInvoked with: tensor([1.])\n",
        ("a compiled extension", "likely", "other arguments", "release"),
    ),
    "processes": (
        OWN + "AssertionError: Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * "
        "gradient_acc_step * world_size 256 != 4 * 8 * 1\n",
        ("your-code", "sure", "counts 1 process, and its batch size is that of 8", "torchrun"),
    ),
    "safetensors": (
        OWN + "_pickle.UnpicklingError: invalid load key, '\\xec'.\n",
        ("model", "likely", "safetensors", "load_file"),
    ),
    "tokenizer-folder": (
        OWN + "OSError: Can't load tokenizer for '/out/merged'. If you were trying to load it from "
        "'https://huggingface.co/models', make sure you don't have a local directory with the same name.\n",
        ("model", "sure", "no files of a tokenizer", "copy"),
    ),
    "image-places": (
        (
            '  File "/x/site-packages/transformers/models/qwen2_vl/processing_qwen2_vl.py", line 137, in __call__\n'
            '    "<|placeholder|>" * (image_grid_thw[index].prod() // merge_length), 1\n'
            "IndexError: index 1 is out of bounds for dimension 0 with size 1\n"
        ),
        ("your-code", "sure", "more places for images than the 1", "placeholder"),
    ),
    "one-beyond": (
        OWN + "IndexError: index 5 is out of bounds for axis 0 with size 5\n",
        ("your-code", "sure", "one beyond the end", "labels from 0"),
    ),
    "column": (
        OWN + "    data = data.rename_column('a', 'b')\nValueError: Original column name a not in the dataset. Current "
        "columns in the dataset: ['text', 'meta']\n",
        ("data", "sure", "no column a; it has text, meta", "Rename"),
    ),
    "no-column": (
        OWN + "ValueError: Column name a not in the dataset. Current columns in the dataset: []\n",
        ("data", "sure", "is empty", "empty list"),
    ),
    "pixels": (
        (
            '  File "/x/site-packages/transformers/models/qwen2_5_vl/modeling_qwen2_5_vl.py", line 430, in forward\n'
            "    hidden_states = hidden_states.reshape(seq_len, -1)\n"
            "RuntimeError: shape '[35280, -1]' is invalid for input of size 29030400\n"
        ),
        ("data", "sure", "pixels and the grid", "pixel_values"),
    ),
    "pre-release": (
        "torch                     2.1.0a0+b5021ba\n"
        + BEGIN
        + '  File "/x/site-packages/accelerate/accelerator.py", line 295, in __init__\n    raise ValueError(\n'
        "ValueError: FSDP requires PyTorch >= 2.1.0\n",
        ("torch", "likely", "2.1.0a0", "container"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_reason_is_read_from_the_words_and_the_code(name, first_match):
    log, (component, certainty, title, remedy) = CASES[name]
    match = first_match(BEGIN + log)
    assert (match["component"], match["certainty"]) == (component, certainty)
    assert title in match["title"]
    assert any(remedy in f"{fix.get('note', '')} {fix.get('install', '')}" for fix in match["fix"])


@pytest.mark.parametrize("incident_id", narrowed_reasons.NARROWED)
def test_each_function_of_the_table_is_there(incident_id: str):
    assert narrowed_reasons.describe_reason(incident_id).__name__.startswith("describe_")
