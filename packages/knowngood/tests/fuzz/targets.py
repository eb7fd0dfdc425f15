"""What is fuzzed: each target takes damaged bytes, and says with which exit code and message the program answers.

A target that puts a file into a project runs commands on it as a user would, in this process. The property is in
`check_target`: never a traceback, an exit code of those that are promised, a message that names the file, and no file
changed or half-written.
"""

from __future__ import annotations

import contextlib
import functools
import http.server
import io
import json
import os
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from unittest import mock

import damage
import registry_targets
from hypothesis import strategies as st

from knowngood.cli.main import main
from knowngood.core import local_files
from knowngood.core.errors import KnowngoodError
from knowngood.core.local_files import FACTS_FOLDER, INCIDENTS_FOLDER, RULES_FOLDER

ROOT = Path(__file__).resolve().parents[4]
_KNOWLEDGE = (FACTS_FOLDER, RULES_FOLDER, INCIDENTS_FOLDER)
CELL = "sm90-cu130-torch2.11.0-tf4.57.6-fa0-triton3.6.0-py311"
EXIT_CODES = frozenset({0, 1, 2, 3, 4})
_CHECK = ["check", "torch==2.11.0", "transformers==4.57.6", "triton==3.6.0", "--gpu", "H100"]
_BILL = ["export", CELL, "--format", "cyclonedx"]
_PICK = ["pick", "--gpu", "H100"]
_LOG = """Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/transformers/models/qwen2/modeling_qwen2.py", line 640, in forward
    x
  File "/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1532, in _call_impl
    return forward_call(*args, **kwargs)
AttributeError: 'Qwen2FlashAttention2' object has no attribute '_flash_attention_forward'
"""


@dataclass(frozen=True, kw_only=True)
class FuzzAnswer:
    """The answer to damaged bytes: the exit code, and everything that was printed or raised as a message."""

    code: int
    message: str


@dataclass(frozen=True, kw_only=True)
class FuzzTarget:
    """A place where damaged bytes come in."""

    name: str
    examples: Callable[[], st.SearchStrategy[bytes]]
    answer: Callable[[bytes], FuzzAnswer]
    file: str = ""
    """What a message about a refused input names; empty for what is no file."""


def check_target(target: FuzzTarget, data: bytes) -> FuzzAnswer:
    """Give these bytes to a target; raises `AssertionError`, or what the program raised, when it answers wrongly."""
    answer = target.answer(data)
    assert answer.code in EXIT_CODES, answer
    assert "Traceback (most recent call last)" not in answer.message, answer
    if answer.code == 2 and target.file:
        assert target.file in answer.message, answer
    assert answer.code == 0 or answer.message.strip(), "a failure without a message"
    return answer


@functools.cache
def project_folder() -> Path:
    """Return a small copy of this project, on which commands run; it is removed when the process ends."""
    keep = tempfile.TemporaryDirectory(prefix="knowngood-fuzz-")
    project_folder.kept = keep  # type: ignore[attr-defined] # removed with the process
    root = Path(keep.name) / "project"
    for name in (*_KNOWLEDGE, "templates", "smoke_tests", "docker", "evidence/nights"):
        shutil.copytree(ROOT / name, root / name)
    shutil.copytree(ROOT / "evidence" / CELL, root / "evidence" / CELL)
    shutil.copy(ROOT / "matrix.yaml", root)
    os.environ["KNOWNGOOD_CACHE"] = str(Path(keep.name) / "cache")
    (root / "job.log").write_text(_LOG)
    return root


@contextlib.contextmanager
def damaged_file(path: Path, data: bytes) -> Iterator[None]:
    """Put these bytes into a file of the project until the block ends, and check that nothing else changed it."""
    sound = path.read_bytes()
    path.write_bytes(data)
    _clear_caches()
    try:
        yield
        assert path.read_bytes() == data, "the damaged file was overwritten"
        strays = [item for item in path.parent.iterdir() if item.name.startswith(f".{path.name}.")]
        assert not strays, f"half-written: {strays}"
    finally:
        path.write_bytes(sound)
        _clear_caches()


def _clear_caches() -> None:
    for name, module in list(sys.modules.items()):
        if name.startswith("knowngood"):
            for value in list(vars(module).values()):
                if hasattr(value, "cache_clear"):
                    value.cache_clear()


def _run_commands(file: str, commands: list[list[str]], data: bytes) -> FuzzAnswer:
    """Run commands on the project with a damaged file; the answer is the first one that is not 0 or 3, or the last."""
    root = project_folder()
    answer = FuzzAnswer(code=0, message="")
    before = Path.cwd()
    os.chdir(root)
    try:
        with damaged_file(root / file, data), mock.patch.object(local_files, "data_folder", return_value=root):
            for command in commands:
                out, err = io.StringIO(), io.StringIO()
                with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                    code = main(command)
                answer = FuzzAnswer(code=code, message=out.getvalue() + err.getvalue())
                if code not in (0, 3):
                    break
    finally:
        os.chdir(before)
    return answer


