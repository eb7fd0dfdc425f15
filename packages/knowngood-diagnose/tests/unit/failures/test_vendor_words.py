"""What schedulers, the kernel, drivers and container engines say, in their own words; and warnings of a healthy run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Answer = Callable[[str], dict[str, Any]]


@pytest.mark.parametrize(
    ("log", "incident", "component"),
    [
        (
            "slurmstepd: error: Step 4411.0 exceeded memory limit (33612 > 32768), being killed",
            "host-memory-out",
            "host-memory",
        ),
        (
            "slurmstepd: error: Detected 3 oom-kill event(s) in StepId=88.batch. Some of the step tasks ended.",
            "host-memory-out",
            "host-memory",
        ),
        ("srun: error: node17: tasks 0-3: Out Of Memory", "host-memory-out", "host-memory"),
        ("[8812.1] pt_main_thread invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL)", "host-memory-out", "host-memory"),
        ("./go.sh: line 3: 911 Killed  python sft.py\nrun ended. exit code: 137", "host-memory-out", "host-memory"),
        ("    State:  Terminated\n      Reason:       OOMKilled\n", "host-memory-out", "host-memory"),
        ("sbatch: error: Invalid generic resource (gres) specification", "slurm-request-refused", "container"),
        (
            "srun: error: Unable to allocate resources: Requested node configuration is not available",
            "slurm-request-refused",
            "container",
        ),
        (
            "srun: fatal: SLURM_MEM_PER_CPU, SLURM_MEM_PER_GPU, and SLURM_MEM_PER_NODE are mutually exclusive.",
            "slurm-request-refused",
            "container",
        ),
        ("[9.1] NVRM: GPU at PCI:0000:41:00: GPU has fallen off the bus.", "gpu-xid", "driver"),
        ("[9.1] NVRM: GPU 0000:41:00.0: RmInitAdapter failed! (0x62:0xffff:2477)", "gpu-xid", "driver"),
        (
            "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service",
            "nvidia-module-not-loaded",
            "driver",
        ),
        ("root@box:/# nvidia-smi\nNo devices were found", "gpu-not-usable", "container"),
        (
            "nvidia-container-cli: requirement error: unsatisfied condition: brand = quadro",
            "driver-too-old-for-image",
            "driver",
        ),
        (
            'level=error msg="exec: \\"nvidia-container-cli\\": executable file not found in $PATH"',
            "docker-without-gpu-runtime",
            "container",
        ),
        (
            "E0000 cuda_dnn.cc:454] Loaded runtime CuDNN library: 9.1.0 but source was compiled with: 9.3.0.",
            "nvidia-library-other",
            "cuda",
        ),
        (
            "Successfully installed ms-swift-1.6.0.dev0\n[root@host]# swift\n-bash: swift: command not found",
            "command-not-on-path",
            "python",
        ),
        ("srun: command not found", "command-not-on-path", "container"),
        ("run.sh: line 3: fancytool: command not found", "command-not-found", "container"),
        ("RuntimeError: NCCL error in: /src/ProcessGroupNCCL.cpp:31, invalid argument", "nccl-error", "nccl"),
    ],
)
def test_vendors_words_are_known(answer: Answer, log: str, incident: str, component: str) -> None:
    """A line that a vendor's program prints names its cause without a traceback."""
    first = answer(log + "\n")["matches"][0]
    assert (first["incident"], first["component"]) == (incident, component)


def test_time_limit_is_not_a_refused_request_too(answer: Answer) -> None:
    """A refusal that another known failure explains has one answer."""
    found = answer("sbatch: error: Batch job submission failed: Requested time limit is invalid (exceeds some limit)\n")
    assert [match["incident"] for match in found["matches"]] == ["job-time-limit"]


CLASH = (
    "Could not load library libcudnn_ops_train.so.8. Error: /opt/cudnn/libcudnn_ops_train.so.8: symbol _ZN5cudnn3opsE,"
    " version libcudnn_ops_infer.so.8 not defined in file libcudnn_ops_infer.so.8 with link time reference\n"
)


def test_two_cudnn_are_the_cause_and_no_warning(answer: Answer) -> None:
    """The loader's line of a missing symbol is the failure, whatever torch says of it afterwards."""
    found = answer(f"{CLASH}RuntimeError: GET was unable to find an engine to execute this computation\n")
    assert found["matches"][0]["incident"] == "nvidia-library-other"
    assert "nvidia-library-own-number" not in [match["incident"] for match in found["matches"]]


ERRNO_97 = (
    "[W socket.cpp:663] [c10d] The client socket has failed to connect to [n1.local]:29400 "
    "(errno: 97 - Address family not supported by protocol).\n"
)


