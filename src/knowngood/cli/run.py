"""`knowngood run [SELECT] -- PROGRAM`: run a program in the image of the best cell for this machine's GPU."""

from __future__ import annotations

import argparse
import os
import pwd
import re
import secrets
import shlex
import shutil
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from knowngood.cli import shared_arguments
from knowngood.cli.main import Answer
from knowngood.cli.progress import report_progress
from knowngood.core.errors import KnowngoodError, MissingError, UsageError
from knowngood.launch import added_packages, container_run, run_guard
from knowngood.launch.container_run import ContainerRun, GpuAccess, UserIds
from knowngood.launch.run_choice import ANY_GPU, RunChoice

if TYPE_CHECKING:
    from knowngood.core.cell import Cell
    from knowngood.doctor.doctor_line import DoctorLine
    from knowngood.doctor.system_state import NvidiaState
    from knowngood.engine.container_engine import Engine
    from knowngood.launch.added_packages import AddedPackage
    from knowngood.launch.image_access import RunnableImage
    from knowngood.lock.lock_tree import CellLock
    from knowngood.project.checkout import Project

_SEPARATOR = "--"
_CAP_SYS_RESOURCE = 24
"""The number of the capability in the kernel's masks."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "select",
        nargs="?",
        metavar="SELECT",
        help="a cell id, an alias, a glob or an axis filter (default: the best cell for the GPU)",
    )
    parser.add_argument("program", nargs="*", metavar="PROGRAM", help="after --: the program and its arguments")
    parser.add_argument(
        "--gpu",
        default=ANY_GPU,
        metavar="GPU",
        help="a card, a family or an architecture: H100, Hopper, sm_90 (default: auto, the GPU of this machine)",
    )
    parser.add_argument("--attn", metavar="NAME", help="the attention setting that must train: fa2, flex, sdpa, ...")
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME",
        help="pass this variable; HF_TOKEN, WANDB_API_KEY, proxies and a few more are passed when they are set",
    )
    parser.add_argument(
        "--volume",
        action="append",
        default=[],
        metavar="PATH[:PATH][:ro]",
        help=f"mount a folder; the working folder is mounted at {container_run.WORK_FOLDER} in any case",
    )
    parser.add_argument(
        "--shm-size",
        metavar="SIZE",
        help="of /dev/shm, which NCCL and data loaders use: 16g, or host for the machine's own "
        "(default: half of the memory)",
    )
    parser.add_argument(
        "--with",
        dest="added",
        action="append",
        default=[],
        metavar="NAME==VERSION",
        help="add a package to the image, in a thin layer of its own; the cell's own versions do not move "
        f"(default: what a {added_packages.REQUIREMENTS_FILE} beside the script names)",
    )
    parser.add_argument(
        "--unchecked", action="store_true", help="add packages also when `check` says that they break in this cell"
    )
    parser.add_argument(
        "--no-requirements", action="store_true", help=f"pay no attention to {added_packages.REQUIREMENTS_FILE}"
    )
    parser.add_argument(
        "--prove", action="store_true", help="first run the quick suite in the image; keep its evidence"
    )
    parser.add_argument(
        "--print", action="store_true", help="print the commands for docker, podman and Apptainer, and run nothing"
    )
    shared_arguments.add_insecure(parser)
    _split_program(parser)


def _split_program(parser: argparse.ArgumentParser) -> None:
    """Let the parser take everything after the first `--` as the program, whatever it looks like."""
    parse_words = parser.parse_known_args

    def parse(args: Sequence[str] | None = None, namespace: Any = None) -> Any:
        words = list(args or ())
        place = words.index(_SEPARATOR) if _SEPARATOR in words else len(words)
        parsed, rest = parse_words(words[:place], namespace)
        if parsed.program:
            parser.error(f"write -- before the program: knowngood run ... -- {shlex.join(parsed.program)}")
        parsed.program = words[place + 1 :]
        return parsed, rest

    parser.parse_known_args = parse  # type: ignore[method-assign,assignment]


def run(arguments: argparse.Namespace) -> Answer:
    """Become the program in its container; with `--print`, return the commands.

    Does not return otherwise: the exit code and the signals are the program's.
    """
    if not arguments.program:
        raise UsageError("name the program after --, as in `knowngood run -- python train.py`")
    if arguments.json and not arguments.print:
        raise UsageError("--json is only for --print: without it, the output is the program's own")
    if arguments.print and arguments.prove:
        raise UsageError("--print runs nothing, and --prove runs the suite; give one of them")
    container = ContainerRun(
        image="",
        program=tuple(arguments.program),
        user=_user_ids(),
        folder=_working_folder(),
        mounts=tuple(container_run.parse_folder_mount(text) for text in arguments.volume),
        variables=container_run.choose_variables(arguments.env, os.environ),
        shared_memory=arguments.shm_size or _half_of_memory(),
        terminal=sys.stdin.isatty() and sys.stdout.isatty(),
    )
    project, choice, nvidia, lines = _choose(arguments)
    container = replace(container, image=f"knowngood:{choice.cell}")
    if arguments.print:
        # Like all that is imported late here, it takes a while.
        from knowngood.engine import container_engine

        is_elsewhere = arguments.gpu != ANY_GPU and not nvidia.gpus
        engine = None if is_elsewhere else container_engine.find_running_engine(builds=False)
        container = _fit_to_machine(container, engine, nvidia)
        if is_elsewhere:
            container = replace(container, gpus=GpuAccess.RUNTIME)
            _say(choice.text)
            _say(f"no GPU here: the commands are for a machine with {arguments.gpu}, /dev/shm as large as here")
        else:
            _tell(choice, lines, container.gpus, nvidia)
        added = _added_packages(arguments, project, choice.cell)
        return _printed(_name_image(container, project, choice.cell, added), choice, lines, engine)
    engine = _ensure_engine()
    container = _fit_to_machine(container, engine, nvidia)
    _tell(choice, lines, container.gpus, nvidia)
    _remove_abandoned(engine, container.user)
    added = _added_packages(arguments, project, choice.cell)
    image = _get_image(project, choice.cell, engine, insecure=arguments.insecure)
    if arguments.prove:
        _prove(project, choice.cell, image, engine, container.gpus)
    if added:
        container = replace(container, image=_add_packages(project, choice.cell, image, added).name)
    from knowngood.launch import kernel_delivery

    kernel_delivery.deliver_kernels(project, choice.cell, image, engine, container, nvidia, _say)
    return become_program(engine, container)


def _choose(arguments: argparse.Namespace) -> tuple[Project, RunChoice, NvidiaState, list[DoctorLine]]:
    """Return the project, the cell for the request, what NVML says, and the doctor's lines about both."""
    from knowngood.compat import knowledge, query
    from knowngood.doctor import probe_gpus
    from knowngood.launch import run_choice, run_examination
    from knowngood.project.checkout import find_project

    project, known, nvidia = find_project(), knowledge.load_knowledge(), probe_gpus.read_nvidia_state()
    choice = run_choice.choose_run_cell(
        known,
        nvidia,
        project.matrix.select_cells([arguments.select]) if arguments.select else [],
        gpu=arguments.gpu,
        attn=query.parse_attention(arguments.attn) if arguments.attn else None,
    )
    lines = run_examination.examine_before_run(known, nvidia, choice.cell) if nvidia.gpus else []
    return project, choice, nvidia, lines


