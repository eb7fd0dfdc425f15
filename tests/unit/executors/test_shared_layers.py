"""Layers that builders share: which are built first, how builds are divided, the Dockerfiles, and the registry."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from builder_samples import (
    KEY_INPUTS,
    REPOSITORY,
    FakeRegistryClient,
    image_build,
    image_manifest,
    make_builder,
    option_values,
)
from plan_samples import NUMBERS, TORCH
from samples import ROOT

from knowngood.core.errors import KnowngoodError
from knowngood.executors import shared_layers
from knowngood.executors.builder import Builder
from knowngood.executors.builder_commands import BuilderCommands
from knowngood.executors.shared_layers import (
    assign_new_layers,
    choose_cache_tags,
    divide_builds,
    has_stages,
    image_inputs_tag,
    layer_cache_tag,
    plan_image_build,
    plan_layer_builds,
)
from knowngood.executors.shared_registry import SharedRegistry
from knowngood.images import bake_file, build_command
from knowngood.images.cell_tasks import LARGE_LAYER

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


def locked(*layers):
    """The plan of a cell whose lock has these layers."""
    plan = image_build(0).plan
    return replace(plan, locked_cell=SimpleNamespace(cell=plan.locked_cell.cell, layers=layers))


def test_a_derived_dockerfile_joins_layers_as_the_cells_does():
    image = plan_image_build(image_build(0).request, locked(TORCH, NUMBERS), DOCKERFILE)
    keys = [key for key in image.layers if key[0] == TORCH.name or key[0] == "venv"]
    text = replace(image, keys=tuple(reversed(keys))).render_layers_dockerfile()
    assert text.startswith(DOCKERFILE)
    assert text.endswith(
        "FROM scratch AS knowngood-layers\nCOPY --link --from=layer-torch /out/ /\nCOPY --link --from=venv /out/ /\n"
    )
    assert has_stages(DOCKERFILE, {"venv", "layer-torch"})
    assert not has_stages("FROM base\nRUN true\n", {"venv"})


def test_the_template_of_cells_has_the_stages_that_layers_need():
    template = (ROOT / "templates/Dockerfile.j2").read_text()
    assert has_stages(template.replace("{{ builder }}", "base"), {"venv"})
    for name in ("venv", "{{ layer.stage }}"):
        assert f"\nCOPY --link --from={name} /out/ /\n" in template
    assert '"stage": "layer-" + ' in (ROOT / "src/knowngood/images/dockerfile.py").read_text()


def test_the_shareable_layers_of_a_cell_are_the_foundation_and_those_of_its_lock():
    plan = locked(TORCH, NUMBERS)
    image = plan_image_build(image_build(0).request, plan, DOCKERFILE)
    assert [name.partition("-")[0] for name, _ in image.layers] == ["venv", "torch", "numbers"]
    assert list(image.layers.values()) == [0, 500, 30]
    assert {inputs for _, inputs in image.layers} == {plan.shape.layer_inputs}
    without = DOCKERFILE.replace("FROM venv AS layer-numbers\n", "")
    image = plan_image_build(image_build(0).request, plan, without)
    assert image.layers == {}, "a project's own template has other stages"


X, Y = (image_build(number, huge=LARGE_LAYER, small=20, tiny=10) for number in (0, 1))
Z = image_build(2, small=20, other=LARGE_LAYER)
FOUNDATION = {layer_cache_tag(("venv", KEY_INPUTS))}


def names(builds):
    return [[name for name, _ in build.keys] for build in builds]


def test_the_foundation_comes_first_then_large_layers_alone_and_small_ones_together():
    first = plan_layer_builds([X, Y, Z], set())
    assert names(first) == [["venv"]]
    second = plan_layer_builds([X, Y, Z], FOUNDATION)
    assert names(second) == [["huge"], ["small"], ["tiny"]]
    assert second[0] == replace(X, keys=(("huge", KEY_INPUTS),))
    assert (second[0].size, X.size) == (LARGE_LAYER, LARGE_LAYER + 30)
    just_small = [image_build(number, one=LARGE_LAYER - 1, two=5) for number in (0, 1)]
    assert names(plan_layer_builds(just_small, FOUNDATION)) == [["one", "two"]]


def test_layers_that_exist_or_that_one_cell_has_are_not_built_before_the_cells():
    assert plan_layer_builds([X], set()) == []
    held = FOUNDATION | {layer_cache_tag((name, KEY_INPUTS)) for name in ("huge", "tiny")}
    assert names(plan_layer_builds([X, Y, Z], held)) == [["small"]]
    assert plan_layer_builds([X, replace(Y, layers={})], set()) == []
    other = replace(Y, layers={(name, "n" * 64): size for (name, _), size in Y.layers.items()})
    assert plan_layer_builds([X, other], set()) == [], "another recipe gives other layers"


def test_builds_are_divided_by_their_bytes_and_bakes_are_no_larger_than_the_room():
    cells = [image_build(number, big=size) for number, size in enumerate((100, 10, 60, 30))]
    bakes = divide_builds(cells, {"a": 8, "b": 8}, {})
    assert [[build.size for build in bake] for bake in bakes["a"]] == [[100]]
    assert [[build.size for build in bake] for bake in bakes["b"]] == [[60, 30, 10]]
    equal = [image_build(number) for number in range(6)]
    bakes = divide_builds(equal, {"a": 2, "b": 1}, {})
    assert [len(bake) for bake in bakes["a"]] == [2, 2]
    assert [len(bake) for bake in bakes["b"]] == [1, 1]
    refused = divide_builds(equal, {"a": 8, "b": 8}, {cell.name: ["a"] for cell in equal})
    assert [len(bake) for bake in refused["b"]] == [6]
    assert refused["a"] == []


def test_each_new_layer_is_left_in_one_cache_of_a_bake():
    new = assign_new_layers([X, Y, Z], {layer_cache_tag(("tiny", KEY_INPUTS))})
    assert {name: [layer for layer, _ in keys] for name, keys in new.items()} == {
        X.name: ["huge", "small"],
        Y.name: [],
        Z.name: ["other"],
    }
    foundation = replace(X, keys=tuple(X.layers)[:1])
    assert assign_new_layers([foundation], set()) == {foundation.name: foundation.keys}


def test_a_cache_that_has_two_layers_is_read_once():
    tags = [layer_cache_tag((name, KEY_INPUTS)) for name in ("huge", "small", "tiny")]
    assert choose_cache_tags(X.layers, dict(zip(tags, ("one", "one", "two"), strict=True))) == tags[1:]


def commands(builder: Builder, network: str = "default") -> BuilderCommands:
    return BuilderCommands(builder=builder, repository=REPOSITORY, network=network, folder=Path("/tmp/folder"))


KEY = ("torch", KEY_INPUTS)


def test_an_instance_pushes_by_digest_and_an_engine_under_the_tag_of_the_inputs():
    instance = make_builder("far", driver="remote", options=("--builder", "far"))
    argv = commands(instance).build(X, [KEY], ["layer-a", "layer-b"], {"env": Path("/s/env")})
    assert option_values(argv, "--builder") == ["far"]
    assert option_values(argv, "--secret") == ["id=env,src=/s/env"]
    (output,) = option_values(argv, "--output")
    assert output.startswith(f"type=image,name={REPOSITORY},push=true,push-by-digest=true,")
    assert output.endswith(build_command.COMPRESSION)
    assert option_values(argv, "--cache-from") == [f"type=registry,ref={REPOSITORY}:layer-{name}" for name in "ab"]
    (cache,) = option_values(argv, "--cache-to")
    assert cache.startswith(f"type=registry,ref={REPOSITORY}:{layer_cache_tag(KEY)},mode=min,")
    argv = commands(make_builder("here")).build(X, [], [], {})
    (output,) = option_values(argv, "--output")
    assert output.startswith(f"type=image,name={REPOSITORY}:inputs-{X.plan.inputs},push=true,compression=zstd")
    assert not option_values(argv, "--cache-to")


def test_layers_go_only_to_the_cache_and_the_foundation_keeps_its_steps():
    for key, mode in ((KEY, "min"), (("venv", KEY_INPUTS), "max")):
        build = replace(X, keys=(key,))
        argv = commands(make_builder("here")).build(build, [key], [], {})
        assert option_values(argv, "--output") == ["type=cacheonly"]
        assert option_values(argv, "--target") == [shared_layers.LAYERS_TARGET]
        assert option_values(argv, "--file") == [f"/tmp/folder/Dockerfile.{layer_cache_tag(key)}"]
        assert f"mode={mode}," in option_values(argv, "--cache-to")[0]


def test_files_of_a_stage_come_to_this_machine_and_its_step_runs_each_time():
    argv = commands(make_builder("here")).export_files(X.plan, "wheel", "r1", Path("/o"), ["layer-a"])
    assert option_values(argv, "--output") == ["type=local,dest=/o"]
    assert option_values(argv, "--target") == ["wheel"]
    assert "KNOWNGOOD_RUN=r1" in option_values(argv, "--build-arg")
    assert option_values(argv, "--cache-from") == [f"type=registry,ref={REPOSITORY}:layer-a"]
    assert not option_values(argv, "--cache-to")


def test_one_bake_does_several_builds_with_the_network_of_all_builders():
    far = commands(make_builder("far", options=("--builder", "far")))
    layers = replace(X, keys=(("huge", KEY_INPUTS),))
    files = far.bake_files([layers, Z], {layer_cache_tag(("small", KEY_INPUTS)): "one"}, {})
    assert files.keys() == {f"Dockerfile.{layers.name}", "bake.json"}
    targets = json.loads(files["bake.json"])["target"]
    assert targets.keys() == {bake_file.dotless_name(build.name) for build in (layers, Z)}
    (target,) = (targets[bake_file.dotless_name(Z.name)],)
    assert target["cache-from"] == [f"type=registry,ref={REPOSITORY}:{layer_cache_tag(('small', KEY_INPUTS))}"]
    assert layer_cache_tag(("other", KEY_INPUTS)) in target["cache-to"][0]
    argv = far.bake()
    assert argv[:5] == ["docker", "buildx", "bake", "--builder", "far"]
    assert option_values(argv, "--file") == ["/tmp/folder/bake.json"]
    hosts = commands(make_builder("here"), "host")
    assert option_values(hosts.bake(), "--file") == ["/tmp/folder/network.yml", "/tmp/folder/bake.json"]
    services = json.loads(hosts.bake_files([Z], {}, {})["network.yml"])["services"]
    assert services == {bake_file.dotless_name(Z.name): {"build": {"network": "host"}}}
    assert "--allow" not in hosts.bake()
    later = commands(make_builder("here", bake_has_allow=True), "host")
    assert option_values(later.bake(), "--allow") == ["network.host"]


def test_the_registry_holds_the_state_of_a_run():
    client = FakeRegistryClient()
    registry = SharedRegistry(client)
    first, second, third = list(X.layers)[-3:]
    client.put_manifest(image_manifest("cache", 1), layer_cache_tag(first))
    registry.tag_cache([first, second])
    client.put_manifest(image_manifest("another", 1), layer_cache_tag(third))
    tags = registry.find_caches([X, Z])
    assert tags.keys() == {layer_cache_tag(key) for key in (first, second, third)}
    assert tags[layer_cache_tag(first)] == tags[layer_cache_tag(second)]
    inputs = X.plan.inputs
    assert registry.find_image(inputs) is None
    image = image_manifest("image", 5, 7, 11)
    client.put_manifest(image, "pushed by its digest alone")
    pushed = registry.tag_pushed_image(inputs, image.descriptor.digest)
    assert (pushed.digest, pushed.built) == (image.descriptor.digest, True)
    assert pushed.size == 5 + 7 + 11 + len(image.data)
    assert registry.find_image(inputs) == replace(pushed, built=False)
    layers = [replace(X, keys=keys) for keys in ((first, second), (first, next(iter(X.layers))))]
    assert registry.find_built([X, Y, *layers]) == {X.name, layers[0].name}, "a build exists with all of its tags"
    assert [layer.size for layer in registry.read_manifest(pushed.digest).layers] == [7, 11]


def test_something_that_the_registry_lost_is_an_error():
    registry = SharedRegistry(FakeRegistryClient())
    with pytest.raises(KnowngoodError, match="lost layer-"):
        registry.tag_cache([KEY])
    with pytest.raises(KnowngoodError, match="lost sha256:"):
        registry.tag_pushed_image("i" * 64, "sha256:" + "0" * 64)
    registry.tag_cache([])
