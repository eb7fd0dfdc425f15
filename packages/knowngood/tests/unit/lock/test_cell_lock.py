from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knowngood.core.cell import parse_cell
from knowngood.core.errors import KnowngoodError, UsageError
from knowngood.lock import cell_lock
from samples import FA0, FA2, FA4, distribution, distributions

GROUPS = {"cuda": ["nvidia-*"], "torch": ["torch"], "rest": ["*"]}

words = st.text("abyz019", min_size=1, max_size=4)
names = st.lists(words, min_size=1, max_size=3).map(lambda parts: f"a{'-'.join(parts)}")  # a regex is drawn slowly
versions = st.sampled_from(["1.0", "2.8.3.post2+cu13torch2.11cxx11abitrue.sm90", "4.0.0b36", "2026.10.18", "0.1.dev3"])
whole_locks = st.dictionaries(names, versions, min_size=1, max_size=8).map(
    lambda pins: [distribution(name, version) for name, version in pins.items()]
)


@given(whole_locks)
def test_requirements_round_trip(items):
    for layer in cell_lock.split_into_layers(items, GROUPS):
        assert cell_lock.parse_requirements(layer.requirements(), "r.txt") == layer.distributions


@given(whole_locks)
def test_a_split_is_a_partition_in_the_groups_order(items):
    layers = cell_lock.split_into_layers(items, GROUPS)
    assert sorted(item for layer in layers for item in layer.distributions) == sorted(items)
    order = [layer.group for layer in layers]
    assert order == [group for group in GROUPS if group in order]
    assert all(layer.distributions for layer in layers)


@given(whole_locks, st.randoms())
def test_the_digest_and_the_layers_do_not_depend_on_the_order(items, random):
    shuffled = random.sample(items, len(items))
    assert cell_lock.distributions_digest(shuffled) == cell_lock.distributions_digest(items)
    assert cell_lock.split_into_layers(shuffled, GROUPS) == cell_lock.split_into_layers(items, GROUPS)


def test_the_first_glob_that_matches_wins():
    items = [distribution("nvidia-cudnn-cu13"), distribution("torch"), distribution("nvidia-ml-py")]
    groups = {"cudnn": ["nvidia-cudnn-*"], "nvidia": ["nvidia-*"], "rest": ["*"]}
    layers = cell_lock.split_into_layers(items, groups)
    assert {layer.group: [item.name for item in layer.distributions] for layer in layers} == {
        "cudnn": ["nvidia-cudnn-cu13"],
        "nvidia": ["nvidia-ml-py"],
        "rest": ["torch"],
    }


def test_what_a_framework_brings_is_a_layer_of_its_own():
    below = [distribution("torch"), distribution("numpy")]
    whole = [*below, distribution("xtuner"), distribution("einops")]
    layers = cell_lock.split_into_layers(whole, {"torch": ["torch"], "python": ["*"]}, framework="xtuner", below=below)
    assert {layer.group: [item.name for item in layer.distributions] for layer in layers} == {
        "torch": ["torch"],
        "python": ["numpy"],
        "xtuner": ["einops", "xtuner"],
    }


def test_a_package_in_another_version_than_below_is_in_the_frameworks_layer():
    below = [distribution("torch"), distribution("numpy", "2.4.6")]
    whole = [distribution("torch"), distribution("numpy", "1.26.4"), distribution("xtuner")]
    layers = cell_lock.split_into_layers(whole, {"torch": ["torch"], "python": ["*"]}, framework="xtuner", below=below)
    assert {layer.group: [item.name for item in layer.distributions] for layer in layers} == {
        "torch": ["torch"],
        "xtuner": ["numpy", "xtuner"],
    }


def test_a_source_archive_has_its_line():
    archive = dataclasses.replace(distribution("deepspeed", "0.19.6"), file="deepspeed-0.19.6.tar.gz")
    assert cell_lock.parse_requirements(f"{archive}\n", "r.txt") == (archive,)


def test_a_distribution_in_no_group_is_an_error():
    with pytest.raises(UsageError, match=r"no glob in `layers` matches numpy"):
        cell_lock.split_into_layers([distribution("numpy")], {"torch": ["torch"]})


def test_a_layer_is_named_by_its_content():
    one = cell_lock.Layer(group="torch", distributions=(distribution("torch", "2.11.0+cu130"),))
    other = cell_lock.Layer(group="torch", distributions=(dataclasses.replace(one.distributions[0], sha256="0" * 64),))
    two = cell_lock.Layer(group="cuda", distributions=(distribution("a"), distribution("b")))
    assert one.name == f"torch-2.11.0-{cell_lock.distributions_digest(one.distributions)[:12]}"
    assert one.name != other.name
    assert two.name == f"cuda-{cell_lock.distributions_digest(two.distributions)[:12]}"
    assert two.size == 2000


