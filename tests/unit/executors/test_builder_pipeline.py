"""The pipeline on one builder: what is built, under which tags it is shared, and what happens when a build fails."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from builder_samples import FakeRegistryClient, image_manifest, make_builder, option_values
from samples import FA0, FA4

from knowngood.base import base_image
from knowngood.core.cell import parse_cell
from knowngood.core.errors import KnowngoodError
from knowngood.executors import builder_discovery, builder_pipeline
from knowngood.executors.builder_crew import BuilderLostError
from knowngood.executors.builder_pipeline import AddedStages
from knowngood.executors.builder_run import BuilderRun
from knowngood.executors.shared_layers import layer_cache_tag, plan_image_build
from knowngood.executors.shared_registry import SharedRegistry
from knowngood.images import bake_file, image_build
from knowngood.images.cell_ownership import hold_cell
from knowngood.images.dockerfile import render_dockerfile
from knowngood.images.dry_run import dry_build_plan
from knowngood.images.pipeline import PipelineOptions
from knowngood.project.checkout import find_project


@pytest.fixture
def client():
    return FakeRegistryClient()


@pytest.fixture
def bakes(client, monkeypatch):
    """The bake file of each bake, or the words of another build; what it builds is in the registry afterwards."""
    bakes = []

    def run_buildx(argv, _env, **_):
        (metadata,) = option_values(argv, "--metadata-file")
        image = image_manifest("image", 5, 7, 11)
        client.put_manifest(image, "pushed by its digest")
        if "bake" not in argv:
            bakes.append([*argv, Path(option_values(argv, "--file")[0]).read_text()])
            return
        document = json.loads(Path(option_values(argv, "--file")[-1]).read_text())
        for target in document["target"].values():
            target["text"] = Path(target["dockerfile"]).read_text()
            for cache in target.get("cache-to", []):
                client.put_manifest(image_manifest("cache", len(bakes)), cache.split(",")[1].rpartition(":")[2])
        digests = {name: {"containerimage.digest": image.descriptor.digest} for name in document["target"]}
        Path(metadata).write_text(json.dumps(digests))
        bakes.append(document["target"])

    monkeypatch.setattr(image_build, "run_buildx", run_buildx)
    return bakes


@pytest.fixture
def pipeline(lock_of, client, tmp_path, monkeypatch):
    monkeypatch.setattr(base_image, "expected_base_context", lambda *_: "oci-layout:///b@sha256:" + "b" * 64)
    monkeypatch.setattr(base_image, "read_base_digest", lambda *_: "sha256:" + "b" * 64)
    monkeypatch.setattr(builder_discovery, "builder_answers", lambda _: True)
    lock_of(FA4)
    builder = make_builder("far", driver="remote", options=("--builder", "far"))
    run = BuilderRun(
        project=find_project(),
        options=PipelineOptions(wheelhouse=tmp_path / "wheelhouse"),
        builders=(builder,),
        registry=SharedRegistry(client),
        network="default",
        prover=None,
    )
    return run.pipeline(builder)


@pytest.fixture
def plan(pipeline):
    plan = dry_build_plan(pipeline, parse_cell(FA4))
    plan.dockerfile.write_text(render_dockerfile(plan.locked_cell, pipeline.project.templates))
    return plan


@pytest.fixture
def cell(plan):
    return plan_image_build(plan.locked_cell.cell, plan, plan.dockerfile.read_text())


def test_layers_are_built_once_and_the_image_uses_them(pipeline, cell, bakes):
    pipeline.build_missing_layers(cell.plan, print)
    (foundation,), (others,) = (bake.values() for bake in bakes)
    assert "mode=max" in foundation["cache-to"][0]
    assert foundation["text"].endswith("COPY --link --from=venv /out/ /\n")
    assert len(others["cache-from"]) == 1, "the cache of the foundation"
    pipeline.build_missing_layers(cell.plan, print)
    assert len(bakes) == 2, "all layers are in the registry"
    product = pipeline.bake([cell], print)
    assert (product.failures, product.built) == ({}, {FA4: True})
    (target,) = bakes[2].values()
    assert "cache-to" not in target
    assert len(target["cache-from"]) == 2
    assert not pipeline.find_image(cell.plan).built
    assert replace(pipeline, built=True).find_image(cell.plan).built
    assert pipeline.bake([cell], print).built == {FA4: False}, "the image is there already"
    assert len(bakes) == 3


def test_an_image_leaves_a_cache_of_its_new_layers(pipeline, cell, bakes):
    pipeline.bake([cell], print)
    (target,) = bakes[0].values()
    assert "mode=min" in target["cache-to"][0]
    assert pipeline.registry.find_caches([cell]).keys() == {
        layer_cache_tag(key) for key in cell.layers if key[0] != "venv"
    }, "it keeps no steps from which other layers could start"


def test_an_image_that_the_registry_lost_is_an_error(pipeline, plan):
    with pytest.raises(KnowngoodError, match="the registry lost the image"):
        pipeline.find_image(plan)


@pytest.mark.parametrize(("output", "failed"), [(" > [{first} layer-x 1/1] RUN x:\n", 1), ("ERROR: x\n", 2)])
def test_the_failure_of_a_bake_counts_for_the_target_that_it_names(pipeline, cell, monkeypatch, output, failed):
    locked_cell = replace(cell.plan.locked_cell, cell=parse_cell(FA0))
    other = replace(cell, plan=replace(cell.plan, inputs="o" * 64, locked_cell=locked_cell))

    def fail(*_, log, **__):
        log.write_text(output.format(first=bake_file.dotless_name(FA4)))
        raise KnowngoodError("the build failed")

    monkeypatch.setattr(image_build, "run_buildx", fail)
    product = pipeline.bake([other, cell], print)
    assert product.built == {}
    assert product.failures.keys() == ({FA4} if failed == 1 else {FA4, FA0})


def test_a_cell_that_another_run_holds_is_left_to_it(pipeline, cell, bakes):
    waiting_not = replace(pipeline, options=replace(pipeline.options, wait=False))
    with hold_cell(FA4, wait=False, notify=print):
        product = waiting_not.bake([cell], print)
    assert "works on it" in str(product.failures[FA4])
    assert bakes == []


def test_added_stages_follow_those_of_the_cell(pipeline, plan, bakes, tmp_path):
    stages = AddedStages(text="FROM assembled AS more\n", target="more", contexts={"sources": "/sources"})
    pipeline.export_files(plan, stages, tmp_path / "out", tmp_path / "log", print)
    (argv,) = bakes
    assert argv[-1].startswith(plan.dockerfile.read_text())
    assert argv[-1].endswith("FROM assembled AS more\n")
    assert option_values(argv, "--target") == ["more"]
    assert "sources=/sources" in option_values(argv, "--build-context")


@pytest.mark.parametrize(("answers", "error_class"), [(True, KnowngoodError), (False, BuilderLostError)])
def test_a_builder_is_lost_when_it_does_not_answer_after_a_failure(
    pipeline, tmp_path, monkeypatch, answers, error_class
):
    def fail(*_, **__):
        raise KnowngoodError("the build failed")

    monkeypatch.setattr(image_build, "run_buildx", fail)
    monkeypatch.setattr(builder_discovery, "builder_answers", lambda _: answers)
    with pytest.raises(KnowngoodError, match="the build failed") as raised:
        pipeline.run_build(["docker"], tmp_path / "log", print)
    assert type(raised.value) is error_class


def test_a_build_is_stopped_after_three_missed_answers_in_a_row(monkeypatch):
    answers = iter([False, False, True, False, False, False])
    monkeypatch.setattr(builder_discovery, "builder_answers", lambda _: next(answers))
    monkeypatch.setattr(builder_pipeline, "_ANSWER_CHECK_SECONDS", -1)
    check = builder_pipeline._AnswerCheck(make_builder("far"), threading.Event())
    assert [check.should_stop() for _ in range(6)] == [False, False, False, False, False, True]


def test_a_build_is_stopped_with_the_run(monkeypatch):
    monkeypatch.setattr(builder_discovery, "builder_answers", lambda _: True)
    check = builder_pipeline._AnswerCheck(make_builder("far"), stop := threading.Event())
    assert not check.should_stop()
    stop.set()
    assert check.should_stop()


def test_the_client_of_a_build_ends_as_soon_as_it_is_to_stop(tmp_path, monkeypatch):
    monkeypatch.setattr(image_build, "_STOP_CHECK_SECONDS", 0.01)
    asked = []

    def run() -> None:
        image_build.run_buildx(
            ["sleep", "60"],
            {"PATH": "/usr/bin:/bin"},
            log=tmp_path / "log",
            notify=print,
            parse_step=lambda _: None,
            should_stop=lambda: asked.append(1) or len(asked) == 3,
        )

    with pytest.raises(KnowngoodError):
        run()
    assert len(asked) == 3
