from __future__ import annotations

import dataclasses

import pytest

import wheel_samples
from knowngood.core.cell import parse_cell
from knowngood.core.errors import CorruptArchiveError, KnowngoodError, MissingError, UsageError
from knowngood.index import wheel_contents
from knowngood.index.wheel_contents import WheelContents
from knowngood.lock import cell_locking, resolver, wheelhouse
from knowngood.project.checkout import Project
from samples import FA0, FA2, FA4, distribution, distributions, parsed, with_

WHEEL = "flash_attn-2.8.3.post2+cu13torch2.11cxx11abitrue.sm90-cp311-cp311-linux_x86_64.whl"


@pytest.fixture
def index(monkeypatch):
    """A resolver and an index that answer with the sample locks; counts what they were asked."""
    asked = []

    def answer(request, wheels):
        asked.append((request, wheels))
        identity = FA4 if any(item.startswith("flash-attn-4") for item in request.requirements) else FA0
        identity = FA2 if wheels else identity
        return [
            resolver.PinnedFile(
                name=item.name, version=item.version, url=f"https://files.example/{item.file}", sha256=item.sha256
            )
            for item in distributions(identity)
        ]

    def read_all(places, _say):
        return {name: WheelContents(size=1000, files={f"{name}.py": sha256}) for name, (_, sha256) in places.items()}

    monkeypatch.setattr(resolver, "resolve_distributions", answer)
    monkeypatch.setattr(wheel_contents, "read_contents_of_wheels", read_all)
    return asked


def lock(home, identity, *, upgrade=False, **options):
    matrix = home.matrix
    settings = {
        "matrix": matrix,
        "tree": home.tree,
        "wheel_folder": home.root / "house",
        "cxx11abi": lambda _: True,
        "notify": lambda _: None,
    }
    place = cell_locking.LockingPlace(**(settings | options))
    return cell_locking.lock_cell(matrix.entry(parse_cell(identity)), place, upgrade=upgrade)


def test_what_the_resolver_is_asked():
    matrix = parsed(with_(("flash-attn: 4.0.0b36", "flash-attn: 4.0.0b36\n    with: [datasets, pytest]")))
    request = cell_locking.resolver_request(matrix.entry(parse_cell(FA4)), matrix)
    assert request == resolver.ResolverRequest(
        requirements=(
            "torch==2.11.0",
            "transformers==5.17.0",
            "triton==3.6.0",
            "flash-attn-4==4.0.0b36",
            "flash-attn-4[cu13]",
            "pytest",
            "datasets",
        ),
        excludes=("nvidia-cutlass-dsl-libs-cu12",),
        python="3.11",
        glibc="2.36",
        locked_at="2026-11-20",
    )
    assert cell_locking.resolver_request(matrix.entry(parse_cell(FA0)), matrix).excludes == ()


XTUNER = f"{FA0}-xtuner0.1.23"
WITH_XTUNER = with_(
    ("flash-attn: [2.8.3.post2, none]", "flash-attn: [2.8.3.post2, none]\n    framework: [none, xtuner==0.1.23]"),
    (
        "cells:\n",
        "  - {when: framework=xtuner*, source: Stream_Generator, override: einops==0.8, because: so}\ncells:\n",
    ),
)


def test_what_the_resolver_is_asked_for_a_framework():
    matrix = parsed(WITH_XTUNER)
    request = cell_locking.resolver_request(matrix.entry(parse_cell(XTUNER)), matrix)
    assert "xtuner==0.1.23" in request.requirements
    assert (request.sources, request.overrides) == (("stream-generator",), ("einops==0.8",))
    below = cell_locking.entry_without_framework(matrix.entry(parse_cell(XTUNER)))
    assert below is not None
    assert cell_locking.resolver_request(below, matrix) == cell_locking.resolver_request(
        matrix.entry(parse_cell(FA0)), matrix
    )
    assert cell_locking.entry_without_framework(matrix.entry(parse_cell(FA0))) is None


