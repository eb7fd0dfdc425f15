"""What runs a job on a node that has no engine of ours: a script that writes an outcome, whole or not at all. Pure.

The script needs a POSIX shell, coreutils and whatever runs the suite. What it leaves lies in the job's folder, for
another machine to read: `began` (the node's name), then `outcome.json`, or else `end` (a cause, and words).
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from knowngood.errors import KnowngoodError
from knowngood.fleet.job import Cause, Job

SCHEMA = "knowngood/outcome/1"
OUTCOME, END, BEGAN, SCRIPT, PREDICTIONS = "outcome.json", "end", "began", "run.sh", "predictions.json"
BARE = "environment"
"""The name of the way that has no container."""
MOUNT = "/mnt"
"""Where a container sees the scratch folder: any image of Debian has that folder, so nothing is made in it."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """How the suite is started on a node."""

    name: str
    """It goes into the node's fingerprint: `apptainer`, `pyxis`, `environment`."""
    prepare: Sequence[str] = ()
    """Lines of shell before everything else."""
    fetch: str = ""
    """A command of shell that brings the image; when it fails, the image could not be pulled."""
    start: str = ""
    """What the suite's command stands behind, as shell."""
    python: str
    suite: str
    """The suite's folder, as the started process sees it."""
    folder: str = MOUNT
    """The scratch folder, as the started process sees it; as shell."""


def script(job: Job, folder: str, way: Way) -> str:
    """The script of a job whose folder is `folder`."""
    words = shlex.join([way.python, "-m", "pytest", way.suite, *job.command])
    report = f"--report {way.folder}/report.json --predictions {way.folder}/{PREDICTIONS}"
    limit = f"timeout --kill-after=10 {job.needs.seconds}"
    fetch = _FETCH.format(command=way.fetch) if way.fetch else ""
    prepare = "".join(f"{line}\n" for line in way.prepare)
    head = _HEAD.format(cell=job.cell, key=job.key, folder=shlex.quote(folder))
    command = " ".join(filter(None, [way.start, limit, words, report]))
    tail = _TAIL.format(seconds=job.needs.seconds, schema=SCHEMA, way=way.name)
    return f"{head}{prepare}{fetch}began=$(date +%s)\n{command}\ncode=$?\n{tail}"


_HEAD = """\
#!/bin/sh
# Made by knowngood: the suite in {cell}, job {key}.
set -u
key={key}
job={folder}
# Begun again though its result is there: the node failed, or so it seemed, after that.
[ -e "$job/outcome.json" ] && exit 0
node=${{SLURMD_NODENAME:-$(uname -n)}}
mine="$node.$$"
work=$(mktemp -d "${{TMPDIR:-/tmp}}/knowngood.XXXXXXXX") || exit 70
trap 'rm -rf "$work"' EXIT
trap 'exit 143' TERM INT
rm -f "$job/end"
# A cause and words, whole or not at all.
finish() {{
    printf '%s\\n%s\\n' "$1" "$2" > "$job/.end.$mine" && mv -f "$job/.end.$mine" "$job/end"
    echo "knowngood: $1: $2" >&2
    exit 1
}}
printf '%s\\n' "$node" > "$job/.began.$mine" && mv -f "$job/.began.$mine" "$job/began"
cp "$job/predictions.json" "$work/" || finish crash "$job/predictions.json cannot be read on $node"
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV
export HF_HUB_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1 PYTHONNOUSERSITE=1
"""

_FETCH = """\
{command} || finish image-pull "the image could not be brought to $node; the job's log says why"
"""

_TAIL = """\
took=$(( $(date +%s) - began ))
case $code in
    0 | 1) ;;
    124) finish time-limit "the suite did not end within {seconds} s" ;;
    137) [ "$took" -ge {seconds} ] && finish time-limit "the suite did not end within {seconds} s"
         finish memory "the suite was killed after $took s, as for too much memory" ;;
    *) finish crash "the suite's process ended with $code" ;;
esac
[ -s "$work/report.json" ] || finish crash "the suite ended with $code and left no report"
memory=$(while read -r name size unit; do [ "$name" = MemTotal: ] && echo "$size"; done < /proc/meminfo)
{{
    printf '{{"schema": "{schema}", "key": "%s", "when": "%s", "node": {{"name": "%s", "kernel": "%s", ' \\
        "$key" "$(date -u +%Y-%m-%dT%H:%M:%S+00:00)" "$node" "$(uname -r)"
    printf '"cpus": %s, "memory": %s, "runtime": "{way}"}}, "report": ' "$(nproc --all)" "$(( memory * 1024 ))"
    cat "$work/report.json"
    printf '}}\\n'
}} > "$job/.outcome.$mine" && mv -f "$job/.outcome.$mine" "$job/outcome.json" ||
    finish crash "the report could not be written to $job"
"""


@dataclass(frozen=True, kw_only=True)
class End:
    """Why a script ended without an outcome."""

    cause: Cause
    text: str


def end(text: str) -> End | None:
    """What the file `end` says; `None` for what is not whole."""
    cause, _, said = text.partition("\n")
    try:
        return End(cause=Cause(cause), text=said.strip()) if said.endswith("\n") else None
    except ValueError:
        return None


@dataclass(frozen=True, kw_only=True)
class Left:
    """What the file `outcome.json` holds."""

    report: Mapping[str, Any]
    node: Mapping[str, Any]
    """With the node's plain name."""
    when: str


def outcome(data: bytes, job: str) -> Left:
    """What a job left; `KnowngoodError` when that is half written, damaged or another job's."""
    try:
        stored = json.loads(data)
        if stored["schema"] != SCHEMA:
            raise KnowngoodError(f"job {job}: its result has schema {stored['schema']!r}, this program reads {SCHEMA}")
        found = Left(report=stored["report"], node=stored["node"], when=stored["when"])
        key, _ = stored["key"], (found.report["verdict"]["ok"], found.report["suite_hash"], found.node["name"])
    except (ValueError, KeyError, TypeError) as error:
        raise KnowngoodError(
            f"job {job}: its result is half written or damaged ({len(data)} bytes, {type(error).__name__})"
        ) from None
    if key != job:
        raise KnowngoodError(f"job {job}: the result in its folder is of job {key}")
    return found
