"""The pipeline on one builder: what is built, under which tags it is shared, and what happens when a build fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from builder_samples import FakeRegistryClient, image_manifest, make_builder, option_values
from samples import FA4

from knowngood.base import base_image
from knowngood.core.cell import parse_cell
from knowngood.core.errors import KnowngoodError
from knowngood.executors import builder_discovery
from knowngood.executors.builder_pipeline import AddedStages, BuilderLostError
from knowngood.executors.builder_run import BuilderRun
from knowngood.executors.shared_registry import SharedRegistry
from knowngood.images import image_build
from knowngood.images.dockerfile import render_dockerfile
from knowngood.images.dry_run import dry_build_plan
from knowngood.images.pipeline import PipelineOptions
from knowngood.project.checkout import find_project


@pytest.fixture
def client():
    return FakeRegistryClient()


@pytest.fixture
def commands(client, monkeypatch):
    """The commands that buildx got; what it builds is in the registry afterwards."""
    commands = []

    def run_buildx(argv, _env, **_):
        commands.append(argv)
        for cache in option_values(argv, "--cache-to"):
            client.put_manifest(image_manifest("cache", len(commands)), cache.split(",")[1].rpartition(":")[2])
        image = image_manifest("image", 5, 7, 11)
        client.put_manifest(image, "pushed by its digest")
        (metadata,) = option_values(argv, "--metadata-file")
        Path(metadata).write_text(json.dumps({"containerimage.digest": image.descriptor.digest}))
        if (dockerfile := Path(option_values(argv, "--file")[0])).exists():
            argv.append(dockerfile.read_text())

    monkeypatch.setattr(image_build, "run_buildx", run_buildx)
    return commands


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


def test_layers_are_built_once_and_the_image_uses_them(pipeline, plan, commands):
    pipeline.build_missing_layers(plan, print)
    foundation, others = commands
    assert "mode=max" in option_values(foundation, "--cache-to")[0]
    assert foundation[-1].endswith("COPY --link --from=venv /out/ /\nCOPY --link --from=suite /out/ /\n")
    assert len(option_values(others, "--cache-from")) == 1, "the cache of the foundation"
    pipeline.build_missing_layers(plan, print)
    assert len(commands) == 2, "all layers are in the registry"
    image = pipeline.build_image(plan, print)
    assert option_values(commands[2], "--cache-to") == []
    assert len(option_values(commands[2], "--cache-from")) == 2
    assert image.built
    assert pipeline.find_image(plan).digest == image.digest


def test_an_image_leaves_a_cache_of_its_new_layers(pipeline, plan, commands):
    pipeline.build_image(plan, print)
    assert "mode=min" in option_values(commands[0], "--cache-to")[0]
    pipeline.build_missing_layers(plan, print)
    assert len(commands) == 1


def test_added_stages_follow_those_of_the_cell(pipeline, plan, commands, tmp_path):
    stages = AddedStages(text="FROM assembled AS more\n", target="more", contexts={"sources": "/sources"})
    pipeline.export_files(plan, stages, tmp_path / "out", tmp_path / "log", print)
    (argv,) = commands
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
