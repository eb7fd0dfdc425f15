"""Builders: what they say of themselves, what is built first, what each is told, and what happens when one dies."""

from __future__ import annotations

import json
import shlex
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from samples import FA0, FA2, FA4
from test_planning import NUMBERS, OLD, TORCH, layer, wanted

from knowngood import cli
from knowngood.builders import builder as builders
from knowngood.builders import derive, find, fleet, jobs, run, tags
from knowngood.builders.builder import Builder
from knowngood.builders.command import Order
from knowngood.builders.depot import Depot
from knowngood.builders.fleet import Fleet, Hands
from knowngood.building import build, dryrun, survey
from knowngood.building.planning import Holdings
from knowngood.building.results import Result, Status
from knowngood.building.schedule import Room, Task
from knowngood.cell import parse
from knowngood.compiling import order as compile_orders
from knowngood.compiling import placed
from knowngood.compiling.place import Power
from knowngood.errors import KnowngoodError, MissingError, UsageError
from knowngood.registries.manifests import MANIFEST, Manifest
from knowngood.registries.reference import Repository

GB = 10**9
PLENTY = Room(memory=1000 * GB, disk=10_000 * GB)
REPOSITORY = Repository.parse("registry.example/team/builds")
KUBERNETES = """\
Name:          far
Driver:        kubernetes
Last Activity: 2026-11-21 12:00:00 +0000 UTC

Nodes:
Name:                  far0
Endpoint:              kubernetes:///far?deployment=far0
Status:                inactive
Platforms:

Name:                  far1
Endpoint:              kubernetes:///far?deployment=far1
Status:                running
BuildKit version:      v0.15.1
"""
SILENT = """\
Name:          gone
Driver:        remote

Nodes:
Name:     gone0
Endpoint: tcp://192.0.2.9:1234
Status:   inactive
Error:    failed to list workers: connection refused
"""
DOCKERFILE = """\
FROM base AS venv
FROM venv AS layer-torch
FROM venv AS layer-numbers
FROM base AS suite
FROM base
"""


def one(name: str, **changes) -> Builder:
    fields = {"buildx": ("docker", "buildx"), "driver": "docker", "buildkit": "0.13", "machine": name}
    return Builder(name=name, **{**fields, **changes})


def test_an_instance_says_its_driver_and_whether_a_node_of_it_runs():
    found = builders.inspected(KUBERNETES)
    assert (found.driver, found.running, found.buildkit, found.error) == ("kubernetes", True, "0.15.1", "")
    found = builders.inspected(SILENT)
    assert (found.driver, found.running) == ("remote", False)
    assert found.error == "failed to list workers: connection refused"
    assert builders.inspected("").running is False


@pytest.mark.parametrize(
    ("options", "memory", "processors"),
    [
        ('limits.cpu="4" limits.memory="8Gi" namespace="x"', 8 << 30, 4),
        ('limits.cpu="1500m" limits.memory="8G"', 8 * GB, 1),
        ('cpu-quota="200000" memory="8g" cpu-period="100000"', 8 << 30, 2),
        ('image="moby/buildkit" memory-swap="1g"', None, None),
        ("", None, None),
    ],
)
def test_an_instance_has_what_it_was_limited_to(options, memory, processors):
    text = KUBERNETES.replace(
        "BuildKit version:      v0.15.1", f"Driver Options:        {options}\nBuildKit version:      v0.15.1"
    )
    found = builders.inspected(text)
    assert (found.memory, found.processors) == (memory, processors)


def test_builders_are_named_once_each_and_not_by_nothing():
    assert builders.names("a, b,a,tcp://b:2375") == ("a", "b", "tcp://b:2375")
    with pytest.raises(UsageError, match="between commas"):
        builders.names("a,,b")
    assert one("unix:///run/e.sock").file == "unix-run-e.sock"


