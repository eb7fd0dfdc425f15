"""A package registry on the loopback interface that can be told to fail, and tiny artefacts to put into it."""

from __future__ import annotations

import http.server
import io
import re
import struct
import tarfile
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from local_server import serving

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class Registry:
    """Files by name, faults by file or project name, and the names that were requested."""

    files: dict[str, bytes] = field(default_factory=dict)
    yanked: set[str] = field(default_factory=set)
    uploaded: dict[str, str] = field(default_factory=dict)
    """File -> the time of its upload, for files of which the page states one."""
    faults: dict[str, str] = field(default_factory=dict)
    """The fault of each name: `404`, `500`, `garbage` or `truncate`."""
    hashes: dict[str, str] = field(default_factory=dict)
    """The SHA-256 that the page states of each file; without one it states none."""
    requests: list[str] = field(default_factory=list)
    url: str = ""

    def page(self, project: str) -> str | None:
        prefix = project.replace("-", "_")
        names = [name for name in self.files if re.split(r"-\d", name)[0].replace("-", "_") == prefix]
        if not names:
            return None
        links = (f'<a href="/files/{name}{self.fragment(name)}"{self.attributes(name)}>{name}</a>' for name in names)
        return "<!DOCTYPE html><html><body>" + "\n".join(links) + "</body></html>"

    def fragment(self, name: str) -> str:
        return f"#sha256={self.hashes[name]}" if name in self.hashes else ""

    def attributes(self, name: str) -> str:
        yanked = " data-yanked" if name in self.yanked else ""
        return yanked + (f' data-upload-time="{self.uploaded[name]}"' if name in self.uploaded else "")


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers requests for the registry in its class attribute."""

    registry: ClassVar[Registry]
    protocol_version = "HTTP/1.0"

    def do_HEAD(self) -> None:
        self.do_GET(head=True)

    def do_GET(self, *, head: bool = False) -> None:
        kind, name = self.path.strip("/").split("/", 1)
        fault = self.registry.faults.get(name, "")
        self.registry.requests.append(name)
        if fault.isdigit():
            self.answer(int(fault), b"no", head=head)
        elif kind == "simple":
            page = "{ not a page" if fault == "garbage" else self.registry.page(name)
            self.answer(200 if page else 404, (page or "").encode(), kind="text/html", head=head)
        else:
            content = self.registry.files[name]
            self.file(b"\xa7" * len(content) if fault == "garbage" else content, head=head, cut=fault == "truncate")

    def file(self, content: bytes, **how: bool) -> None:
        match = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if match is None:
            self.answer(200, content, **how)
            return
        start = int(match[1]) if match[1] else max(0, len(content) - int(match[2]))
        end = int(match[2]) + 1 if match[1] and match[2] else len(content)
        part = content[start:end]
        self.answer(206, part, limits=f"bytes {start}-{start + len(part) - 1}/{len(content)}", **how)

    def answer(
        self, status: int, body: bytes, *, kind: str = "x/y", limits: str = "", head: bool = False, cut: bool = False
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if limits:
            self.send_header("Content-Range", limits)
        self.end_headers()
        if not head:
            self.wfile.write(body[: len(body) // 2] if cut else body)

    def log_message(self, *_: object) -> None:
        pass


class Server(http.server.ThreadingHTTPServer):
    """Accepts many connections at once, so that none is refused on a busy machine."""

    request_queue_size = 128
    daemon_threads = True


@contextmanager
def serve() -> Iterator[Registry]:
    """Serve a registry until the block ends."""
    registry = Registry()
    handler = type("OneRegistry", (Handler,), {"registry": registry})
    server = Server(("127.0.0.1", 0), handler)
    registry.url = f"http://127.0.0.1:{server.server_address[1]}/simple/"
    with serving(server):
        yield registry


def wheel(members: dict[str, str | bytes]) -> bytes:
    """Return a wheel with these members."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return out.getvalue()


def sdist(top: str, members: dict[str, str]) -> bytes:
    """Return an sdist with these members below one folder."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(f"{top}/{name}")
            info.size = len(content.encode())
            archive.addfile(info, io.BytesIO(content.encode()))
    return out.getvalue()


def fatbin(*entries: tuple[int, int, int]) -> bytes:
    """Return a fatbin with entries (kind, architecture, flags), each with 24 bytes of code."""
    body = b"".join(
        struct.pack("<HHIQIIHHIIIQ", kind, 0x101, 64, 24, 0, 0, 0, 0, arch, 0, 0, flags) + bytes(16 + 24)
        for kind, arch, flags in entries
    )
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def metadata(name: str, version: str, *requires: str, python: str = ">=3.10") -> str:
    """Return the text of a METADATA file."""
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", f"Requires-Python: {python}"]
    return "\n".join([*lines, *(f"Requires-Dist: {line}" for line in requires)]) + "\n\n"


def torch_wheel(version: str, *, cuda: str = "13.0", archs: tuple[int, ...] = (75, 80), flagged: str = "") -> bytes:
    """Return a torch wheel with everything that the reader inspects."""
    flags = flagged or ";".join(f"-gencode;arch=compute_{arch},code=sm_{arch}" for arch in archs)
    code = fatbin(*((2, arch, 0x8011) for arch in archs))
    info = f"torch-{version}.dist-info"
    pins = ("triton==3.6.0; platform_system == 'Linux'", "nvidia-cudnn-cu13==9.19.0.56", "filelock")
    return wheel(
        {
            "torch/version.py": f"from typing import Optional\ncuda: Optional[str] = '{cuda}'\ngit_version = 'abc'\n",
            "torch/_dynamo/device_interface.py": "def f(p):\n    return p.major >= 7\n",
            "torch/lib/libc10.so": b"\x7fELF\0GLIBC_2.17\0_ZN3c105ErrorC2ENSt7__cxx1112basic_string\0",
            "torch/lib/libc10_cuda.so": b"\0GLIBC_2.2.5\0",
            "torch/lib/libtorch_python.so": b"\0numpy._core._multiarray_umath\0numpy.core._multiarray_umath\0",
            "torch/lib/libtorch_cuda.so": b"\0" + flags.encode() + bytes(40_000) + code * 20,
            f"{info}/METADATA": metadata("torch", version, *pins),
            f"{info}/WHEEL": "Wheel-Version: 1.0\n",
        }
    )


def torch_aarch64_wheel(cuda: str | None) -> bytes:
    """Return a torch wheel for Linux aarch64, with CUDA or for the CPU only."""
    members: dict[str, str | bytes] = {
        "torch/version.py": f"cuda = {cuda!r}\n",
        "torch/lib/libtorch_cpu.so": b"\x7fELF",
    }
    code = fatbin((2, 90, 0), (2, 110, 0)) * 20
    flags = b"-gencode;arch=compute_90,code=sm_90;-gencode;arch=compute_110,code=sm_110"
    library = b"\x7fELF\0" + flags + bytes(40_000) + code
    return wheel(members | ({"torch/lib/libtorch_cuda.so": library} if cuda else {}))
