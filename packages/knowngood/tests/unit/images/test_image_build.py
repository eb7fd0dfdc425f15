from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import stat
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import requests
import stamina
from docker.errors import APIError, NotFound

from knowngood.core.errors import KnowngoodError, MissingError
from knowngood.core.image_record import ImageBlob, ImageRecord, ImageShape
from knowngood.engine import container_engine
from knowngood.engine.container_engine import Engine
from knowngood.images import build_command, build_inputs, image_build
from knowngood.index import index_settings
from knowngood.lock.cell_lock import Distribution

SECRET = "s3cret-token"
INPUTS = "ab" * 32


class Images:
    """The images of an engine, at the seam of the SDK."""

    def __init__(self):
        self.known = {}
        self.error = None

    def get(self, tag):
        if self.error:
            raise self.error
        if tag not in self.known:
            raise NotFound(f"no such image: {tag}")
        return self.known[tag]


class FakeEngine(Engine):
    def client(self, **_):
        return SimpleNamespace(images=IMAGES, close=lambda: None)


IMAGES = Images()


@pytest.fixture
def engine(tmp_path):
    """An engine whose `docker` is a script: `script(text)` says what it does; its argv lands in `argv.json`."""
    IMAGES.__init__()
    program = tmp_path / "docker"

    def script(text: str) -> FakeEngine:
        program.write_text(
            f"#!{sys.executable}\nimport json, os, sys, time\n"
            f"json.dump([sys.argv, dict(os.environ)], open({str(tmp_path / 'argv.json')!r}, 'w'))\n{text}\n"
        )
        program.chmod(0o755)
        return FakeEngine(
            host="unix:///e.sock",
            docker=(str(program), "--host", "unix:///e.sock"),
            version="26.1",
            buildkit="0.13",
            containerd_store=True,
            embedded=False,
            network="default",
        )

    return script


def plan(**changes) -> build_command.BuildPlan:
    fields = {
        "tag": "knowngood:x",
        "dockerfile": Path("/p/Dockerfile"),
        "context": Path("/p/docker"),
        "contexts": {"base": "oci-layout:///b@sha256:0", "tools": "/t"},
        "inputs": INPUTS,
    }
    return build_command.BuildPlan(**(fields | changes))


def image(inputs: str = INPUTS):
    return SimpleNamespace(id="sha256:1", attrs={"Size": 5}, labels={"io.knowngood.inputs": f"sha256:{inputs}"})


def values(argv: list[str], option: str) -> list[str]:
    return [argv[index + 1] for index, word in enumerate(argv) if word == option]


def test_the_build_command(engine):
    argv = build_command.buildx_command(plan(secrets={"env": Path("/s/env")}), engine(""), Path("/m.json"))
    assert argv[1:5] == ["--host", "unix:///e.sock", "buildx", "build"]
    assert values(argv, "--build-context") == ["base=oci-layout:///b@sha256:0", "tools=/t"]
    assert values(argv, "--secret") == ["id=env,src=/s/env"]
    assert values(argv, "--label") == [f"io.knowngood.inputs=sha256:{INPUTS}"]
    assert values(argv, "--build-arg") == ["SOURCE_DATE_EPOCH=315532800"]
    assert values(argv, "--output")[0].startswith("type=image,name=knowngood:x,compression=zstd")
    assert values(argv, "--provenance") == ["false"]
    assert argv[-1] == "/p/docker"


def test_a_builder_sends_the_image_to_the_engine(engine):
    builder = dataclasses.replace(engine(""), builder="far")
    argv = build_command.buildx_command(plan(), builder, Path("/m"))
    assert (values(argv, "--builder"), values(argv, "--network")) == (["far"], ["default"])
    assert values(argv, "--output")[0].startswith("type=docker,name=knowngood:x,compression=zstd")


def test_a_builder_takes_the_base_from_its_layout_where_the_engine_lacks_the_containerd_store(engine, tmp_path):
    builder = dataclasses.replace(engine(GOOD), builder="far", containerd_store=False)
    with pytest.raises(KnowngoodError, match="does not list it"):
        image_build.build_image(plan(), builder, log=tmp_path / "log", notify=print)
    argv, _ = json.loads((tmp_path / "argv.json").read_text())
    assert values(argv, "--build-context") == ["base=oci-layout:///b@sha256:0", "tools=/t"]
    assert "--load" in argv