def test_a_tag_is_short_enough_and_told_apart_by_what_shaped_the_bytes():
    key = ("torch-2.11.0-" + "a" * 200, "1" * 64)
    assert len(tags.layer(key)) == 128
    assert tags.layer(key).endswith("-" + "1" * 12)
    assert tags.layer(("torch", "1" * 64)) != tags.layer(("torch", "2" * 64))
    assert len(tags.image("a" * 64)) <= 128


def test_a_derived_dockerfile_joins_layers_as_the_cell_does():
    text = derive.layers(DOCKERFILE, ["layer-torch", "suite"])
    assert text.startswith(DOCKERFILE)
    assert text.endswith(
        "FROM scratch AS knowngood-layers\nCOPY --link --from=layer-torch /out/ /\nCOPY --link --from=suite /out/ /\n"
    )
    assert derive.has(DOCKERFILE, {"venv", "suite", "layer-torch"})
    assert not derive.has("FROM base\nRUN true\n", {"venv"})


def test_the_template_of_cells_has_the_stages_that_are_derived_from():
    from samples import ROOT

    template = (ROOT / "templates/Dockerfile.j2").read_text()
    assert derive.has(template, {derive.VENV, derive.SUITE})
    for name in ("venv", "suite", "{{ layer.stage }}"):
        assert f"\nCOPY --link --from={name} /out/ /\n" in template
    assert '"stage": "layer-" + ' in (ROOT / "src/knowngood/render.py").read_text()


HUGE = layer("huge", 60 * 10**6)
X, Y, Z = wanted("x", HUGE, NUMBERS, OLD), wanted("y", HUGE, NUMBERS), wanted("z", TORCH, NUMBERS)


def test_what_several_cells_want_is_a_job_the_ground_first_a_large_layer_by_itself():
    found = jobs.shared([X, Y, Z], Holdings(), lambda _: True)
    assert [job.names for job in found] == [("venv", f"suite-{'s' * 12}"), (HUGE.name,), (NUMBERS.name,)]
    ground, huge, numbers = found
    assert ground.after == frozenset()
    assert huge.after == numbers.after == frozenset(ground.keys)
    assert {job.cell for job in found} == {"x"}
    made = frozenset(key for job in found for key in job.keys)
    task = jobs.cell_task(X, Holdings(), made, prove=False)
    assert task.after == made
    assert not task.makes & made


def test_a_large_layer_that_one_cell_wants_is_for_those_with_nothing_to_do():
    found = jobs.shared([X, Z], Holdings(), lambda _: True)
    made = frozenset(key for job in found for key in job.keys)
    (spare,) = jobs.spare([X, Z], Holdings(), made, lambda _: True)
    assert (spare.names, spare.cell, spare.after) == ((HUGE.name,), "x", frozenset(jobs.ground(X)))
    assert jobs.spare([X, Y], Holdings(), made | {(HUGE.name, X.shape.making)}, lambda _: True) == []
    assert jobs.spare([X, Z], Holdings(), made, lambda _: False) == []
    assert jobs.spare([X], Holdings(images=frozenset({X.shape.inputs})), frozenset(), lambda _: True) == []


def test_what_the_registry_has_is_nobodys_job():
    making = X.shape.making
    held = Holdings(layers=frozenset({(HUGE.name, making), *jobs.ground(X)}))
    assert [job.names for job in jobs.shared([X, Y, Z], held, lambda _: True)] == [(NUMBERS.name,)]
    built = Holdings(images=frozenset({X.shape.inputs, Y.shape.inputs}))
    assert jobs.shared([X, Y, Z], built, lambda _: True) == []


def test_a_dockerfile_of_ones_own_is_built_whole():
    assert jobs.shared([X, Y], Holdings(), lambda _: False) == []
    assert jobs.shared([X], Holdings(), lambda _: True) == []


def test_cells_of_different_makings_share_nothing():
    other = wanted("o", HUGE, NUMBERS, recipe="another")
    assert jobs.shared([X, other], Holdings(), lambda _: True) == []