def test_a_framework_is_locked_on_top_of_the_plain_cell(home, index, monkeypatch):
    (home.root / "matrix.yaml").write_text(WITH_XTUNER)
    plain = resolver.resolve_distributions

    def answer(request, wheels):
        added = [distribution("xtuner", "0.1.23")] if "xtuner==0.1.23" in request.requirements else []
        url = "https://files.example/xtuner.whl"
        more = [resolver.PinnedFile(name=x.name, version=x.version, url=url, sha256=x.sha256) for x in added]
        return [*plain(request, wheels), *more]

    monkeypatch.setattr(resolver, "resolve_distributions", answer)
    layers = lock(home, XTUNER).lock.layers
    assert [item.name for item in layers[-1].distributions] == ["xtuner"]
    assert layers[:-1] == lock(home, FA0).lock.layers
    assert len(index) == 3


TRL = f"{FA0}-trl1.16.0"
WITH_TRL = with_(
    ("aliases:\n", f"stacks:\n  trl: {{release: 1.16.0, extras: vlm, with: datasets, on: {FA0}}}\naliases:\n")
)


@pytest.fixture
def index_with_trl(home, index, monkeypatch):
    """A project with a stack, and a resolver that adds TRL, and numpy in the version that `answers` states."""
    (home.root / "matrix.yaml").write_text(WITH_TRL)
    plain, answers = resolver.resolve_distributions, {"numpy": "2.4.6"}

    def answer(request, wheels):
        pinned = [item for item in plain(request, wheels) if item.name != "numpy"]
        wanted = answers | ({"trl": "1.16.0"} if "trl==1.16.0" in request.requirements else {})
        for item in (distribution(name, version) for name, version in wanted.items()):
            url = f"https://files.example/{item.file}"
            pinned.append(resolver.PinnedFile(name=item.name, version=item.version, url=url, sha256=item.sha256))
        return pinned

    monkeypatch.setattr(resolver, "resolve_distributions", answer)
    return index, answers


def test_a_stack_is_locked_against_the_pins_of_the_cell_below(home, index_with_trl):
    asked, _ = index_with_trl
    result, below = lock(home, TRL), home.tree.load(parse_cell(FA0))
    assert {"trl==1.16.0", "trl[vlm]", "datasets"} <= set(asked[-1][0].requirements)
    assert asked[-1][0].constraints == tuple(f"{item.name}=={item.version}" for item in below.distributions)
    assert result.lock.layers[: len(below.layers)] == below.layers
    assert [item.name for layer in result.lock.layers[len(below.layers) :] for item in layer.distributions] == ["trl"]
    assert asked[0][0].constraints == (), "the cell below is locked first, and as ever"
    assert not lock(home, TRL, locked_only=True).changed
    assert len(asked) == 2


def test_a_stack_that_would_move_what_the_cell_below_has_is_refused(home, index_with_trl):
    asked, answers = index_with_trl
    lock(home, FA0)
    answers["numpy"] = "2.0"
    with pytest.raises(KnowngoodError, match=r"it would not share python-[0-9a-f]{12} with sm90-.*; an amendment that"):
        lock(home, TRL)
    assert len(asked) == 2


def test_a_stack_follows_the_lock_of_the_cell_below(home, index_with_trl):
    _, answers = index_with_trl
    lock(home, TRL)
    answers["numpy"] = "2.5"
    assert lock(home, FA0, upgrade=True).changed
    with pytest.raises(KnowngoodError, match="its lock was made from an older"):
        lock(home, TRL, locked_only=True)
    assert lock(home, TRL).changed