def _fit_to_machine(container: ContainerRun, engine: Engine | None, nvidia: NvidiaState) -> ContainerRun:
    """Return the container with the GPUs of this machine, and with no limit that its engine may not raise."""
    may_raise = engine is None or not engine.embedded or _may_raise_limits()
    return replace(container, gpus=_gpu_access(engine, nvidia), locked_memory=may_raise)


def become_program(engine: Engine, container: ContainerRun) -> NoReturn:
    """Replace this process by the docker command, which passes signals on and ends with the program's exit code.

    A watcher stays behind, which removes the container if the docker command is killed.
    """
    container = replace(
        container, name=f"knowngood-run-{os.getpid()}-{secrets.token_hex(4)}", client=run_guard.describe_client()
    )
    environment = engine.environment()
    run_guard.start_watcher([*engine.docker, "rm", "--force", "--volumes", container.name], environment)
    sys.stdout.flush()
    sys.stderr.flush()
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and a new program would too
        signal.signal(number, signal.SIG_DFL)
    argv = [*engine.docker, *container_run.docker_run_arguments(container)]
    os.execvpe(argv[0], argv, environment)  # noqa: S606 - to become it is the point


def _working_folder() -> str:
    folder = Path.cwd()
    if folder == Path("/"):
        raise UsageError("the working folder is /, which would be mounted whole; change to the folder of your program")
    if ":" in str(folder):
        raise UsageError(f"the working folder {folder} has a colon in its name, which no container tool can mount")
    return str(folder)


