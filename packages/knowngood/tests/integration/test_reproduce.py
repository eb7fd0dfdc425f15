"""`knowngood reproduce` for real: environments made by uv, programs run in them, releases read from the registry."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.integration


def reproduce(*words, code=0):
    argv = [sys.executable, "-m", "knowngood", "reproduce", *words, "--in", "venv", "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == code, done.stderr + done.stdout
    return json.loads(done.stdout)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("side", ["failing", "numpy 1.26.4"])
def test_an_extension_compiled_for_numpy_1_fails_on_2_and_works_on_1(side):
    (seen,) = reproduce("numpy-1-binary-on-numpy-2", "--side", side)["sides"]
    assert seen["outcome"] == "reproduced"
    assert seen["packages"]["numpy"] == {"failing": "2.1.3", "numpy 1.26.4": "1.26.4"}[side]
    assert bool(seen["signature"]) == (side == "failing")
    assert ("numpy-1-binary-on-numpy-2" in seen["diagnosed"]) == (side == "failing")


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("side", "exception"),
    [
        ("failing", "_flash_attn_varlen_backward() missing 1 required positional argument: 'softcap'"),
        ("flash-attn 2.5.8", None),
    ],
)
def test_transformer_engines_call_meets_flash_attns_signature(side, exception):
    (seen,) = reproduce("transformer-engine-softcap-backward", "--side", side)["sides"]
    assert seen["outcome"] == "reproduced"
    assert (seen["exception"] or {}).get("text") == exception
    assert {"transformer-engine", "flash-attn"} <= seen["packages"].keys()
