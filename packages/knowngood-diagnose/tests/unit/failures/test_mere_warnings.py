"""A warning is no cause of a last error that tells of something else."""

from __future__ import annotations

import io
import json

import pytest

from knowngood.cli.main import main

TRITON = "A matching Triton is not available, some optimizations will not be enabled\n"
TENSORRT = (
    "2023-01-01 10:00:00.1: W tensorflow/default/dso_loader.cc:64] Could not load dynamic library 'libnvinfer.so.7'; "
    "dlerror: libnvinfer.so.7: cannot open shared object file: No such file or directory\n"
)
PROBE = (
    "Traceback (most recent call last):\n"
    '  File "/x/site-packages/xformers/__init__.py", line 55, in _is_triton_available\n'
    "    from xformers.triton.softmax import softmax as triton_softmax\n"
    "ModuleNotFoundError: No module named 'triton'\n"
)
SOCKET = "[W socket.cpp:601] [c10d] The client socket has failed to connect to [localhost]:29500 (errno: 99).\n"
NUMPY = (
    "A module that was compiled using NumPy 1.x cannot be run in\nNumPy 2.0.0 as it may crash.\n"
    "/x/transformer.py:20: UserWarning: Failed to initialize NumPy: _ARRAY_API not found\n"
)
DRIVER = (
    "/x/torch/cuda/__init__.py:118: UserWarning: CUDA initialization: The NVIDIA driver on your system is too old "
    "(found version 11040). Please update your GPU driver\n"
)
BEGIN = 'Traceback (most recent call last):\n  File "/home/u/train.py", line 20, in <module>\n    run(cfg["x"])\n'
MEMORY = BEGIN + "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 8.00 GiB)\n"
KEY = BEGIN + "KeyError: 'lr'\n"
HALF = BEGIN + "RuntimeError: \"addmm_impl_cpu_\" not implemented for 'Half'\n"


def first_match(log, tmp_path, monkeypatch):
    path = tmp_path / "train.log"
    path.write_text(log)
    output = io.StringIO()
    monkeypatch.setattr("sys.stdout", output)
    main(["diagnose", "--json", str(path)])
    return json.loads(output.getvalue())["matches"][0]


@pytest.mark.parametrize(
    ("log", "component"),
    [
        (TRITON + MEMORY, "gpu-memory"),
        (TRITON + PROBE + MEMORY, "gpu-memory"),
        (TRITON + KEY, "your-code"),
        (TENSORRT + KEY, "your-code"),
        (SOCKET + MEMORY, "gpu-memory"),
        (NUMPY + MEMORY, "gpu-memory"),
        (DRIVER + KEY, "your-code"),
        (DRIVER + HALF, "driver"),
    ],
)
def test_a_warning_gives_way_to_an_error_about_something_else(log, component, tmp_path, monkeypatch):
    match = first_match(log, tmp_path, monkeypatch)
    assert (match["component"], match["severity"]) == (component, "failure")


def test_a_warning_alone_is_the_failure(tmp_path, monkeypatch):
    assert first_match(DRIVER, tmp_path, monkeypatch)["component"] == "driver"