def _user_ids() -> UserIds:
    user, group = os.getuid(), os.getgid()
    try:
        name = pwd.getpwuid(user).pw_name
    except KeyError:
        name = str(user)
    groups = () if user == 0 else tuple(sorted(set(os.getgroups()) - {group}))
    return UserIds(user=user, group=group, groups=groups, name=name)


def _half_of_memory() -> str:
    """Return half of this machine's memory as a size; memory is taken only as it is used."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return f"{max(total >> 31, 1)}g"


def _may_raise_limits() -> bool:
    """Return whether this process, and so the embedded engine that it starts, may raise limits (CAP_SYS_RESOURCE)."""
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:
        return False
    effective = re.search(r"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return bool(effective and int(effective[1], 16) >> _CAP_SYS_RESOURCE & 1)


def _ensure_engine() -> Engine:
    """Return an engine with a docker command; the embedded one is started where none answers."""
    from knowngood.engine import container_engine

    engine = container_engine.find_running_engine(builds=False)
    if engine is None or not engine.docker:
        with report_progress("engine") as notify:
            engine = container_engine.ensure_engine(notify=notify)
    if not engine.docker:
        raise MissingError(f"the engine at {engine.host} answers, but this machine has no docker command")
    return engine


def _remove_abandoned(engine: Engine, user: UserIds) -> None:
    """Remove the containers of earlier runs whose docker command was killed, and say so."""
    from knowngood.engine import container_engine

    with container_engine.docker_client(engine) as client:
        for name in run_guard.remove_abandoned_containers(client, user.user):
            _say(f"removed {name}, which an earlier run left when it was killed")


def _gpu_access(engine: Engine | None, nvidia: NvidiaState) -> GpuAccess:
    """Return how the engine gives a container the GPUs: not at all where this machine has none."""
    if not nvidia.gpus:
        return GpuAccess.NONE
    if engine is None:
        return GpuAccess.RUNTIME
    from knowngood.engine import container_engine
    from knowngood.smoke import suite_command

    with container_engine.docker_client(engine) as client:
        request = suite_command.gpu_request(client.info(), None)
    return GpuAccess.CDI if request.get("driver") == "cdi" else GpuAccess.RUNTIME


def _tell(choice: RunChoice, lines: Sequence[DoctorLine], gpus: GpuAccess, nvidia: NvidiaState) -> None:
    """Print to stderr what runs where; stdout is the program's."""
    _say(choice.text)
    if gpus is GpuAccess.NONE:
        reason = f" ({nvidia.problem})" if nvidia.problem else ""
        _say(f"no GPU here{reason}: the program runs on the CPU")
    for line in lines:
        because = f": {line.because}" if line.because and line.verdict != "ok" else ""
        fix = f"; fix: {line.fix[0]}" if line.fix else ""
        _say(f"{line.verdict}  {line.subject}  {line.observation}{because}{fix}")


def _say(text: str) -> None:
    print(f"knowngood: {text}", file=sys.stderr, flush=True)


def _get_image(project: Project, cell: Cell, engine: Engine, *, insecure: bool) -> RunnableImage:
    """Return the engine's image; where it has none, pull it, else build it, and say the size before."""
    from knowngood.launch import image_access

    if image := image_access.find_recorded_image(project, cell, engine, _say):
        return image
    with report_progress(str(cell)) as notify:
        return image_access.fetch_cell_image(project, cell, engine, _say, notify, insecure=insecure)