def order(builder: Builder, *caches: str) -> Order:
    return Order(
        builder=builder, repository=REPOSITORY, network="default", caches=caches, metadata=Path("/tmp/metadata.json")
    )


PLAN = build.Plan(
    tag="knowngood:x", dockerfile=Path("/p/Dockerfile"), context=Path("/p"), contexts={"base": "b"}, inputs="i" * 64
)


def after(argv: list[str], word: str) -> list[str]:
    return [argv[index + 1] for index, found in enumerate(argv) if found == word]


def test_an_instance_pushes_by_digest_and_an_engine_under_the_tag_of_the_inputs():
    instance = one("far", driver="remote", options=("--builder", "far"))
    argv = order(instance, "layer-a", "layer-b").cell(PLAN, tags.image(PLAN.inputs), "layer-c")
    assert after(argv, "--builder") == ["far"]
    (output,) = after(argv, "--output")
    assert output.startswith(f"type=image,name={REPOSITORY},push=true,push-by-digest=true,")
    assert output.endswith(build.COMPRESSION)
    assert after(argv, "--cache-from") == [f"type=registry,ref={REPOSITORY}:layer-{name}" for name in "ab"]
    assert after(argv, "--cache-to")[0].startswith(f"type=registry,ref={REPOSITORY}:layer-c,mode=min,")
    (output,) = after(order(one("here")).cell(PLAN, tags.image(PLAN.inputs), None), "--output")
    assert output.startswith(f"type=image,name={REPOSITORY}:inputs-{PLAN.inputs},push=true,compression=zstd")


def test_layers_go_to_the_cache_alone_and_the_ground_with_its_steps():
    for ground, mode in ((False, "min"), (True, "max")):
        argv = order(one("here")).layers(PLAN, "layer-a", ground=ground)
        assert after(argv, "--output") == ["type=cacheonly"]
        assert after(argv, "--target") == [derive.TARGET]
        assert f"mode={mode}," in after(argv, "--cache-to")[0]


def test_files_of_a_stage_come_to_this_machine_and_its_step_is_another_each_time():
    argv = order(one("here"), "layer-a").files(PLAN, "wheel", "r1", Path("/o"))
    assert after(argv, "--output") == ["type=local,dest=/o"]
    assert after(argv, "--target") == ["wheel"]
    assert "KNOWNGOOD_RUN=r1" in after(argv, "--build-arg")
    assert after(argv, "--cache-from") == [f"type=registry,ref={REPOSITORY}:layer-a"]
    assert not after(argv, "--cache-to")


class World:
    """Builders that answer or not, and work that ends when it has been asked a few times."""

    def __init__(self):
        self.dead: set[str] = set()
        self.fails: dict[tuple[str, str], KnowngoodError] = {}
        self.kills: dict[str, str] = {}
        """A task, and the builder that dies of it, the first time."""
        self.began: list[tuple[str, str]] = []
        self.stopped: list[str] = []
        self.said: list[str] = []
        self.at_once: Counter[str] = Counter()
        self.most = Counter()
        self.lasts: dict[str, int] = {}
        """How often a task's work is asked before it has ended, where it is not twice."""
        self.now = 0.0

    def start(self, task, builder):
        world, name = self, builder.name
        self.began.append((task.cell, name))
        self.at_once[name] += 1
        self.most[name] = max(self.most[name], self.at_once[name])

        class Job:
            asked = 0
            interrupted = False

            def done(self):
                self.asked += 1
                world.now += 1
                return self.interrupted or self.asked > world.lasts.get(task.cell, 2)

            def result(self):
                world.at_once[name] -= 1
                if self.interrupted:
                    error = KnowngoodError("its process ended without a result (exit 1); run it again")
                    return Result(cell=task.cell, status=Status.FAILED, seconds=1, error=error)
                if world.kills.get(task.cell) == name:
                    world.dead.add(name)
                error = world.fails.get((task.cell, name))
                if name in world.dead:
                    error = MissingError("the engine stopped answering during the build")
                status = Status.FAILED if error else Status.BUILT
                image = None if error else build.Image(tag="t", digest="sha256:0", size=1, built=True)
                return Result(cell=task.cell, status=status, seconds=1, image=image, error=error)

            def interrupt(self):
                self.interrupted = True

            def stop(self):
                world.stopped.append(task.cell)

        return Job()

    def run(self, tasks, layers, *names, at_once=1, room=PLENTY, machine=None, spare=()):
        rooms = room if isinstance(room, dict) else dict.fromkeys(names, room)
        hands = Hands(
            start=self.start,
            room=lambda one: rooms[one.name],
            answers=lambda one: one.name not in self.dead,
            say=self.said.append,
            clock=lambda: self.now,
        )
        many = [(one(name, machine=machine or name), at_once) for name in names]
        found = Fleet([*layers, *tasks], [*layers, *spare], many, hands, spare).results()
        return {result.cell: result for result in found}


