"""Start the engine with GPUs on a machine that has neither an engine, NVIDIA's toolkit nor a network. Needs root.

    python3 gpu_images.py FOLDER         start the engine of FOLDER/bin, with the GPUs through CDI

After it, `carry_image.py load` loads images, and `knowngood smoke run --gpus` uses them,
with DOCKER_HOST set to `HOST`. The engine keeps no manifests (the classic store), so an image's id is the digest of its
configuration. The CDI description of the GPUs has what `nvidia-ctk cdi generate` writes on a machine with NVIDIA's
toolkit: device nodes, the driver's libraries, and a hook that runs ldconfig in the container.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

HOST = "unix:///run/knowngood-gpu.sock"
LIBRARIES = Path("/usr/local/nvidia/lib64")
WANTED = ("libcuda.so", "libnvidia-ml.so", "libnvidia-ptxjitcompiler.so", "libnvidia-nvvm.so", "libnvidia-gpucomp.so")
MULTICAST = ("NCCL_NVLS_ENABLE", "TORCH_SYMM_MEM_DISABLE_MULTICAST", "NVSHMEM_DISABLE_NVLS")
"""What this machine sets to keep NVLink multicast off has to hold in the containers too."""
IN_CONTAINER = "/usr/lib/x86_64-linux-gnu"
HOOK = """\
#!/usr/bin/env python3
import json, pathlib, subprocess, sys
bundle = pathlib.Path(json.load(sys.stdin)["bundle"])
root = bundle / json.loads((bundle / "config.json").read_text())["root"]["path"]
subprocess.run(["ldconfig", "-r", str(root)], check=True)
"""


def description(hook: Path) -> dict[str, object]:
    """Return the CDI description of this machine's GPUs."""
    gpus = sorted(path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*"))
    files = [path for name in WANTED for path in LIBRARIES.glob(f"{name}.[0-9]*.[0-9]*") if not path.is_symlink()]
    options = ["ro", "nosuid", "nodev", "bind"]
    mounts = [
        {"hostPath": str(path), "containerPath": f"{IN_CONTAINER}/{path.name}", "options": options} for path in files
    ]
    common = [{"path": path} for path in ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")]

    def device(name: str, numbers: list[str]) -> dict[str, object]:
        return {"name": name, "containerEdits": {"deviceNodes": [{"path": f"/dev/nvidia{one}"} for one in numbers]}}

    return {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [*(device(gpu, [gpu]) for gpu in gpus), device("all", gpus)],
        "containerEdits": {
            "deviceNodes": common,
            "mounts": mounts,
            "hooks": [{"hookName": "createContainer", "path": str(hook), "args": [hook.name]}],
            "env": [
                "NVIDIA_VISIBLE_DEVICES=void",
                *(f"{key}={os.environ[key]}" for key in MULTICAST if key in os.environ),
            ],
        },
    }


def up(folder: str) -> None:
    """Write the CDI description, start the engine and wait until its socket exists."""
    hook = Path("/usr/local/bin/knowngood-ldconfig")
    hook.write_text(HOOK)
    hook.chmod(0o755)
    specs = Path("/etc/cdi")
    specs.mkdir(parents=True, exist_ok=True)
    (specs / "nvidia.json").write_text(json.dumps(description(hook), indent=1))
    place = Path(folder).resolve()
    config = {
        "hosts": [HOST],
        "features": {"cdi": True},
        "data-root": "/var/lib/knowngood-gpu",
        "exec-opts": ["native.cgroupdriver=cgroupfs"],
        "bridge": "none",
        "iptables": False,
        "ip6tables": False,
        "ip-forward": False,
        "userland-proxy": False,
        "storage-driver": "overlay2",
    }
    (place / "daemon.json").write_text(json.dumps(config))
    environment = os.environ | {"PATH": f"{place}/bin:{os.environ['PATH']}"}
    with (place / "log").open("wb") as log:
        subprocess.Popen(
            [str(place / "bin/dockerd"), "--config-file", str(place / "daemon.json")],
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    for _ in range(100):
        if Path(HOST.removeprefix("unix://")).exists():
            return
        time.sleep(0.2)
    sys.exit((place / "log").read_text()[-3000:])


if __name__ == "__main__":
    up(*sys.argv[1:])
