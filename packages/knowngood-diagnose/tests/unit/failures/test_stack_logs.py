"""Logs of the stack in which one failure was taken for another, in short: who is at fault in each."""

from __future__ import annotations

import io
import json

import pytest

from knowngood.cli.main import main

SPAWN = 'File "C:\\x\\multiprocessing\\spawn.py", line 115, in _main\n    self = reduction.pickle.load(from_parent)\n'
BUILD = (
    '  File "/tmp/pip-build-env-a/lib/python3.13/site-packages/setuptools/build_meta.py", line 320, in run_setup\n'
    '    exec(code, locals())\n  File "<string>", line 30, in <module>\n'
)
UNPACKED = f'  File "/tmp/pip-install-x/auto-gptq_{"0" * 32}/setup.py", line 17, in <module>\n    x = d["CUDA"]\n'
HEADER = (
    "Error(s) in loading state_dict for Whisper:\nan exception occurred : ('CUDA error: no kernel image is available "
    "for execution on the device CUDA kernel errors might be asynchronously reported')\n"
)
CUT_OFF = "  error: Remote end closed connection without response\n  ERROR: Failed building wheel for flash-attn\n"
RETRIED = "WARNING: Retrying after connection broken by 'ReadTimeoutError(x)': /simple/\nSuccessfully installed a-1\n"
DESTRUCTOR = (
    "Exception ignored in: <function DeepSpeedEngine.__del__ at 0x7f>\nTraceback (most recent call last):\n"
    '  File "/x/site-packages/deepspeed/runtime/engine.py", line 565, in __del__\n    self.destroy()\n'
    "AttributeError: 'DeepSpeedEngine' object has no attribute '_deepcompile_active'\n"
)
XFORMERS = (
    "NotImplementedError: No operator found for `memory_efficient_attention_forward` with inputs:\n"
    "     query       : shape=(1, 257, 6, 64) (torch.float32)\n`cutlassF-pt` is not supported because:\n"
)
BEGIN = "Traceback (most recent call last):\n"
CASES = {
    "a checkpoint": (BEGIN + "EOFError: Ran out of input\n", "model"),
    "the keys of weights": (
        "RuntimeError: Error(s) in loading state_dict for ResNet:\n\tMissing key(s) in state_dict: 'conv1.weight'.\n",
        "model",
    ),
    "an error inside of a header": (HEADER, "torch"),
    "a download in a build": (CUT_OFF, "network"),
    "a host that git does not resolve": (
        "fatal: unable to access 'https://github.com/a/b.git/': Could not resolve host: github.com\n",
        "network",
    ),
    "setup.py before Python 3.13": (BEGIN + BUILD + "KeyError: '__version__'\n", "python"),
    "a package's own script": (BEGIN + UNPACKED + "KeyError: 'CUDA'\nerror: metadata-generation-failed\n", "auto-gptq"),
    "a destructor behind the error": (
        f'{BEGIN}  File "train.py", line 3, in <module>\n    x = c["engine"]\nKeyError: \'engine\'\n{DESTRUCTOR}',
        "your-code",
    ),
    "a program that is not torch": (
        "FATL| Cuda Error: no kernel image is available for execution on the device\n",
        "a compiled extension",
    ),
    "no ninja": ("RuntimeError: Ninja is required to load C++ extensions\n", "ninja"),
    "an operator that was not compiled": (
        "ImportError: /root/.cache/torch_extensions/py310_cu121/fast/fast.so: cannot open shared object file\n",
        "compiler",
    ),
    "files with other columns": (
        (
            "All the data files must have the same columns, but at some point there are 2 new columns ({'a', 'b'})\n"
            "datasets.exceptions.DatasetGenerationCastError: An error occurred while generating the dataset\n"
        ),
        "data",
    ),
    "xformers without kernels": (XFORMERS + "    xFormers wasn't build with CUDA support\n", "xformers"),
    "a symbol that was cut off": (
        "ImportError: /x/site-packages/own_cuda.cpython-310-x86_64-linux-gnu.so: undefined symbol\n",
        "own",
    ),
    "a build without torch": (
        (
            f'{BEGIN}  File "/tmp/pip-build-env-a/setuptools/build_meta.py", line 3, in get_requires_for_build_wheel\n'
            "    exec(code)\nModuleNotFoundError: No module named 'torch'\n"
        ),
        "torch",
    ),
    "a model's file without its class": (
        "AttributeError: module 'transformers_modules.local.tokenization_own' has no attribute 'OwnTokenizer'\n",
        "model",
    ),
    "a killed program": ("Loading checkpoint shards:  33%\nKilled\n", "host-memory"),
    "a killed job of a shell": ("run.sh: line 12: 12345 Killed    python train.py\n", "host-memory"),
    "advice in an error": (
        f"{BEGIN}{UNPACKED}KeyError: 'CUDA'. To fix this: pip install it\n",
        "auto-gptq",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_component_at_fault(name, tmp_path, monkeypatch):
    log, component = CASES[name]
    path = tmp_path / "train.log"
    path.write_text(log)
    output = io.StringIO()
    monkeypatch.setattr("sys.stdout", output)
    main(["diagnose", "--json", str(path)])
    assert json.loads(output.getvalue())["matches"][0]["component"] == component


@pytest.mark.parametrize(
    "log",
    [
        # setuptools runs the script; what the script does is not setuptools' fault
        BEGIN + BUILD + "KeyError: 'name'\n",
        # a pip that retries and goes on
        RETRIED,
    ],
)
def test_nothing_is_named(log, tmp_path, monkeypatch):
    path = tmp_path / "train.log"
    path.write_text(log)
    output = io.StringIO()
    monkeypatch.setattr("sys.stdout", output)
    assert main(["diagnose", "--json", str(path)]) in {1, 3}
    assert json.loads(output.getvalue())["matches"] == []
