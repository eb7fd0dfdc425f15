"""The Dockerfiles and `buildx` commands that builders get. Pure.

A builder makes a cell's image, some of its layers, or files. For layers and for a compile it gets the cell's own
Dockerfile with more stages at the end. These join each layer with the same instruction as the cell's Dockerfile does,
so the key of BuildKit's cache is the same, and the build of the cell finds the layer in the cache.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from knowngood.core.errors import MissingError
from knowngood.executors.builder import Builder
from knowngood.executors.shared_layers import (
    LAYERS_TARGET,
    BuilderBuild,
    assign_new_layers,
    choose_cache_tags,
    image_inputs_tag,
    is_foundation,
    layer_cache_tag,
)
from knowngood.images import bake_file, build_command
from knowngood.images.build_command import BuildPlan
from knowngood.images.matrix_plan import LayerKey
from knowngood.registry.image_reference import ImageReference, Repository
from knowngood.wheels.compile_request import CompileCapacity

RUN_ARGUMENT = "KNOWNGOOD_RUN"
"""A build argument with another value in each build, so that the step that takes it always runs."""
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
    folder: Path
    """The folder for the files of these commands."""

    @property
    def metadata(self) -> Path:
        """The JSON file in which buildx writes what it built."""
        return self.folder / "metadata.json"

    def bake(self) -> list[str]:
        """Return the command that does in one bake what `bake_files` describes."""
        argv = [*self.builder.buildx, "bake", *self.builder.options, "--progress", "plain"]
        argv += ["--metadata-file", str(self.metadata)]
        if self.network != _DEFAULT_NETWORK:
            argv += ["--allow", f"network.{self.network}"] if self.builder.bake_has_allow else []
            argv += ["--file", str(self.folder / _NETWORK_FILE)]
        return [*argv, "--file", str(self.folder / _BAKE_FILE)]

    def bake_files(
        self, builds: Sequence[BuilderBuild], existing: Mapping[str, str], secrets: Mapping[str, Path]
    ) -> dict[str, str]:
        """Return the files of a bake of these builds: their content by their name in the folder.

        `existing` has the digests of the caches of layers by tag.
        """
        new_layers = assign_new_layers(builds, existing)
        commands = {
            build.name: self.build(build, new_layers[build.name], choose_cache_tags(build.layers, existing), secrets)
            for build in builds
        }
        files = {_layers_file(build): build.render_layers_dockerfile() for build in builds if build.keys}
        if self.network != _DEFAULT_NETWORK:
            files[_NETWORK_FILE] = json.dumps(bake_file.render_network_file(commands, self.network), indent=1)
        return files | {_BAKE_FILE: json.dumps(bake_file.render_bake_file(commands), indent=1)}

    def build(
        self, build: BuilderBuild, new_layers: Sequence[LayerKey], caches: Sequence[str], secrets: Mapping[str, Path]
    ) -> list[str]:
        """Return the command that builds layers into a cache, or pushes an image and writes a cache of its new layers.

        The cache of the foundation also keeps the results of the `RUN` steps, because all other stages start there.
        """
        plan = replace(build.plan, secrets={**build.plan.secrets, **secrets})
        if build.keys:
            plan = replace(plan, dockerfile=self.folder / _layers_file(build))
            output = ["--target", LAYERS_TARGET, "--output", "type=cacheonly"]
        elif self.builder.is_engine:  # buildx refuses push-by-digest for an engine
            name = ImageReference(repository=self.repository, name=image_inputs_tag(plan.inputs))
            output = ["--output", f"type=image,name={name},push=true,{build_command.COMPRESSION}"]
        else:
            push = f"type=image,name={self.repository},push=true,push-by-digest=true,name-canonical=true"
            output = ["--output", f"{push},{build_command.COMPRESSION}"]
        if new_layers:
            mode = "max" if is_foundation(new_layers[0]) else "min"
            cache = f"type=registry,ref={self.repository}:{layer_cache_tag(new_layers[0])},mode={mode}"
            output += ["--cache-to", f"{cache},image-manifest=true,{build_command.COMPRESSION}"]
        return [*self._common_arguments(plan, caches), *output, str(plan.context)]

    def export_files(self, plan: BuildPlan, target: str, run: str, out: Path, caches: Sequence[str]) -> list[str]:
        """Return the command that builds a stage and writes its files to the folder `out` of this machine.

        A step that takes the argument `RUN_ARGUMENT` runs again for another `run`. The option `--no-cache-filter` does
        not serve here: with it, BuildKit gives the stage new cache mounts as well (observed with 0.13).
        """
        argv = [*self._common_arguments(plan, caches), "--target", target, "--build-arg", f"{RUN_ARGUMENT}={run}"]
        return [*argv, "--output", f"type=local,dest={out}", str(plan.context)]

    def _common_arguments(self, plan: BuildPlan, caches: Sequence[str]) -> list[str]:
        argv = [*self.builder.buildx, "build", *self.builder.options]
        argv += build_command.buildx_arguments(plan, self.network, self.metadata)
        for tag in caches:
            argv += ["--cache-from", f"type=registry,ref={self.repository}:{tag}"]
        return argv


def _layers_file(build: BuilderBuild) -> str:
    return f"Dockerfile.{build.name}"


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
