"""A program in a container of an image, as a command of docker, podman or Apptainer. Pure.

A command names variables and never holds their values, so it can be printed and shown to anyone.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from knowngood.core.errors import UsageError

WORK_FOLDER = "/work"
"""Where the working folder is in the container."""
CACHE_FOLDER = "/cache"
"""Where images keep what was compiled, and what else is theirs to execute: one volume for each project and image."""
DOWNLOAD_FOLDER = "/var/tmp"  # noqa: S108 - a volume of this user is mounted there
"""Where the volume with downloads is, one for each project. In every image anyone may write there."""
_DOWNLOAD_VARIABLE = "HF_HUB_CACHE"
"""The variable that leads Hugging Face's downloads to a folder."""
STACK_BYTES = 64 << 20
"""The limit of the stack in bytes, as NVIDIA recommends it for its own images."""

PASSED_VARIABLES = (
    *("HF_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE", "WANDB_API_KEY", "WANDB_MODE", "WANDB_PROJECT"),
    *("CUDA_VISIBLE_DEVICES", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
)
"""The variables that a program gets where they are set, without being asked for."""


class GpuAccess(StrEnum):
    """How a docker engine gives a container the GPUs of its machine."""

    NONE = "none"
    RUNTIME = "runtime"
    """By NVIDIA's runtime: `--gpus all`."""
    CDI = "cdi"
    """By a description of devices: `--device nvidia.com/gpu=all`."""


class RunNetwork(StrEnum):
    """The network of a container."""

    BRIDGE = "bridge"
    """One of its own, from which it reaches others; nothing of the machine's own loopback is in it."""
    HOST = "host"
    """That of the machine, with its loopback and its abstract sockets: what NCCL over several nodes needs."""
    NONE = "none"


@dataclass(frozen=True, kw_only=True)
class FolderMount:
    """A folder of this machine in the container."""

    source: str
    target: str
    read_only: bool = False

    @property
    def text(self) -> str:
        """The value of `--volume`, and of Apptainer's `--bind`."""
        return f"{self.source}:{self.target}" + (":ro" if self.read_only else "")


@dataclass(frozen=True, kw_only=True)
class UserIds:
    """The user as whom the program runs: the one who started it, so that its files are theirs."""

    user: int | str
    """The number, or what a shell replaces by it: `$(id -u)`."""
    group: int | str
    groups: tuple[int, ...] = ()
    """Further groups, by which files of a team can be read."""
    name: str = "user"
    """For programs that ask for it: the image's own list of users does not have these ids."""
    started_by_root: bool = False
    """Whether root starts the program; podman then has no user namespace that keeps ids."""


@dataclass(frozen=True, kw_only=True)
class ContainerRun:
    """Everything that decides a container, but for the tool that makes it."""

    image: str
    """The name of the image in the engine, or its id there."""
    reference: str = ""
    """The image in a registry, `HOST/PATH@sha256:...`, for tools that do not use the engine; empty without one."""
    program: tuple[str, ...]
    user: UserIds
    folder: str
    """The working folder on this machine."""
    mounts: tuple[FolderMount, ...] = ()
    variables: tuple[str, ...] = ()
    """The names of the variables that the program gets from this process."""
    gpus: GpuAccess = GpuAccess.NONE
    shared_memory: str = "8g"
    """The size of /dev/shm, or `host` for that of the machine."""
    terminal: bool = False
    name: str = ""
    """The container's name; empty for one that the engine chooses."""
    client: str = ""
    """What names the process that becomes the docker command, for the next run to see whether it has ended."""
    network: RunNetwork = RunNetwork.BRIDGE
    is_for_shell: bool = False
    """Whether a shell puts in the ids and the folder, and therefore makes the hashes in the names of volumes too."""
    is_checked: bool = True
    """Whether the image is in the engine and was checked there, so that another of its name is never pulled."""
    locked_memory: bool = True
    """Whether the engine may lift the limit of locked memory, which transfers between GPUs and network cards need."""

    @property
    def cache_volume(self) -> str:
        """The name of the volume for `/cache`, which no other user, working folder or image has.

        Compilers execute what they find there, so that a program could else make that of another folder run its code.
        """
        return self._volume(CACHE_VOLUME, self.folder, self.image)

    @property
    def download_volume(self) -> str:
        """The name of the volume with downloads, which no other user or working folder has; its images share it.

        Hugging Face's libraries do not compare a file with the hash that names it, and some files are code.
        """
        return self._volume(DOWNLOAD_VOLUME, self.folder)

    def _volume(self, kind: str, *owners: str) -> str:
        """Return the name of a volume that this user has for a folder, or for a folder and an image."""
        if self.is_for_shell:
            form = r"\n".join("%s" for _ in owners)
            words = " ".join(f'"{owner}"' if "$" in owner else owner for owner in owners)
            place = f"$(printf '{form}' {words} | sha256sum | head -c 16)"
        else:
            place = hashlib.sha256("\n".join(owners).encode()).hexdigest()[:16]
        return f"{kind}-{self.user.user}-{place}"

    @property
    def volumes(self) -> dict[str, str]:
        """The volumes of this user, each with its place in the container."""
        return {self.cache_volume: CACHE_FOLDER, self.download_volume: DOWNLOAD_FOLDER}

    @property
    def environment(self) -> dict[str, str]:
        """The variables that have the same value in every container of this user."""
        downloads = {_DOWNLOAD_VARIABLE: f"{DOWNLOAD_FOLDER}/huggingface"}
        return {"USER": self.user.name, **({} if _DOWNLOAD_VARIABLE in self.variables else downloads)}


CACHE_VOLUME = "knowngood-cache"
"""What the names of cache volumes begin with."""
DOWNLOAD_VOLUME = "knowngood-downloads"
"""What the names of volumes with downloads begin with."""
CONTAINER_LABEL = "io.knowngood.run"
"""The label of containers that `knowngood run` starts: the id of their user."""
CLIENT_LABEL = "io.knowngood.run.client"
"""The label that names the process which became their docker command."""
_LOOPBACK = re.compile(r"(^|[/@])(localhost|127(\.\d+){3}|\[::1\])(:|/|$)")
_NO_DETACHING = ("--detach-keys", "ctrl-@,ctrl-@,ctrl-@,ctrl-@")
"""A container ends with its command, so nobody should leave it by the two keys of docker."""


def docker_run_arguments(run: ContainerRun) -> list[str]:
    """Return the arguments of the docker command that run the program; its exit code and its signals are docker's."""
    argv = ["run", "--rm", "--init", *(["--pull", "never"] if run.is_checked else []), *_common_arguments(run)]
    argv += ["--label", f"{CONTAINER_LABEL}={run.user.user}"]
    argv += ["--label", f"{CLIENT_LABEL}={run.client}"] if run.client else []
    argv += ["--name", run.name] if run.name else []
    argv += _NO_DETACHING if run.terminal else ()
    argv += {
        GpuAccess.NONE: [],
        GpuAccess.RUNTIME: ["--gpus", "all"],
        GpuAccess.CDI: ["--device", "nvidia.com/gpu=all"],
    }[run.gpus]
    argv += ["--user", f"{run.user.user}:{run.user.group}"]
    for group in run.user.groups:
        argv += ["--group-add", str(group)]
    return [*argv, run.image, *run.program]


def podman_run_arguments(run: ContainerRun) -> list[str]:
    """Return the arguments of podman: the ids are kept by its user namespace, GPUs come by CDI."""
    argv = ["run", "--rm", "--init", *_common_arguments(run)]
    argv += [] if run.gpus is GpuAccess.NONE else ["--device", "nvidia.com/gpu=all"]
    argv += ["--security-opt", "label=disable"]
    argv += [] if run.user.started_by_root else ["--userns", "keep-id", "--group-add", "keep-groups"]
    argv += ["--user", f"{run.user.user}:{run.user.group}"]
    return [*argv, _image_address(run), *run.program]


def apptainer_command_line(run: ContainerRun) -> str:
    """Return a shell line for Apptainer, which keeps the user's ids by itself.

    Its image is read-only, so a folder is made for the cache, and used only where it belongs to the user: under /tmp
    another user may have made it. The variables of this shell stay outside, except for those that the program gets.
    Its network is always that of the machine.
    """
    argv = ["apptainer", "exec", "--cleanenv", "--no-home"]
    argv += [] if run.gpus is GpuAccess.NONE else ["--nv"]
    for mount in (FolderMount(source=run.folder, target=WORK_FOLDER), *run.mounts):
        argv += ["--bind", mount.text]
    argv += ["--pwd", WORK_FOLDER]
    cache = f'"${{TMPDIR:-/tmp}}/{run.cache_volume}"'
    passed = "".join(f'APPTAINERENV_{name}="${name}" ' for name in run.variables)
    rest = shlex.join([_image_address(run), *run.program])
    return (
        f"mkdir -p -m 700 {cache} && [ -O {cache} ] && {passed}{shlex.join(argv)} --bind {cache}:{CACHE_FOLDER} {rest}"
    )


def written_command(tool: str, image: str, *, is_published: bool) -> str:
    """Return the command of docker or podman for pages and documents: what `run` does, for anyone in any folder.

    The shell puts in the ids, the folder, and the hashes that name the volumes.

    Args:
        tool: `docker` or `podman`.
        image: the image in the engine, or in a registry where `is_published`; a name in braces, to be filled in.
        is_published: whether the image is in a registry.
    """
    user = UserIds(user="$(id -u)", group="$(id -g)", name="$USER")
    run = ContainerRun(
        image=image,
        reference=image if is_published else "",
        program=("python", "train.py"),
        user=user,
        folder="$PWD",
        gpus=GpuAccess.RUNTIME,
        is_for_shell=True,
        is_checked=False,
    )
    arguments = docker_run_arguments if tool == "docker" else podman_run_arguments
    lines, width = [tool], 100
    for word in arguments(run):
        text = f'"{word}"' if "$" in word else word
        if word.startswith("-") and len(lines[-1]) > width - 40:
            lines.append(f"    {text}")
        else:
            lines[-1] += f" {text}"
    return " \\\n".join(lines)


def _image_address(run: ContainerRun) -> str:
    """Return the image as tools name it that do not use the engine: in a registry, or else in the engine."""
    return f"docker://{run.reference}" if run.reference else f"docker-daemon:{run.image}"


def _common_arguments(run: ContainerRun) -> list[str]:
    """Return the arguments that docker and podman share."""
    argv = ["--interactive", *(["--tty"] if run.terminal else [])]
    argv += [] if run.network is RunNetwork.BRIDGE else ["--network", str(run.network)]
    argv += ["--ipc", "host"] if run.shared_memory == "host" else ["--shm-size", run.shared_memory]
    argv += ["--ulimit", "memlock=-1"] if run.locked_memory else []
    argv += ["--ulimit", f"stack={STACK_BYTES}"]
    argv += ["--volume", f"{run.folder}:{WORK_FOLDER}", "--workdir", WORK_FOLDER]
    for volume, target in run.volumes.items():
        argv += ["--volume", f"{volume}:{target}"]
    for mount in run.mounts:
        argv += ["--volume", mount.text]
    for word in (*(f"{name}={value}" for name, value in run.environment.items()), *run.variables):
        argv += ["--env", word]
    return argv


def parse_folder_mount(text: str) -> FolderMount:
    """Parse `SOURCE[:TARGET][:ro]`; without a target, the folder has the same path in the container.

    Raises `UsageError` for a path that is not absolute.
    """
    parts = text.split(":")
    read_only = len(parts) > 1 and parts[-1] == "ro"
    places = parts[:-1] if read_only else parts
    if not 1 <= len(places) <= 2 or not all(place.startswith("/") for place in places):
        raise UsageError(f"--volume {text!r}: write an absolute path, as in /data, /data:/data:ro or /data:/mnt/data")
    return FolderMount(source=places[0], target=places[-1], read_only=read_only)


def choose_variables(named: Sequence[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the variables that a program gets: those of `PASSED_VARIABLES` that are set, and the named.

    Raises `UsageError` for a named variable that is not set, or that is written with its value.
    """
    for name in named:
        if "=" in name:
            variable = name.partition("=")[0]
            raise UsageError(
                f"--env {variable}=...: name the variable only, so that its value is in no list of processes: "
                f"{variable}=... knowngood run --env {variable} ..."
            )
        if name not in environ:
            raise UsageError(f"--env {name}: there is no such variable here; set it before the command")
    return tuple(dict.fromkeys([*(name for name in PASSED_VARIABLES if name in environ), *named]))


def find_loopback_proxies(run: ContainerRun, environ: Mapping[str, str]) -> list[str]:
    """Return the variables with a proxy on the machine's loopback, which a container with another network lacks."""
    if run.network is RunNetwork.HOST:
        return []
    named = [name for name in run.variables if name.lower() in {"http_proxy", "https_proxy"}]
    return [name for name in named if _LOOPBACK.search(environ.get(name, ""))]
