"""The images of the matrix on a real engine: what is in them, and that they train."""

from __future__ import annotations

import json
import os
import platform
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT, layer_file, rebuild, renew
from knowngood.core.cell import parse_cell
from knowngood.core.errors import KnowngoodError, MissingError
from knowngood.images import pipeline
from knowngood.images.pipeline import CellStatus
from knowngood.lock import cell_locking, resolver
from knowngood.project.checkout import Project
from knowngood.smoke import suite_command, suite_run

pytestmark = pytest.mark.integration

UNPACK = ROOT.parent / "shared" / "wheels" / "unpack.py"


def cell(project, name):
    return parse_cell(project.matrix.aliases[name])


@pytest.fixture(scope="session")
def default(engine):
    """The default cell's image, built by `.ci/run`'s first command or here."""
    here = Project(ROOT)
    line = pipeline.Pipeline(here, pipeline.PipelineOptions(wheelhouse=Path("/nonexistent"), locked=True), engine)
    locked, _ = line.lock(cell(here, "default"), print)
    return line.image(line.plan(locked, print), print), locked


def run(engine, image, *argv, user=None):
    client = engine.client()
    try:
        return client.containers.run(image.tag, list(argv), network_mode="none", remove=True, user=user).decode()
    finally:
        client.close()


def test_what_is_installed_is_the_lock(engine, default):
    image, locked = default
    installed = json.loads(run(engine, image, "cat", "/opt/knowngood/installed.json"))
    assert installed == {item.name: item.version for item in locked.distributions}
    seen = run(
        engine, image, "python", "-c", "import torch, transformers; print(torch.__version__, transformers.__version__)"
    )
    assert seen.split() == [f"{locked.cell.torch}+cu130", locked.cell.transformers]
    assert json.loads(run(engine, image, "cat", "/opt/knowngood/cell.json")) == locked.document()


