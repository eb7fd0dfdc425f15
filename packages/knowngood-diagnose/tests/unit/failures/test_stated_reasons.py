"""Logs that end in a line which only says that something failed: a reason is named where the log states one."""

from __future__ import annotations

import pytest

BEGIN = "Traceback (most recent call last):\n"
NINJA = "ninja: build stopped: subcommand failed.\nRuntimeError: Error building extension 'cpu_adam'\n"
NCCL = (
    "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1331, unhandled cuda error (run with "
    "NCCL_DEBUG=INFO for details), NCCL version 2.18.5\nncclUnhandledCudaError: Call to CUDA function failed.\n"
)
DISCARDED = (
    "Discarding file:///x/flash_attn-2.7.3%2Bcu12torch2.5-cp310-cp310-linux_x86_64.whl: Requested "
    "flash-attn==2.7.3+cu12torch2.5 from file:///x/flash_attn-2.7.3%2Bcu12torch2.5-cp310-cp310-linux_x86_64.whl has "
    "inconsistent version: expected '2.7.3+cu12torch2.5', but metadata has '2.7.3'\n"
    "ERROR: No matching distribution found for flash-attn==2.7.3+cu12torch2.5\n"
)
NO_KERNEL = "RuntimeError: HIP error: no kernel image is available for execution on the device\n"
HUB = (
    '  File "/x/site-packages/transformers/utils/versions.py", line 44, in _compare_versions\n    raise ImportError(\n'
    "ImportError: huggingface-hub>=0.34.0,<1.0 is required for a normal functioning of this module, but found "
    "huggingface-hub==1.2.3.\nTry: `pip install transformers -U`\n"
)
TORCHAO = (
    '  File "/x/site-packages/peft/import_utils.py", line 147, in is_torchao_available\n    raise ImportError(\n'
    "ImportError: Found an incompatible version of torchao. Found version 0.10.0, but only versions above 0.16.0 are "
    "supported\n"
)
OLD_PACKAGING = (
    '  File "/x/site-packages/deepspeed/__init__.py", line 36, in _parse_version\n    return ver.major, ver.minor\n'
    "AttributeError: 'Version' object has no attribute 'major'\n"
)
OWN_TRAINER = (
    '  File "/home/u/tim/src/main.py", line 118, in main\n    if epoch % trainer.meta_val_interval == 0:\n'
    "AttributeError: 'Trainer' object has no attribute 'meta_val_interval'\n"
)
DATALOADER = (
    '  File "/x/site-packages/accelerate/accelerator.py", line 1435, in _prepare_deepspeed\n    raise ValueError(\n'
    "ValueError: When using DeepSpeed `accelerate.prepare()` requires you to pass at least one dataloader\n"
)
COLAB = (
    "AttributeError                            Traceback (most recent call last)\n4 frames\n"
    "[/usr/lib/python3.10/dist-packages/setfit/trainer.py](https://localhost:8080/#) in overwritten_call_event(self)"
    "\n     73                     st_model=self.model,\n---> 75                     tokenizer=self.tokenizer,\n\n"
    "AttributeError: 'CallbackHandler' object has no attribute 'tokenizer'\n"
)
CASES = {
    "a traceback of Colab": (COLAB, "setfit", "setfit fails inside"),
    "a package that is used": (BEGIN + DATALOADER, "accelerate", "refuses to go on"),
    "a build of uv": ("  x Failed to download and build `a==1`\n", "compiler", "no ready wheel"),
    "an AMD GPU": (NO_KERNEL, "torch", "AMD"),
    "a library of ROCm": ("RuntimeError: CUDA error: HIPBLAS_STATUS_NOT_SUPPORTED when calling `x`\n", "torch", "ROCm"),
    "no memory for NCCL": (f"x [3] alloc.h:178 NCCL WARN Cuda failure 'out of memory'\n{NCCL}", "gpu-memory", "memory"),
    "no fabric manager": (f"{NCCL}Cuda failure 802 'system not yet initialized'\n", "driver", "fabric manager"),
    "a header of CUDA": (
        f"a.h:11:10: fatal error: cusolverDn.h: No such file or directory\n{NINJA}",
        "cuda",
        "cusolverDn.h",
    ),
    "a library's header": (
        f"a.cpp:1:2: fatal error: libaio.h: No such file or directory\n{NINJA}",
        "compiler",
        "libaio.h",
    ),
    "a submodule": (
        f"a.cu:1:2: fatal error: cutlass/a.h: No such file or directory\n{NINJA}",
        "your-code",
        "cutlass/a.h",
    ),
    "a release that is too new": (BEGIN + HUB, "huggingface-hub", "1.2.3 is installed"),
    "a release that is too old": (BEGIN + TORCHAO, "torchao", "peft requires torchao>0.16.0"),
    "an old packaging": (BEGIN + OLD_PACKAGING, "packaging", "older than 20"),
    "a project's own class": (BEGIN + OWN_TRAINER, "your-code", "a class of the project"),
}
NOT_KNOWN = {
    "NCCL": (f"{NCCL}RuntimeError: NCCL error: unhandled system error\n", "nccl-error"),
    "a build": (f"FAILED: cpu_adam.o\n{NINJA}", "extension-build-failed"),
}


@pytest.mark.parametrize(("log", "component", "words"), CASES.values(), ids=CASES)
def test_the_reason_that_a_log_states_comes_first(first_match, log, component, words):
    first = first_match(log)
    assert (first["component"], words in first["title"]) == (component, True), first["title"]


@pytest.mark.parametrize(("log", "incident"), NOT_KNOWN.values(), ids=NOT_KNOWN)
def test_without_a_reason_none_is_claimed(first_match, log, incident):
    first = first_match(log)
    assert (first["incident"], first["certainty"]) == (incident, "likely")


def test_a_compilers_message_without_a_class_is_only_likely(first_match):
    first = first_match(f'a.cuh(18): error: identifier "stderr" is undefined\n{NINJA}')
    assert (first["incident"], first["certainty"]) == ("compiler-error", "likely")


def test_an_amd_gpu_is_not_answered_with_cudas_remedies(first_match):
    log = "torch==2.4.1+rocm6.1\nCUDA Setup failed despite GPU being available. Please run the following command\n"
    first = first_match(log)
    assert first["component"] == "bitsandbytes"
    assert "for the same ROCm" in first["fix"][0]["note"]
    assert not [fix["note"] for fix in first["fix"][1:] if "CUDA" in fix["note"]]