@pytest.mark.parametrize("group", ["", "..", "../x", "a,b", "a b", "A", "a/b", "a\nb", "a="])
def test_a_layer_has_a_name_that_can_stand_anywhere(group):
    with pytest.raises(UsageError, match="is not a valid layer name"):
        cell_lock.Layer(group=group, distributions=(distribution("torch"),))


GOOD = str(distribution("torch", "2.11.0"))


@pytest.mark.parametrize(
    "line",
    [
        "torch==2.11.0",
        "torch",
        "--index-url https://index.example/simple",
        GOOD.replace("sha256:", "sha256:0"),
        GOOD.replace("sha256:", "md5:"),
        GOOD.replace("==", ">="),
        GOOD.replace("torch==", "Torch=="),
        GOOD.replace("# ", "# ../"),
        GOOD.replace("1000 bytes", "many bytes"),
        GOOD.partition("  #")[0],
        " " + GOOD,
        GOOD + " \\",
    ],
)
def test_a_line_that_lock_does_not_write_is_refused_with_its_number(line):
    with pytest.raises(UsageError, match=r"^r.txt:3:1: not a line that `knowngood lock` writes; run it again$"):
        cell_lock.parse_requirements(f"{cell_lock.LOCK_HEADER}{GOOD}\n{line}\n", "r.txt")


@pytest.mark.parametrize("identity", [FA4, FA2, FA0])
def test_a_lock_that_fits_its_cell(identity):
    cell_lock.check_lock_matches_cell(distributions(identity), parse_cell(identity))


def replaced(identity: str, name: str, version: str | None) -> list[cell_lock.Distribution]:
    kept = [item for item in distributions(identity) if item.name != name]
    return [*kept, distribution(name, version)] if version else kept


@pytest.mark.parametrize(
    ("identity", "name", "version", "message"),
    [
        (FA4, "torch", "2.11.1", "torch is 2.11.1 in the lock, 2.11.0 in the cell"),
        (FA4, "triton", None, "triton is absent in the lock, 3.6.0 in the cell"),
        (FA4, "transformers", "5.16.0", "transformers is 5.16.0 in the lock, 5.17.0 in the cell"),
        (FA4, "flash-attn-4", "4.0.0b35", "flash-attn-4 is 4.0.0b35 in the lock, 4.0.0b36 in the cell"),
        (FA2, "flash-attn", None, "flash-attn is absent in the lock, 2.8.3.post2 in the cell"),
        (FA4, "nvidia-cutlass-dsl-libs-cu12", "4.3.0", "nvidia-cutlass-dsl-libs-cu12 4.3.0 is for CUDA 12"),
        (FA4, "nvidia-cuda-runtime", "13.2.10", "nvidia-cuda-runtime 13.2.10 is not of CUDA 13.0"),
        (FA4, "nvidia-cuda-runtime-cu12", "12.8.90", "nvidia-cuda-runtime-cu12 12.8.90 is for CUDA 12"),
    ],
)
def test_a_lock_that_is_not_the_cell_names_what_differs(identity, name, version, message):
    with pytest.raises(KnowngoodError) as caught:
        cell_lock.check_lock_matches_cell(replaced(identity, name, version), parse_cell(identity))
    assert caught.value.exit_code == 1
    assert f"{identity}: the lock does not match the cell: {message}; correct the cell" in str(caught.value)


def test_every_difference_is_named_at_once():
    with pytest.raises(KnowngoodError, match=r"torch is absent.*transformers is absent.*triton is absent"):
        cell_lock.check_lock_matches_cell([], parse_cell(FA0))


def test_a_wheel_of_the_same_cuda_major_is_fine():
    cell_lock.check_lock_matches_cell(
        [*distributions(FA4), distribution("nvidia-cudnn-cu13", "9.19.0.56")], parse_cell(FA4)
    )


def test_wheels_for_every_processor_are_in_a_layer_apart_from_compiled_ones():
    compiled = dataclasses.replace(
        distribution("tokenizers"), file="tokenizers-1.0-cp39-abi3-manylinux_2_17_x86_64.whl"
    )
    source = dataclasses.replace(distribution("deepspeed"), file="deepspeed-1.0.tar.gz")
    pure = dataclasses.replace(distribution("transformers"), file="transformers-1.0-py3-none-any.whl")
    layers = cell_lock.split_into_layers([pure, compiled, source], {"python": ["*"]})
    assert {layer.group: [item.name for item in layer.distributions] for layer in layers} == {
        "python-compiled": ["deepspeed", "tokenizers"],
        "python": ["transformers"],
    }
    for alone in (pure, compiled):
        assert [layer.group for layer in cell_lock.split_into_layers([alone], {"python": ["*"]})] == ["python"]
