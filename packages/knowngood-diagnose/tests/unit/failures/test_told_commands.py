"""A message that says how to install what is missing is answered with that command, before any guess."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from knowngood_diagnose.failures.names.message_causes import find_install_command

Answer = Callable[[str], dict[str, Any]]
FRAME = 'Traceback (most recent call last):\n  File "/env/lib/python3.10/site-packages/{}", line 4, in load\n    {}\n'


@pytest.mark.parametrize(
    ("text", "change", "command"),
    [
        ("Please install tf-keras with `pip install tf-keras`.", {"tf-keras": "*"}, "pip install tf-keras"),
        ("requires Accelerate: `pip install 'foo>=0.26.0'`", {"foo": ">=0.26.0"}, "pip install 'foo>=0.26.0'"),
        (
            "Run `pip install flash_attn einops`",
            {"flash-attn": "*", "einops": "*"},
            "pip install flash_attn einops",
        ),
        ("use pip install foo to go on", {"foo": "*"}, "pip install foo"),
        ("try: pip install -U foo[all], then again", {"foo": "*"}, "pip install -U foo[all]"),
        (
            "pip install a-b --extra-index-url https://x.y/z",
            {"a-b": "*"},
            "pip install a-b --extra-index-url https://x.y/z",
        ),
        ("install it with: apt-get install libfoo1", {}, "apt-get install libfoo1"),
    ],
)
def test_command_of_a_message(text: str, change: dict[str, str], command: str) -> None:
    """The names, the ranges and the whole command are read; only pip's names are packages of Python."""
    told = find_install_command(text)
    assert told is not None
    assert (dict(told.change), told.note) == (change, f"The message says how: {command}")


@pytest.mark.parametrize(
    "text", ["pip install -e .", "pip install git+https://github.com/a/b", "pip install -r requirements.txt", "pip"]
)
def test_what_names_no_package_is_no_command(text: str) -> None:
    """A folder, an address or a list of requirements is not taken for a package."""
    assert find_install_command(text) is None


def test_command_comes_before_any_release(answer: Answer) -> None:
    """The package that transformers names is the remedy: its own newer release is not offered in its place."""
    said = "Keras 3 is not yet supported in Transformers. Please install the backwards-compatible tf-keras package"
    log = FRAME.format("transformers/modeling_tf_utils.py", "raise ValueError(") + (
        f"ValueError: Your currently installed version of Keras is {said} with `pip install tf-keras`.\n"
    )
    first = answer(log)["matches"][0]
    assert first["component"] == "tf-keras"
    assert first["fix"][0]["change"] == {"tf-keras": "*"}
    assert not [fix for fix in first["fix"] if "transformers" in fix.get("change", {})]


@pytest.mark.parametrize(
    ("end", "component"),
    [
        ("gym.error.DependencyNotInstalled: MuJoCo is not installed, run `pip install gym-mujoco`", "gym-mujoco"),
        ("ImportError: no foo here, pip install foo-cuda", "foo-cuda"),
    ],
)
def test_last_error_counts(answer: Answer, end: str, component: str) -> None:
    """Of two commands that of the last error is the remedy, whatever its class is called."""
    log = "warning: pip install tensorboard for plots\n" + FRAME.format("gym/a.py", "raise error.X(") + f"{end}\n"
    assert answer(log)["matches"][0]["fix"][0]["change"] == {component: "*"}


@pytest.mark.parametrize(
    ("path", "words"),
    [("/env/lib/python3.8/site-packages/pkgx/__init__.py", "--force-reinstall"), ("/home/me/pkgx/__init__.py", "-e .")],
)
def test_compiled_part_is_made_where_the_package_lies(answer: Answer, path: str, words: str) -> None:
    """An installed distribution is installed again; only a source tree is built in its folder."""
    log = f"ImportError: cannot import name '_C' from 'pkgx' ({path})\n"
    assert words in answer(log)["matches"][0]["fix"][0]["note"]


ASKED = "ERROR: Could not find a version that satisfies the requirement {} (from versions: {})\n"
ENDS = "ERROR: No matching distribution found for {}\n"


@pytest.mark.parametrize(
    ("wanted", "there", "title"),
    [
        ("torch==1.7.1", "1.11.0, 1.12.1, 2.0.0", "This Python is too new for torch==1.7.1"),
        ("torch==2.4.0", "1.4.0, 1.10.2", "This Python is too old for torch==2.4.0"),
        ("torch==1.12.2", "1.11.0, 1.12.1, 2.0.0", "There is no torch==1.12.2 here"),
        ("torch==2.4.0", "0.1.2", "There is no torch==2.4.0 here"),
    ],
)
def test_what_pip_offers_decides_about_python(answer: Answer, wanted: str, there: str, title: str) -> None:
    """Only newer releases: this Python is too new; only older: too old; stubs and gaps say neither."""
    assert answer(ASKED.format(wanted, there) + ENDS.format(wanted))["matches"][0]["title"].startswith(title)


def test_folder_of_torchs_index_is_named(answer: Answer) -> None:
    """In a folder of torch's index the CUDA decides as well as the Python."""
    log = "Looking in indexes: https://index.example/whl/cu128\n" + ASKED.format(
        "torch==2.4.0", "2.7.0+cu128, 2.8.0+cu128"
    )
    assert "folder cu128" in answer(log + ENDS.format("torch==2.4.0"))["matches"][0]["title"]


NO_DRIVER = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n"


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (
            "NVRM: This can occur when a driver such as:\nNVRM: nouveau, rivafb, nvidiafb or rivatv\n",
            "blacklist nouveau",
        ),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered\n", "nvidia-smi -q -d ECC"),
        ("ncclUnhandledCudaError: x\nNCCL WARN Cuda failure 214 'uncorrectable ECC error encountered'\n", "-d ECC"),
        ("modprobe: FATAL: Module nvidia not found in directory /lib/modules/6.1\n", "dkms autoinstall"),
        (
            f"nvidia/535.129.03, 5.15.0-88-generic, x86_64: installed\n{NO_DRIVER}",
            "dkms autoinstall",
        ),
        ("python train.py\nKilled\n", "smaller batch"),
        ("Out of memory: Killed process 4242 (python) total-vm:123kB\n", "smaller batch"),
        ("0/3 nodes are available: 3 Insufficient nvidia.com/gpu.\n", "device plugin"),
        (
            "Loaded runtime CuDNN library: 9.1.0 but source was compiled with: 9.8.0.  CuDNN library needs to\n",
            "nvidia-cudnn-cu12>=9.8.0",
        ),
    ],
)
def test_first_remedy_is_the_one_of_the_words(answer: Answer, log: str, words: str) -> None:
    """What a driver, the kernel or a scheduler states is answered with its own remedy first."""
    assert words in answer(log)["matches"][0]["fix"][0]["note"]
