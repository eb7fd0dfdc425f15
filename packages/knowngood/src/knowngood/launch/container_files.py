"""The container of a cell as a file that Docker Compose or an editor starts: what `run` does, without `run`. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import yaml

from knowngood.launch.container_run import PASSED_VARIABLES, STACK_BYTES, WORK_FOLDER, ContainerRun

if TYPE_CHECKING:
    from knowngood.core.cell import Cell

NOTEBOOK_PORT = 8888
"""The port of Jupyter, as it chooses it by itself."""


def render_compose_file(cell: Cell, run: ContainerRun) -> str:
    """Return a compose.yaml with one service, `train`, which starts the program of `run`.

    Jupyter's port is opened on this machine's loopback only.
    """
    volumes = {"cache": run.cache_volume, "downloads": run.download_volume}
    service: dict[str, Any] = {
        "image": run.image,
        "command": list(run.program),
        "init": True,
        "user": f"{run.user.user}:{run.user.group}",
        "working_dir": WORK_FOLDER,
        "volumes": [
            f".:{WORK_FOLDER}",
            *(f"{name}:{target}" for name, target in zip(volumes, run.volumes.values(), strict=True)),
        ],
        "environment": [*(f"{name}={value}" for name, value in run.environment.items()), *PASSED_VARIABLES],
        "shm_size": run.shared_memory,
        "ulimits": {"memlock": -1, "stack": STACK_BYTES},
        "ports": [f"127.0.0.1:{NOTEBOOK_PORT}:{NOTEBOOK_PORT}"],
        "deploy": {"resources": {"reservations": {"devices": [{"count": "all", "capabilities": ["gpu"]}]}}},
    }
    document = {
        "services": {"train": service},
        "volumes": {name: {"name": volume} for name, volume in volumes.items()},
    }
    head = [
        f"# {cell}",
        "# docker compose run --rm train python train.py",
        "# docker compose run --rm --service-ports train jupyter lab --ip 0.0.0.0 --no-browser",
        "# A machine without a GPU: delete `deploy`.",
    ]
    return "\n".join(head) + "\n" + str(yaml.safe_dump(document, sort_keys=False, default_flow_style=None, width=110))


def render_devcontainer(cell: Cell, run: ContainerRun) -> str:
    """Return a devcontainer.json; the editor adds the GPUs where the engine has NVIDIA's runtime."""
    document: dict[str, Any] = {
        "name": f"knowngood {cell}",
        "image": run.image,
        "init": True,
        "hostRequirements": {"gpu": "optional"},
        "runArgs": [
            *("--shm-size", run.shared_memory, "--ulimit", "memlock=-1", "--ulimit", f"stack={STACK_BYTES}"),
        ],
        "containerUser": f"{run.user.user}:{run.user.group}",
        "updateRemoteUserUID": False,
        "workspaceMount": f"source=${{localWorkspaceFolder}},target={WORK_FOLDER},type=bind",
        "workspaceFolder": WORK_FOLDER,
        "mounts": [f"source={volume},target={target},type=volume" for volume, target in run.volumes.items()],
        "containerEnv": run.environment,
        "forwardPorts": [NOTEBOOK_PORT],
    }
    return json.dumps(document, indent=2) + "\n"