@pytest.fixture
def world(monkeypatch):
    monkeypatch.setattr(fleet, "_PAUSE", 0)
    monkeypatch.setattr(fleet, "_LOOK", 0.01)
    return World()


def task(name, *, makes=(), after=(), memory=2, disk=0):
    keys = {"makes": frozenset((key, "m") for key in makes), "after": frozenset((key, "m") for key in after)}
    return Task(cell=name, need=Room(memory=memory * GB, disk=disk), **keys)


def test_layers_come_before_the_cells_that_need_them_and_each_once(world):
    layers = [task("ground", makes=["venv"]), task("torch", makes=["torch"], after=["venv"])]
    cells = [task(f"c{number}", after=["torch", "venv"]) for number in range(4)]
    found = world.run(cells, layers, "a", "b")
    assert {result.status for result in found.values()} == {Status.BUILT}
    assert found.keys() == {item.cell for item in cells}
    names = [name for name, _ in world.began]
    assert names[:2] == ["ground", "torch"]
    assert sorted(names[2:]) == ["c0", "c1", "c2", "c3"]
    assert {name for _, name in world.began[2:]} == {"a", "b"}
    assert "built by" in found["c0"].note


@pytest.mark.parametrize("fails", [False, True])
def test_who_has_nothing_to_do_makes_what_a_single_cell_wants(world, fails):
    layers = [task("ground", makes=["venv"]), task("torch", makes=["torch"], after=["venv"])]
    cells = [task(f"c{number}", makes=[f"own{number}"], after=["torch", "venv"]) for number in range(3)]
    spare = [task(f"own{number}", makes=[f"own{number}"], after=["venv"]) for number in (2, 1, 0)]
    world.fails = {("own2", name): KnowngoodError("hash mismatch") for name in ("a", "b")} if fails else {}
    found = world.run(cells, layers, "a", "b", spare=spare)
    assert {name: result.status for name, result in found.items()} == dict.fromkeys(("c0", "c1", "c2"), Status.BUILT)
    assert [name for name, _ in world.began[:3]] == ["ground", "torch", "own2"]
    assert world.began[1][1] != world.began[2][1]
    assert sorted(name for name, _ in world.began[3:]) == ["c0", "c1", "c2"], "what a cell has begun is its own"
    alone = World()
    alone.run(cells, layers, "a", spare=spare)
    assert [name for name, _ in alone.began] == ["ground", "torch", "c0", "c1", "c2"]


def test_a_cell_waits_for_a_layer_of_its_own_that_is_being_made(world):
    spare = task("own", makes=["own"])
    shared = task("torch", makes=["torch"])
    found = world.run([task("cell", makes=["own"], after=["torch"])], [shared], "a", "b", spare=[spare])
    assert world.began[:2] == [("torch", "a"), ("own", "b")]
    assert world.began[2][0] == "cell"
    assert found["cell"].status is Status.BUILT