def test_an_engine_without_the_containerd_store_loads_the_image(engine):
    argv = build_command.buildx_command(plan(), dataclasses.replace(engine(""), containerd_store=False), Path("/m"))
    assert values(argv, "--tag") == ["knowngood:x"]
    assert "--load" in argv
    assert "--output" not in argv


def test_secret_files_are_private_and_removed_afterwards(monkeypatch, engine, tmp_path):
    settings = index_settings.IndexSettings(
        env={"UV_DEFAULT_INDEX": f"https://me:{SECRET}@index.example/simple"}, files={"ca": tmp_path / "ca.pem"}
    )
    monkeypatch.setattr(index_settings, "read_index_settings", lambda: settings)
    with build_inputs.host_secrets() as secrets:
        assert set(secrets) == {"env", "ca"}
        assert SECRET in secrets["env"].read_text()
        assert stat.S_IMODE(secrets["env"].stat().st_mode) == 0o600
        argv = build_command.buildx_command(plan(secrets=secrets), engine(""), Path("/m"))
        assert SECRET not in json.dumps(argv)
    assert not secrets["env"].exists()


def test_a_host_without_settings_has_no_secrets(monkeypatch):
    monkeypatch.setattr(index_settings, "read_index_settings", lambda: index_settings.IndexSettings(env={}, files={}))
    with build_inputs.host_secrets() as secrets:
        assert secrets == {}


@pytest.fixture
def folders(tmp_path):
    recipe = tmp_path / "recipe"
    recipe.mkdir()
    (recipe / "a").write_text("a")
    (recipe / "b").write_text("b")
    return {"recipe": recipe}


def digests(folders):
    return {name: build_inputs.digest_folder(folder) for name, folder in folders.items()}


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "a").write_text("x"),
        lambda folder: (folder / "a").chmod(0o755),
        lambda folder: (folder / "a").rename(folder / "c"),
        lambda folder: (folder / "c").write_text(""),
        lambda folder: (folder / "b").unlink(),
        lambda folder: ((folder / "a").write_text("ab"), (folder / "b").write_text("")),
    ],
)
def test_every_file_of_the_recipe_changes_the_inputs(folders, change):
    def shape():
        return build_inputs.image_shape("FROM x", lock="1", base="2", **digests(folders))

    before = shape()
    assert shape() == before
    change(folders["recipe"])
    assert shape().inputs != before.inputs
    assert shape().describe_changes(before) == ("docker/recipe",)


def test_the_inputs_depend_on_the_dockerfile_but_not_on_caches_or_secrets(folders, monkeypatch):
    def inputs(dockerfile="FROM x", lock="1", base="2"):
        return build_inputs.image_shape(dockerfile, lock=lock, base=base, **digests(folders)).inputs

    before = inputs()
    assert len({before, inputs(dockerfile="FROM y"), inputs(lock="2"), inputs(base="1")}) == 4
    (folders["recipe"] / "__pycache__").mkdir()
    (folders["recipe"] / "__pycache__" / "a.pyc").write_bytes(b"x")
    (folders["recipe"] / ".ruff_cache").mkdir()
    (folders["recipe"] / ".ruff_cache" / "a").write_bytes(b"x")
    os.utime(folders["recipe"] / "a", (1, 1))
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"https://me:{SECRET}@index.example")
    assert inputs() == before


def test_an_image_of_the_same_inputs_is_found(engine):
    found = engine("")
    assert image_build.find_image(plan(), found) is None
    IMAGES.known["knowngood:x"] = image("cd" * 32)
    assert image_build.find_image(plan(), found) is None
    IMAGES.known["knowngood:x"] = image()
    assert image_build.find_image(plan(), found) == build_command.Image(
        tag="knowngood:x", digest="sha256:1", size=5, built=False
    )


