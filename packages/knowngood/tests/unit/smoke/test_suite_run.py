"""The runner of the suite: its pure parts, and with a client of the engine at the SDK's seam."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import requests
from docker.errors import APIError, ImageNotFound, NotFound

from knowngood.base import emulation
from knowngood.core.cell import parse_cell
from knowngood.core.errors import KnowngoodError, MissingError
from knowngood.core.hosts import HostArchitecture
from knowngood.engine.container_engine import Engine
from knowngood.evidence.run_evidence import RunPlace
from knowngood.smoke import emulated_limits, suite_command, suite_run
from knowngood.smoke.suite_command import SuiteOptions
from samples import FA4

CELL = parse_cell(FA4)
SUITE = Path(__file__).parents[5] / "smoke_tests/smoke_tests"
REPORT = {"verdict": {"ok": True}, "suite_hash": "5" * 64, "checks": []}


class Container:
    def __init__(self):
        self.calls = []
        self.attrs = {"State": {"OOMKilled": False}}
        self.start_error = self.wait_error = None
        self.code = 0
        self.report = json.dumps(REPORT).encode()

    def put_archive(self, path, data):
        self.calls.append("put_archive")
        self.sent = (path, data)

    def start(self):
        self.calls.append("start")
        if self.start_error:
            raise self.start_error

    def wait(self, timeout):
        self.timeout = timeout
        if self.wait_error:
            raise self.wait_error
        return {"StatusCode": self.code}

    def logs(self, **_):
        return b"first\nlast words\n\n"

    def reload(self):
        pass

    def get_archive(self, path):
        if self.report is None:
            raise NotFound("no such file")
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            member = tarfile.TarInfo(path.rpartition("/")[2])
            member.size = len(self.report)
            archive.addfile(member, io.BytesIO(self.report))
        return iter([buffer.getvalue()]), {}

    def remove(self, **options):
        self.calls.append("remove")
        assert options == {"force": True, "v": True}


class FakeEngine(Engine):
    def client(self, **_):
        return CLIENT


CLIENT = SimpleNamespace()
INFO = {
    "KernelVersion": "6",
    "NCPU": 2,
    "MemTotal": 1,
    "ServerVersion": "26",
    "DefaultRuntime": "runc",
    "Name": "box",
    "Architecture": "x86_64",
}


@pytest.fixture
def container():
    made = Container()

    def create(*arguments, **options):
        CLIENT.created = (arguments, options)
        CLIENT.left.update({f"{name}={value}": [made] for name, value in options["labels"].items()})
        if CLIENT.create_error:
            raise CLIENT.create_error
        return made

    containers = SimpleNamespace(create=create, list=lambda **options: CLIENT.left.get(options["filters"]["label"], []))
    CLIENT.__dict__.update(
        create_error=None, left={}, containers=containers, info=lambda: INFO, closed=0, close=lambda: None
    )
    return made


ENGINE = FakeEngine(
    host="unix:///e.sock",
    docker=("docker",),
    version="26",
    buildkit="0.13",
    containerd_store=True,
    embedded=False,
    network="default",
)


def place_of(log, *, cell=CELL, **options):
    return suite_run.SuiteContainer(
        cell=cell,
        image="knowngood:x",
        digest="sha256:1",
        engine=ENGINE,
        options=SuiteOptions(**options),
        log=log,
        notify=lambda _: None,
    )


def run(tmp_path, *, cell=CELL, **options):
    place = place_of(tmp_path / "logs" / "smoke.log", cell=cell, **options)
    return suite_run.run_in_container(place, suite=SUITE, predictions={"eager*": {"outcome": "pass"}})


def test_the_container_command_has_a_time_limit():
    argv = suite_command.container_command(CELL, SuiteOptions(seconds=60))
    assert argv[:4] == ["timeout", "--kill-after=10", "60", "python"]
    assert "--quick" not in argv
    assert "--demand-gpu" not in argv


def test_the_container_command_with_all_options():
    argv = suite_command.container_command(CELL, SuiteOptions(quick=True, gpus=True))
    assert "--quick" in argv
    assert argv[argv.index("--demand-gpu") :][:3] == ["--demand-gpu", "--cell-gpu", "sm_90"]


def test_a_container_has_no_network_and_limits(tmp_path, container):
    run(tmp_path, memory="8g", pids=99)
    (image, argv), options = CLIENT.created
    assert (image, argv[0]) == ("knowngood:x", "timeout")
    assert options["network_mode"] == "none"
    assert (options["mem_limit"], options["pids_limit"]) == ("8g", 99)
    assert options["device_requests"] is None
    assert options["init"] is True
    assert container.timeout == 1230


def test_the_container_of_a_killed_run_of_the_cell_is_removed(tmp_path, container):
    run(tmp_path)
    ((label, value),) = CLIENT.created[1]["labels"].items()
    left = Container()
    CLIENT.left = {f"{label}={value}": [left], f"{label}=box/another": [container]}
    run(tmp_path)
    assert left.calls == ["remove"]


def test_the_dry_run_has_the_options_of_the_container():
    options = SuiteOptions(memory="8g", pids=99, gpus=True, seconds=60)
    words = suite_command.docker_run_words(options, "knowngood:x", Path("/here/smoke_tests"), ["--quick"])
    assert " ".join(words) == (
        "run --rm --network none --memory 8g --pids-limit 99 --shm-size 1g --init --env HF_HUB_OFFLINE=1 --gpus all "
        "--volume /here/smoke_tests:/smoke_tests:ro knowngood:x timeout --kill-after=10 60 "
        "python -m pytest /smoke_tests --quick"
    )


@pytest.mark.usefixtures("container")
def test_gpus_are_a_device_request(tmp_path):
    evidence = run(tmp_path, gpus=True)
    (request,) = CLIENT.created[1]["device_requests"]
    assert (request["Count"], request["Capabilities"]) == (-1, [["gpu"]])
    assert evidence.where is RunPlace.CONTAINER_GPU


@pytest.mark.parametrize(
    "info",
    [
        {"ServerVersion": "26.1.5", "CDISpecDirs": ["/etc/cdi"], "Runtimes": {"runc": {}}},
        {"ServerVersion": "28.1.1", "CDISpecDirs": ["/etc/cdi"]},
        {"ServerVersion": "29.0.0", "DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=all"}]},
    ],
)
def test_gpus_are_requested_by_cdi_without_an_nvidia_runtime(info):
    assert suite_command.gpu_request(info) == {"driver": "cdi", "device_ids": ["nvidia.com/gpu=all"]}


@pytest.mark.parametrize(
    "info",
    [
        {"ServerVersion": "26.1.5"},
        {"ServerVersion": "29.0.0", "CDISpecDirs": ["/etc/cdi"], "DiscoveredDevices": [{"ID": "vendor.com/net=0"}]},
        {"ServerVersion": "26.1.5", "CDISpecDirs": ["/etc/cdi"], "Runtimes": {"nvidia": {}, "runc": {}}},
    ],
)
def test_gpus_are_requested_from_the_nvidia_runtime_otherwise(info):
    assert suite_command.gpu_request(info) == {"count": -1, "capabilities": [["gpu"]]}


def test_a_good_run(tmp_path, container):
    evidence = run(tmp_path)
    assert evidence.report == REPORT
    assert (evidence.cell, evidence.image, evidence.where) == (FA4, "sha256:1", RunPlace.CONTAINER_CPU)
    assert evidence.node["kernel"] == "6"
    assert "box" not in json.dumps(evidence.document())
    assert container.calls == ["put_archive", "start", "remove"]
    assert (tmp_path / "logs" / "smoke.log").read_bytes() == b"first\nlast words\n\n"


def test_the_folder_is_open_to_any_user_and_holds_the_suite_and_its_predictions(tmp_path, container):
    run(tmp_path)
    path, data = container.sent
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        assert path == "/tmp"
        assert archive.getmember("knowngood").mode == 0o777
        assert json.load(archive.extractfile("knowngood/predictions.json")) == {"eager*": {"outcome": "pass"}}
        sent = archive.extractfile("knowngood/smoke_tests/conftest.py").read()
        assert sent == (SUITE / "conftest.py").read_bytes()
        assert not [name for name in archive.getnames() if "/." in name or "__pycache__" in name]
    assert f"{suite_command.CONTAINER_FOLDER}/smoke_tests" in CLIENT.created[0][1]


def gone(text="Connection aborted"):
    return requests.exceptions.ConnectionError(text)


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (
            {"start_error": APIError("x", explanation='could not select device driver "" with capabilities: [[gpu]]')},
            MissingError,
            "the engine at unix:///e.sock cannot give a container a GPU (could not select device driver",
        ),
        (
            {"start_error": APIError("x", explanation="no cgroup")},
            KnowngoodError,
            "the container did not start: no cgroup",
        ),
        ({"wait_error": gone("Read timed out.")}, KnowngoodError, "the container did not end within 1230 s (log: "),
        ({"wait_error": gone()}, MissingError, "the engine at unix:///e.sock does not answer (Connection aborted)"),
        ({"code": 124}, KnowngoodError, "the suite did not end within 1200 s (log: "),
        ({"code": 137}, KnowngoodError, "the suite did not end within 1200 s (log: "),
        (
            {"code": 137, "attrs": {"State": {"OOMKilled": True}}},
            KnowngoodError,
            "the suite was killed because it used more than 12g of memory (log: ",
        ),
        ({"report": None, "code": 4}, KnowngoodError, "the suite left no report; its last line: last words (log: "),
        ({"report": b'{"verdict"'}, KnowngoodError, "the suite left a damaged report ("),
        ({"wait_error": KeyboardInterrupt()}, KeyboardInterrupt, ""),
    ],
)
def test_a_failed_run_gives_a_reason_and_leaves_no_container(tmp_path, container, change, kind, message):
    container.__dict__.update(change)
    with pytest.raises(kind) as caught:
        run(tmp_path)
    assert type(caught.value) is kind
    assert str(caught.value).startswith(message)
    assert container.calls[-1] == "remove"


def test_a_signal_while_the_container_is_made_leaves_none(tmp_path, container):
    """The engine had made it, and its answer was not read: such a container stayed until the next run of its cell."""
    CLIENT.create_error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path)
    assert container.calls == ["remove"]


def test_what_had_run_when_the_time_was_up_is_kept_beside_the_log(tmp_path, container, monkeypatch):
    container.code = 124
    with pytest.raises(KnowngoodError) as caught:
        run(tmp_path)
    (kept,) = tmp_path.rglob("*.report.json")
    assert str(caught.value).endswith(f"; what had run by then: {kept})")
    assert json.loads(kept.read_bytes()) == REPORT
    kept.unlink()
    writes = f"open(pytestconfig.option.report, 'w').write({json.dumps(REPORT)!r})"
    suite = f"import time\ndef test(pytestconfig):\n    {writes}\n    time.sleep(30)\n"
    with pytest.raises(KnowngoodError, match="what had run by then: "):
        here(tmp_path, suite, monkeypatch, seconds=4)
    assert json.loads((tmp_path / "logs" / "here.report.json").read_bytes()) == REPORT


@pytest.mark.usefixtures("container")
def test_an_image_that_does_not_exist(tmp_path):
    CLIENT.create_error = ImageNotFound("x", explanation="No such image: knowngood:x")
    with pytest.raises(KnowngoodError, match="refused: No such image: knowngood:x"):
        run(tmp_path)


def here(tmp_path, suite, monkeypatch, **options):
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    (tmp_path / "conftest.py").write_text(
        "def pytest_addoption(parser):\n"
        "    parser.addoption('--report')\n    parser.addoption('--predictions')\n"
        "    parser.addoption('--quick', action='store_true')\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_it.py").write_text(suite)
    return suite_run.run_in_environment(
        CELL,
        tmp_path,
        SuiteOptions(**options),
        predictions={},
        log=tmp_path / "logs" / "here.log",
        notify=lambda _: None,
    )


def test_a_run_in_the_current_environment(tmp_path, monkeypatch):
    suite = f"import json\ndef test(pytestconfig): open(pytestconfig.option.report, 'w').write({json.dumps(REPORT)!r})"
    evidence = here(tmp_path, suite, monkeypatch)
    assert (evidence.where, evidence.image, evidence.report) == (RunPlace.BARE, None, REPORT)
    assert str(tmp_path) not in evidence.command
    assert "1 passed" in (tmp_path / "logs" / "here.log").read_text()


@pytest.mark.parametrize(
    ("suite", "message"),
    [
        ("def test(): assert 0", "the suite left no report; its last line: 1 failed"),
        ("import time\ndef test(): time.sleep(30)", "the suite did not end within 1 s"),
        ("def test(pytestconfig): open(pytestconfig.option.report, 'w').write('{')", "the suite left a damaged report"),
    ],
)
def test_a_failed_run_in_the_environment_gives_a_readable_error(tmp_path, monkeypatch, suite, message):
    with pytest.raises(KnowngoodError) as caught:
        here(tmp_path, suite, monkeypatch, seconds=1 if "sleep" in suite else 20)
    assert str(caught.value).startswith(message)


def test_processes_run_beside_the_suite_and_their_report_is_kept(tmp_path, monkeypatch):
    suite = tmp_path / "parallel_tests"
    suite.mkdir()
    (suite / "__init__.py").write_text("")
    program = (
        "import json, sys\n"
        f"json.dump({{**{REPORT!r}, 'words': sys.argv[3:]}}, open(sys.argv[sys.argv.index('--out') + 1], 'w'))\n"
    )
    (suite / "__main__.py").write_text(program)
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    evidence = suite_run.run_processes_in_environment(
        CELL, suite, SuiteOptions(quick=True, only="*/zero2/*"), processes=4, log=tmp_path / "log", notify=print
    )
    assert evidence.report["words"][:4] == ["--processes", "4", "--backend", "gloo"]
    assert evidence.report["words"][-3:] == ["--only", "*/zero2/*", "--quick"]
    assert evidence.where is RunPlace.BARE
    assert evidence.command[:4] == ("python", "parallel_tests", "--out", "report.json")


def test_processes_run_in_an_image_with_both_suites(tmp_path, container):
    place = place_of(tmp_path / "parallel.log", gpus=True, seconds=60)
    evidence = suite_run.run_processes_in_container(
        place, suite=SUITE, parallel_suite=SUITE.with_name("parallel_tests"), processes=8
    )
    assert (evidence.where, evidence.image) == (RunPlace.CONTAINER_GPU, "sha256:1")
    assert evidence.command[2:6] == ("60", "env", "PYTHONPATH=/tmp/knowngood", "python")
    assert evidence.command[-6:-2] == ("--processes", "8", "--backend", "nccl")
    with tarfile.open(fileobj=io.BytesIO(container.sent[1])) as archive:
        names = set(archive.getnames())
    assert {"knowngood/smoke_tests/model.py", "knowngood/parallel_tests/__main__.py"} <= names


def test_an_image_for_another_processor_runs_the_core_of_the_suite_under_emulation(tmp_path, container, monkeypatch):
    entered: list[str] = []
    monkeypatch.setattr(emulation, "emulate_host", lambda host, _: contextlib.nullcontext(entered.append(str(host))))
    evidence = run(tmp_path, cell=CELL.on_host(HostArchitecture.AARCH64))
    assert entered == ["aarch64"]
    assert (evidence.where, evidence.quick) == (RunPlace.CONTAINER_EMULATED, True)
    chosen = [word.rpartition("::")[2] for word in evidence.command if "::" in word]
    assert chosen == [f"test_trains[{check}]" for check in suite_command.EMULATED_CORE]
    assert evidence.command[2] == str(suite_command.EMULATED_SECONDS)
    assert "-p emulated_limits" in " ".join(evidence.command)
    assert CLIENT.created[1]["platform"] == "linux/arm64"
    with tarfile.open(fileobj=io.BytesIO(container.sent[1])) as sent:
        assert "knowngood/emulated_limits.py" in sent.getnames()


def test_an_emulated_image_gets_no_gpu(tmp_path, container):
    with pytest.raises(MissingError, match="its programs are emulated, and have no GPU; run it on a host of aarch64"):
        run(tmp_path, cell=CELL.on_host(HostArchitecture.AARCH64), gpus=True)
    assert container.calls == []


def test_an_image_on_its_own_processor_runs_the_whole_suite(tmp_path, container):
    CLIENT.info = lambda: {**INFO, "Architecture": "aarch64"}
    evidence = run(tmp_path, cell=CELL.on_host(HostArchitecture.AARCH64))
    assert (evidence.where, evidence.quick) == (RunPlace.CONTAINER_CPU, False)
    assert CLIENT.created[1]["platform"] is None
    with tarfile.open(fileobj=io.BytesIO(container.sent[1])) as sent:
        assert "knowngood/emulated_limits.py" not in sent.getnames()


def test_the_plugin_gives_the_suite_more_time(monkeypatch):
    asked = []
    runner = SimpleNamespace(
        START_TIMEOUT=10.0, Runner=type("Runner", (), {"run": lambda _, __, timeout: asked.append(timeout)})
    )
    monkeypatch.setitem(sys.modules, "smoke_tests.runner", runner)
    emulated_limits.pytest_configure()
    runner.Runner().run({}, 2.0)
    assert (runner.START_TIMEOUT, asked) == (10.0 * emulated_limits.FACTOR, [2.0 * emulated_limits.FACTOR])
