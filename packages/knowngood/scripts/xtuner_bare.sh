#!/usr/bin/env bash
# Run XTuner 0.1.23 over flash-attn on a machine with a GPU and no network, with the machine's torch 2.11.0.
#
#   packages/knowngood/scripts/xtuner_bare.sh pack OUT                  here: the environment, flash-attn and the predictions, in OUT
#   packages/knowngood/scripts/xtuner_bare.sh run IN EVIDENCE           there: from the root of a checkout, on the GPU of CUDA_VISIBLE_DEVICES
#
# XTuner's metadata ends at Python 3.10 and flash-attn's wheel begins at 3.11, so no cell has both; uv ignores upper bounds. Releases
# are those that go with numpy 1, which transformers 4.42 wants. What only its chat and its notebooks need is left out.
set -euo pipefail
CELL=sm90-cu130-torch2.11.0-tf4.42.4-fa2.8.3.post2-triton3.6.0-py312-xtuner0.1.23
PLATFORM=(--python-version 3.12 --python-platform x86_64-manylinux_2_28)
WHEELS=../shared/wheels
LEFT_OUT='^(torch|torchvision|triton|nvidia-.*|cuda-.*|jupyter.*|notebook.*|ipy.*|nb.*|streamlit|lagent|altair|pydeck|debugpy|arxiv|duckduckgo-search|griffe|opencv-python)=='

pack() {
    local work=$1/work
    mkdir -p "$work"
    printf '%s\n' 'xtuner==0.1.23' 'transformers==4.42.4' 'peft<0.14' opencv-python-headless 'numpy<2' 'torch==2.11.0' 'setuptools<82' \
        'pyarrow<20' 'pandas<2.3' 'scipy<1.15' 'scikit-image<0.25' 'datasets<4' \
        py-cpuinfo hjson ninja nvidia-ml-py pydantic msgpack psutil pytest >"$work/wanted.txt"
    uv pip compile -q "${PLATFORM[@]}" "$work/wanted.txt" -o "$work/all.txt"
    grep -E '^[a-z]' "$work/all.txt" | grep -Ev "$LEFT_OUT" >"$work/pins.txt"
    DS_BUILD_OPS=0 python -m pip wheel -q --no-deps --no-build-isolation -w "$work" deepspeed==0.16.2
    uv pip install -q "${PLATFORM[@]}" --no-deps --target "$work/xtuner" -r "$work/pins.txt" "$work"/deepspeed-*.whl
    find "$work/xtuner" \( -name tests -o -name __pycache__ \) -type d -prune -exec rm -rf {} +
    tar -C "$work" -cf - xtuner | zstd -q -T0 -12 --long=27 -f -o "$1/xtuner.tar.zst"
    cp "$WHEELS"/flash_attn-*.tar.xz "$WHEELS/unpack.py" "$1"
    python packages/knowngood/scripts/predictions.py "$CELL" >"$1/predictions.json"
    rm -rf "$work"
}

run() {
    local place
    place=$(mktemp -d)
    zstd -dc --long=27 "$1/xtuner.tar.zst" | tar -C "$place" -xf -
    python3 "$1/unpack.py" cp312 --site "$place/flash"
    HF_HUB_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=packages/knowngood/src:${PYTHONPATH:-} \
        python3 packages/knowngood/scripts/h200.py "$2" "$1/predictions.json" 300 "quick:$CELL=$place/xtuner:$place/flash"
}

"$@"