def test_the_recorded_image_is_found_by_its_manifest_or_its_configuration(engine):
    def record(manifest, config):
        blobs = [ImageBlob(digest=f"sha256:{name}", size=1) for name in (manifest, config)]
        shape = ImageShape(dockerfile="1", lock="2", base="3", recipe="4", uv="5", export="6")
        return ImageRecord(cell="x", shape=shape, manifest=blobs[0], config=blobs[1], layers=(), tools={})

    IMAGES.known["knowngood:x"] = image()
    found = engine("")
    same = image_build.find_recorded_image("knowngood:x", record("1", "2"), found)
    assert (same.digest, same.record) == ("sha256:1", record("1", "2"))
    classic = image_build.find_recorded_image("knowngood:x", record("2", "1"), found)
    assert (classic.digest, classic.record) == ("sha256:1", None)
    assert image_build.find_recorded_image("knowngood:x", record("2", "3"), found) is None
    assert image_build.find_recorded_image("knowngood:y", record("1", "2"), found) is None


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (
            requests.ConnectionError("gone"),
            MissingError,
            "the engine at unix:///e.sock does not answer (gone); `knowngood en",
        ),
        (
            APIError("x", explanation="layer is broken"),
            KnowngoodError,
            "the engine at unix:///e.sock refused: layer is broken",
        ),
    ],
)
def test_a_failing_engine_gives_a_readable_error(engine, error, kind, message):
    found = engine("")
    IMAGES.error = error
    with pytest.raises(KnowngoodError) as caught:
        image_build.find_image(plan(), found)
    assert type(caught.value) is kind
    assert str(caught.value).startswith(message)


def test_a_client_is_always_closed(monkeypatch, engine):
    closed = []
    found = engine("")
    monkeypatch.setattr(FakeEngine, "client", lambda _self: SimpleNamespace(close=lambda: closed.append(1)))
    with pytest.raises(ZeroDivisionError), container_engine.docker_client(found):
        raise ZeroDivisionError
    assert closed == [1]


GOOD = 'print("#5 [layer-torch 1/1] RUN x", flush=True); print("#9 exporting layers")'


def test_a_build_reports_its_steps_and_keeps_its_output(engine, tmp_path):
    said = []

    def say(step):
        said.append(step)
        IMAGES.known["knowngood:x"] = image()

    log = tmp_path / "logs" / "build.log"
    made = image_build.build_image(plan(), engine(GOOD), log=log, notify=say)
    assert (made.built, made.digest) == (True, "sha256:1")
    assert said == ["run layer-torch", "export"]
    assert "#5 [layer-torch 1/1] RUN x" in log.read_text()


def test_an_image_that_another_run_has_built_is_used(engine, tmp_path):
    IMAGES.known["knowngood:x"] = image()
    made = image_build.build_image(plan(), engine("sys.exit(9)"), log=tmp_path / "build.log", notify=print)
    assert not made.built
    assert not (tmp_path / "argv.json").exists()