def test_a_package_that_the_stack_moves_is_not_held_and_the_layers_without_it_are_shared(home, index_with_trl):
    asked, answers = index_with_trl
    below = lock(home, FA0).lock
    (home.root / "matrix.yaml").write_text(WITH_TRL.replace("{release: 1.16.0", "{moves: NumPy, release: 1.16.0"))
    answers["numpy"] = "2.0"
    home = Project(home.root)
    made = lock(home, TRL).lock
    assert not any(pin.startswith("numpy==") for pin in asked[-1][0].constraints)
    assert {str(item) for item in made.layers[-1].distributions} == {
        str(distribution("numpy", "2.0")),
        str(distribution("trl", "1.16.0")),
    }
    [changed] = [layer for layer in below.layers if layer not in made.layers]
    assert "numpy" in [item.name for item in changed.distributions]
    assert not lock(home, TRL, locked_only=True).changed


def test_what_a_stack_moves_decides_its_lock():
    held, moved = parsed(WITH_TRL), parsed(WITH_TRL.replace("{release: 1.16.0", "{moves: numpy, release: 1.16.0"))
    digests = {cell_locking.lock_inputs_digest(it.entry(parse_cell(TRL)), it) for it in (held, moved)}
    assert len(digests) == 2


def test_a_stack_changes_the_lock_of_no_other_cell():
    before, after = parsed(), parsed(WITH_TRL)
    for cell in before.cells:
        assert cell_locking.lock_inputs_digest(before.entry(cell), before) == cell_locking.lock_inputs_digest(
            after.entry(cell), after
        )
    framed = parsed(with_(("    flash-attn: [2.8.3.post2, none]", "    framework: [none, trl==1.16.0]")))
    digests = {cell_locking.lock_inputs_digest(it.entry(parse_cell(TRL)), it) for it in (after, framed)}
    assert len(digests) == 2, "a framework may move what is below, a stack may not"


@pytest.mark.parametrize(
    "change",
    [
        ("2026-11-20", "2026-11-21"),
        ("everywhere: [pytest]", "everywhere: [pytest, peft]"),
        ("torch: torch", "torch: [torch, triton]"),
        ("nvidia-cutlass-dsl-libs-cu12", "nvidia-cutlass-dsl-libs-cu11"),
        ("glibc: 2.36", "glibc: 2.35"),
    ],
)
def test_a_lock_follows_from_what_is_asked(change):
    before, after = parsed(), parsed(with_(change))
    cell = parse_cell(FA4)
    assert cell_locking.lock_inputs_digest(before.entry(cell), before) != cell_locking.lock_inputs_digest(
        after.entry(cell), after
    )


@pytest.mark.parametrize("change", [("because: one", "because: only one"), ("default: ", "latest: "), ("H200", "H800")])
def test_and_from_nothing_else(change):
    before, after = parsed(), parsed(with_(change))
    cell = parse_cell(FA4)
    assert cell_locking.lock_inputs_digest(before.entry(cell), before) == cell_locking.lock_inputs_digest(
        after.entry(cell), after
    )


def test_a_cell_is_locked_once(home, index):
    first = lock(home, FA4)
    assert first.changed
    again = lock(home, FA4)
    assert (again.lock, again.changed, len(index)) == (first.lock, False, 1)
    assert not lock(home, FA4, upgrade=True).changed
    assert len(index) == 2


@pytest.mark.parametrize("locked_only", [True, False])
def test_a_stale_lock(home, index, locked_only):
    old = lock(home, FA4).lock
    home.tree.save(dataclasses.replace(old, inputs="0" * 64))
    if not locked_only:
        assert lock(home, FA4).lock == old
        return
    with pytest.raises(
        KnowngoodError, match=r"its lock was made from an older matrix.yaml; run `knowngood lock 'sm90-"
    ):
        lock(home, FA4, locked_only=True)
    assert len(index) == 1


def test_a_missing_lock_when_only_locked_ones_are_wanted(home, index):
    with pytest.raises(KnowngoodError, match="its lock is missing"):
        lock(home, FA4, locked_only=True)
    assert not index
    assert not (home.tree.folder / "cells").exists()


