"""The steps in their order, with fakes where they meet the engine, the resolver and the bases."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
from pathlib import Path

import pytest
import stamina

from knowngood.base import base_image
from knowngood.core.cell import parse_cell
from knowngood.core.errors import CorruptArchiveError, KnowngoodError, MissingError, NetworkError
from knowngood.core.image_record import ImageBlob, ImageManifest
from knowngood.engine import image_store
from knowngood.engine.container_engine import Engine
from knowngood.evidence import run_evidence
from knowngood.evidence.run_evidence import Evidence, RunPlace, Tier
from knowngood.images import build_command, image_build, pipeline
from knowngood.images.pipeline import CellStatus, Pipeline, PipelineOptions
from knowngood.index.wheel_contents import WheelContents
from knowngood.lock import resolver
from knowngood.lock.cell_lock import Distribution, Layer
from knowngood.smoke import suite_command, suite_files, suite_run
from samples import FA0, FA2, FA4, distributions

ENGINE = Engine(
    host="unix:///e.sock",
    docker=("docker",),
    version="26",
    buildkit="0.13",
    containerd_store=True,
    embedded=False,
    network="default",
)
NODE = {"name": "abc"}
WHEEL = "flash_attn-2.8.3.post2+cu13torch2.11cxx11abitrue.sm90-py3-none-any.whl"


@pytest.fixture
def world(monkeypatch):
    """What the fakes did, in order, and how they answer."""

    class World:
        def __init__(self):
            self.done: list[str] = []
            self.images: dict[str, build_command.Image] = {}
            self.ok = True
            self.suite = "5" * 64
            self.build_error: BaseException | None = None
            self.layers = 9

    world = World()

    def answer(request, _wheels):
        world.done.append("resolve")
        identity = FA4 if "transformers==5.17.0" in request.requirements else FA0
        return [
            resolver.PinnedFile(
                name=item.name, version=item.version, url=f"https://files.example/{item.file}", sha256=item.sha256
            )
            for item in distributions(identity)
        ]

    def existing(plan, _engine):
        image = world.images.get(plan.inputs)
        return dataclasses.replace(image, built=False) if image else None

    def make(plan, _engine, **_):
        world.done.append("build")
        world.plan = plan
        if world.build_error:
            raise world.build_error
        world.images[plan.inputs] = build_command.Image(
            tag=plan.tag, digest="sha256:" + plan.inputs, size=1, built=True
        )
        return world.images[plan.inputs]

    def manifest(_engine, _tag, digest):
        layers = tuple(ImageBlob(digest=f"sha256:{number}", size=number) for number in range(world.layers))
        return ImageManifest(
            manifest=ImageBlob(digest=digest, size=1), config=ImageBlob(digest="sha256:c", size=1), layers=layers
        )

    def in_container(place, **_):
        world.done.append("smoke")
        return Evidence(
            cell=str(place.cell),
            where=RunPlace.CONTAINER_GPU if place.options.gpus else RunPlace.CONTAINER_CPU,
            image=place.digest,
            when="2026-11-21T10:00:00+00:00",
            node=NODE,
            command=("python", *(["--quick"] if place.options.quick else [])),
            report={
                "verdict": {"ok": world.ok, "domain": "image", "text": "eager does not train"},
                "suite_hash": world.suite,
                "checks": [{"setting": "eager", "outcome": "pass" if world.ok else "fail"}],
            },
        )

    monkeypatch.setattr(resolver, "resolve_distributions", answer)
    monkeypatch.setattr(
        "knowngood.index.wheel_contents.read_contents_of_wheels",
        lambda places, _: {name: WheelContents(size=1, files={}) for name in places},
    )
    monkeypatch.setattr(base_image, "prepare_base", lambda *_, **__: "oci-layout:///b@sha256:" + "b" * 64)
    monkeypatch.setattr(image_build, "find_image", existing)
    monkeypatch.setattr(image_build, "build_image", make)
    monkeypatch.setattr(image_store, "read_manifest", manifest)
    monkeypatch.setattr(suite_run, "run_in_container", in_container)
    monkeypatch.setattr(suite_run, "engine_fingerprint", lambda _: NODE)
    monkeypatch.setattr(suite_files, "hash_suite", lambda _: world.suite)
    monkeypatch.setattr(pipeline, "load_predictions", lambda _: [])
    return world


def run(home, identity=FA4, **options):
    line = Pipeline(home, PipelineOptions(wheelhouse=home.root / "house", **options), ENGINE)
    return line.run(parse_cell(identity), lambda _: None)


def test_the_first_run_does_all_steps_and_the_second_none(home, world):
    first = run(home)
    assert world.done == ["resolve", "build", "smoke"]
    assert (first.status, first.tier, first.error) == (CellStatus.PROVEN, Tier.TRAINS_ON_CPU, None)
    assert first.evidence.is_file()
    second = run(home)
    assert world.done == ["resolve", "build", "smoke"]
    assert (second.status, second.tier, second.evidence) == (CellStatus.UNCHANGED, Tier.TRAINS_ON_CPU, None)
    assert second.image.digest == first.image.digest


@pytest.mark.parametrize(
    ("change", "again"),
    [
        (lambda home: (home.tree.folder / "recipe" / "normalize").write_text("other"), ["build", "smoke"]),
        (lambda home: (home.suite / "test_it.py").write_text("other"), []),
        (lambda home: (home.templates / "Dockerfile.j2").open("a").write("# x\n"), ["build", "smoke"]),
        (lambda home: [path.unlink() for path in home.evidence.rglob("*.json")], ["smoke"]),
        (lambda home: [path.unlink() for path in home.tree.folder.rglob("cell.json")], ["resolve"]),
        (lambda home: (home.root / "README.md").write_text("x"), []),
    ],
)
def test_only_the_steps_that_depend_on_a_change_are_repeated(home, world, change, again):
    run(home)
    world.done.clear()
    change(home)
    assert run(home).error is None
    assert world.done == again


@pytest.mark.parametrize("options", [{"suite": suite_command.SuiteOptions(gpus=True)}, {"force_smoke": True}])
def test_the_suite_runs_again_when_the_options_ask_for_more(home, world, options):
    run(home)
    world.done.clear()
    run(home, **options)
    assert world.done == ["smoke"]


def test_the_suite_alone_runs_in_the_recorded_image_where_nothing_can_be_built(home, world, monkeypatch):
    run(home, record=True)
    world.done.clear()

    def no_network(*_args, **_options):
        raise NetworkError("no base can be had here")

    monkeypatch.setattr(base_image, "prepare_base", no_network)
    there = build_command.Image(tag="knowngood:x", digest="sha256:c", size=1, built=False)
    monkeypatch.setattr(image_build, "find_recorded_image", lambda _tag, _record, _engine: there)
    assert run(home, force_smoke=True).image == there
    assert world.done == ["smoke"]
    assert isinstance(run(home).error, NetworkError)
    (home.templates / "Dockerfile.j2").open("a").write("# another image\n")
    assert isinstance(run(home, force_smoke=True).error, NetworkError)


def test_evidence_of_a_whole_run_covers_a_quick_run_but_not_the_reverse(home, world):
    run(home, suite=suite_command.SuiteOptions(quick=True))
    run(home)
    assert world.done.count("smoke") == 2
    run(home, suite=suite_command.SuiteOptions(quick=True))
    assert world.done.count("smoke") == 2


def test_evidence_of_another_machine_does_not_count(home, world, monkeypatch):
    run(home)
    monkeypatch.setattr(suite_run, "engine_fingerprint", lambda _: {"name": "other"})
    run(home)
    assert world.done.count("smoke") == 2


def test_evidence_of_another_suite_does_not_count(home, world):
    run(home)
    world.suite = "6" * 64
    run(home)
    assert world.done == ["resolve", "build", "smoke", "smoke"]


def test_a_cell_that_is_not_proven_is_built(home, world):
    result = run(home, prove=False)
    assert (result.status, result.tier) == (CellStatus.BUILT, Tier.BUILT)
    assert world.done == ["resolve", "build"]


def test_a_failed_suite_gives_a_failed_cell_with_evidence(home, world):
    world.ok = False
    result = run(home)
    assert (result.status, result.tier) == (CellStatus.FAILED, Tier.BUILT)
    assert str(result.error) == "image: eager does not train"
    assert result.error.exit_code == 1
    assert result.evidence.is_file()
    run(home)
    assert world.done.count("smoke") == 2


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (KnowngoodError("no"), 1, "no"),
        (MissingError("no engine"), 4, "no engine"),
        (OSError(errno.ENOSPC, "No space left on device"), 4, "the disk is full; free some space and run it again"),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), 1, "/x: Permission denied"),
    ],
)
def test_a_step_that_fails_is_in_the_result(home, world, error, code, message):
    world.build_error = error
    result = run(home)
    assert (result.status, result.error.exit_code, str(result.error)) == (CellStatus.FAILED, code, message)
    assert "smoke" not in world.done
    world.build_error = None
    assert run(home).status is CellStatus.PROVEN


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ZeroDivisionError()])
def test_an_interruption_or_a_bug_is_not_a_failed_cell(home, world, error):
    world.build_error = error
    with pytest.raises(type(error)):
        run(home)


@pytest.mark.usefixtures("world")
def test_a_cell_without_its_wheel_is_replaced_by_its_twin_with_a_note(home):
    result = run(home, FA2)
    assert (result.cell, result.status) == (FA0, CellStatus.PROVEN)
    assert result.note == f"built in place of {FA2}: the wheelhouse has no flash-attn wheel for it"


def test_a_cell_without_wheel_and_twin_fails(home, world):
    path = home.root / "matrix.yaml"
    path.write_text(path.read_text().replace("[2.8.3.post2, none]", "2.8.3.post2"))
    result = run(home, FA2)
    assert result.error.exit_code == 4
    assert str(result.error).endswith(f"and matrix.yaml has no {FA0}")
    assert world.done == []


def test_a_retired_twin_is_not_built_instead(home, world):
    path = home.root / "matrix.yaml"
    two = "flash-attn: 2.8.3.post2\n    base: debian12\n  - gpu: sm_90\n    torch: 2.11.0\n    transformers: 4.57.6\n"
    path.write_text(
        path.read_text().replace("flash-attn: [2.8.3.post2, none]\n", f"{two}    retired: {{on: 2026-11-01}}\n")
    )
    result = run(home, FA2)
    assert result.error.exit_code == 4
    assert str(result.error).endswith(f"and {FA0} was retired on 2026-11-01; it has no successor")
    assert world.done == []


def test_a_framework_without_its_wheel_has_no_twin(home, world):
    path = home.root / "matrix.yaml"
    wheel = "  - {when: framework=xtuner*, wheel: some-extension==1.0, because: so}\ncells:\n"
    text = path.read_text().replace("cells:\n", wheel)
    path.write_text(text.replace("[2.8.3.post2, none]", "none\n    framework: xtuner==0.1.23"))
    result = run(home, f"{FA0}-xtuner0.1.23")
    assert result.error.exit_code == 4
    assert "the wheelhouse has no some-extension 1.0 wheel for it; `knowngood compile '" in str(result.error)
    assert world.done == []


def test_all_wheels_of_the_cell_from_the_wheelhouse_are_sent(home, world, lock_of):
    names = {"flash-attn": "2.8.3.post2", "some-extension": "1.0"}
    locked = lock_of(FA0)
    (home.root / "house").mkdir()
    made = []
    for name, version in names.items():
        file = f"{name.replace('-', '_')}-{version}+cu13torch2.11cxx11abitrue.sm90-cp311-cp311-linux_x86_64.whl"
        (home.root / "house" / file).write_bytes(name.encode())
        sha256 = hashlib.sha256(name.encode()).hexdigest()
        local = f"{version}+cu13torch2.11cxx11abitrue.sm90"
        made.append(Distribution(name=name, version=local, file=file, sha256=sha256, size=1))
    layers = tuple(Layer(group=item.name, distributions=(item,)) for item in made)
    line = Pipeline(home, PipelineOptions(wheelhouse=home.root / "house"), ENGINE)
    plan = line.plan(dataclasses.replace(locked, layers=(*locked.layers, *layers)), lambda _: None)
    assert plan.dockerfile.read_text().count("--mount=type=bind,from=wheelhouse") == 2
    assert {item.name for item in Path(plan.contexts["wheelhouse"]).iterdir()} == {item.file for item in made}
    assert world.done == []
    (home.root / "house" / made[1].file).unlink()
    with pytest.raises(MissingError, match=r"the wheelhouse has no some-extension 1\.0\+cu13"):
        line.plan(dataclasses.replace(locked, layers=(*locked.layers, *layers)), lambda _: None)


def test_a_wheel_with_another_hash_is_refused(home, world, lock_of):
    locked = lock_of(FA2)
    (wheel,) = [item for item in locked.distributions if item.name == "flash-attn"]
    (home.root / "house").mkdir()
    (home.root / "house" / wheel.file).write_bytes(b"other")
    (home.root / "house" / WHEEL.replace("py3-none-any", "cp311-cp311-linux_x86_64")).write_bytes(b"other")
    result = run(home, FA2)
    assert "is a corrupt archive: sha256 expected" in str(result.error)
    assert "put the locked wheel into the wheelhouse" in str(result.error)
    assert world.done == []


@pytest.mark.usefixtures("world")
def test_with_locked_nothing_is_written_and_stale_files_are_reported(home, lock_of):
    result = run(home, locked=True)
    assert "its lock is missing" in str(result.error)
    lock_of(FA4)
    result = run(home, locked=True)
    assert "its Dockerfile is stale; run `knowngood render`" in str(result.error)
    assert not list(home.tree.folder.rglob("Dockerfile"))
    run(home)
    assert run(home, locked=True).error is None
    (next(home.tree.folder.rglob("Dockerfile"))).write_bytes(b"FROM other\n")
    for _ in range(2):
        assert "is stale" in str(run(home, locked=True).error)


def test_secrets_are_not_part_of_the_image_inputs(home, world, monkeypatch):
    run(home)
    first = world.plan.inputs
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://me:s3cret@index.example/simple")
    world.images.clear()
    run(home)
    assert world.plan.inputs == first
    assert "s3cret" not in " ".join(build_command.buildx_command(world.plan, ENGINE, home.root / "m"))
    assert "s3cret" not in "".join(path.read_text() for path in home.tree.folder.rglob("*") if path.is_file())
    assert set(world.plan.secrets) >= {"env"}


def test_unreadable_evidence_does_not_count(home, world):
    path = run(home).evidence
    path.write_text("{")
    assert run_evidence.load_cell_evidence(home.evidence, FA4)[1]
    world.done.clear()
    assert run(home).status is CellStatus.PROVEN
    assert world.done == ["smoke"]
    assert isinstance(run_evidence.load_evidence(path), Evidence)  # the same run again is the same file


@pytest.mark.parametrize(("failures", "status"), [(2, CellStatus.PROVEN), (3, CellStatus.FAILED)])
def test_only_network_failures_are_tried_again(home, world, monkeypatch, failures, status):
    real, left = image_build.build_image, [NetworkError("the index does not answer")] * failures

    def fail_first(plan, engine, **options):
        world.build_error = left.pop() if left else None
        return real(plan, engine, **options)

    monkeypatch.setattr(image_build, "build_image", fail_first)
    with stamina.set_testing(True, attempts=3):
        assert run(home).status is status
    assert world.done.count("build") == 3
    left[:] = [MissingError("no engine")]
    world.images.clear()
    world.done.clear()
    assert run(home).error.exit_code == 4
    assert world.done.count("build") == 1


def test_a_corrupt_archive_is_not_built_three_times(home, world):
    world.build_error = CorruptArchiveError("other==1", expected="a" * 64, actual="b" * 64)
    result = run(home)
    assert (result.status, result.error.exit_code) == (CellStatus.FAILED, 1)
    assert "other==1 is a corrupt archive" in str(result.error)
    assert world.done.count("build") == 1


def test_the_record_is_written_on_request_and_compared_afterwards(home, world):
    path = home.tree.record_path(parse_cell(FA4))
    run(home)
    assert not path.exists()
    assert run(home, record=True).note == ""
    made = home.tree.load_record(parse_cell(FA4))
    assert made.manifest.digest == next(iter(world.images.values())).digest
    assert [layer.size for layer in made.layers] == list(range(world.layers))
    (image,) = world.images.values()
    world.images[world.plan.inputs] = dataclasses.replace(image, digest="sha256:" + "f" * 64)
    different = run(home)
    assert different.note == f"NOT as recorded (manifest differ): `knowngood verify '{FA4}'` lists the files"
    assert (different.status, different.error.exit_code) == (CellStatus.DIFFERENT, 1)
    assert f"`knowngood build --record '{FA4}'` writes the new digests" in str(different.error)
    (home.tree.folder / "recipe" / "normalize").write_text("other")
    assert run(home).note == "", "the record is of an older recipe"


def test_recording_an_image_that_differs_is_no_failure(home, world):
    run(home, record=True)
    (image,) = world.images.values()
    world.images[world.plan.inputs] = dataclasses.replace(image, digest="sha256:" + "f" * 64)
    renewed = run(home, record=True)
    assert (renewed.error, renewed.note) == (None, "recorded anew: it was NOT as recorded before (manifest differ)")
    assert run(home).status is CellStatus.UNCHANGED


def test_an_image_that_differs_and_fails_the_suite_has_failed(home, world):
    run(home, record=True)
    (image,) = world.images.values()
    world.images[world.plan.inputs] = dataclasses.replace(image, digest="sha256:" + "f" * 64)
    world.ok = False
    result = run(home)
    assert (result.status, str(result.error)) == (CellStatus.FAILED, "image: eager does not train")
    assert result.note.startswith("NOT as recorded")