@pytest.mark.parametrize(("torch", "left"), [(42, True), (46, False)])
def test_what_was_just_begun_for_want_of_work_is_left_when_there_is_some(world, torch, left):
    layers = [task("torch", makes=["torch"], disk=500), task("cudnn", makes=["cudnn"], disk=300)]
    spare = [task(f"own{number}", makes=[f"own{number}"], disk=150) for number in (0, 1)]
    makes = {"c0": ["own0"], "c1": [], "c2": ["own1"], "c3": []}
    cells = [task(name, makes=some, after=["torch", "cudnn"]) for name, some in makes.items()]
    world.lasts = {"torch": torch, "cudnn": 24, "own0": 12, "own1": 12}
    found = world.run(cells, layers, "a", "b", spare=spare)
    assert [name for name, _ in world.began[:4]] == ["torch", "cudnn", "own0", "own1"]
    assert {name: result.status for name, result in found.items()} == {item.cell: Status.BUILT for item in cells}
    assert ("b leaves own1 to its cell: there is other work now" in world.said) is left
    order = world.began[4:]
    if left:
        assert order == [("c0", "a"), ("c2", "b"), ("c1", "a"), ("c3", "b")], "b goes on with what it had begun"
    else:
        assert [name for name, _ in order] == ["c0", "c1", "c2", "c3"]
        assert [by for _, by in order[:2]] == ["a", "a"], "b ends what is half made"


def test_each_takes_as_many_as_it_was_told_and_memory_of_one_machine_is_shared(world):
    cells = [task(f"c{number}") for number in range(6)]
    world.run(cells, [], "a", "b", at_once=2)
    assert world.most == {"a": 2, "b": 2}
    tight = World()
    tight.run(cells, [], "a", "b", room=Room(memory=3 * GB, disk=0), machine="one")
    assert sum(tight.most.values()) == 1, "two builds in memory for one"


def test_a_heavy_task_goes_where_the_memory_is(world):
    rooms = {"small": Room(memory=3 * GB, disk=0), "big": Room(memory=100 * GB, disk=0)}
    world.run([task("heavy", memory=50), task("heavier", memory=60), task("light")], [], "small", "big", room=rooms)
    assert world.began == [("heavy", "big"), ("light", "small"), ("heavier", "big")]


def test_a_builder_that_dies_is_told_and_its_cells_go_to_the_others(world):
    world.kills = {"c0": "a"}
    found = world.run([task("c0"), task("c1"), task("c2")], [], "a", "b")
    assert {result.status for result in found.values()} == {Status.BUILT}
    assert ("c0", "b") in world.began
    assert found["c0"].note == "begun by a, which stopped answering; built by b"
    assert any(line.startswith("builder a stopped answering") and "goes to b" in line for line in world.said)
    assert not [name for name, by in world.began[3:] if by == "a"]


def test_all_that_a_dead_builder_was_at_is_done_once_by_others(world):
    world.kills = {"c0": "a"}
    found = world.run([task(f"c{number}") for number in range(5)], [], "a", "b", at_once=3)
    assert {result.status for result in found.values()} == {Status.BUILT}
    assert [by for name, by in world.began if name == "c0"] == ["a", "b"]
    assert max(Counter(name for name, by in world.began if by == "b").values()) == 1


def test_one_that_is_silent_for_long_is_given_up_and_what_it_was_at_is_ended(world, monkeypatch):
    start = world.start

    def hang(item, builder):
        work = start(item, builder)
        if builder.name == "a":
            world.dead.add("a")
            monkeypatch.setattr(work, "done", lambda: False)
        return work

    monkeypatch.setattr(world, "start", hang)
    found = world.run([task("c0"), task("c1")], [], "a", "b")
    assert {result.status for result in found.values()} == {Status.BUILT}
    assert world.stopped == ["c0"]


