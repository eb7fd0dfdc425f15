#!/usr/bin/env bash
# Run the model suite and the suite of several processes on a machine with two GPUs and no network, in bare environments.
#
#   packages/knowngood/scripts/gpu_bare.sh unpack FOLDER          FOLDER/*.tar.xz (see below) and flash-attn's archive with its unpack.py
#   packages/knowngood/scripts/gpu_bare.sh warm SECONDS           compile all families' kernels at once, as no run may: nothing is kept
#   packages/knowngood/scripts/gpu_bare.sh models OUT SECONDS     every family with every release, half of them on each GPU
#   packages/knowngood/scripts/gpu_bare.sh processes OUT SECONDS  training over two processes, with NCCL
#
# An environment is the machine's Python with folders first on its path. They are made where there is an index:
#   uv pip install --python-version 3.12 --python-platform x86_64-manylinux_2_28 --target tf5.23.0 transformers==5.23.0
# (without numpy; likewise tf4.57.6; fa4 with flash-attn-4 and the DSL; ds with deepspeed), and packed in parts that fit
# a transfer. They are unpacked outside of the checkout, whose ignored folders the next transfer may remove.
set -u
HOME_OF_ALL=/tmp/knowngood-gpu
ROOT=$PWD ENVS=$HOME_OF_ALL/envs CACHE=$HOME_OF_ALL/cache
export HF_HUB_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1 FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED=1
export FLASH_ATTENTION_CUTE_DSL_CACHE_DIR=$CACHE/fa4 TORCHINDUCTOR_CACHE_DIR=$CACHE/inductor TRITON_CACHE_DIR=$CACHE/triton
KERNELS=$ENVS/fa2:$ENVS/fa4:$ENVS/fa4/nvidia_cutlass_dsl/dsl_packages:$ENVS/ds  # ds has pydantic too, which knowngood imports
RELEASES="5.17.0=$KERNELS 5.23.0=$ENVS/tf5.23.0:$KERNELS 4.57.6=$ENVS/tf4.57.6:$KERNELS"
FIRST="gemma2 qwen2-vl qwen3-next gpt-oss mistral qwen3-moe granite"
SECOND="deepseek-v3 gemma3 olmo2 phi3 llama qwen3 qwen2"

unpack() {
    mkdir -p "$ENVS/fa2"
    local archive
    for archive in "$1"/env*.tar.xz; do tar -C "$ENVS" -xJf "$archive"; done
    for archive in "$1"/*.partaa; do cat "${archive%aa}"?? | tar -C "$ENVS" -xJf -; done
    python3 "$1/unpack.py" cp312 --site "$ENVS/fa2"
    cp -r "$ENVS/fa4/flash_attn/cute" "$ENVS/fa2/flash_attn/"  # both packages install this folder; FlashAttention 4's is wanted
}

warm() {
    local number=0 release family
    for release in $RELEASES; do
        for family in $FIRST $SECOND; do
            number=$((number + 1))
            CUDA_VISIBLE_DEVICES=$((number % 2)) PYTHONPATH=$ROOT/smoke_tests:${release#*=} timeout "$1" python3 -m model_tests \
                --family "$family" --quick --setting flex --setting fa4 --dtype bf16 >/dev/null 2>&1 &
        done
    done
    wait
    for number in 0 1; do  # a run refuses to begin beside another process
        until CUDA_VISIBLE_DEVICES=$number python3 -c "import sys; from smoke_tests import nvml; sys.exit(bool(nvml.processes()))"; do
            sleep 1
        done
    done
}

on_gpu() {  # GPU OUT SECONDS FAMILY...: family by family, so that releases share what was compiled
    local gpu=$1 out=$2 end=$((SECONDS + $3)) family
    for family in "${@:4}"; do
        # shellcheck disable=SC2086 - every release is an argument
        CUDA_VISIBLE_DEVICES=$gpu PYTHONPATH=$ROOT/packages/knowngood/src:$ENVS/ds python3 packages/knowngood/scripts/gpu_models.py quick "$out" $((end - SECONDS)) "$family" $RELEASES
    done
}

models() {
    # shellcheck disable=SC2086 - every family is an argument
    on_gpu 0 "$1" "$2" $FIRST &
    # shellcheck disable=SC2086
    on_gpu 1 "$1" "$2" $SECOND &
    wait
}

processes() {
    PYTHONPATH=$ROOT/packages/knowngood/src:$KERNELS python3 - "$1" "$2" <<'PROGRAM'
import os, sys
from pathlib import Path
from knowngood.core.cell import parse_cell
from knowngood.evidence import run_evidence
from knowngood.smoke import suite_command, suite_run

out, seconds = sys.argv[1:]
os.environ["PYTHONPATH"] = os.environ["PYTHONPATH"].partition("/packages/knowngood/src:")[2]
cell = parse_cell("sm90-cu130-torch2.11.0-tf5.17.0-fa4.0.0b33-triton3.6.0-py312")
options = suite_command.SuiteOptions(gpus=True, seconds=int(seconds))
suite, log = Path("smoke_tests/parallel_tests").resolve(), Path(out, "processes.log")
run = suite_run.run_processes_in_environment(cell, suite, options, processes=2, log=log, notify=print)
print(run_evidence.store_evidence(run, Path(out)), run.report["seconds"], run.report["verdict"])
PROGRAM
}

"$@"
