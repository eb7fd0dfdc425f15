"""The Dockerfiles and `buildx` commands that builders get. Pure.

A builder makes a cell's image, some of its layers, or files. For layers and for a compile it gets the cell's own
Dockerfile with more stages at the end. These join each layer with the same instruction as the cell's Dockerfile does,
so the key of BuildKit's cache is the same, and the build of the cell finds the layer in the cache.

In the registry, an image has a tag with the digest of its inputs, and the cache of a layer has a tag with the layer's
name and inputs. A tag names everything that shapes the bytes, so all builders that need the same bytes find them under
the same tag.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from knowngood.core.errors import MissingError
from knowngood.executors.builder import Builder
from knowngood.images import bake_file, build_command
from knowngood.images.build_command import BuildPlan
from knowngood.images.matrix_plan import LayerKey
from knowngood.lock.cell_lock import Layer
from knowngood.registry.image_reference import TAG_HASH_DIGITS, TAG_LENGTH_LIMIT, ImageReference, Repository
from knowngood.wheels.compile_request import CompileCapacity

RUN_ARGUMENT = "KNOWNGOOD_RUN"
"""A build argument with another value in each build, so that the step that takes it always runs."""
LAYERS_TARGET = "knowngood-layers"
"""The last stage of a Dockerfile that makes layers and no image."""
VENV_STAGE, SUITE_STAGE = "venv", "suite"
"""The stages of the layers that are not in the lock: the empty environment and the test suite."""
COMPILE_HOST_STAGE = "assembled"
"""The stage of a cell's Dockerfile that has everything installed; a wheel is compiled in it."""
COMPILE_STAGE, WHEEL_STAGE = "knowngood-compile", "knowngood-wheel"
SOURCES_CONTEXT, TOOLKIT_CONTEXT, TOOLS_CONTEXT = "compile-order", "compile-toolkit", "compile-tools"
"""Build contexts of a compile: sources and script, nvcc, and the packages that build a wheel."""
_COMPILE_MOUNTS = {SOURCES_CONTEXT: "/order", TOOLKIT_CONTEXT: "/toolkit", TOOLS_CONTEXT: "/tools"}

BAKE_ENVIRONMENT = {"BUILDX_BAKE_ENTITLEMENTS_FS": "0"}
"""Lets bake read and write outside the current folder; since buildx 0.20 it refuses that by default."""
_BAKE_FILE, _NETWORK_FILE = "bake.json", "network.yml"
_DEFAULT_NETWORK = "default"

CAPACITY_STAGE = "capacity"
CAPACITY_DOCKERFILE = f"""\
FROM base AS measured
ARG {RUN_ARGUMENT}
WORKDIR /capacity
RUN --network=none ["sh", "-c", "cat /proc/meminfo > meminfo; nproc > nproc"]
FROM scratch AS {CAPACITY_STAGE}
COPY --from=measured /capacity/ /
"""
"""Measures the free memory and the processors of a builder; not all builders report them in another way."""


@dataclass(frozen=True, kw_only=True)
class BuilderCommands:
    """The `buildx` commands for one builder."""

    builder: Builder
    repository: Repository
    """Where images and caches are pushed."""
    network: str
    """The network of build steps."""
    caches: Sequence[str]
    """Tags in the repository of the caches to read from."""
    folder: Path
    """The folder for the files of these commands."""

    @property
    def metadata(self) -> Path:
        """The JSON file in which buildx writes what it built."""
        return self.folder / "metadata.json"

    def bake(self) -> list[str]:
        """Return the command that does in one bake what `bake_files` has written to the folder."""
        argv = [*self.builder.buildx, "bake", *self.builder.options, "--progress", "plain"]
        argv += ["--metadata-file", str(self.metadata)]
        if self.network != _DEFAULT_NETWORK:
            argv += ["--allow", f"network.{self.network}"] if self.builder.bake_has_allow else []
            argv += ["--file", str(self.folder / _NETWORK_FILE)]
        return [*argv, "--file", str(self.folder / _BAKE_FILE)]

    def bake_files(self, builds: Mapping[str, Sequence[str]]) -> dict[str, dict[str, Any]]:
        """Return the JSON files that make `bake` do these commands of `buildx build`, by their names in the folder."""
        files = {_BAKE_FILE: bake_file.render_bake_file(builds)}
        if self.network != _DEFAULT_NETWORK:
            files[_NETWORK_FILE] = bake_file.render_network_file(builds, self.network)
        return files

    def build_image(self, plan: BuildPlan, new_layers: Sequence[LayerKey]) -> list[str]:
        """Return the command that builds a cell's image and pushes it; its new layers go to a cache of theirs."""
        if self.builder.is_engine:  # buildx refuses push-by-digest for an engine
            name = ImageReference(repository=self.repository, name=image_inputs_tag(plan.inputs))
            output = f"type=image,name={name},push=true"
        else:
            output = f"type=image,name={self.repository},push=true,push-by-digest=true,name-canonical=true"
        argv = [*self._common_arguments(plan), "--output", f"{output},{build_command.COMPRESSION}"]
        return [*argv, *(self._write_cache(new_layers[0], "min") if new_layers else []), str(plan.context)]

    def build_layers(self, plan: BuildPlan, keys: Sequence[LayerKey]) -> list[str]:
        """Return the command that builds layers into a cache.

        The cache of the foundation also keeps the results of the `RUN` steps, because all other stages start there.
        """
        argv = [*self._common_arguments(plan), "--target", LAYERS_TARGET, "--output", "type=cacheonly"]
        mode = "max" if is_foundation_layer(keys[0][0]) else "min"
        return [*argv, *self._write_cache(keys[0], mode), str(plan.context)]

    def export_files(self, plan: BuildPlan, target: str, run: str, out: Path) -> list[str]:
        """Return the command that builds a stage and writes its files to the folder `out` of this machine.

        A step that takes the argument `RUN_ARGUMENT` runs again for another `run`. The option `--no-cache-filter` does
        not serve here: with it, BuildKit gives the stage new cache mounts as well (observed with 0.13).
        """
        argv = [*self._common_arguments(plan), "--target", target, "--build-arg", f"{RUN_ARGUMENT}={run}"]
        return [*argv, "--output", f"type=local,dest={out}", str(plan.context)]

    def _common_arguments(self, plan: BuildPlan) -> list[str]:
        argv = [*self.builder.buildx, "build", *self.builder.options]
        argv += build_command.buildx_arguments(plan, self.network, self.metadata)
        for tag in self.caches:
            argv += ["--cache-from", f"type=registry,ref={self.repository}:{tag}"]
        return argv

    def _write_cache(self, key: LayerKey, mode: str) -> list[str]:
        cache = f"type=registry,ref={self.repository}:{layer_cache_tag(key)}"
        return ["--cache-to", f"{cache},mode={mode},image-manifest=true,{build_command.COMPRESSION}"]