@pytest.mark.usefixtures("index")
def test_a_damaged_lock_is_made_anew_as_its_message_promises(home):
    old = lock(home, FA4).lock
    path = home.tree.cell_folder(parse_cell(FA4)) / "cell.json"
    path.write_text("{")
    with pytest.raises(UsageError, match="run `knowngood lock` again"):
        lock(home, FA4, locked_only=True)
    said = []
    assert lock(home, FA4, notify=said.append).lock == old
    assert said[0].startswith("locking again: ")
    assert home.tree.load(parse_cell(FA4)) == old


def test_without_a_wheel_flash_attn_2_cannot_be_locked(home, index):
    (home.root / "house").mkdir()
    (home.root / "house" / WHEEL.replace("cu13t", "cu12t")).write_bytes(b"")
    with pytest.raises(cell_locking.NoWheelError) as caught:
        lock(home, FA2)
    assert caught.value.exit_code == 4
    assert f"{FA2}: the wheelhouse has no flash-attn 2.8.3.post2 wheel for it (" in str(caught.value)
    assert "it is for CUDA 12, the cell has 13.0" in str(caught.value)
    assert "KNOWNGOOD_WHEELHOUSE" in str(caught.value)
    assert not index


def test_the_wheel_of_the_house_goes_to_the_resolver(home, index):
    (home.root / "house").mkdir()
    (home.root / "house" / WHEEL).write_bytes(b"")
    made = lock(home, FA2).lock
    assert index[0][1] == home.root / "house"
    assert "flash-attn" in {item.name for item in made.distributions}


ENGINE = f"{FA2}-transformer-engine2.20.2"
ENGINE_WHEEL = WHEEL.replace("flash_attn-2.8.3.post2", "transformer_engine_torch-2.20.2")
WITH_ENGINE = with_(
    (
        "flash-attn: [2.8.3.post2, none]",
        "flash-attn: [2.8.3.post2, none]\n    framework: [none, transformer-engine==2.20.2]",
    ),
    (
        "cells:\n",
        "  - {when: framework=transformer*, wheel: transformer-engine-torch==2.20.2, because: so}\ncells:\n",
    ),
)


def test_a_framework_whose_wheel_is_not_in_the_house_cannot_be_locked(home, index):
    (home.root / "matrix.yaml").write_text(WITH_ENGINE)
    (home.root / "house").mkdir()
    (home.root / "house" / WHEEL).write_bytes(b"")
    (home.root / "house" / ENGINE_WHEEL.replace("sm90", "sm80")).write_bytes(b"")
    with pytest.raises(cell_locking.NoWheelError) as caught:
        lock(home, ENGINE)
    said = f"{ENGINE}: the wheelhouse has no transformer-engine-torch 2.20.2 wheel for it (transformer_engine_torch-"
    assert str(caught.value).startswith(said)
    assert "it is for sm_80, the cell is sm_90" in str(caught.value)
    assert f"`knowngood compile '{ENGINE}'` makes one" in str(caught.value)
    assert not index


def test_the_wheels_of_a_framework_are_asked_for_and_seen_by_the_resolver(home, index):
    (home.root / "matrix.yaml").write_text(WITH_ENGINE)
    matrix = home.matrix
    request = cell_locking.resolver_request(matrix.entry(parse_cell(ENGINE)), matrix)
    assert "transformer-engine-torch==2.20.2" in request.requirements
    assert matrix.compiled_packages(parse_cell(ENGINE)) == [
        ("flash-attn", "2.8.3.post2"),
        ("transformer-engine-torch", "2.20.2"),
    ]
    assert matrix.compiled_packages(parse_cell(f"{FA0}-transformer-engine2.20.2")) == [
        ("transformer-engine-torch", "2.20.2")
    ]
    assert matrix.compiled_packages(parse_cell(FA0)) == []
    repeated = dataclasses.replace(matrix, amendments=(*matrix.amendments, *matrix.amendments))
    assert repeated.compiled_packages(parse_cell(ENGINE)) == matrix.compiled_packages(parse_cell(ENGINE))
    (home.root / "house").mkdir()
    for name in (WHEEL, ENGINE_WHEEL):
        (home.root / "house" / name).write_bytes(b"")
    with pytest.raises(KnowngoodError, match="the lock does not match the cell: transformer-engine is absent"):
        lock(home, ENGINE)
    assert [wheels for _, wheels in index] == [home.root / "house"] * 2