def test_when_all_are_dead_each_cell_says_so(world):
    world.kills = {"c0": "a"}
    found = world.run([task("c0"), task("c1")], [], "a")
    assert {result.error.exit_code for result in found.values()} == {4}
    assert "no builder is left" in str(found["c1"].error)


def test_what_a_place_lacks_another_may_have_and_what_is_wrong_is_wrong_everywhere(world):
    world.fails = {
        ("full", "a"): MissingError("the disk is full"),
        ("full", "b"): MissingError("the disk is full"),
        ("half", "a"): MissingError("the disk is full"),
        ("half", "b"): MissingError("the disk is full"),
        ("bad", "a"): KnowngoodError("hash mismatch"),
        ("bad", "b"): KnowngoodError("hash mismatch"),
    }
    found = world.run([task("full"), task("half"), task("bad")], [], "a", "b", "c")
    assert (found["half"].status, found["full"].status) == (Status.BUILT, Status.BUILT)
    world.fails |= {("full", "c"): MissingError("the disk is full")}
    world.began.clear()
    found = world.run([task("full"), task("bad")], [], "a", "b", "c")
    assert found["full"].error.exit_code == 4
    assert sorted(by for name, by in world.began if name == "full") == ["a", "b", "c"]
    assert len([by for name, by in world.began if name == "bad"]) == 1


def test_a_layer_that_fails_fails_the_cells_that_need_it_and_no_others(world):
    world.fails = {("torch", name): KnowngoodError("hash mismatch") for name in "ab"}
    layers = [task("torch", makes=["torch"])]
    found = world.run([task("c0", after=["torch"]), task("c1")], layers, "a", "b")
    assert found["c1"].status is Status.BUILT
    assert str(found["c0"].error) == "its torch was not built: hash mismatch"


def test_the_host_s_network_where_one_builder_has_no_other():
    assert run.network([one("a"), one("b")]) == "default"
    assert run.network([one("a"), one("b", bridge=False)]) == "host"


def test_memory_is_what_a_builder_says_or_unknown():
    assert run.room(one("a", memory=100 * GB)).memory == 90 * GB
    assert run.room(one("a")).memory == run.PLENTY


DOCKER = """\
words = sys.argv[1:]
if words == ["buildx", "version"]:
    sys.exit(0)
if words[:2] != ["buildx", "inspect"]:
    sys.exit("nothing else was expected: " + " ".join(words))
if words[2] not in ("far", "gone"):
    sys.exit(f'ERROR: no builder "{words[2]}" found')
print(FAR if words[2] == "far" else GONE)
"""


@pytest.fixture
def docker(tmp_path, monkeypatch):
    """A docker command that knows two instances of buildx, of which one runs."""
    program = tmp_path / "bin/docker"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\nimport sys\nFAR = {KUBERNETES!r}\nGONE = {SILENT!r}\n{DOCKER}")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    return program


def test_instances_that_run_are_found_and_the_others_told(docker):
    found, silent = find.find(["far", "gone", "nobody"], print)
    (far,) = found
    assert (far.name, far.driver, far.options) == ("far", "kubernetes", ("--builder", "far"))
    assert find.answers(far)
    assert not far.engine
    gone, nobody = silent
    assert gone == (
        "builder gone is left out: it does not answer (failed to list workers: connection refused); "
        "`docker buildx inspect --bootstrap gone` starts it"
    )
    assert nobody == 'builder nobody is left out: no builder "nobody" found'
    docker.write_text("#!/bin/sh\nexit 1\n")
    assert not find.answers(far)


