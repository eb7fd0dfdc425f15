"""A Slurm cluster on this machine: a controller and three nodes on the loopback interface, from unpacked packages.

Nothing is installed. The nodes' GPUs are plain files. Each node is a process namespace, so killing it ends everything
that runs on it, as a power cut does.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import platform
import secrets
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Self

from knowngood.base import debian_host, private_apt

PACKAGES = ["slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "munge"]
COMMANDS = ["sbatch", "squeue", "scancel", "scontrol", "sinfo", "sacct"]
DPKG_STATUS = Path("/var/lib/dpkg/status")
NODES = {"n1": ("sm_90", "h100", 2), "n2": ("sm_70", "v100", 1), "n3": ("sm_80", "a100", 1)}
"""For each node: feature, type of GPU, number of GPUs."""


class Cluster:
    """A Slurm cluster that runs inside a `with` block."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shared = folder / "shared"
        self.bin = folder / "bin"
        self._root = folder / "root"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        try:
            self._unpack()
            self._configure()
            self._start("munged", [*self._munged(), "--foreground"])
            self._until("munge", (self.folder / "munge.sock").exists)
            self.start_controller()
            for node in NODES:
                self.start_node(node)
            self._until("the nodes", lambda: self.nodes() == dict.fromkeys(NODES, "idle"))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in reversed(list(self._processes)):
            self._stop(name)

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables with which Slurm's commands use this cluster."""
        return {"PATH": f"{self.bin}:{os.environ['PATH']}", "SLURM_CONF": str(self.folder / "slurm.conf")}

    def command(self, *words: str) -> str:
        """Run one of Slurm's commands; return its output."""
        done = subprocess.run(
            words, env={**os.environ, **self.environment}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{words}: {done.stderr}{self.logs()}"
        return done.stdout

    def nodes(self) -> dict[str, str]:
        """Return the state of each node."""
        with contextlib.suppress(AssertionError):
            output = self.command("sinfo", "--noheader", "--Node", "--format=%N %T")
            return {name: state.rstrip("*") for name, state in (line.split() for line in output.splitlines())}
        return {}

    def start_controller(self) -> None:
        """Start the controller with its saved state."""
        self._start("slurmctld", [str(self.folder / "sbin/slurmctld"), "-D", "-f", str(self.folder / "slurm.conf")])
        self._until("the controller", lambda: bool(self.nodes()))

    def stop_controller(self) -> None:
        """Stop the controller with SIGTERM, as an administrator does."""
        self._stop("slurmctld", signal.SIGTERM)

    def start_node(self, node: str) -> None:
        """Start a node."""
        words = [str(self.folder / "sbin/slurmd"), "-D", "-N", node, "-f", str(self.folder / "slurm.conf")]
        alone = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]
        self._start(node, [*alone, *words, "-d", str(self.folder / "sbin/slurmstepd")])

    def resume(self) -> None:
        """Cancel all jobs of the main partition and bring its nodes back to their first state."""
        self.command("scancel", f"--user={getpass.getuser()}", "--partition=main")
        for node, state in self.nodes().items():
            if state.startswith(("drain", "down")):
                self.command("scontrol", "update", f"nodename={node}", "state=resume")

    def logs(self) -> str:
        """Return the ends of the daemons' logs."""
        return "".join(
            f"\n== {path.name}\n{path.read_text(errors='replace')[-1500:]}" for path in self.folder.glob("*.log")
        )

    def _unpack(self) -> None:
        source = private_apt.PrivateApt(self.folder / "apt", debian_host.find_host_archives(), installed=DPKG_STATUS)
        source.refresh()
        names = [remote.name for remote in source.resolve(PACKAGES)]
        for package in source.download(sorted({*names, *PACKAGES}), self.folder / "debs"):
            private_apt.unpack_deb(package, self._root)
        library = next(self._root.glob("usr/lib/*/slurm-wlm")).parent
        self._plugins = library / "slurm-wlm"
        self._libraries = f"{library}:{self._plugins}"
        self.bin.mkdir()
        (self.folder / "sbin").mkdir()
        for name in COMMANDS:
            wrapper = self.bin / name
            wrapper.write_text(f'#!/bin/sh\nLD_LIBRARY_PATH={self._libraries} exec {self._root}/usr/bin/{name} "$@"\n')
            wrapper.chmod(0o755)
        for name in ("slurmctld", "slurmd", "slurmstepd"):
            # Debian names them slurmd-wlm and so on; the programs check their own name to know that they are daemons.
            packaged = self._root / "usr/sbin" / f"{name}-wlm"
            program = packaged if packaged.exists() else self._root / "usr/sbin" / name
            (self.folder / "sbin" / name).symlink_to(program)

    def _munged(self) -> list[str]:
        at = self.folder
        names = {"socket": "munge.sock", "key-file": "munge.key", "pid-file": "munged.pid", "log-file": "munged.log"}
        options = [f"--{option}={at / name}" for option, name in names.items()]
        return [str(self._root / "usr/sbin/munged"), *options, f"--seed-file={at / 'munge.seed'}", "--force"]

    def _configure(self) -> None:
        at, host = self.folder, platform.node().partition(".")[0]
        key = at / "munge.key"
        key.touch(mode=0o400)
        key.write_bytes(secrets.token_bytes(1024))
        self.shared.mkdir()
        (at / "state").mkdir()
        controller, *ports = _ports(1 + len(NODES))
        lines = [
            "ClusterName=test",
            f"SlurmctldHost={host}(127.0.0.1)",
            f"SlurmctldPort={controller}",
            "SlurmUser=root",
            "SlurmdUser=root",
            "AuthType=auth/munge",
            f"AuthInfo=socket={at}/munge.sock,cred_expire=5",
            "CredType=cred/munge",
            f"PluginDir={self._plugins}",
            f"StateSaveLocation={at}/state",
            f"SlurmdSpoolDir={at}/spool-%n",
            f"SlurmctldPidFile={at}/slurmctld.pid",
            f"SlurmdPidFile={at}/slurmd-%n.pid",
            f"SlurmctldLogFile={at}/slurmctld.log",
            f"SlurmdLogFile={at}/slurmd-%n.log",
            "ProctrackType=proctrack/pgid",
            "TaskPlugin=task/none",
            "JobAcctGatherType=jobacct_gather/none",
            "AccountingStorageType=accounting_storage/none",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_CPU_Memory",
            "SchedulerType=sched/backfill",
            "SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=100000",
            "SlurmdParameters=config_overrides",
            "SlurmdTimeout=12",
            "KillWait=2",
            "ReturnToService=2",
            "MpiDefault=none",
            "SwitchType=switch/none",
            "GresTypes=gpu",
        ]
        gres = []
        for (name, (feature, kind, count)), port in zip(NODES.items(), ports, strict=True):
            for index in range(count):
                (at / f"gpu-{name}-{index}").touch()
            gres.append(f"NodeName={name} Name=gpu Type={kind} File={at}/gpu-{name}-[0-{count - 1}]")
            lines.append(
                f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=16 RealMemory=64000 "
                f"Feature={feature} Gres=gpu:{kind}:{count}"
            )
        lines += [
            "PartitionName=main Nodes=n1,n2 Default=YES MaxTime=60 State=UP",
            "PartitionName=short Nodes=n1,n2 MaxTime=1 State=UP",
            "PartitionName=apart Nodes=n3 MaxTime=60 State=UP",
        ]
        (at / "slurm.conf").write_text("\n".join(lines) + "\n")
        (at / "gres.conf").write_text("\n".join(gres) + "\n")

    def _start(self, name: str, words: list[str]) -> None:
        """Start a daemon that ends when this process ends, even when it is killed."""
        with (self.folder / f"{name}.out.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": self._libraries},
                start_new_session=True,
            )

    def _stop(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        process = self._processes.pop(name)
        process.send_signal(number)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _until(self, what: str, true: object) -> None:
        assert callable(true)
        until(what, true, seconds=30, logs=self.logs)


def until(what: str, true: object, *, seconds: float = 60, logs: object = str) -> None:
    """Wait until `true()` holds; fail with `logs()` after so many seconds."""
    assert callable(true)
    assert callable(logs)
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"{what}: not ready within {seconds} s{logs()}"
        time.sleep(0.1)


def _ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