def test_a_second_run_waits_while_one_builds(engine, tmp_path):
    held = []

    def say(_):
        handle = os.open(tmp_path / "logs", os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            held.append(True)
        os.close(handle)
        IMAGES.known["knowngood:x"] = image()

    image_build.build_image(plan(), engine(GOOD), log=tmp_path / "logs" / "build.log", notify=say)
    assert held == [True, True]


def test_a_build_is_repeated_when_a_blob_was_garbage_collected(engine, tmp_path):
    """The first attempt ends as BuildKit does when a blob is gone, the second one well."""
    mark, said = tmp_path / "tried", []
    text = f"""
if not os.path.exists({str(mark)!r}):
    open({str(mark)!r}, "w").close()
    print("ERROR: failed to solve: content digest sha256:2ab09b: not found")
    sys.exit(1)
{GOOD}
"""

    def say(step):
        said.append(step)
        if mark.exists():
            IMAGES.known["knowngood:x"] = image()

    with stamina.set_testing(True, attempts=3):
        assert image_build.build_image(plan(), engine(text), log=tmp_path / "build.log", notify=say).built
    assert said[0] == "the engine's garbage collector took a blob during the build: attempt 2"


def test_credentials_reach_neither_log_nor_message(engine, tmp_path):
    text = f'print("#7 1.2 error: Failed to fetch: `https://me:{SECRET}@index.example/simple/x/`"); sys.exit(1)'
    log = tmp_path / "build.log"
    with pytest.raises(MissingError, match="the index does not answer") as caught:
        image_build.build_image(plan(), engine(text), log=log, notify=print)
    assert SECRET not in str(caught.value)
    assert SECRET not in log.read_text()
    assert "https://***@index.example/simple/x/" in log.read_text()


@pytest.mark.parametrize(
    ("on_term", "patience"),
    [("signal.SIG_DFL", 60), ("lambda *_: (time.sleep(0.1), os._exit(1))", 60), ("signal.SIG_IGN", 0.1)],
)
def test_an_interrupted_build_leaves_no_process(engine, tmp_path, monkeypatch, on_term, patience):
    monkeypatch.setattr(image_build, "STOP_SECONDS", patience)
    text = (
        f'import signal; signal.signal(signal.SIGTERM, {on_term}); open({str(tmp_path / "pid")!r}, "w")'
        f".write(str(os.getpid())); {GOOD}; sys.stdout.flush(); time.sleep(60)"
    )

    def interrupt(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        image_build.build_image(plan(), engine(text), log=tmp_path / "build.log", notify=interrupt)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_an_image_that_the_engine_does_not_list(engine, tmp_path):
    with pytest.raises(KnowngoodError, match="was built, but the engine does not list it"):
        image_build.build_image(plan(), engine(GOOD), log=tmp_path / "build.log", notify=print)


SOLVE = 'ERROR: failed to solve: process "/recipe/install-layer x /out" did not complete successfully: exit code: 2'

FAILED_DOWNLOAD = "#9 3.1 error: Failed to download `tiny==1.0`\n"


@pytest.mark.parametrize(
    ("output", "code", "message"),
    [
        ("#9 3.1 write /x: no space left on device", 4, "the disk is full; free some space"),
        (
            f"#9 3.1 error: Hash mismatch for `torch==2.11.0`\n{SOLVE}",
            1,
            "torch==2.11.0 is a corrupt archive (hash mismatch): sha256 expected: unknown, found: unknown",
        ),
        (
            (
                f"{FAILED_DOWNLOAD}#9 3.1   cause: Hash mismatch for `tiny==1.0`\n#9 3.1 \n#9 3.1          Expected:\n"
                f"#9 3.1            sha256:{'a' * 64}\n#9 3.1 \n#9 3.1          Computed:\n"
                f"#9 3.1            sha256:{'b' * 64}\n{SOLVE}"
            ),
            1,
            f"tiny==1.0 is a corrupt archive (hash mismatch): sha256 expected: {'a' * 64}, found: {'b' * 64}",
        ),
        (
            (
                f"{FAILED_DOWNLOAD}#9 3.1   cause: Failed to extract archive: tiny-1.0-py3-none-any.whl\n"
                f"#9 3.1   cause: I/O operation failed during extraction\n#9 3.1   cause: unexpected BufError\n{SOLVE}"
            ),
            1,
            "tiny-1.0-py3-none-any.whl is a corrupt archive (unexpected BufError): ",
        ),
        (
            (
                f"{FAILED_DOWNLOAD}#9 3.1   cause: Failed to write to the distribution cache\n"
                f"#9 3.1   cause: error decoding response body\n{SOLVE}"
            ),
            4,
            "the index stopped in the middle of a download",
        ),
        (
            f"#9 0.3 what is installed is not the lock:\n#9 0.3 torch: locked 1, installed 2\n{SOLVE}",
            1,
            "what was installed is",
        ),
        (f"#9 3.1   cause: HTTP status client error (401 Unauthorized)\n{SOLVE}", 4, "the index refuses this host"),
        (
            f"#9 1 error: Failed to fetch: x\n#9 1  HTTP status client error (404 Not Found)\n{SOLVE}",
            1,
            "a locked wheel is gone",
        ),
        (
            f"#9 1 error: Failed to fetch: x\n#9 1  invalid peer certificate: UnknownIssuer\n{SOLVE}",
            4,
            "a server's certificate",
        ),
        (
            f"#9 3.1   cause: error sending request for url (https://index.example)\n{SOLVE}",
            4,
            "the index does not answer",
        ),
        (f"#9 3.1 error: Failed to download `torch==2.11.0`\n{SOLVE}", 4, "the index does not answer"),
        ("ERROR: Cannot connect to the Docker daemon at unix:///e.sock.", 4, "the engine stopped answering"),
        (
            "ERROR: rpc error: code = Unavailable desc = error reading from server: read: connection reset by peer",
            4,
            "the engine stopped answering",
        ),
        (
            "ERROR: failed to receive status: rpc error: code = Unavailable desc = error reading from server: EOF",
            4,
            "the engine",
        ),
        (f"#9 60 Killed\n{SOLVE.replace('exit code: 2', 'exit code: 137')}", 4, "a build step was killed"),
        (
            f"#9 3.1 error: No virtual environment found\n{SOLVE}",
            1,
            "the build failed: error: No virtual environment found",
        ),
        (
            "#24 ERROR: content digest sha256:2a: not found\nERROR: failed to solve: content digest sha2: not found",
            1,
            "the engine's garbage collector took a blob",
        ),
        (
            "ERROR: failed to prepare extraction snapshot: parent snapshot sha256:2a does not exist: not found",
            1,
            "the engine's garbage collector took a blob",
        ),
        (
            "#31 ERROR: failed to rename: rename /s/new-1 /s/12: file exists\nERROR: failed to solve: rename /s/new-1",
            1,
            "the engine's data is damaged, as when it is killed while it writes; `knowngood engine down --force`",
        ),
        (
            'ERROR: failed to calculate checksum of ref moby::x: "/recipe": not found',
            1,
            "the build failed: ERROR: failed to calculate checksum",
        ),
        (
            (
                "#32 17.7 error: Failed to download and build `zstandard==0.22.0`\n#32 17.7   cause: No solution\n"
                "#32 17.7   cause: You require two of setuptools\n#32 ERROR: process did not complete successfully"
            ),
            1,
            "the build failed: error: Failed to download and build `zstandard==0.22.0`: cause: You require two of",
        ),
        (SOLVE, 1, f"the build failed: {SOLVE}"),
        ("one\ntwo\n", 1, "the build failed: two"),
        ("", 1, "the build failed: it printed nothing"),
    ],
)
def test_the_explanation_of_a_failed_build(output, code, message):
    error = build_command.explain_build_failure(output, Path("/l/build.log"))
    assert error.exit_code == code
    assert str(error).startswith(message)
    assert "(log: /l/build.log)" in str(error)


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ("#12 [layer-torch 1/1] RUN --mount=type=bind,from=tools", "run layer-torch"),
        ("#3 [stage-22 3/16] COPY --link --from=layer-torch /out/ /", "copy stage-22"),
        ("#20 exporting to image", "export"),
        ("#20 [sm90-tf4_55_0] exporting to image", "export"),
        ("#1 [internal] load build definition from Dockerfile", None),
        ("#12 1.2 error: x", None),
        ("#12 DONE 0.1s", None),
    ],
)
def test_the_build_step_of_a_line(line, step):
    assert build_command.parse_build_step(line) == step


def test_only_the_wheels_of_the_cell_are_sent(tmp_path):
    for name in "abc":
        (tmp_path / f"{name}.whl").write_bytes(name.encode())
    one, other = (
        Distribution(name=name, version="1+cu13", file=f"{name}.whl", sha256=digit * 64, size=1)
        for name, digit in (("a", "1"), ("b", "2"))
    )
    locked = SimpleNamespace(distributions=[one])
    folder = build_inputs.stage_wheels(locked, tmp_path)
    assert [item.name for item in folder.iterdir()] == ["a.whl"]
    assert build_inputs.stage_wheels(locked, tmp_path) == folder
    both = build_inputs.stage_wheels(SimpleNamespace(distributions=[one, other]), tmp_path)
    assert {item.name for item in both.iterdir()} == {"a.whl", "b.whl"}
    assert {item.name for item in folder.parent.iterdir()} == {folder.name, both.name}


def test_the_tools_are_uv():
    assert [item.name for item in build_inputs.stage_tools().iterdir()] == ["uv"]
    assert build_inputs.uv_version() in build_inputs.stage_tools().name
