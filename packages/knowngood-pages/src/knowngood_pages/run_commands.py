"""The commands with which people get and run an image of a cell, for each tool that they may have. Pure.

They are the ways of docs/pulling.md, docs/cluster.md and docs/train.md. An image that is not published is built
first. The same templates are filled in here for the pages and by the script of the first page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from knowngood.launch.cell_verdict import list_run_words
from knowngood.launch.container_run import written_command
from knowngood.wheels.compile_request import find_recipe

EXAMPLE_REPOSITORY = "registry.example/team/knowngood"


class ImageOrigin(StrEnum):
    """Where the image of a cell comes from, which decides the commands."""

    PUBLISHED = "published"
    """A registry has it."""
    BUILT_HERE = "built-here"
    """It is built on the user's machine; every wheel is on the index."""
    COMPILED_HERE = "compiled-here"
    """It is built on the user's machine, and some of its wheels are compiled there."""
    UNLOCKED = "unlocked"
    """It is in the matrix and has no lock yet."""
    ABSENT = "absent"
    """It is not in the matrix."""


@dataclass(frozen=True, kw_only=True)
class RunCommand:
    """How one tool runs an image; `{id}`, `{image}`, `{tag}` and the other names in braces stand for the cell's."""

    tool: str
    note: str
    text: str


_APPTAINER = 'apptainer run --nv --bind "$PWD:/work" --pwd /work knowngood.sif train.py'
_BUILT_FIRST = "Not published: the first line builds and tests it, in a checkout of this project. No GPU is needed."
_HERE = {
    ImageOrigin.PUBLISHED: "Pulls the image, checks that it is the recorded one, and becomes your program.",
    ImageOrigin.BUILT_HERE: (
        "Not published yet: in a checkout of this project, it builds the image first, and then becomes your program. "
        "Time: {time}."
    ),
    ImageOrigin.COMPILED_HERE: (
        "Not published yet. In a checkout of this project, the first line compiles a wheel that is on no index, then "
        f"builds and tests the image. flash-attn 2 compiles for about {find_recipe('flash-attn').estimate_minutes(2)} "
        "minutes on two cores, without a GPU. Time: {time}."
    ),
    ImageOrigin.UNLOCKED: "In the matrix and not locked yet: in a checkout of this project, the first line does it.",
}
_NOT_IN_MATRIX = (
    "The rules allow it, and nobody has built it. In a checkout of this project, this adds it to the matrix, and says "
    "what to type next."
)
_COMPILED = "One of its wheels is on no index: it is compiled into a folder first."
_JOB = """\
kubectl create -f - <<'END'
apiVersion: batch/v1
kind: Job
metadata: {generateName: train-}
spec:
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      nodeSelector: {nvidia.com/gpu.compute.major: "{major}", nvidia.com/gpu.compute.minor: "{minor}"}
      containers:
        - name: train
          image: {pulled}
          command: [python, -c, "import torch; print(torch.cuda.get_device_name())"]
          resources: {limits: {nvidia.com/gpu: 1}}
END"""


def list_run_commands(origin: ImageOrigin, build_time: str = "") -> list[RunCommand]:
    """Return the commands of every tool, the most common tool first; `build_time` says how long a build takes."""
    if origin is ImageOrigin.ABSENT:
        return [_command("add", _NOT_IN_MATRIX, "knowngood add {id}")]
    published, compiled = origin is ImageOrigin.PUBLISHED, origin is ImageOrigin.COMPILED_HERE
    run = list_run_words("{id}", locked=origin is not ImageOrigin.UNLOCKED, compiling=compiled)
    first = [] if published else [f"knowngood build-matrix {'--compile ' if compiled else ''}{{id}}"]
    built = "" if published else _BUILT_FIRST
    definition = "knowngood export {id} --format apptainer -o knowngood.def"
    wheels = ["KNOWNGOOD_WHEELHOUSE=. knowngood compile {id}"] if compiled else []
    wheels = ["knowngood lock {id}"] if origin is ImageOrigin.UNLOCKED else wheels
    links = " --find-links ." if compiled else ""
    push = [] if published else [*first, f"knowngood publish {{id}} --to {EXAMPLE_REPOSITORY}"]
    named = " --image {image}" if published else ""
    apptainer = [definition + named] if published else [*wheels, definition]
    return [
        _command("knowngood", _HERE[origin].replace("{time}", build_time), *map(" ".join, run)),
        _command("docker", built, *first, written_command("docker", "{image}", is_published=published)),
        _command(
            "podman",
            f"{built} The GPU comes by CDI, which `nvidia-ctk cdi generate` describes. This project has not run it.",
            *first,
            written_command("podman", "{image}", is_published=published),
        ),
        _command(
            "Compose",
            built,
            *first,
            f"knowngood export {{id}} --format compose -o compose.yaml{named}",
            "docker compose run --rm train python train.py",
        ),
        _command(
            "VS Code",
            f"{built} Then open the folder and choose Reopen in Container.",
            *first,
            f"knowngood export {{id}} --format devcontainer -o .devcontainer/devcontainer.json{named}",
        ),
        _command(
            "Apptainer",
            _COMPILED if compiled else "Build the file where there is network access; then no root is needed.",
            *apptainer,
            "apptainer build knowngood.sif knowngood.def",
            _APPTAINER,
        ),
        _command(
            "Slurm",
            "With the file that the tab Apptainer makes, on storage that the nodes share.",
            "sbatch --gres=gpu:1 --cpus-per-task=8 <<'END'",
            "#!/bin/sh",
            f"srun {_APPTAINER}",
            "END",
        ),
        _command(
            "Kubernetes",
            "The cluster needs NVIDIA's device plugin and GPU feature discovery."
            + ("" if published else " Put your own registry in place of registry.example."),
            *push,
            _JOB.replace("{pulled}", "{image}" if published else f"{EXAMPLE_REPOSITORY}:{{tag}}"),
        ),
        _command(
            "requirements",
            f"Without containers: the same Python packages, by hash.{' ' + _COMPILED if compiled else ''}",
            *wheels,
            "knowngood export {id} --format requirements -o requirements.txt",
            "uv venv --python {python}",
            f"uv pip install --no-deps --require-hashes{links} -r requirements.txt",
        ),
    ]


def _command(tool: str, note: str, *lines: str) -> RunCommand:
    return RunCommand(tool=tool, note=note.strip(), text="\n".join(lines))


def run_command_templates(build_time: str) -> dict[str, list[dict[str, Any]]]:
    """Return the commands of every origin as plain data, for the script of the first page."""
    return {
        str(origin): [asdict(command) for command in list_run_commands(origin, build_time)] for origin in ImageOrigin
    }


def fill_run_command(text: str, values: Mapping[str, str]) -> str:
    """Return a command with the values of a cell; braces that enclose no such name stay."""
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", value)
    return text