def command_target(file: str, *commands: list[str], names: str | None = None) -> FuzzTarget:
    """Return a target that damages a file of the project and runs commands."""
    data = (ROOT / file).read_bytes()
    damaged = damage.damaged_json if file.endswith(".json") else damage.damaged_bytes
    return FuzzTarget(
        name=re.sub(r"^packages/[\w-]+/", "", file).replace("/", "-"),
        examples=lambda: damaged(data),
        answer=lambda new: _run_commands(file, list(commands), new),
        file=names if names is not None else Path(file).name,
    )


def _call(read: Callable[[Path], object], name: str, data: bytes) -> FuzzAnswer:
    """Write the bytes into a file of a new folder and let `read` read it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        try:
            read(path)
        except KnowngoodError as error:
            return FuzzAnswer(code=error.exit_code, message=str(error))
    return FuzzAnswer(code=0, message="")


def reader_target(name: str, read: Callable[[Path], object], sample: bytes) -> FuzzTarget:
    """Return a target that damages a file and calls the function that reads it."""
    damaged = damage.damaged_json if name.endswith(".json") else damage.damaged_bytes
    return FuzzTarget(
        name=name, examples=lambda: damaged(sample), answer=lambda data: _call(read, name, data), file=name
    )


def _read_reproduction(path: Path) -> object:
    from knowngood.core.data_files import read_data_text
    from knowngood_diagnose.reproductions.reproduction import parse_reproduction

    return parse_reproduction(read_data_text(path, path.name), path.name)


def _read_allowlist(path: Path) -> object:
    from knowngood.core.data_files import read_data_text
    from knowngood.registry.vulnerability_audit import parse_allowlist

    return parse_allowlist(read_data_text(path, path.name), path.name, date(2026, 11, 23))


def _read_reports(path: Path) -> object:
    from knowngood.reports.nightly_folder import load_reports

    return load_reports(path.parent)


def _read_wheel_record(path: Path) -> object:
    from knowngood.lock.wheelhouse import read_wheel_record

    return read_wheel_record(path.with_name(path.name.removesuffix(".json")))


def _read_docker_config(path: Path) -> object:
    from knowngood.registry.registry_client import RegistryLogin

    with mock.patch.dict(os.environ, {"DOCKER_CONFIG": str(path.parent)}):
        return RegistryLogin("registry.example")._read_credentials()


_PYLOCK = b"""lock-version = "1.0"
created-by = "uv"
[[packages]]
name = "torch"
version = "2.11.0"
wheels = [{ url = "torch-2.11.0-cp311-cp311-linux_x86_64.whl", hashes = { sha256 = "00" } }]
"""
_DOCKER_CONFIG = b'{"auths": {"registry.example": {"auth": "Ym9iOnNlY3JldA=="}, "b": {}}, "credHelpers": {}}'
_WHEEL = "flash_attn-2.8.3-cp311-cp311-linux_x86_64.whl"


@contextlib.contextmanager
def _served(data: bytes, content_type: str) -> Iterator[str]:
    """Serve these bytes for every request on this machine."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(data)

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Write no line for a request: thousands of them would hide what the fuzzing says."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def _ask(question: Callable[[str], object], data: bytes, content_type: str) -> FuzzAnswer:
    from knowngood.index.artefact import UnreadableError

    with (
        _served(data, content_type) as address,
        mock.patch("time.sleep"),
    ):
        try:
            question(address)
        except KnowngoodError as error:
            return FuzzAnswer(code=error.exit_code, message=str(error))
        except UnreadableError as error:  # the reason of a fact that stays unknown
            return FuzzAnswer(code=3, message=str(error))
    return FuzzAnswer(code=0, message="")


def _ask_index(address: str) -> object:
    from knowngood.index.package_index import SimpleIndex

    return SimpleIndex(f"http://{address}/simple/").files("tinylib")


def _answer_or_error(question: Callable[[], object]) -> FuzzAnswer:
    with mock.patch("time.sleep"):
        try:
            question()
        except KnowngoodError as error:
            return FuzzAnswer(code=error.exit_code, message=str(error))
    return FuzzAnswer(code=0, message="")


def _list_registry_targets() -> list[FuzzTarget]:
    """Return a target for each document that a registry serves, and for each header that is read of it."""
    return [
        *(
            FuzzTarget(
                name=f"registry-{part.replace('/', '-')}",
                examples=lambda data=data: damage.damaged_json(data),  # type: ignore[misc] # mypy knows no defaults
                answer=lambda data, part=part: _answer_or_error(  # type: ignore[misc]
                    lambda: registry_targets.read_registry(part, data)
                ),
            )
            for part, data in registry_targets.list_parts().items()
            if part != "layer"
        ),
        *(
            FuzzTarget(
                name=f"registry-{name}",
                examples=lambda value=value: damage.damaged_bytes(value),  # type: ignore[misc]
                answer=lambda data, name=name: _answer_or_error(  # type: ignore[misc]
                    lambda: registry_targets.ask_with_header(name, data)
                ),
            )
            for name, (_, value) in registry_targets.HEADERS.items()
        ),
    ]