@pytest.mark.usefixtures("docker")
def test_without_a_builder_the_run_ends_with_all_the_reasons(tmp_path):
    nowhere = f"unix://{tmp_path}/nothing.sock"
    with pytest.raises(MissingError, match="no builder is left") as failed:
        find.find(["gone", nowhere], print)
    assert f"builder {nowhere} is left out: no engine answers at {nowhere}" in str(failed.value)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--to", "registry.example/builds"], "--to goes with --builder"),
        (["--network", "host"], "--network goes with --builder"),
        (["--builder", "far"], "share layers and give images away through a registry"),
        (["--builder", "far", "--to", "builds"], "does not begin with a registry"),
        (["--builder", "far,", "--to", "registry.example/builds"], "between commas"),
    ],
)
@pytest.mark.usefixtures("home", "docker")
def test_words_that_make_no_sense(words, why, capsys, monkeypatch):
    monkeypatch.delenv("KNOWNGOOD_BUILDS", raising=False)
    assert cli.main(["build", *words]) == 2
    assert why in capsys.readouterr().err


@pytest.mark.usefixtures("docker")
def test_the_dry_run_has_layers_first_and_no_secret(lock_of, capsys, monkeypatch):
    monkeypatch.setenv("UV_INDEX_SOMEWHERE_PASSWORD", "s3cret")
    monkeypatch.setattr(dryrun, "_base_context", lambda *_: "oci-layout:///b@sha256:" + "b" * 64)
    monkeypatch.setattr(survey, "base_digest", lambda *_: "sha256:" + "b" * 64)
    for identity in (FA4, FA0):
        lock_of(identity)
    words = ["--builder", "far", "--to", "registry.example/builds", "--dry-run"]
    assert cli.main(["build", FA4, FA0, *words]) == 0
    said = capsys.readouterr().out
    commands = [shlex.split(line) for line in said.splitlines() if not line.startswith("#")]
    ground, *_, last = commands
    assert "mode=max" in " ".join(after(ground, "--cache-to"))
    assert after(ground, "--output") == ["type=cacheonly"]
    assert "push-by-digest=true" in after(last, "--output")[0]
    assert {command[0] for command in commands} == {ground[0]}
    assert sum("push=true" in " ".join(command) for command in commands) == 2
    assert "s3cret" not in said


class Shelf:
    """A registry's manifests, by tag and digest."""

    repository = REPOSITORY

    def __init__(self):
        self.found: dict[str, Manifest] = {}

    def manifest(self, reference):
        return self.found.get(reference)

    def digest(self, reference):
        return self.found[reference].descriptor.digest if reference in self.found else None

    def put_manifest(self, manifest, reference):
        self.found[reference] = self.found[manifest.descriptor.digest] = manifest


def manifest(name: str, *sizes: int) -> Manifest:
    blobs = [{"mediaType": "x", "digest": f"sha256:{size:064d}", "size": size} for size in sizes]
    return Manifest(data=json.dumps({"name": name, "config": blobs[0], "layers": blobs[1:]}).encode(), media=MANIFEST)


def test_the_registry_is_the_state_of_a_fleet():
    shelf = Shelf()
    depot = Depot(shelf)
    first, second, third = jobs.keys(X)[-3:]
    shelf.put_manifest(manifest("cache", 1), tags.layer(first))
    depot.share([first, second])
    shelf.put_manifest(manifest("another", 1), tags.layer(third))
    assert depot.holdings([X, Y], Holdings()).layers == {first, second, third} & {*jobs.keys(X), *jobs.keys(Y)}
    assert len(depot.sources(jobs.keys(X))) == 2, "one cache that has two layers is read once"
    assert depot.image(X.shape.inputs) is None
    image = manifest("image", 5, 7, 11)
    shelf.put_manifest(image, "pushed by its digest alone")
    made = depot.pushed(X.shape.inputs, image.descriptor.digest)
    assert (made.digest, made.built) == (image.descriptor.digest, True)
    assert made.size == 5 + 7 + 11 + len(image.data)
    assert depot.image(X.shape.inputs) == replace(made, built=False)
    assert depot.holdings([X, Y], Holdings()).images == {X.shape.inputs}
    assert [layer.size for layer in depot.described(made.digest).layers] == [7, 11]