def is_foundation_layer(layer: str) -> bool:
    """Return whether every other layer is built on this one: it is the empty environment or the suite."""
    return layer.partition("-")[0] in (VENV_STAGE, SUITE_STAGE)


def layer_stage_name(layer: Layer) -> str:
    """Return the name of the stage that installs a layer of the lock."""
    return f"layer-{layer.group}"


def has_stages(dockerfile: str, names: Collection[str]) -> bool:
    """Return whether the Dockerfile has all of these stages; a project's own template may have none of them."""
    return set(re.findall(r"^FROM \S+ AS (\S+)$", dockerfile, re.MULTILINE)) >= set(names)


def image_inputs_tag(inputs: str) -> str:
    """Return the tag of the image whose inputs have this digest."""
    return f"inputs-{inputs}"


def layer_cache_tag(key: LayerKey) -> str:
    """Return the tag of BuildKit's cache of a layer."""
    name, inputs = key
    end = f"-{inputs[:TAG_HASH_DIGITS]}"
    return f"layer-{name}"[: TAG_LENGTH_LIMIT - len(end)] + end


def render_layers_dockerfile(dockerfile: str, layers: Sequence[Layer], keys: Sequence[LayerKey]) -> str:
    """Return the Dockerfile of a cell with a last stage that has these of its layers and nothing else.

    `layers` are those of the cell's lock; a layer that is not among them belongs to the foundation.
    """
    stages = {layer.name: layer_stage_name(layer) for layer in layers}
    names = [stages.get(name, name.partition("-")[0]) for name, _ in keys]
    copies = "".join(f"COPY --link --from={name} /out/ /\n" for name in names)
    return f"{dockerfile}\nFROM scratch AS {LAYERS_TARGET}\n{copies}"


def render_compile_stages(name: str, env: Mapping[str, str]) -> str:
    """Return the stages that compile a wheel; they are appended to a cell's Dockerfile, and give files, not an image.

    The build folder is a cache mount called `name`, after everything that shapes the objects: objects that are compiled
    remain there when the step is killed. `env` holds the environment variables of the compiler.
    """
    variables = " \\\n    ".join(f"{key}={json.dumps(value)}" for key, value in sorted(env.items()))
    mounts = [f"--mount=type=cache,id={name},target=/build,sharing=locked"]
    mounts += [f"--mount=type=bind,from={context},target={folder}" for context, folder in _COMPILE_MOUNTS.items()]
    command = ["nice", "-n", "19", "python", "/order/inside.py", "/order/src", "/result"]
    return (
        f"FROM {COMPILE_HOST_STAGE} AS {COMPILE_STAGE}\nUSER 0:0\nENV {variables}\n"
        f"WORKDIR /result\nARG {RUN_ARGUMENT}\n"
        f"RUN --network=none {' '.join(mounts)} \\\n    {json.dumps(command)}\n"
        f"\nFROM scratch AS {WHEEL_STAGE}\nCOPY --from={COMPILE_STAGE} /result/ /\n"
    )


def parse_compile_step(line: str) -> str | None:
    """Return the step that a line of BuildKit's output starts, or the file that ninja starts to compile."""
    match = re.match(r"#\d+ [\d.]+ (\[\d+/\d+\] \S+)$", line)
    return match[1] if match else build_command.parse_build_step(line)


def parse_capacity(meminfo: str, processors: str) -> CompileCapacity:
    """Return the capacity that the files of `CAPACITY_DOCKERFILE` state.

    Raises:
        MissingError: they state no free memory or no number of processors.
    """
    match = re.search(r"^MemAvailable:\s+(\d+) kB$", meminfo, re.MULTILINE)
    if match is None or not processors.strip().isdecimal():
        raise MissingError("it does not say how much memory and how many processors it has")
    return CompileCapacity(processors=int(processors), memory=int(match[1]) * 1024)
