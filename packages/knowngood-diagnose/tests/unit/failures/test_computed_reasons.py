"""Reasons that the numbers, the line of code or a command line of a log state."""

from __future__ import annotations

import pytest

OWN = "/home/u/project/src/data.py"


@pytest.fixture
def ask(first_match):
    def diagnose(code: str, error: str, file: str = OWN, function: str = "main", more: str = ""):
        frame = f'  File "{file}", line 51, in {function}\n    {code}\n'
        return first_match(f"Traceback (most recent call last):\n{frame}{more}{error}\n")

    return diagnose


def notes(match):
    return " ".join(fix["note"] for fix in match["fix"])


@pytest.mark.parametrize(
    ("line", "package"),
    [
        ("-bash: swift: command not found", "ms-swift"),
        ("/bin/sh: 1: torchrun: not found", "torch"),
        ("zsh: command not found: deepspeed", "deepspeed"),
        ("'llamafactory-cli' is not recognized as an internal or external command,", "llamafactory"),
        ("accelerate : The term 'accelerate' is not recognized as the name of a cmdlet", "accelerate"),
        ("./train.sh: line 3: accelerate-launch: command not found", "accelerate"),
        ("nohup: failed to run command 'accelerate': No such file or directory", "accelerate"),
        ("llamafactory-cli: 未找到命令", "llamafactory"),
    ],
)
def test_the_package_of_a_missing_command_is_named(first_match, line, package):
    match = first_match(line + "\n")
    assert f"a command of {package}" in match["title"]
    assert f"pip install {package}" in notes(match)


def test_pips_lines_say_into_which_folder_a_command_went(first_match):
    match = first_match(
        "Requirement already satisfied: tomli in /usr/local/python3/lib/python3.10/site-packages (2.0.1)\n"
        "Successfully installed ms-swift-1.6.0\n[root@host swift]# swift\n-bash: swift: command not found\n"
    )
    assert 'export PATH="/usr/local/python3/bin:$PATH"' in notes(match)


@pytest.mark.parametrize(
    ("code", "error", "component", "words"),
    [
        (
            "torch.save(out_list, path)",
            "UnboundLocalError: local variable 'out_list' referenced before assignment",
            "your-code",
            "local variable 'out_list' referenced before assignment",
        ),
        (
            "print(loss)",
            "UnboundLocalError: cannot access local variable 'loss' where it is not associated with a value",
            "your-code",
            "cannot access local variable 'loss'",
        ),
    ],
)
def test_the_line_of_code_says_what_lacks_a_value(ask, code, error, component, words):
    match = ask(code, error, function="__getitem__")
    assert match["component"] == component
    assert words in match["title"]


@pytest.mark.parametrize(
    ("name", "file", "model", "words"),
    [
        ("mid_block.attentions.0.attn2.to_v.weight", "1280, 2048", "1280, 768", "of SDXL"),
        ("layers.0.q_proj.weight", "8388608, 1", "4096, 4096", "weights of the file are packed to 4 bits"),
        ("mid_block.proj_out.weight", "1280, 1280", "1280, 1280, 1, 1", "a plain linear layer in the checkpoint"),
        ("layers.0.v_proj.lora_A.weight", "32, 5120", "128, 5120", "trained with rank 32"),
        ("lora_unet_blocks_7_attn2_to_v.lora_up.weight", "1280, 8", "1280, 16", "trained with rank 8"),
        ("layers.1.v_proj.lora_linear_layer.up.weight", "768, 4", "1280, 4", "a layer of another width"),
        ("layers.0.q_proj.weight", "4096, 4096", "8388608, 1", "weights of the model are packed to 4 bits"),
    ],
)
def test_the_sizes_of_a_parameter_tell_the_kind_of_checkpoint(first_match, name, file, model, words):
    match = first_match(
        f"\tsize mismatch for {name}: copying a param with shape torch.Size([{file}]) from checkpoint, the shape in "
        f"current model is torch.Size([{model}]).\n"
    )
    assert words in match["title"]


def test_a_launchers_own_argument_is_no_slip_of_the_user(first_match):
    match = first_match(
        "usage: train.py [-h] [--local_rank LOCAL_RANK]\ntrain.py: error: unrecognized arguments: --local-rank=0\n"
    )
    assert "it takes --local_rank" in match["title"]
    assert "torchrun" in match["fix"][0]["note"]


def test_a_tokenizer_of_which_no_file_came_is_no_wrong_name(ask):
    match = ask(
        "tokenizer = CLIPTokenizer.from_pretrained(path)",
        "OSError: Can't load tokenizer for 'openai/clip-vit-large-patch14'. If you were trying to load it from "
        "'https://huggingface.co/models', make sure you don't have a local directory with the same name. Otherwise, "
        "make sure 'openai/clip-vit-large-patch14' is the correct path",
    )
    assert (match["component"], match["certainty"]) == ("hub", "likely")
