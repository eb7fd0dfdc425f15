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