def test_no_other_cell_sees_the_house(home, index):
    (home.root / "house").mkdir()
    (home.root / "house" / WHEEL).write_bytes(b"")
    lock(home, FA4)
    assert index[0][1] is None


@pytest.mark.usefixtures("index")
def test_a_lock_that_changed_a_pin_is_not_written(home, monkeypatch):
    monkeypatch.setattr(
        resolver,
        "resolve_distributions",
        lambda *_: [
            resolver.PinnedFile(
                name=item.name, version=item.version, url="https://files.example/x.whl", sha256=item.sha256
            )
            for item in distributions(FA0)
        ],
    )
    with pytest.raises(
        KnowngoodError, match=r"the lock does not match the cell: transformers is 4.57.6 in the lock, 5.17.0"
    ):
        lock(home, FA4)
    assert home.tree.load(parse_cell(FA4)) is None


@pytest.mark.usefixtures("index")
def test_clobbers_are_an_error_that_names_both(home, monkeypatch):
    same = {
        name: WheelContents(size=1, files={"flash_attn/cute/__init__.py": name}) for name in ("torch", "flash-attn-4")
    }
    rest = WheelContents(size=1, files={})
    monkeypatch.setattr(wheel_contents, "read_contents_of_wheels", lambda places, _: dict.fromkeys(places, rest) | same)
    with pytest.raises(
        KnowngoodError, match=r"flash-attn-4 and torch both write flash_attn/cute/__init__.py; exclude one"
    ):
        lock(home, FA4)
    assert home.tree.load(parse_cell(FA4)) is None


@pytest.mark.usefixtures("index")
def test_an_index_that_does_not_answer_leaves_nothing(home, monkeypatch):
    def fail(*_):
        raise MissingError("the index did not answer")

    monkeypatch.setattr(wheel_contents, "read_contents_of_wheels", fail)
    with pytest.raises(MissingError):
        lock(home, FA4)
    assert not list((home.tree.folder).glob("cells/*"))
    assert not list((home.tree.folder).glob("layers/*"))


def test_a_writer_waits_for_the_other(home):
    import fcntl
    import os

    with cell_locking.hold_lock_folder(home.tree):
        handle = os.open(home.tree.folder, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(handle)


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize("recorded", [None, b"the same", b"another compile"])
def test_a_wheel_of_the_house_is_compared_with_its_committed_record(home, recorded):
    (home.root / "house").mkdir()
    (home.root / "house" / WHEEL).write_bytes(b"the same")
    if recorded:
        wheelhouse.record_wheel(home.tree, wheel_samples.record(recorded))
    notes = []
    if recorded == b"another compile":
        with pytest.raises(CorruptArchiveError, match=r"put the recorded wheel into .*, or remove .*docker/wheels/"):
            lock(home, FA2, notify=notes.append)
        assert home.tree.load(parse_cell(FA2)) is None
        return
    assert lock(home, FA2, notify=notes.append).changed
    assert any("docker/wheels/ has no record of its bytes" in text for text in notes) == (recorded is None)


def test_a_damaged_wheel_is_not_locked(home, tmp_path):
    inputs = {"package": "flash-attn"}
    wheel = tmp_path / "flash_attn-2.8.3.post2+cu13torch2.11cxx11abitrue.sm90-cp311-cp311-linux_x86_64.whl"
    wheel.write_bytes(b"flipped")
    made = wheelhouse.WheelRecord(
        wheel=wheel.name, sha256="0" * 64, size=7, key=wheelhouse.wheel_key(inputs), inputs=inputs, made={"seconds": 1}
    )
    wheelhouse.write_wheel_record(made, wheel)
    with pytest.raises(KnowngoodError, match=r"is a corrupt archive: .*`knowngood compile"):
        lock(home, FA2, wheel_folder=tmp_path)