_PAGE = json.dumps(
    {
        "meta": {"api-version": "1.1"},
        "name": "tinylib",
        "versions": ["1.0"],
        "files": [
            {
                "filename": "tinylib-1.0-py3-none-any.whl",
                "url": "tinylib-1.0-py3-none-any.whl",
                "hashes": {"sha256": "0" * 64},
                "requires-python": ">=3.9",
                "yanked": False,
                "core-metadata": {"sha256": "0" * 64},
                "size": 5,
                "upload-time": "2026-01-02T03:04:05Z",
            }
        ],
    }
).encode()
_HTML = b"""<html><body>
<a href="tinylib-1.0-py3-none-any.whl#sha256=00" data-requires-python="&gt;=3.9">tinylib-1.0-py3-none-any.whl</a>
</body></html>"""


def _diagnose(data: bytes) -> FuzzAnswer:
    return _run_commands("job.log", [["diagnose", "job.log"]], data)


def _log_target() -> FuzzTarget:
    return FuzzTarget(name="log", examples=lambda: damage.damaged_bytes(_LOG.encode()), answer=_diagnose)


def list_targets() -> dict[str, FuzzTarget]:
    """Return every target by name."""
    (nightly,) = sorted((ROOT / "evidence/nights").glob("[0-9]*.json"))[-1:]
    (evidence,) = sorted((ROOT / "evidence" / CELL).glob("*.json"))[:1]
    layer = json.loads((ROOT / "docker/cells" / CELL / "cell.json").read_bytes())["layers"][0]
    record = json.dumps(
        {"schema": "knowngood/wheel/1", "wheel": _WHEEL, "sha256": "0", "size": 1, "key": "0", "inputs": {}, "made": {}}
    )
    targets = [
        command_target("matrix.yaml", ["cells"], _CHECK, _PICK, ["cells", "--size", CELL]),
        command_target(f"{local_files.FACTS_FOLDER}/torch.json", _CHECK, _PICK, ["cells"]),
        command_target(f"{local_files.FACTS_FOLDER}/transformers.json", _CHECK, _PICK),
        command_target(f"{local_files.FACTS_FOLDER}/flash-attn.json", _CHECK, _PICK),
        command_target(f"{local_files.FACTS_FOLDER}/flash-attn-4.json", _CHECK, _PICK),
        command_target(f"{local_files.FACTS_FOLDER}/transformer-engine.json", _CHECK, _PICK),
        command_target(f"{local_files.FACTS_FOLDER}/drivers.json", _CHECK, _PICK),
        command_target(f"{local_files.FACTS_FOLDER}/xtuner.json", _CHECK, _PICK),
        command_target(f"{local_files.FACTS_FOLDER}/lines/transformers.json", ["diagnose", "job.log"]),
        command_target(f"{local_files.RULES_FOLDER}/gpu.yaml", _CHECK, _PICK),
        command_target(f"{local_files.RULES_FOLDER}/packages.yaml", _CHECK, _PICK),
        command_target("smoke_tests/predictions.yaml", ["cells", "--json"], ["render", "--check"]),
        command_target(
            f"{local_files.INCIDENTS_FOLDER}/flash-attn-2-needs-ampere.yaml", _CHECK, ["diagnose", "job.log"]
        ),
        command_target(
            f"{local_files.INCIDENTS_FOLDER}/qwen2-padding-right-use-cache.yaml", _CHECK, ["diagnose", "job.log"]
        ),
        command_target(
            f"docker/cells/{CELL}/cell.json",
            _BILL,
            ["export", CELL, "--format", "requirements"],
        ),
        command_target(f"docker/cells/{CELL}/image.json", _PICK, ["cells", "--size", CELL], ["build", "--plan", CELL]),
        command_target(f"docker/layers/{layer}/requirements.txt", _BILL, names=layer),
        command_target("docker/licences.json", _BILL),
        command_target("docker/bases/debian12/packages.lock", _BILL),
        command_target(f"evidence/{CELL}/{evidence.name}", ["cells"], _CHECK),
        reader_target(nightly.name, _read_reports, nightly.read_bytes()),
        reader_target("audit.yaml", _read_allowlist, (ROOT / "docker/audit.yaml").read_bytes()),
        reader_target("reproduction.yaml", _read_reproduction, _first_reproduction()),
        reader_target("config.json", _read_docker_config, _DOCKER_CONFIG),
        reader_target(f"{_WHEEL}.json", _read_wheel_record, record.encode()),
        FuzzTarget(
            name="index-json",
            examples=lambda: damage.damaged_json(_PAGE),
            answer=lambda data: _ask(_ask_index, data, "application/vnd.pypi.simple.v1+json"),
        ),
        FuzzTarget(
            name="index-html",
            examples=lambda: damage.damaged_bytes(_HTML),
            answer=lambda data: _ask(_ask_index, data, "text/html"),
        ),
        *_list_registry_targets(),
        _log_target(),
    ]
    return {target.name: target for target in targets}


def _first_reproduction() -> bytes:
    return next(
        iter(sorted((ROOT / "packages/knowngood-diagnose/reproductions").glob("*/reproduction.yaml")))
    ).read_bytes()
