"""What Slurm is given: a script a batch, and how the suite is started in an image or an environment. Pure."""

from __future__ import annotations

import hashlib
import json
import math
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import groupby

from knowngood.fleet.config import Slurm
from knowngood.fleet.job import GRACE, Job
from knowngood.fleet.shell import BARE, MOUNT, Way

MOST = 1000
"""Jobs of an array: `MaxArraySize` is 1001 where a site has not changed it."""
_NONE = "none"
_PREFIX = "knowngood-"


def batches(jobs: Iterable[Job]) -> list[list[Job]]:
    """Jobs that one array can carry: they need the same of a node."""

    def alike(job: Job) -> str:
        return json.dumps([asdict(job.needs), sorted(job.avoid)], sort_keys=True)

    groups = groupby(sorted(jobs, key=alike), key=alike)
    return [list(part) for _, group in groups for part in _parts(list(group))]


def _parts(jobs: Sequence[Job]) -> list[Sequence[Job]]:
    return [jobs[start : start + MOST] for start in range(0, len(jobs), MOST)]


def name(batch: Sequence[Job]) -> str:
    """The array's name, the same for the same work: what a program submitted as it was killed is found by it."""
    return _PREFIX + hashlib.sha256("\n".join(job.key for job in batch).encode()).hexdigest()[:16]


def batch_folder(settings: Slurm, batch: str) -> str:
    """Where the script, the keys and the logs of an array lie."""
    return f"{settings.folder}/batches/{batch}"


def job_folder(settings: Slurm, key: str) -> str:
    """Where a job's script and what it leaves lie."""
    return f"{settings.folder}/jobs/{key}"


def script(batch: Sequence[Job], settings: Slurm, avoid: Iterable[str] = ()) -> str:
    """The text for sbatch. `avoid`: what the jobs must avoid of the nodes that there are."""
    needs, folder = batch[0].needs, batch_folder(settings, name(batch))
    at_once = f"%{settings.at_once}" if settings.at_once else ""
    options = {
        "job-name": name(batch),
        "array": f"0-{len(batch) - 1}{at_once}",
        "output": f"{folder}/%a.log",
        "open-mode": "append",
        "nodes": "1",
        "ntasks": "1",
        "cpus-per-task": str(needs.cpus),
        "mem": f"{math.ceil(needs.memory / (1 << 20))}M",
        "time": str(math.ceil((needs.seconds + GRACE) / 60)),
        "partition": settings.partition,
        "account": settings.account,
        "qos": settings.qos,
        "gres": _gres(batch[0], settings),
        "constraint": _constraint(batch[0], settings),
        "exclude": ",".join(sorted(avoid)),
    }
    lines = [f"#SBATCH --{option}={value}" for option, value in options.items() if value]
    lines += ["#SBATCH --requeue", *(f"#SBATCH {option}" for option in settings.options)]
    return _SCRIPT.format(
        options="\n".join(lines), folder=shlex.quote(folder), jobs=shlex.quote(job_folder(settings, ""))
    )


_SCRIPT = """\
#!/bin/sh
# Made by knowngood: an array of smoke runs.
{options}
key=$(sed -n "$((SLURM_ARRAY_TASK_ID + 1))p" {folder}/keys)
exec sh {jobs}"$key"/run.sh
"""


def _gres(job: Job, settings: Slurm) -> str | None:
    if job.needs.gpu is None:
        return None
    return f"{settings.gres.get(job.needs.gpu, 'gpu')}:{max(job.needs.gpus, 1)}"


def _constraint(job: Job, settings: Slurm) -> str | None:
    """A GPU that the site names by its type needs no feature; `none` turns it off."""
    gpu = job.needs.gpu
    if gpu is None:
        return None
    found = settings.constraint.get(gpu, _NONE if gpu in settings.gres else gpu)
    return None if found == _NONE else found


def way(job: Job, settings: Slurm, *, suite_in_image: str, suite: str) -> Way:
    """How the job's suite is started; `suite` is the folder of its copy on shared storage."""
    if settings.run == "environment":
        environment = job.subject.environment or ""
        return Way(
            name=BARE,
            prepare=[*settings.prepare, 'export HOME="$work" XDG_CACHE_HOME="$work/cache"'],
            python=f"{environment}/bin/python",
            suite=suite,
            folder='"$work"',
        )
    build = _apptainer if settings.run == "apptainer" else _pyxis
    fetch, start = build(job, settings)
    return Way(
        name=settings.run,
        # The image keeps what it compiles in /cache, which is read-only there unless something is mounted.
        prepare=[*settings.prepare, 'mkdir "$work/cache"'],
        fetch=fetch,
        start=start,
        python="python",
        suite=suite_in_image,
    )


def _apptainer(job: Job, settings: Slurm) -> tuple[str, str]:
    """The image becomes a file on shared storage once, whole or not at all; apptainer's own cache is there too."""
    reference = str(job.subject.image)
    digest = reference.rpartition(":")[2]
    folder = shlex.quote(f"{settings.folder}/images")
    image = f"{folder}/{digest}.sif"
    fetch = (
        f"mkdir -p {folder} && export APPTAINER_CACHEDIR={folder}/cache\n"
        f'[ -s {image} ] || {{ apptainer pull {image}."$mine" docker://{reference} && mv -f {image}."$mine" {image}; }}'
    )
    nvidia = "--nv " if job.needs.gpu else ""
    start = (
        f'apptainer exec {nvidia}--cleanenv --contain --workdir "$work" --bind "$work:{MOUNT},$work/cache:/cache" '
        f"--pwd {MOUNT} --env HF_HUB_OFFLINE=1,PYTHONDONTWRITEBYTECODE=1 {image}"
    )
    return fetch, start


def _pyxis(job: Job, _: Slurm) -> tuple[str, str]:
    """The image is brought by srun itself; a step that does nothing tells its failure from the suite's."""
    repository, digest = str(job.subject.image).split("@")
    registry, path = repository.split("/", 1)
    name = f"--container-name=knowngood-{job.key}"
    image = shlex.quote(f"--container-image={registry}#{path}:{digest}")
    mounts = (
        f'--container-mounts="$work:{MOUNT},$work/cache:/cache" --container-workdir={MOUNT} --no-container-mount-home'
    )
    return f"srun {image} {name} true", f"srun {name} {mounts}"