def test_the_image_says_what_it_is(engine, default):
    image, locked = default
    client = engine.client()
    config = client.images.get(image.tag).attrs["Config"]
    client.close()
    labels = {key.removeprefix("io.knowngood."): value for key, value in config["Labels"].items()}
    for axis, value in locked.cell.axes().items():
        assert labels[str(axis)] == value
    environment = dict(item.split("=", 1) for item in config["Env"])
    assert environment["NVIDIA_REQUIRE_CUDA"] == "cuda>=13.0"
    assert environment["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert environment["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility"
    assert config["User"] == "1000:1000"
    assert "/cache" in config["Volumes"]


def test_no_large_file_is_there_twice(engine, default):
    script = """
import collections, filecmp, os
found = collections.defaultdict(dict)
for folder, _, names in os.walk("/opt"):
    for name in names:
        path = os.path.join(folder, name)
        seen = os.lstat(path)
        if seen.st_size > 1_000_000 and not os.path.islink(path):
            found[seen.st_size].setdefault(seen.st_ino, path)
for paths in (list(item.values()) for item in found.values()):
    for number, path in enumerate(paths):
        for other in paths[:number]:
            if filecmp.cmp(path, other, shallow=False):
                print(path, other)
print(len(found) > 20)
"""
    # Torch's protoc and Triton's libcupti.so come more than once in their wheels.
    assert run(engine, default[0], "python", "-c", script).split("\n") == ["True", ""]


@pytest.mark.parametrize("user", [None, "4321:4321"])
def test_any_user_can_write_where_a_run_writes(engine, default, user):
    script = (
        'set -e; [ "$(id -u)" != 0 ]; touch "$HOME/x"; mkdir -p "$HF_HOME/x" "$TRITON_CACHE_DIR/x"; '
        "! touch /opt/x 2>/dev/null; echo ok"
    )
    assert run(engine, default[0], "sh", "-c", script, user=user).strip() == "ok"


def test_a_compiler_and_headers_are_there_for_triton(engine, default):
    source = "#include <Python.h>\nint main(void) { return Py_IsInitialized(); }"
    include = "-I/usr/include/python3.11"
    script = (
        f"cd $HOME && printf '%s' '{source}' > a.c && gcc a.c {include} -lpython3.11 -o a && ./a "
        f"&& g++ -x c++ -c a.c {include} && echo ok"
    )
    assert run(engine, default[0], "sh", "-c", script).strip() == "ok"


def only(text, group):
    """A cell's Dockerfile with one layer of all, and without the checks of the whole."""
    parts = [part for part in text.split("\n\n") if "AS layer-" not in part or f"AS layer-{group}" in part]
    small = re.sub(rf"COPY --link --from=layer-(?!{group}).*\n", "", "\n\n".join(parts))
    return small[: small.index("# What is installed")] + "FROM assembled\nUSER 1000:1000\n"


def test_host_settings_leave_no_trace(line, project, monkeypatch):
    """A canary in the index settings reaches the build, and is in no file, history, label or variable of the image."""
    canary = "canary-4b1d"
    monkeypatch.setenv("UV_INDEX_INTERNAL_PASSWORD", canary)
    locked = project.tree.load(cell(project, "default"))
    recipe = project.root / "docker/recipe/install-layer"
    reached = '[ "${UV_INDEX_INTERNAL_PASSWORD:-}" ] && touch "$out/opt/knowngood/reached"\n'
    recipe.write_text(recipe.read_text().replace('rm -rf "$out/.cache"', reached + 'rm -rf "$out/.cache"'))
    plan = line.plan(locked, print)
    plan.dockerfile.write_text(only(plan.dockerfile.read_text(), "hugging-face"))
    image = rebuild(line, plan)
    client = line.engine.client()
    try:
        assert "reached" in run(line.engine, image, "ls", "/opt/knowngood")
        search = f"grep -rlI {canary} / --exclude-dir=proc --exclude-dir=sys; ls /run/secrets; echo end"
        assert run(line.engine, image, "sh", "-c", search, user="0").strip() == "end"
        found = client.images.get(image.tag)
        said = json.dumps([found.history(), found.attrs])
        assert canary not in said
        assert "SSL_CERT_FILE" not in said
        assert canary not in (project.root / "log").read_text()
    finally:
        client.images.remove(image.tag, force=True)
        client.close()


def test_an_index_that_serves_other_bytes_stops_the_build(line, project):
    locked = project.tree.load(cell(project, "default"))
    plan = line.plan(locked, print)
    path = layer_file(project, locked, "hugging-face")
    peft = next(item for item in locked.distributions if item.name == "peft")
    path.write_text(path.read_text().replace(peft.sha256, "0" * 64))
    with pytest.raises(KnowngoodError, match="hash mismatch") as caught:
        rebuild(line, plan)
    assert caught.value.exit_code == 1


def test_another_suite_does_not_change_the_image(line, project, default):
    image, locked = default
    (project.suite / "test_more.py").write_text("x")
    again = line.image(line.plan(locked, print), print)
    assert (again.digest, again.built) == (image.digest, False)


def test_imports_find_bytecode_beside_the_modules(engine, default):
    image, _ = default
    program = (
        "import os, sys, torch, transformers\n"
        "files = list(filter(None, [vars(module).get('__cached__') for module in list(sys.modules.values())]))\n"
        "print(len(files), [file for file in files if not os.path.exists(file)])"
    )
    count, _, missing = run(engine, image, "python", "-c", program).strip().partition(" ")
    assert int(count) > 1000
    assert missing == "[]"


def test_a_clobbered_pin_stops_the_build(line, project):
    locked = project.tree.load(cell(project, "default"))
    plan = line.plan(locked, print)
    clobber = (
        "FROM assembled AS spoiled\n"
        "RUN sed -i 's/^Version: .*/Version: 0.0.1/' /opt/venv/lib/python3.11/site-packages/peft-*.dist-info/METADATA\n"
        "FROM spoiled AS checked"
    )
    plan.dockerfile.write_text(plan.dockerfile.read_text().replace("FROM assembled AS checked", clobber))
    with pytest.raises(KnowngoodError, match=r"not what was locked.*peft: locked .*, installed 0\.0\.1"):
        rebuild(line, plan)


def test_an_index_that_does_not_answer_is_said(line, project, monkeypatch):
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    locked = project.tree.load(cell(project, "default"))
    renew(layer_file(project, locked, "hugging-face"))
    with pytest.raises(MissingError, match="the index does not answer") as caught:
        rebuild(line, line.plan(locked, print))
    assert caught.value.exit_code == 4


def place_of(line, image, locked, **options):
    return suite_run.SuiteContainer(
        cell=locked.cell,
        image=image.tag,
        digest=image.digest,
        engine=line.engine,
        options=suite_command.SuiteOptions(**options),
        log=line.project.root / "log",
        notify=print,
    )


def test_a_suite_that_takes_too_long_is_stopped_and_its_container_removed(line, default):
    image, locked = default
    place = place_of(line, image, locked, quick=True, seconds=3)
    with pytest.raises(KnowngoodError, match="did not end within 3 s"):
        suite_run.run_in_container(place, suite=line.project.suite, predictions={})
    client = line.engine.client()
    label = f"io.knowngood.smoke={platform.node()}/{locked.cell}"
    assert not client.containers.list(all=True, filters={"label": label})
    client.close()


def test_gpus_are_demanded_plainly(line, default):
    image, locked = default
    client = line.engine.client()
    has_nvidia = "nvidia" in client.info()["Runtimes"]
    client.close()
    if has_nvidia:
        pytest.skip("this engine has the NVIDIA runtime")
    with pytest.raises(MissingError, match="NVIDIA container toolkit"):
        suite_run.run_in_container(place_of(line, image, locked, gpus=True), suite=line.project.suite, predictions={})


def test_without_the_wheel_the_twin_is_built_and_the_summary_says_so(project, engine, tmp_path):
    options = pipeline.PipelineOptions(wheelhouse=tmp_path, locked=True, prove=False)
    wanted = cell(project, "hopper-stable")
    result = pipeline.Pipeline(project, options, engine).run(wanted, print)
    assert result.error is None
    assert result.cell == str(wanted.without_flash_attn())
    assert str(wanted) in result.note
    assert result.status is CellStatus.BUILT


@pytest.mark.skipif(not UNPACK.exists(), reason="the ready-made flash-attn wheel is not beside this checkout")
def test_with_the_wheel_flash_attn_2_is_in_the_image(project, engine, tmp_path):
    subprocess.run([sys.executable, UNPACK, "cp311", "--wheel", tmp_path], check=True)
    options = pipeline.PipelineOptions(wheelhouse=tmp_path, locked=True, suite=suite_command.SuiteOptions(quick=True))
    wanted = cell(project, "hopper-stable")
    result = pipeline.Pipeline(project, options, engine).run(wanted, print)
    assert result.error is None
    assert result.cell == str(wanted)
    report = json.loads(result.evidence.read_text())["report"]
    outcomes = {check["id"]: check for check in report["checks"]}
    assert outcomes["fa2/bf16/dense/full"]["outcome"] == "refused"  # there is no GPU here, and it says so
    assert outcomes["eager/fp32/dense/full"]["outcome"] == "pass"


def test_a_damaged_wheel_is_refused_by_name(project, engine, tmp_path):
    locked = project.tree.load(cell(project, "hopper-stable"))
    wheel = next(item for item in locked.distributions if item.name == "flash-attn")
    (tmp_path / wheel.file).write_bytes(b"not the wheel that was locked")
    line = pipeline.Pipeline(project, pipeline.PipelineOptions(wheelhouse=tmp_path, locked=True), engine)
    with pytest.raises(KnowngoodError, match="sha256") as caught:
        line.plan(locked, print)
    assert wheel.file in str(caught.value)


def test_a_version_that_does_not_exist_is_said_by_the_resolver(project):
    entry = project.matrix.entry(cell(project, "default"))
    spoiled = cell_locking.resolver_request(entry, project.matrix)
    request = resolver.ResolverRequest(**{**vars(spoiled), "requirements": ("transformers==5.99.0",)})
    with pytest.raises(resolver.NoSolutionError, match=r"transformers==5\.99\.0"):
        resolver.resolve_distributions(request)


def test_ctrl_c_stops_the_build_and_the_next_run_goes_on(project):
    renew(project.templates / "Dockerfile.j2")
    renew(layer_file(project, project.tree.load(cell(project, "default")), "hugging-face"))
    argv = [sys.executable, "-m", "knowngood", "build", "default"]
    # A shell's background job, as CI may be, hands on that SIGINT is ignored; somebody at a terminal does not.
    with subprocess.Popen(
        ["env", "--default-signal=INT", *argv],
        cwd=project.root,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        for said in process.stderr:
            if ": run " in said:
                break
        os.killpg(process.pid, signal.SIGINT)
        rest = process.stderr.read()
        assert process.wait(60) == 1
    assert "stopped" in rest
    assert "Traceback" not in rest
    left = subprocess.run(["pgrep", "-f", str(project.root)], capture_output=True, text=True, check=False)
    assert left.stdout == ""
    assert not [path for path in (project.root / "docker").rglob(".*") if path.is_file()]
    again = subprocess.run(argv, cwd=project.root, check=False, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr


def test_a_dry_run_prints_the_commands_and_does_nothing(project):
    argv = [sys.executable, "-m", "knowngood", "build-matrix", "default", "--dry-run"]
    done = subprocess.run(argv, cwd=project.root, check=True, capture_output=True, text=True)
    assert "buildx build" in done.stdout
    assert f"--volume {project.suite}:/smoke_tests:ro" in done.stdout
    assert "pytest /smoke_tests" in done.stdout
    assert not (project.root / "evidence").exists()