def _added_packages(arguments: argparse.Namespace, project: Project, cell: Cell) -> tuple[AddedPackage, ...]:
    """Return the packages that the cell lacks for `--with`, or for the requirements.txt beside the script."""
    wanted = tuple(arguments.added)
    file = None if arguments.no_requirements else added_packages.find_requirements_file(arguments.program)
    if file:
        wanted += added_packages.read_requirement_file(file)
    if not wanted:
        return ()
    lock = project.tree.load(cell)
    if lock is None:
        raise KnowngoodError(f"{cell} has no lock, so nothing can be added to it; run `knowngood lock '{cell}'`")
    added = added_packages.resolve_added_packages(project.matrix, lock, wanted)
    names = ", ".join(f"{item.name} {item.version}" for item in added) or "nothing, the cell has it all"
    _say(f"added for {file.name if file else '--with'}: {names}")
    if added:
        _examine_added(lock, added, unchecked=arguments.unchecked)
    return added


def _examine_added(lock: CellLock, added: Sequence[AddedPackage], *, unchecked: bool) -> None:
    """Print what is known to break with added packages; raises `KnowngoodError` for an error of `check`."""
    from knowngood.compat import knowledge
    from knowngood.launch import added_package_check

    findings, unread = added_package_check.examine_added_packages(knowledge.load_knowledge(), lock, added)
    for text in unread:
        _say(text)
    errors = [item for item in findings if item.severity == "error" and not unchecked]
    for item in findings:
        if item not in errors:
            _say(f"{item.severity}: {item.because}  [{item.id}]")
    if errors:
        raise KnowngoodError(
            f"{'; '.join(f'{item.because} [{item.id}]' for item in errors)}; add another release, or --unchecked"
        )


def _add_packages(project: Project, cell: Cell, image: RunnableImage, added: Sequence[AddedPackage]) -> RunnableImage:
    """Return the image with packages added; it is built once, by an engine that can build."""
    from knowngood.engine import container_engine
    from knowngood.launch import derived_image

    derived = derived_image.describe_derived_image(project, cell, image.digest, added)
    with report_progress(derived.name) as notify:
        engine = container_engine.ensure_engine(notify=notify)
        return derived_image.make_derived_image(project, derived, engine, notify)


def _name_image(container: ContainerRun, project: Project, cell: Cell, added: Sequence[AddedPackage]) -> ContainerRun:
    """Return the container with the image that the program would get; nothing is pulled or built."""
    from knowngood.launch import derived_image, image_access

    if added:
        record = project.tree.load_record(cell)
        digest = record.manifest.digest if record else ""
        derived = derived_image.describe_derived_image(project, cell, digest, added)
        _say(f"{derived.name} is made when the program is run without --print")
        return replace(container, image=derived.name)
    repositories = image_access.list_repositories(project.matrix, os.environ)
    return replace(container, reference=image_access.recorded_reference(project, cell, repositories))


def _prove(project: Project, cell: Cell, image: RunnableImage, engine: Engine, gpus: GpuAccess) -> None:
    """Run the quick suite in the image and keep its evidence; raises `KnowngoodError` when the suite fails."""
    from knowngood.launch import image_access

    with report_progress(str(cell)) as notify:
        path, evidence = image_access.prove_image(
            project, cell, image, engine, gpus=gpus is not GpuAccess.NONE, notify=notify
        )
    _say(f"{evidence.report['verdict']['text']} (evidence: {path})")
    if not evidence.ok:
        raise KnowngoodError("the suite failed in this image on this machine, so the program was not started")


def _printed(container: ContainerRun, choice: RunChoice, lines: Sequence[DoctorLine], engine: Engine | None) -> Answer:
    """Return the command for each tool; nothing was run."""
    docker = engine.docker if engine and engine.docker else (shutil.which("docker") or "docker",)
    commands = {
        "docker": shlex.join([*docker, *container_run.docker_run_arguments(container)]),
        "podman": shlex.join(["podman", *container_run.podman_run_arguments(container)]),
        "apptainer": container_run.apptainer_command_line(container),
    }
    document = {
        "cell": str(choice.cell),
        "tier": choice.tier,
        "because": choice.because,
        "image": container.image,
        "reference": container.reference or None,
        "gpus": str(container.gpus),
        "variables": list(container.variables),
        "commands": commands,
        "lines": [line.document() for line in lines],
    }
    text = "\n".join(f"# {tool}\n{command}" for tool, command in commands.items())
    return Answer(0, document, text)