@pytest.mark.parametrize(
    "steps",
    [
        "step 8 | loss: 1.93\n",
        "step 8: loss train (mean): 1.93, val: None\n",
        "iter: 8  total_loss: 9.21  loss_x: 1.2\n",
    ],
)
def test_first_try_by_ipv6_is_no_failure(answer: Answer, steps: str) -> None:
    """Torch's warning of a machine without IPv6 does not alarm, and trainers' own words for a loss are health."""
    found = answer(f"{ERRNO_97}n1: NCCL INFO NET/Plugin : no libnccl-net.so: cannot open shared object file\n{steps}")
    assert found["outcome"] == "no-failure"
    assert not [match for match in found["matches"] if match["severity"] != "harmless"]


def test_refused_connection_behind_that_warning_still_alarms(answer: Answer) -> None:
    """A rendezvous that does fail is told, although its first line is the harmless one."""
    end = "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms\n"
    assert answer(f"{ERRNO_97}{end}")["matches"][0]["incident"] == "distributed-rendezvous-timeout"


def test_reserved_beyond_the_gpu_is_no_proof_of_pieces(answer: Answer) -> None:
    """Windows lends memory: what is reserved beyond the card's total is not called fragmentation."""
    log = (
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 8.00 GiB total capacity; "
        "7.50 GiB already allocated; 0 bytes free; 14.10 GiB reserved in total by PyTorch)\n"
    )
    assert "pieces" not in answer(log)["matches"][0]["title"]


def test_one_tensor_of_the_whole_gpu_is_said(answer: Answer) -> None:
    """A tensor that an empty card could not hold beside CUDA itself is the cause, whoever holds the rest."""
    log = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 23.30 GiB. GPU 0 has a total capacity of 23.64 "
        "GiB of which 3.10 GiB is free. Of the allocated memory 19.01 GiB is allocated by PyTorch, and 50.10 MiB is "
        "reserved by PyTorch but unallocated.\n"
    )
    assert answer(log)["matches"][0]["title"].startswith("A single tensor of 23.3 GiB")


def test_commands_have_the_compiler_of_the_message(answer: Answer) -> None:
    """The number in the commands is the log's, not an example's."""
    log = "/x/h.h:139:2: error: #error -- unsupported GNU version! gcc versions later than 13 are not supported!\n"
    notes = " ".join(fix["note"] for fix in answer(log)["matches"][0]["fix"])
    assert "g++-13" in notes
    assert "g++-12" not in notes


@pytest.mark.parametrize(("name", "is_extension"), [("deform_conv_cuda", True), ("use_cuda", False)])
def test_name_of_an_extension_that_was_not_built(answer: Answer, name: str, is_extension: bool) -> None:
    """The compiled module of a project is told by its name from a switch of the program."""
    matches = answer(f"NameError: name '{name}' is not defined\n")["matches"]
    assert [match["component"] for match in matches] == ["extension"] * is_extension


def test_stubs_are_not_offered(answer: Answer) -> None:
    """Of pip's list, releases of an older first number do not serve in place of the one that is asked for."""
    log = "ERROR: Could not find a version that satisfies the requirement torch==1.7.1.post3 (from versions: 0.1.2)\n"
    first = answer(f"{log}ERROR: No matching distribution found for torch==1.7.1.post3\n")["matches"][0]
    assert not [fix for fix in first["fix"] if "0.1.2" in fix["note"]]


@pytest.mark.parametrize(
    "line", ["Could not find a version that satisfies the requirement", "No matching distribution found for"]
)
def test_builds_of_a_cuda_are_on_torchs_index(answer: Answer, line: str) -> None:
    """The suffix of the version says where the wheel is, with or without pip's list of what there is."""
    first = answer(f"ERROR: {line} torchvision==0.19.1+cu121\n")["matches"][0]
    assert first["title"] == "torchvision 0.19.1+cu121 is on torch's own index only"


def test_unread_releases_are_no_command(answer: Answer) -> None:
    """Where a third package asks for what is gone, its newer release helps; what was not read is only named."""
    log = (
        "Successfully installed torch-1.9.0 oldtrainer-0.3\n"
        'Traceback (most recent call last):\n  File "/x/site-packages/oldtrainer/loop.py", line 4, in <module>\n'
        "    from torch.optim.lr_scheduler import SAVE_STATE_WARNING\n"
        "ImportError: cannot import name 'SAVE_STATE_WARNING' from 'torch.optim.lr_scheduler'\n"
    )
    first = answer(log)["matches"][0]
    assert first["fix"][0]["note"].startswith("A newer oldtrainer")
    assert not [fix for fix in first["fix"] if fix.get("change")]
    assert "nor has 1.9.0" in first["title"]
    assert "torch before 1.9.0" in first["fix"][1]["note"]
