"""An engine with a bridge and Debian's iptables, in a network namespace of its own, so that the machine's stays."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from knowngood.base import debian_host, private_apt
from knowngood.engine import daemon, embedded_engine, unpacked_engine

if TYPE_CHECKING:
    from knowngood.engine.container_engine import Engine

_NETWORK = ("bridge", "iptables", "ip6tables", "ip-masq", "ip-forward")
_PACKAGES = (
    *("iptables", "libip4tc2", "libip6tc2", "libxtables12"),
    *("libnetfilter-conntrack3", "libnfnetlink0", "libnftnl11", "libmnl0"),
)
_SERVER = """
import socket
tcp, abstract = socket.create_server(("", 4711)), socket.socket(socket.AF_UNIX)
abstract.bind(chr(0) + "kg")
abstract.listen()
print("listening", flush=True)
while True:
    tcp.accept()
"""


class BridgedEngine:
    """The programs of the embedded engine as another daemon, with two services in its network namespace.

    One listens at port 4711 of all addresses there, one at the abstract socket `kg`.
    """

    ADDRESS = "10.47.11.1"
    """An address in the namespace that is not its loopback."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self._source, self._folder = engine, folder / "bridged"
        self._run = Path(f"/run/knowngood-test-{os.getpid()}")
        self._name = self._run.name
        self.host = f"unix://{self._run}/docker.sock"

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as undo:
            for folder in (self._folder, self._run):
                folder.mkdir(mode=0o711)
                undo.callback(shutil.rmtree, folder)
            undo.callback(self._remove_cgroups)
            subprocess.run(["ip", "netns", "add", self._name], check=True)
            undo.callback(subprocess.run, ["ip", "netns", "delete", self._name], check=True)
            address = f"address add {self.ADDRESS}/24 dev out"
            for words in ("link set lo up", "link add out type bridge", address, "link set out up"):
                subprocess.run([*self._inside, "ip", *words.split()], check=True)
            argv = [*self._inside, sys.executable, "-c", _SERVER]
            service = undo.enter_context(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True))
            undo.callback(service.kill)
            assert service.stdout
            assert service.stdout.readline() == "listening\n"
            undo.callback(daemon.stop_daemon, self._start(), patience=2)
            self._wait_for_answer()
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def load(self, image: str) -> None:
        """Take an image from the other engine."""
        save = subprocess.Popen([*self._source.docker, "save", image], stdout=-1, env=self._source.environment())
        subprocess.run([*self._docker, "load"], stdin=save.stdout, check=True)
        assert save.wait() == 0

    @property
    def _docker(self) -> tuple[str, ...]:
        return (self._source.docker[0], "--host", self.host)

    @property
    def _inside(self) -> tuple[str, ...]:
        return ("nsenter", f"--net=/run/netns/{self._name}", "--")

    def _remove_cgroups(self) -> None:
        for top in embedded_engine.CGROUPS.rglob(self._name):
            for folder, _, _ in os.walk(top, topdown=False):
                Path(folder).rmdir()

    def _start(self) -> daemon.DaemonProcess:
        paths = unpacked_engine.engine_paths()
        configuration = {
            key: value for key, value in embedded_engine.daemon_configuration(paths).items() if key not in _NETWORK
        } | {
            "hosts": [self.host],
            "data-root": str(self._folder / "data"),
            "exec-root": str(self._run / "exec"),
            "pidfile": str(self._run / "pid"),
            "cgroup-parent": f"/{self._name}",
        }
        file = self._folder / "daemon.json"
        file.write_text(json.dumps(configuration))
        programs = unpacked_engine.program_environment(paths.tools)
        libraries = self._unpack_iptables()
        return daemon.start_daemon(
            [*self._inside, unpacked_engine.find_program("dockerd", paths.tools), "--config-file", str(file)],
            init=Path(unpacked_engine.find_program("tini-static", paths.tools)),
            env={
                **programs,
                "PATH": f"{self._folder}/bin:{programs['PATH']}",
                "LD_LIBRARY_PATH": f"{libraries}:{programs.get('LD_LIBRARY_PATH', '')}",
                "XTABLES_LIBDIR": str(libraries / "xtables"),
            },
            log=self._folder / "log",
            record=self._folder / "record",
            private=embedded_engine.PRIVATE_FOLDERS,
        )

    def _wait_for_answer(self) -> None:
        command = [*self._docker, "version"]
        deadline = time.monotonic() + 60
        while subprocess.run(command, capture_output=True, check=False).returncode:
            assert time.monotonic() < deadline, (self._folder / "log").read_text()
            time.sleep(0.2)

    def _unpack_iptables(self) -> Path:
        """Return the folder of its libraries; its programs are in `bin` afterwards."""
        packages = private_apt.PrivateApt(self._folder / "apt", debian_host.find_host_archives())
        packages.refresh()
        for package in packages.download([*_PACKAGES], self._folder):
            private_apt.unpack_deb(package, self._folder / "root")
        (self._folder / "bin").mkdir()
        for name in ("iptables", "ip6tables"):
            (self._folder / "bin" / name).symlink_to(self._folder / "root/usr/sbin/xtables-nft-multi")
        (libraries,) = (self._folder / "root/usr/lib").glob("*-linux-gnu")
        return libraries