def test_what_the_registry_lost_is_said():
    depot = Depot(Shelf())
    with pytest.raises(KnowngoodError, match="lost layer-"):
        depot.share(jobs.keys(X)[:1])
    with pytest.raises(KnowngoodError, match="lost sha256:"):
        depot.pushed(X.shape.inputs, "sha256:" + "0" * 64)
    depot.share([])


class Asked:
    """What `placed.supply` needs of a run on builders."""

    project = SimpleNamespace(root=Path(), matrix=SimpleNamespace(entry=lambda _: SimpleNamespace(base="debian12")))

    def __init__(self, **gigabytes):
        self.builders = tuple(one(name) for name in gigabytes)
        self.gigabytes = gigabytes

    def line(self, builder):
        return builder


@pytest.fixture
def compiles(world, monkeypatch):
    """Compiles that end as the world says, on builders that say what they have."""

    def power(self, _cell, _say):
        if not (has := fleet.gigabytes[self.line.name]):
            raise MissingError("it does not answer")
        return Power(processors=4, memory=has * GB)

    class Making:
        def __init__(self, name, argv, _root, made):
            self.name, self.made = name, made
            self.work = world.start(task(name), one(argv[0]))

        def done(self):
            return self.work.done()

        def result(self):
            result = self.work.result()
            if not result.error:
                self.made[self.name] = {"cell": FA2, "status": "compiled", "seconds": 5.0, "note": "", "wheel": "w"}
            return result

        def interrupt(self):
            self.work.interrupt()

        def stop(self):
            self.work.stop()

    monkeypatch.setattr(placed.OnBuilder, "power", power)
    monkeypatch.setattr(placed, "_Making", Making)
    monkeypatch.setattr(placed.find, "answers", lambda one: one.name not in world.dead)
    fleet = Asked()

    def supply(wanted, **gigabytes):
        fleet.__init__(**gigabytes)
        return placed.supply(fleet, wanted, lambda builder, _: [builder.name], 7 * GB, world.said.append)

    return supply


def ordered(*packages):
    return [compile_orders.Order(cell=parse(FA2), package=name, version="1") for name in packages]


def test_wheels_go_to_the_builders_with_the_memory_the_strongest_first(world, compiles):
    found = compiles(ordered("a", "b", "c"), small=6, middling=15, silent=0, big=64)
    assert [item["status"] for item in found] == ["compiled"] * 3
    assert [by for _, by in world.began[:2]] == ["big", "middling"]
    assert {by for _, by in world.began} == {"big", "middling"}
    assert world.most == {"big": 1, "middling": 1}
    assert "builder silent is left out: it does not answer" in world.said
    assert "builder big has 64.0 GB free, 4 processors" in world.said


def test_cells_that_share_a_wheel_have_it_compiled_once(world, compiles):
    (wheel,) = ordered("a")
    found = compiles([wheel, replace(wheel, cell=replace(wheel.cell, transformers="4.40.0"))], big=64, other=64)
    assert [item["status"] for item in found] == ["compiled", "present"]
    assert len(world.began) == 1


def test_a_compile_that_wants_memory_goes_elsewhere_and_one_that_is_wrong_does_not(world, compiles):
    name = f"{{}} 1 for {FA2}"
    world.fails = {
        (name.format("a"), "big"): MissingError("the compile was killed for want of memory"),
        (name.format("b"), "other"): KnowngoodError("the compile failed"),
    }
    found = compiles(ordered("a", "b"), big=64, other=32)
    assert (found[0]["status"], "error" in found[0]) == ("compiled", False)
    assert (found[1]["status"], found[1]["error"], found[1]["exit"]) == ("failed", "the compile failed", 1)
    assert [by for task_name, by in world.began if task_name == name.format("a")] == ["big", "other"]


def test_no_builder_that_says_what_it_has_is_a_sentence(compiles):
    with pytest.raises(MissingError, match="no builder says what memory it has: it does not answer"):
        compiles(ordered("a"), silent=0)
