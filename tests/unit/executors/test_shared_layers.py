"""Layers that builders share: which are built first, the Dockerfiles and commands for them, and the registry."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from builder_samples import REPOSITORY, FakeRegistryClient, image_manifest, make_builder, option_values
from plan_samples import NUMBERS, OLD, TORCH, layer, wanted
from samples import ROOT

from knowngood.core.errors import KnowngoodError
from knowngood.executors import builder_commands
from knowngood.executors.builder import Builder
from knowngood.executors.builder_commands import BuilderCommands, has_stages, render_layers_dockerfile
from knowngood.executors.shared_layers import (
    foundation_keys,
    image_inputs_tag,
    layer_cache_tag,
    plan_early_layers,
    plan_shared_layers,
    shareable_keys,
    task_after_layers,
)
from knowngood.executors.shared_registry import SharedRegistry
from knowngood.images import build_command
from knowngood.images.matrix_plan import Holdings

DOCKERFILE = """\
FROM base AS venv
FROM venv AS layer-torch
FROM venv AS layer-numbers
FROM base AS suite
FROM base
"""


def test_a_tag_is_short_enough_and_differs_with_the_inputs():
    key = ("torch-2.11.0-" + "a" * 200, "1" * 64)
    assert len(layer_cache_tag(key)) == 128
    assert layer_cache_tag(key).endswith("-" + "1" * 12)
    assert layer_cache_tag(("torch", "1" * 64)) != layer_cache_tag(("torch", "2" * 64))
    assert len(image_inputs_tag("a" * 64)) <= 128


def test_a_derived_dockerfile_joins_layers_as_the_cells_does():
    text = render_layers_dockerfile(DOCKERFILE, ["layer-torch", "suite"])
    assert text.startswith(DOCKERFILE)
    assert text.endswith(
        "FROM scratch AS knowngood-layers\nCOPY --link --from=layer-torch /out/ /\nCOPY --link --from=suite /out/ /\n"
    )
    assert has_stages(DOCKERFILE, {"venv", "suite", "layer-torch"})
    assert not has_stages("FROM base\nRUN true\n", {"venv"})


def test_the_template_of_cells_has_the_stages_that_layers_need():
    template = (ROOT / "templates/Dockerfile.j2").read_text()
    assert has_stages(template, {builder_commands.VENV_STAGE, builder_commands.SUITE_STAGE})
    for name in ("venv", "suite", "{{ layer.stage }}"):
        assert f"\nCOPY --link --from={name} /out/ /\n" in template
    assert '"stage": "layer-" + ' in (ROOT / "src/knowngood/images/dockerfile.py").read_text()


HUGE = layer("huge", 60 * 10**6)
X, Y, Z = wanted("x", HUGE, NUMBERS, OLD), wanted("y", HUGE, NUMBERS), wanted("z", TORCH, NUMBERS)


def test_layers_of_several_cells_are_jobs_with_the_foundation_first_and_large_layers_alone():
    jobs = plan_shared_layers([X, Y, Z], Holdings(), lambda _: True)
    assert [job.names for job in jobs] == [("venv", f"suite-{'s' * 12}"), (HUGE.name,), (NUMBERS.name,)]
    foundation, huge, numbers = jobs
    assert foundation.after == frozenset()
    assert huge.after == numbers.after == frozenset(foundation.keys)
    assert {job.cell for job in jobs} == {"x"}
    shared = frozenset(key for job in jobs for key in job.keys)
    task = task_after_layers(X, Holdings(), shared, prove=False)
    assert task.after == shared
    assert not task.makes & shared


def test_a_large_layer_of_one_cell_is_an_early_layer():
    jobs = plan_shared_layers([X, Z], Holdings(), lambda _: True)
    shared = frozenset(key for job in jobs for key in job.keys)
    (early,) = plan_early_layers([X, Z], Holdings(), shared, lambda _: True)
    assert (early.names, early.cell, early.after) == ((HUGE.name,), "x", frozenset(foundation_keys(X)))
    assert plan_early_layers([X, Y], Holdings(), shared | {(HUGE.name, X.shape.layer_inputs)}, lambda _: True) == []
    assert plan_early_layers([X, Z], Holdings(), shared, lambda _: False) == []
    assert plan_early_layers([X], Holdings(images=frozenset({X.shape.inputs})), frozenset(), lambda _: True) == []


def test_layers_in_the_registry_are_not_built():
    held = Holdings(layers=frozenset({(HUGE.name, X.shape.layer_inputs), *foundation_keys(X)}))
    assert [job.names for job in plan_shared_layers([X, Y, Z], held, lambda _: True)] == [(NUMBERS.name,)]
    built = Holdings(images=frozenset({X.shape.inputs, Y.shape.inputs}))
    assert plan_shared_layers([X, Y, Z], built, lambda _: True) == []


def test_a_cell_whose_dockerfile_lacks_the_stages_shares_no_layers():
    assert plan_shared_layers([X, Y], Holdings(), lambda _: False) == []
    assert plan_shared_layers([X], Holdings(), lambda _: True) == []


def test_cells_with_different_recipes_share_no_layers():
    other = wanted("o", HUGE, NUMBERS, recipe="another")
    assert plan_shared_layers([X, other], Holdings(), lambda _: True) == []


def commands(builder: Builder, *caches: str) -> BuilderCommands:
    return BuilderCommands(
        builder=builder, repository=REPOSITORY, network="default", caches=caches, metadata=Path("/tmp/metadata.json")
    )


PLAN = build_command.BuildPlan(
    tag="knowngood:x", dockerfile=Path("/p/Dockerfile"), context=Path("/p"), contexts={"base": "b"}, inputs="i" * 64
)


def test_an_instance_pushes_by_digest_and_an_engine_under_the_tag_of_the_inputs():
    instance = make_builder("far", driver="remote", options=("--builder", "far"))
    argv = commands(instance, "layer-a", "layer-b").build_image(PLAN, image_inputs_tag(PLAN.inputs), "layer-c")
    assert option_values(argv, "--builder") == ["far"]
    (output,) = option_values(argv, "--output")
    assert output.startswith(f"type=image,name={REPOSITORY},push=true,push-by-digest=true,")
    assert output.endswith(build_command.COMPRESSION)
    assert option_values(argv, "--cache-from") == [f"type=registry,ref={REPOSITORY}:layer-{name}" for name in "ab"]
    assert option_values(argv, "--cache-to")[0].startswith(f"type=registry,ref={REPOSITORY}:layer-c,mode=min,")
    (output,) = option_values(
        commands(make_builder("here")).build_image(PLAN, image_inputs_tag(PLAN.inputs), None), "--output"
    )
    assert output.startswith(f"type=image,name={REPOSITORY}:inputs-{PLAN.inputs},push=true,compression=zstd")


def test_layers_go_only_to_the_cache_and_the_foundation_keeps_its_steps():
    for foundation, mode in ((False, "min"), (True, "max")):
        argv = commands(make_builder("here")).build_layers(PLAN, "layer-a", foundation=foundation)
        assert option_values(argv, "--output") == ["type=cacheonly"]
        assert option_values(argv, "--target") == [builder_commands.LAYERS_TARGET]
        assert f"mode={mode}," in option_values(argv, "--cache-to")[0]


def test_files_of_a_stage_come_to_this_machine_and_its_step_runs_each_time():
    argv = commands(make_builder("here"), "layer-a").export_files(PLAN, "wheel", "r1", Path("/o"))
    assert option_values(argv, "--output") == ["type=local,dest=/o"]
    assert option_values(argv, "--target") == ["wheel"]
    assert "KNOWNGOOD_RUN=r1" in option_values(argv, "--build-arg")
    assert option_values(argv, "--cache-from") == [f"type=registry,ref={REPOSITORY}:layer-a"]
    assert not option_values(argv, "--cache-to")


def test_the_registry_holds_the_state_of_a_run():
    client = FakeRegistryClient()
    registry = SharedRegistry(client)
    first, second, third = shareable_keys(X)[-3:]
    client.put_manifest(image_manifest("cache", 1), layer_cache_tag(first))
    registry.tag_cache([first, second])
    client.put_manifest(image_manifest("another", 1), layer_cache_tag(third))
    assert registry.find_holdings([X, Y], Holdings()).layers == {first, second, third} & {
        *shareable_keys(X),
        *shareable_keys(Y),
    }
    assert len(registry.cache_sources(shareable_keys(X))) == 2, "one cache that has two layers is read once"
    assert registry.find_image(X.shape.inputs) is None
    image = image_manifest("image", 5, 7, 11)
    client.put_manifest(image, "pushed by its digest alone")
    pushed = registry.tag_pushed_image(X.shape.inputs, image.descriptor.digest)
    assert (pushed.digest, pushed.built) == (image.descriptor.digest, True)
    assert pushed.size == 5 + 7 + 11 + len(image.data)
    assert registry.find_image(X.shape.inputs) == replace(pushed, built=False)
    assert registry.find_holdings([X, Y], Holdings()).images == {X.shape.inputs}
    assert [layer.size for layer in registry.read_manifest(pushed.digest).layers] == [7, 11]


def test_something_that_the_registry_lost_is_an_error():
    registry = SharedRegistry(FakeRegistryClient())
    with pytest.raises(KnowngoodError, match="lost layer-"):
        registry.tag_cache(shareable_keys(X)[:1])
    with pytest.raises(KnowngoodError, match="lost sha256:"):
        registry.tag_pushed_image(X.shape.inputs, "sha256:" + "0" * 64)
    registry.tag_cache([])
