"""Logs of which little speaks for an answer: what is said all the same, how surely, and what is not said."""

from __future__ import annotations

import pytest

BEGIN = "Traceback (most recent call last):\n"
SITE = "/x/lib/python3.11/site-packages"
WORKER = (
    "AssertionError: Caught AssertionError in DataLoader worker process 0.\n"
    "Original Traceback (most recent call last):\n"
    f'  File "{SITE}/torch/utils/data/_utils/worker.py", line 202, in _worker_loop\n    data = fetcher.fetch(index)\n'
    '  File "/home/user/data/coco.py", line 100, in pull_item\n    assert(img is not None)\nAssertionError\n'
)
CHECKOUT = (
    '[rank5]:   File "/data/LLaMA-Factory/src/llamafactory/data/loader.py", line 75, in _load_single_dataset\n'
    '[rank5]:     raise ValueError(f"File {local_path} not found.")\n[rank5]: ValueError: File mine.json not found.\n'
)
NAN = "step 1 loss: 2.31\nstep 2 loss: nan\nstep 3 loss: nan\n"
OLD_IMPORT = (
    f'{BEGIN}  File "run.py", line 1, in <module>\n    from transformers import Odd\nImportError: cannot import name '
)
CASES = {
    "an assert of one's own, in a worker": (WORKER, "your-code", "likely"),
    "a short refusal in a checkout": (CHECKOUT, "llamafactory", "likely"),
    "an assert without words in a package": (
        f'{BEGIN}  File "{SITE}/odd_package/core.py", line 5, in run  \n    assert len(rows)  \nAssertionError\n',
        "odd_package",
        "likely",
    ),
    "a package that says its name": (
        "RuntimeError: Unsloth: Failed to create dynamic compiled modules!\n",
        "unsloth",
        "likely",
    ),
    "an attribute that every release has": (
        "AttributeError: 'BertConfig' object has no attribute 'pad_token_id'\n",
        "transformers",
        "likely",
    ),
    "a module of no known package": ("ModuleNotFoundError: No module named 'mel2odd'\n", "mel2odd", "likely"),
    "an import of Python 3.6": (f"{OLD_IMPORT}'Odd'\n", "transformers", "sure"),
    "an import of Python 2": (f"{OLD_IMPORT}Odd\n", "transformers", "sure"),
    "an engine without the model": (
        (
            '  File "/x/sglang/srt/models/registry.py", line 5, in f\n    raise ValueError(\n'
            "ValueError: Model architectures ['AForCausalLM'] are not supported for now. Supported architectures: x\n"
        ),
        "sglang",
        "likely",
    ),
    "a loss of another dtype": ("RuntimeError: Found dtype Half but expected Float\n", "your-code", "sure"),
    "a tensor on the CPU": (
        "RuntimeError: Tensor for argument #2 'mat1' is on CPU, but expected it to be on GPU (while checking)\n",
        "your-code",
        "sure",
    ),
    "a table of another transformers": (
        (
            "RuntimeError: Error(s) in loading state_dict for A:\n"
            '  Unexpected key(s) in state_dict: "e.embeddings.position_ids". \n'
        ),
        "transformers",
        "likely",
    ),
    "losses that stay nan": (NAN, "your-code", "likely"),
    "the words of a configuration": (
        "1 validation error for ModelConfig\n  Value error, rope_scaling should have a key\nError: it failed\n",
        "your-code",
        "likely",
    ),
    "Triton's compiler, behind what it says": (
        (
            "RuntimeError: Internal Triton PTX codegen error\n"
            "ptxas fatal   : Value 'sm_120' is not defined for option 'gpu-name'\n"
        ),
        "triton",
        "sure",
    ),
    "an nvcc that is too old": (
        "RuntimeError: FlashAttention is only supported on CUDA 11.6 and above.\n",
        "cuda",
        "likely",
    ),
    "arguments of a binary": (
        "TypeError: odd_fwd(): incompatible function arguments. The following argument types are supported:\n",
        "a compiled extension",
        "likely",
    ),
}
QUIET = {
    "losses that recover from a skipped step": "loss: nan\nloss: nan\nloss: 2.31\nloss: 2.28\n",
    "one skipped step": "loss: 2.31\nloss: nan\n",
    "kernels that autotuning leaves out": (
        "E0912 1 torch/_inductor/select_algorithm.py:2100] Runtime error during autotuning:\n"
        "E0912 1 torch/_inductor/select_algorithm.py:2100] No valid triton configs. OutOfResources: out of resource: "
        "shared memory, Required: 131072, Hardware limit: 101376. Reducing block sizes or `num_stages` may help..\n"
        "E0912 1 torch/_inductor/select_algorithm.py:2100] Ignoring this choice.\n"
    ),
}


@pytest.fixture
def diagnose(answer):
    return lambda log: [match for match in answer(log)["matches"] if match["severity"] == "failure"]


@pytest.mark.parametrize("name", CASES)
def test_who_is_at_fault_and_how_surely(name, diagnose):
    log, component, certainty = CASES[name]
    first = diagnose(log)[0]
    assert (first["component"], first["certainty"]) == (component, certainty)


@pytest.mark.parametrize("name", QUIET)
def test_nothing_is_at_fault(name, diagnose):
    assert diagnose(QUIET[name]) == []


def test_a_newer_release_is_offered_for_a_value_that_a_package_does_not_know(diagnose):
    (match,) = diagnose("ValueError: Template odd does not exist.\nllamafactory==0.9.1\n")
    assert {"llamafactory": "*"} in [fix.get("change") for fix in match["fix"]]


def test_packages_of_one_release_are_upgraded_together(diagnose):
    (match,) = diagnose("RuntimeError: Unsloth: Failed to create dynamic compiled modules!\n")
    assert {"unsloth": "*", "unsloth-zoo": "*"} in [fix.get("change") for fix in match["fix"]]
