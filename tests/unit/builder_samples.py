"""Builders without a machine, for the tests of runs on several builders."""

from __future__ import annotations

import json
from collections import Counter

from knowngood.core.errors import KnowngoodError, MissingError
from knowngood.executors.builder import Builder
from knowngood.executors.builder_scheduler import BuilderScheduler, SchedulerActions
from knowngood.images import build_command
from knowngood.images.cell_tasks import BuildTask, CellResult, CellStatus, MachineResources
from knowngood.registry.image_reference import Repository
from knowngood.registry.manifests import MANIFEST_MEDIA_TYPE, RegistryManifest

GB = 10**9
REPOSITORY = Repository.parse("registry.example/team/builds")
PLENTY = MachineResources(memory=1000 * GB, disk=10_000 * GB)


def make_builder(name: str, **changes) -> Builder:
    fields = {"buildx": ("docker", "buildx"), "driver": "docker", "buildkit": "0.13", "machine": name}
    return Builder(name=name, **{**fields, **changes})


def make_task(name, *, makes=(), after=(), memory=2, disk=0):
    keys = {"makes": frozenset((key, "m") for key in makes), "after": frozenset((key, "m") for key in after)}
    return BuildTask(cell=name, need=MachineResources(memory=memory * GB, disk=disk), **keys)


def option_values(argv: list[str], option: str) -> list[str]:
    """The values of all uses of an option."""
    return [argv[index + 1] for index, word in enumerate(argv) if word == option]


class FakeBuilders:
    """Builders that answer or not, and tasks that end when their state was checked a few times."""

    def __init__(self):
        self.dead: set[str] = set()
        self.fails: dict[tuple[str, str], KnowngoodError] = {}
        """The error of a task on a builder."""
        self.kills: dict[str, str] = {}
        """For a task the builder that dies when it runs the task."""
        self.started: list[tuple[str, str]] = []
        """Each started task with its builder."""
        self.stopped: list[str] = []
        self.messages: list[str] = []
        self.running: Counter[str] = Counter()
        self.most_running = Counter()
        self.checks: dict[str, int] = {}
        """How many checks find a task running; 2 for a task that is not named."""
        self.now = 0.0

    def start(self, task, builder):
        builders, name = self, builder.name
        self.started.append((task.cell, name))
        self.running[name] += 1
        self.most_running[name] = max(self.most_running[name], self.running[name])

        class Job:
            checks = 0
            interrupted = False

            def done(self):
                self.checks += 1
                builders.now += 1
                return self.interrupted or self.checks > builders.checks.get(task.cell, 2)

            def result(self):
                builders.running[name] -= 1
                if self.interrupted:
                    error = KnowngoodError("its process ended without a result (exit 1); run it again")
                    return CellResult(cell=task.cell, status=CellStatus.FAILED, seconds=1, error=error)
                if builders.kills.get(task.cell) == name:
                    builders.dead.add(name)
                error = builders.fails.get((task.cell, name))
                if name in builders.dead:
                    error = MissingError("the engine stopped answering during the build")
                status = CellStatus.FAILED if error else CellStatus.BUILT
                image = None if error else build_command.Image(tag="t", digest="sha256:0", size=1, built=True)
                return CellResult(cell=task.cell, status=status, seconds=1, image=image, error=error)

            def interrupt(self):
                self.interrupted = True

            def stop(self):
                builders.stopped.append(task.cell)

        return Job()

    def run(self, tasks, layers, *names, jobs=1, free=PLENTY, machine=None, early=()):
        """Run the tasks on builders with these names, and return the results by cell."""
        free_on = free if isinstance(free, dict) else dict.fromkeys(names, free)
        actions = SchedulerActions(
            start=self.start,
            free=lambda builder: free_on[builder.name],
            answers=lambda builder: builder.name not in self.dead,
            notify=self.messages.append,
            clock=lambda: self.now,
        )
        builders = [(make_builder(name, machine=machine or name), jobs) for name in names]
        scheduler = BuilderScheduler([*layers, *tasks], [*layers, *early], builders, actions, early)
        return {result.cell: result for result in scheduler.results()}


class FakeRegistryClient:
    """A registry's manifests, by tag and digest."""

    repository = REPOSITORY

    def __init__(self):
        self.manifests: dict[str, RegistryManifest] = {}

    def manifest(self, reference):
        return self.manifests.get(reference)

    def digest(self, reference):
        return self.manifests[reference].descriptor.digest if reference in self.manifests else None

    def put_manifest(self, manifest, reference):
        self.manifests[reference] = self.manifests[manifest.descriptor.digest] = manifest


def image_manifest(name: str, *sizes: int) -> RegistryManifest:
    blobs = [{"mediaType": "x", "digest": f"sha256:{size:064d}", "size": size} for size in sizes]
    return RegistryManifest(
        data=json.dumps({"name": name, "config": blobs[0], "layers": blobs[1:]}).encode(), media=MANIFEST_MEDIA_TYPE
    )
