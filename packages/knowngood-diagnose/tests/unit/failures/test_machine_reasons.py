"""Failures of builds, GPUs and ranks whose reason stands in the log's own numbers and words."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest

from knowngood.cli.main import main
from knowngood_diagnose.failures.machines import library_errors
from knowngood_facts.facts.package_metadata import read_package_metadata

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate "
OTHERS = (
    f"{OOM}20.00 MiB. GPU 0 has a total capacity of 23.64 GiB of which 12.81 MiB is free. Process 12345 has 20.10 GiB"
    " memory in use. Of the allocated memory 3.01 GiB is allocated by PyTorch, and 50.10 MiB is reserved by PyTorch but"
    " unallocated.\n"
)
PIECES = (
    f"{OOM}1.16 GiB. GPU 0 has a total capacity of 79.10 GiB of which 900.00 MiB is free. Including non-PyTorch memory,"
    " this process has 78.20 GiB memory in use. Of the allocated memory 60.10 GiB is allocated by PyTorch, and 16.10"
    " GiB is reserved by PyTorch but unallocated.\n"
)
FULL = " (GPU 0; 79.20 GiB total capacity; 78.30 GiB already allocated; 30.31 MiB free; 78.31 GiB reserved in total"
LOADING = (
    "Traceback (most recent call last):\n"
    '  File "/x/loader.py", line 102, in load\n    model = AutoModelForCausalLM.from_pretrained(\n'
    '  File "/x/site-packages/transformers/modeling_utils.py", line 2903, in from_pretrained\n'
    "    ) = cls._load_pretrained_model(\n"
    f"torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 448.00 MiB{FULL} by PyTorch)\n"
)
EVALUATION = (
    "Traceback (most recent call last):\n"
    '  File "/x/site-packages/transformers/trainer.py", line 3300, in evaluation_loop\n    x = nested_concat(a, b)\n'
    '  File "/x/site-packages/transformers/trainer_pt_utils.py", line 81, in torch_pad_and_concatenate\n'
    "    result = tensor1.new_full(new_shape, padding_index)\n"
    f"torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.30 GiB{FULL} by PyTorch)\n"
)
LOGITS = (
    "Traceback (most recent call last):\n"
    '  File "/x/site-packages/transformers/models/qwen2/modeling_qwen2.py", line 900, in forward\n'
    "    logits = logits.float()\n"
    f"torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.64 GiB{FULL} by PyTorch)\n"
)
WAIT = (
    "[rank{0}]:[E419 10:42:28 ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=4486, OpType={1}, NumelIn={2}, NumelOut={2}, Timeout(ms)=600000) ran for 600013 milliseconds "
    "before timing out.\n"
)
DIFFERENT = WAIT.format(0, "ALLREDUCE", 46684160) + WAIT.format(1, "_ALLGATHER_BASE", 1024)
BARRIER = WAIT.format(0, "BROADCAST", 1) + WAIT.format(1, "BROADCAST", 1)
TOKENIZING = "Running tokenizer on dataset:  12%|#| 12/100\n" + WAIT.format(1, "ALLREDUCE", 1)
MISSING = "world_size: 3\n" + WAIT.format(0, "ALLREDUCE", 999) + WAIT.format(1, "ALLREDUCE", 999)
BRIDGE = (
    "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:275, unhandled system error (run with NCCL_DEBUG"
    "=INFO for details), NCCL version 2.20.5\nncclSystemError: System call (e.g. socket, malloc) or external library "
    "call failed or device error.\nLast error:\nsocketStartConnect: Connect to 172.17.0.12<38007> failed : Software "
    "caused connection abort\n"
)
TWICE = "node:18569:18835 [0] bootstrap.cc:131 NCCL WARN Bootstrap Root : rank 1 of 8 ranks has already checked in\n"
RETURNED = (
    "g105:26921:27058 [0] NCCL INFO misc/socket.cc:505 -> 2 (Operation now in progress)\n"
    "g105:26921:27058 [0] NCCL INFO bootstrap.cc:275 -> 2\ng105:26921:27058 [0] NCCL INFO init.cc:1493 -> 2\n"
)
PIP = (
    "ERROR: Cannot install vllm-mlx and vllm-mlx==0.2.3 because these package versions have conflicting dependencies."
    "\n\nThe conflict is caused by:\n    vllm-mlx 0.2.3 depends on mlx-lm>=0.30.2\n"
    "    mlx-audio 0.2.10 depends on mlx-lm<0.30.0 and >=0.18.0\n\nERROR: ResolutionImpossible: for help visit x\n"
)
LISTED = (
    "ERROR: Cannot install -r requirements.txt (line 12) and torch==2.4.0 because these package versions have "
    "conflicting dependencies.\n\nThe conflict is caused by:\n    The user requested torch==2.4.0\n"
    "    xformers 0.0.28.post1 depends on torch==2.4.1\n\nERROR: ResolutionImpossible: for help visit x\n"
)
NOTHING = (
    "The conflict is caused by:\n    unsloth-zoo 2024.12.1 depends on cut_cross_entropy\n"
    "    unsloth-zoo 2024.11.8 depends on cut_cross_entropy\n\nERROR: ResolutionImpossible: for help visit x\n"
)
UV = (
    "  × No solution found when resolving dependencies:\n"  # noqa: RUF001 - uv's own sign
    "  ╰─▶ Because vllm==0.8.5 depends on transformers>=4.51.1 and your project depends on transformers==4.49.0, we\n"
    "      can conclude that your project and vllm==0.8.5 are incompatible.\n"
)
UV_NIGHTLY = (
    "No solution found when resolving dependencies:\n  Because there is no version of xformers{sys_platform ==\n"
    "  'linux'}==0.0.33+5d4b92a5.d20251029 and vllm==0.11.1 depends on xformers==0.0.33+5d4b92a5.d20251029, we can\n"
    "  conclude that vllm==0.11.1 cannot be used.\n"
)
UV_WHEEL = (
    "No solution found when resolving dependencies:\n  Because torch==2.1.0 has no wheels with a matching Python ABI "
    "tag (e.g., `cp312`) and you require torch==2.1.0, we can conclude that your requirements are unsatisfiable.\n"
)
VERSIONS = (
    "ERROR: Could not find a version that satisfies the requirement triton==2.0.0 (from torch) (from versions: 3.0.0, "
    "3.1.0)\nERROR: No matching distribution found for triton==2.0.0\n"
)
PYTHON = (
    "ERROR: Ignored the following versions that require a different python version: 0.9.0 Requires-Python >=3.9\n"
    "ERROR: Could not find a version that satisfies the requirement vllm==0.9.0 (from versions: 0.1.0, 0.2.0)\n"
    "ERROR: No matching distribution found for vllm==0.9.0\n"
)
LINK = (
    "/usr/bin/ld: cannot find -lcurand: No such file or directory\ncollect2: error: ld returned 1 exit status\n"
    "ninja: build stopped: subcommand failed.\nRuntimeError: Error building extension 'cpu_adam'\n"
)
RUNTIME = LINK.replace("-lcurand", "-lcudart")
SYSTEM = LINK.replace("-lcurand", "-laio")
NVCC = (
    "nvcc fatal   : A single input file is required for a non-link phase when an outputfile is specified\n"
    "ninja: build stopped: subcommand failed.\n"
)
INDUCTOR = (
    "Traceback (most recent call last):\ntorch._inductor.exc.InductorError: LoweringException: AttributeError: "
    "'View' object has no attribute 'get_stride'\n  target: aten.mm\n"
)
FLEX = INDUCTOR.replace("aten.mm", "flex_attention")
CL = "torch._inductor.exc.InductorError: RuntimeError: Compiler: cl is not found.\n"
CONSTRUCT = (
    "torch._dynamo.exc.Unsupported: call_function BuiltinVariable(print) [ConstantVariable(str)] {}\n\n"
    'from user code:\n   File "/x/model.py", line 53, in forward\n    print(x)\n'
)
KERNEL = (
    '  File "/x/triton/runtime/jit.py", line 739, in run\n    kernel = self._do_compile(key)\n'
    '  File "/x/triton/backends/nvidia/compiler.py", line 549, in make_ttgir\n    pm.run(mod)\n'
    "RuntimeError: PassManager::run failed\n"
)
NO_CODE = (
    "Traceback (most recent call last):\n"
    '  File "/x/site-packages/mamba_ssm/ops/selective_scan_interface.py", line 181, in forward\n'
    "    conv1d_out = causal_conv1d_cuda.causal_conv1d_fwd(x, weight, bias, True)\n"
    "RuntimeError: CUDA error: no kernel image is available for execution on the device\n"
)
FABRIC = (
    "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling "
    "NumCudaDevices() that might have already set an error? Error 802: system not yet initialized\n"
)
COMPAT = FABRIC.replace(
    "802: system not yet initialized", "804: forward compatibility was attempted on non supported HW"
)
REFUSED = (
    "UserWarning: Flash attention kernel not used because: (Triggered internally at sdp_utils.cpp:773.)\n"
    "UserWarning: Flash Attention does not support non-null attn_mask. (Triggered internally at sdp_utils.cpp:98.)\n"
    "RuntimeError: No available kernel. Aborting execution.\n"
)
CLASH = (
    "OSError: /x/site-packages/torch/lib/../../nvidia/cublas/lib/libcublas.so.11: symbol cublasLtGetStatusString "
    "version libcublasLt.so.11 not defined in file libcublasLt.so.11 with link time reference\n"
)
CRASH = (
    "[host:00956] *** Process received signal ***\n[host:00956] Signal: Segmentation fault (11)\n"
    "[host:00956] [ 0] /usr/lib/x86_64-linux-gnu/libc.so.6(+0x45330)[0x7d1d0c3eb330]\n"
    "[host:00956] [ 4] /usr/local/nccl/lib/libnccl.so.2(+0xbd72c)[0x7d1d0c8f372c]\n"
)
BACKENDS = (
    "DEBUG:DotProductAttention:Disabling FlashAttention 2 as it does not support MLA.\n"
    "ValueError: No dot product attention backend is available for the provided inputs.\n"
)
BACKWARD = (
    "Traceback (most recent call last):\n"
    '  File "/x/site-packages/torch/autograd/graph.py", line 823, in _engine_run_backward\n    return run_backward(\n'
    f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 224.00 MiB{FULL} by PyTorch)\n"
)
KILLED = (
    "nvcc -c flash_bwd_hdim128_bf16_sm80.cu -o x.o\nKilled\nninja: build stopped: subcommand failed.\n"
    "RuntimeError: Error compiling objects for extension\n"
)
SYSROOT = LINK.replace(
    "cannot find -lcurand: No such file or directory", "x.so: undefined reference to `log2f@GLIBC_2.27'"
)
SOURCES = (
    "Collecting sentencepiece==0.2.0\n  Downloading sentencepiece-0.2.0.tar.gz (2.6 MB)\n      creating "
    "build/lib.macosx-11.0-arm64-cpython-313/sentencepiece\n  ERROR: Failed building wheel for sentencepiece\n"
)
BUILT_FOR = (
    "WARNING[XFORMERS]: xFormers can't load C++/CUDA extensions. xFormers was built for:\n"
    "    PyTorch 2.6.0+cu124 with CUDA 1204 (you have 2.6.0+cpu)\n    Python  3.10.11 (you have 3.10.11)\n"
    "NotImplementedError: No operator found for this attention\n"
)
HOPPER = "CUDA error (/x/flash-attention/hopper/flash_fwd_launch_template.h:188): invalid argument\n"
WITHOUT_TORCH = "FileNotFoundError: Could not find shared object file for Transformer Engine torch lib.\n"
DRIVER_FILE = (
    "Could not load library libcudnn_cnn_infer.so.8. Error: libcuda.so: cannot open shared object file: No such file or"
    " directory\n"
)
BARE_CLASS = "{'loss': 2.0, 'epoch': 0.08}\nTraining ended in torch.cuda.OutOfMemoryError even with 4 GPUs\n"
EMBEDDED = (
    "C:/Temp/cuda_utils.c:14: error: include file 'Python.h' not found\nFailed to compile. cc_cmd: ['D:\\\\tcc.exe', "
    "'cuda_utils.c', '-o', 'cuda_utils.cp310-win_amd64.pyd', '-lcuda', '-lpython3'\n"
)
MAC = (
    'warn("The installed version of bitsandbytes was compiled without GPU support. "\n'
    "'NoneType' object has no attribute 'cadam32bit_grad_fp32'\n"
    "/Users/u/venv/lib/python3.10/site-packages/bitsandbytes/libbitsandbytes_cuda122.so\n"
)
ARCHITECTURE = "nvcc fatal : Unsupported gpu architechture 'compute_89'\n"
CACHE_SIZE = (
    "ERROR worker_base.py:157] Error executing method initialize_cache. This might cause deadlock.\n"
    "ERROR worker_base.py:157]     raise_if_cache_size_invalid(num_gpu_blocks,\n"
)
STANDARD = (
    "/x/site-packages/torch/include/ATen/ATen.h:4:2: error: #error C++17 or later compatible compiler is required to "
    f"use ATen.\n{LINK.partition(chr(10))[2]}"
)
ONE_GPU = (
    "$ vllm serve /path/to/model --data-parallel-size 2\n"
    "myhost:1:1 [0] init.cc:943 NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 53000\n"
)
CACHED = (
    "INFO Automatically detected platform cuda.\nUsing the latest cached version of the dataset since a/b couldn't be "
    "found on the Hugging Face Hub\n"
)
CASES = {
    "TransformerEngine without torch": (WITHOUT_TORCH, "transformer-engine", "without its extension for torch"),
    "the driver's library": (DRIVER_FILE, "driver", "driver's library libcuda.so"),
    "the class of a full GPU": (BARE_CLASS, "gpu-memory", "not enough memory"),
    "an embedded Python": (EMBEDDED, "python", "Python.h is missing"),
    "a Mac": (MAC, "bitsandbytes", "This is a Mac"),
    "an nvcc that is too old": (ARCHITECTURE, "cuda", "does not know this GPU"),
    "no room for the cache": (CACHE_SIZE, "gpu-memory", "cache of keys and values"),
    "an older C++": (STANDARD, "compiler", "C++17 or later"),
    "the backward pass": (BACKWARD, "gpu-memory", "backward pass"),
    "a compiler that was killed": (KILLED, "host-memory", "killed while it built"),
    "an older sysroot": (SYSROOT, "glibc", "GLIBC_2.27"),
    "a release without a wheel": (SOURCES, "sentencepiece", "0.2.0 has no wheel for Python 3.13 and macOS"),
    "xformers of another torch": (BUILT_FOR, "torch", "built for torch 2.6.0+cu124, and 2.6.0+cpu is installed"),
    "other processes hold the GPU": (OTHERS, "gpu-memory", "Other processes hold about 19.6 GiB"),
    "memory in pieces": (PIECES, "gpu-memory", "in pieces"),
    "weights that do not fit": (LOADING, "gpu-memory", "weights alone"),
    "an evaluation": (EVALUATION, "gpu-memory", "evaluation"),
    "logits": (LOGITS, "gpu-memory", "logits"),
    "ranks in different operations": (DIFFERENT, "nccl", "different operations: rank 0 in ALLREDUCE"),
    "a barrier": (BARRIER, "nccl", "at a barrier or for a single number"),
    "a rank that tokenizes": (TOKENIZING, "nccl", "still preparing the data"),
    "a rank that is missing": (MISSING, "nccl", "Rank 2 did not take part"),
    "an address of Docker's bridge": (BRIDGE, "nccl", "cannot connect to another rank at 172.17.0.12"),
    "a rank twice": (TWICE, "your-code", "call themselves rank 1 of 8"),
    "calls that NCCL returned from": (RETURNED, "nccl", "returned a system error (Operation now in progress)"),
    "two demands of pip": (PIP, "vllm-mlx", "mlx-audio 0.2.10 wants mlx-lm<0.30.0,>=0.18.0"),
    "a pin in the list": (LISTED, "your-code", "the list wants torch==2.4.0"),
    "a package that is not there": (NOTHING, "cut-cross-entropy", "finds nothing of cut-cross-entropy"),
    "two demands of uv": (UV, "your-code", "vllm==0.8.5 wants transformers>=4.51.1"),
    "a nightly that was deleted": (UV_NIGHTLY, "xformers", "no release of xformers that is ==0.0.33+5d4b92a5"),
    "a wheel for another Python": (UV_WHEEL, "python", "torch==2.1.0 has no wheel for this Python ABI"),
    "a release that is not there": (
        VERSIONS,
        "python",
        "too new for triton==2.0.0: pip offers only newer releases, 3.0.0 to 3.1.0",
    ),
    "a release for another Python": (PYTHON, "python", "vllm==0.9.0 is for another Python (>=3.9)"),
    "a library of the toolkit": (LINK, "cuda", "-lcurand"),
    "the toolkit's runtime": (RUNTIME, "cuda", "-lcudart"),
    "a library of the system": (SYSTEM, "compiler", "-laio"),
    "an option of nvcc": (NVCC, "cuda", "nvcc refuses how it is called"),
    "an error of inductor": (INDUCTOR, "torch", "inside torch's own compiler: AttributeError"),
    "FlexAttention": (FLEX, "torch", "FlexAttention cannot be compiled here"),
    "no compiler on Windows": (CL, "compiler", "no C++ compiler: cl"),
    "code that dynamo cannot follow": (CONSTRUCT, "torch", "cannot follow the code (x/model.py, line 53)"),
    "a pass of Triton": (KERNEL, "triton", "make_ttgir"),
    "another package's kernel": (NO_CODE, "causal-conv1d", "compiled without code for this GPU"),
    "no fabric manager": (FABRIC, "driver", "fabric manager"),
    "a libcuda of the image": (COMPAT, "driver", "804"),
    "why SDPA refused": (REFUSED, "torch", "non-null attn_mask"),
    "two releases of cuBLAS": (CLASH, "torch", "of two releases"),
    "a crash in NCCL": (CRASH, "nccl", "inside of libnccl.so.2"),
}
THREADS = (
    "TaiMingLu/Della-Manual#2",
    "pytorch/pytorch#131781",
    "Lightning-AI/pytorch-lightning#14986",
    "hiyouga/LlamaFactory#8261",
    "waybarrios/vllm-mlx#19",
    "unslothai/unsloth#1136",
    "vllm-project/vllm#28201",
    "hiyouga/LlamaFactory#8309",
    "dhcode-cpp/X-R1#68",
    "OptimalScale/LMFlow#374",
    "SystemPanic/flashinfer-windows#6",
    "meta-pytorch/attention-gym#45",
    "pytorch/pytorch#147756",
    "loscrossos/core_zonos#1",
    "pytorch/pytorch#180908",
    "state-spaces/mamba#40",
    "gpustack/gpustack#1254",
    "NVIDIA/nccl#2380",
    "NVIDIA/TransformerEngine#2285",
    "kohya-ss/musubi-tuner#184",
    "simonw/llm-mlx#7",
    "Dao-AILab/flash-attention#1987",
    "rmihaylov/falcontune#19",
    "hiyouga/LlamaFactory#257",
)
"""The threads whose logs are above, shortened."""


@pytest.mark.parametrize(("log", "component", "words"), CASES.values(), ids=CASES)
def test_the_reason_that_the_log_states_is_named(first_match, log, component, words):
    first = first_match(log)
    assert (first["component"], words in first["title"]) == (component, True), (first["component"], first["title"])


def test_what_transformer_engine_left_out_is_repeated(first_match):
    assert "FlashAttention 2 as it does not support MLA" in first_match(BACKENDS)["because"]


def test_an_engine_is_not_told_of_torchrun(first_match):
    first = first_match(ONE_GPU)
    assert (first["component"], "torchrun" in str(first["fix"]), "(2)" in str(first["fix"])) == ("nccl", False, True)


def test_a_cached_data_set_is_no_trouble(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(CACHED.encode())))
    main(["diagnose", "--json", "-"])
    answer = json.loads(capsys.readouterr().out)
    assert (answer["matches"], answer["last_error"], answer["trouble"]) == ([], None, None)


def test_each_wheel_that_is_named_for_a_library_is_one_that_torch_or_a_layer_installs():
    metadata = read_package_metadata("torch")
    assert metadata is not None
    required = " ".join(str(item) for release in metadata.releases.values() for item in release.requirements)
    layers = Path(__file__).parents[5] / "docker" / "layers"
    known = set(re.findall(r"nvidia-[a-z0-9-]+", required))
    known |= {name for path in layers.rglob("requirements.txt") for name in _nvidia_wheels(path)}
    named = {name for _, names in library_errors._WHEELS for name in re.findall(r"nvidia-[a-z0-9-]+", names)}
    assert named
    assert named - known == set()


def _nvidia_wheels(path: Path) -> list[str]:
    return re.findall(r"nvidia-[a-z0-9-]+", path.read_text(encoding="utf-8"))


XID = "[ 12.3] NVRM: Xid (PCI:0000:3b:00): {}, pid=2, name=python3\n"


@pytest.mark.parametrize(
    ("log", "component", "words"),
    [
        (XID.format("79"), "driver", "fallen off the bus"),
        (XID.format("31"), "your-code", "A program on the GPU failed"),
        (XID.format("48"), "driver", "memory has errors"),
        (XID.format("99"), "driver", "reports an error of a GPU (Xid)"),
        ("0/3 nodes are available: 3 Insufficient nvidia.com/gpu.\n", "container", "free GPUs"),
        ("RuntimeError: Unexpected error from cudaGetDeviceCount(): Error 803\n", "driver", "of two releases"),
    ],
)
def test_what_a_driver_or_a_scheduler_states_is_read_from_its_table(first_match, log, component, words):
    first = first_match(log)
    assert (first["component"], words in first["title"]) == (component, True), first["title"]
