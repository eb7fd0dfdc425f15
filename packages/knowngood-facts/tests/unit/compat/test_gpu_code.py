from __future__ import annotations

import pytest

from knowngood.core.gpus import code_runs_on_gpu


@pytest.mark.parametrize(
    ("gpu", "sass", "ptx", "runs"),
    [
        ("sm_90", ["90"], [], True),
        ("sm_86", ["80"], [], True),  # same major, newer minor
        ("sm_80", ["86"], [], False),
        ("sm_90", ["80"], [], False),
        ("sm_120", ["100"], [], False),
        ("sm_103", ["100"], [], True),
        ("sm_61", ["60"], [], True),
        ("sm_90", ["90a"], [], True),
        ("sm_103", ["100a"], [], False),  # that very capability
        ("sm_103", ["100f"], [], True),  # its family
        ("sm_120", ["100f"], [], False),
        ("sm_90", [], ["90"], True),
        ("sm_120", [], ["90"], True),  # the driver compiles PTX for anything newer
        ("sm_80", [], ["90"], False),
        ("sm_120", [], ["90a"], False),
    ],
)
def test_which_gpu_runs_which_binary_code(gpu: str, sass: list[str], ptx: list[str], runs: bool):
    assert code_runs_on_gpu(gpu, sass, ptx) is runs
