"""`knowngood run [SELECT] -- PROGRAM`: run a program in the image of the best cell for this machine's GPU."""

from __future__ import annotations

import argparse
import os
import secrets
import shlex
import shutil
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from knowngood.cli import run_cell, run_image
from knowngood.cli.main import Answer
from knowngood.cli.progress import print_notice, report_progress
from knowngood.core import extensions
from knowngood.core.errors import MissingError, UsageError
from knowngood.core.extensions import ExaminedLine
from knowngood.launch import added_packages, container_run, run_guard, run_host
from knowngood.launch.container_run import ContainerRun, GpuAccess, RunNetwork, UserIds
from knowngood.launch.run_choice import ANY_GPU

if TYPE_CHECKING:
    from knowngood.cli.run_cell import CellForMachine
    from knowngood.engine.container_engine import Engine

_SEPARATOR = "--"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    run_cell.add_optional_select(parser)
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
        "--network",
        choices=tuple(RunNetwork),
        help="host: that of the machine, which NCCL needs between nodes (default: bridge, where the engine has one)",
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
        "--dev",
        action="store_true",
        help="the cell's dev variant: nvcc and the headers of its CUDA, ninja and setuptools, to build extensions",
    )
    parser.add_argument(
        "--unchecked", action="store_true", help="add packages also when `check` says that they break in this cell"
    )
    parser.add_argument(
        "--no-requirements", action="store_true", help=f"pay no attention to {added_packages.REQUIREMENTS_FILE}"
    )
    parser.add_argument(
        "--print", action="store_true", help="print the commands for docker, podman and Apptainer, and run nothing"
    )
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
    folder = run_host.find_working_folder()
    container = ContainerRun(
        image="",
        program=tuple(arguments.program),
        user=run_host.read_user_ids(folder),
        folder=folder,
        mounts=tuple(container_run.parse_folder_mount(text) for text in arguments.volume),
        variables=container_run.choose_variables(arguments.env, os.environ),
        shared_memory=arguments.shm_size or run_host.half_of_memory(),
        terminal=sys.stdin.isatty() and sys.stdout.isatty(),
    )
    run_host.check_program_file(container.program, folder, container.mounts)
    wanted, _ = run_image.list_wanted_packages(arguments)
    # Like all that is imported late here, it takes a while.
    from knowngood.engine import container_engine

    running = container_engine.find_running_engine(builds=False)
    chosen = run_cell.choose_cell_for_machine(
        run_cell.CellRequest(
            select=arguments.select,
            gpu=arguments.gpu,
            attn=arguments.attn,
            wanted=wanted,
            may_compile=arguments.print,
        ),
        running,
        lambda project, cell: run_image.choose_image_additions(arguments, project, cell),
    )
    project, choice, nvidia, additions = chosen.project, chosen.choice, chosen.nvidia, chosen.additions
    lines = _examine(chosen)
    if chosen.speed:
        print_notice(chosen.speed)
    container = replace(container, image=f"knowngood:{choice.cell}")
    if arguments.print:
        is_elsewhere = arguments.gpu != ANY_GPU and not nvidia.gpus
        engine = None if is_elsewhere else running
        container = run_host.fit_to_machine(container, engine, nvidia, arguments.network)
        if is_elsewhere:
            container = replace(container, gpus=GpuAccess.RUNTIME)
            print_notice(f"no GPU here: the commands are for a machine with {arguments.gpu}, /dev/shm as large as here")
        _tell(chosen, lines, container, is_here=not is_elsewhere)
        container = run_image.name_program_image(container, project, choice.cell, additions)
        return _printed(container, chosen, lines, engine)
    engine = _ensure_engine(running)
    container = run_host.fit_to_machine(container, engine, nvidia, arguments.network)
    if container.network is RunNetwork.HOST and not arguments.network:
        print_notice(f"the engine at {engine.host} has no bridge: the program has the network of this machine")
    _tell(chosen, lines, container)
    _remove_abandoned(engine, container.user)
    image = run_image.get_cell_image(project, choice.cell, engine)
    container = replace(container, image=run_image.add_to_image(project, choice.cell, image, additions).name)
    return become_program(engine, container)


def _examine(chosen: CellForMachine) -> Sequence[ExaminedLine]:
    """Return what the doctor says of this machine's GPUs and the cell; nothing without a GPU or a doctor."""
    if not chosen.nvidia.gpus:
        return ()
    examine = extensions.load_extension(extensions.EXAMINE_RUN)
    lines: Sequence[ExaminedLine] = examine(chosen.nvidia, chosen.choice.cell) if examine else ()
    return lines


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


def _ensure_engine(engine: Engine | None) -> Engine:
    """Return an engine with a docker command: the running one, or the embedded one, which is started."""
    from knowngood.engine import container_engine

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
        for name in run_guard.remove_abandoned_containers(client, int(user.user)):
            print_notice(f"removed {name}, which an earlier run left when it was killed")


def _tell(
    chosen: CellForMachine, lines: Sequence[ExaminedLine], container: ContainerRun, *, is_here: bool = True
) -> None:
    """Print to stderr what runs where; stdout is the program's."""
    for text in chosen.passed:
        print_notice(f"passed over: {text}")
    print_notice(chosen.choice.text)
    for text in (*chosen.verdict.warnings, *chosen.additions.notices):
        print_notice(text)
    if not is_here:
        return
    nvidia = chosen.nvidia
    for name in container_run.find_loopback_proxies(container, os.environ):
        print_notice(f"{name} is an address of this machine, which a network of its own does not reach: --network host")
    if container.gpus is GpuAccess.NONE:
        reason = f" ({nvidia.problem})" if nvidia.problem else ""
        print_notice(f"no GPU here{reason}: the program runs on the CPU")
    for line in lines:
        because = f": {line.because}" if line.because and line.verdict != "ok" else ""
        fix = f"; fix: {line.fix[0]}" if line.fix else ""
        print_notice(f"{line.verdict}  {line.subject}  {line.observation}{because}{fix}")


def _printed(
    container: ContainerRun, chosen: CellForMachine, lines: Sequence[ExaminedLine], engine: Engine | None
) -> Answer:
    """Return the command for each tool, and before them those that get the image; nothing was run."""
    choice, first = chosen.choice, [shlex.join(words) for words in chosen.verdict.commands()]
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
        "network": str(container.network),
        "variables": list(container.variables),
        "added": [str(item) for item in chosen.additions.packages],
        "cost": chosen.verdict.document(),
        "first": first,
        "commands": commands,
        "lines": [line.document() for line in lines],
    }
    image = ["\n".join([f"# the image, once ({chosen.verdict.cost})", *first])] if first else []
    return Answer(0, document, "\n".join([*image, *(f"# {tool}\n{command}" for tool, command in commands.items())]))
