"""Compile objects of an extension twice, in two folders, and compare their bytes.

    sudo nice -n 19 python benchmarks/same_bytes.py WORK TOOLKIT SITE [--arch 80 ...] [--into FOLDER] OBJECT ...

WORK is a build folder that `knowngood compile` left in the cache (`compile/<key>`): it has the sources and the
commands, in `build.ninja`. TOOLKIT is the folder of the CUDA toolkit (`toolkits/<name>` of the cache), SITE an
environment's site-packages with the cell's torch and its NVIDIA wheels. OBJECT is the name of a source file without
`.cu`, such as `flash_fwd_hdim64_bf16_sm80`.

Each object is compiled in two folders with different names, from files with different times, by processes with
different numbers. Each compile sees its folder as `/build`, in a root of its own with the paths of the compile's
container, so an engine is not needed; that takes `unshare` and the rights of root. The environment is that of
`knowngood compile`. With `--no-flags` it lacks the flags for nvcc that make objects the same.

Results are appended to FOLDER/results.jsonl, and what is there already is not compiled again. Where WORK has the
object too, made in the container, both are stripped and compared: `container` says whether they are the same.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from knowngood.wheels import compile_request, cuda_toolkit

SITE_IN_ROOT = "opt/venv/lib/python3.11/site-packages"
ENTER_ROOT = """
set -e
mount -t tmpfs none "$ROOT"
cd "$ROOT"
mkdir -p usr etc dev proc tmp build toolkit {site}
ln -s usr/bin bin; ln -s usr/lib lib; ln -s usr/lib64 lib64; ln -s usr/sbin sbin
for place in usr etc dev proc; do mount --rbind "/$place" "$place"; done
mount --bind "$WORK" build
mount --bind "$TOOLKIT" toolkit
mount --bind "$SITE" {site}
exec chroot . env -i "$@"
"""


def compile_command(work: Path, source: str, code: str) -> list[str]:
    """Return nvcc's command for a source file, from `build.ninja`, for another architecture."""
    (ninja,) = work.glob("src/build/temp.*/build.ninja")
    text = ninja.read_text()
    flags = {
        name: re.search(rf"^{name} = (.*)$", text, re.MULTILINE)[1] for name in ("cuda_cflags", "cuda_post_cflags")
    }
    line = re.search(rf"^build (\S+/{source}\.o): cuda_compile (\S+)$", text, re.MULTILINE)
    if line is None:
        raise SystemExit(f"{ninja} has no object {source}.o")
    post = re.sub(r"arch=compute_\d+,code=sm_\d+", f"arch=compute_{code},code=sm_{code}", flags["cuda_post_cflags"])
    return ["nvcc", *shlex.split(flags["cuda_cflags"]), line[2], "-o", line[1], *shlex.split(post)]


def compile_in_root(arguments: argparse.Namespace, folder: Path, argv: list[str]) -> tuple[Path, float]:
    """Compile in a private root that shows `folder` as `/build`; return the object's path and the seconds."""
    target = folder / Path(argv[argv.index("-o") + 1]).relative_to("/build")
    target.parent.mkdir(parents=True, exist_ok=True)
    home = next(path.parents[1] for path in sorted(arguments.toolkit.glob("**/bin/nvcc")))
    flags = {"NVCC_APPEND_FLAGS": " ".join(cuda_toolkit.REPRODUCIBLE_FLAGS.values())} if arguments.flags else {}
    env = compile_request.compile_variables(str(home.relative_to(arguments.toolkit)), 1, flags)
    headers = sorted(arguments.site.glob("nvidia/*/include"))
    env["CPATH"] = ":".join(f"/{SITE_IN_ROOT}/{path.relative_to(arguments.site)}" for path in headers)
    root = folder.with_name(f"{folder.name}-root")
    root.mkdir(exist_ok=True)
    places = {"ROOT": root, "WORK": folder, "TOOLKIT": arguments.toolkit, "SITE": arguments.site}
    words = [f"{name}={value}" for name, value in env.items()]
    start = time.monotonic()
    subprocess.run(
        ["unshare", "--mount", "bash", "-c", ENTER_ROOT.format(site=SITE_IN_ROOT), "bash", *words, *argv],
        env=os.environ | {name: str(path.resolve()) for name, path in places.items()},
        check=True,
        stdout=sys.stderr,
    )
    return target, time.monotonic() - start


def copy_sources(work: Path, folder: Path, seconds: int) -> None:
    """Copy the sources without what was built, with times that are `seconds` after 1980."""
    if (folder / "src").exists():
        return
    shutil.copytree(work / "src", folder / "src", ignore=shutil.ignore_patterns("build", ".git"))
    for path in (folder / "src").rglob("*"):
        os.utime(path, (315532800 + seconds,) * 2, follow_symlinks=False)


def stripped_sha256(path: Path, scratch: Path) -> str:
    """Return the SHA-256 of an object without the symbols that the wheel's libraries lose."""
    subprocess.run(["strip", "--strip-unneeded", "-o", str(scratch), str(path)], check=True)
    return file_sha256(scratch)


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def compare_object(arguments: argparse.Namespace, source: str, code: str) -> Mapping[str, Any]:
    """Compile one object in both folders and return what was measured."""
    argv = compile_command(arguments.work, source, code)
    hashes, stripped, seconds = [], [], []
    for number, name in enumerate(("first", "another-folder")):
        folder = arguments.into / name
        copy_sources(arguments.work, folder, number * 86400)
        target, took = compile_in_root(arguments, folder, argv)
        hashes.append(file_sha256(target))
        stripped.append(stripped_sha256(target, arguments.into / "stripped.o"))
        seconds.append(round(took))
    made = arguments.work / Path(argv[argv.index("-o") + 1]).relative_to("/build")
    same_code = f"code=sm_{code}" in next(arguments.work.glob("src/build/temp.*/build.ninja")).read_text()
    container = stripped_sha256(made, arguments.into / "stripped.o") if made.exists() and same_code else None
    return {
        "object": source,
        "code": code,
        "flags": arguments.flags,
        "sha256": hashes,
        "stripped": stripped,
        "container": None if container is None else container == stripped[0],
        "seconds": seconds,
    }


def read_results(path: Path) -> list[dict[str, Any]]:
    """Return the results of earlier runs."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def render_table(results: list[dict[str, Any]]) -> str:
    """Return the results as a Markdown table."""
    lines = [
        "| object | for | object file | stripped | same as the container's | seconds |",
        "|---|---|---|---|---|---|",
    ]
    for item in sorted(results, key=lambda item: (int(item["code"]), item["object"], item["flags"])):
        cells = [
            " = ".join(dict.fromkeys(f"`{digest[:12]}`" for digest in item[kind]))
            if len(set(item[kind])) == 1
            else " differs from ".join(f"`{digest[:12]}`" for digest in item[kind])
            for kind in ("sha256", "stripped")
        ]
        container = {None: "", True: "yes", False: "no"}[item["container"]]
        name = item["object"] + ("" if item["flags"] else " (without flags)")
        lines.append(f"| {name} | sm_{item['code']} | {cells[0]} | {cells[1]} | {container} | {item['seconds']} |")
    return "\n".join(lines)


def main() -> int:
    """Compare the objects that the command line names, and print the table of all that were compared."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("toolkit", type=Path)
    parser.add_argument("site", type=Path)
    parser.add_argument("object", nargs="*")
    parser.add_argument("--arch", action="append", help="an architecture such as 80; may be given more than once")
    parser.add_argument("--into", type=Path, default=Path("same-bytes"), help="the folder of the results")
    parser.add_argument("--no-flags", dest="flags", action="store_false", help="without the flags for nvcc")
    arguments = parser.parse_intermixed_args()
    arguments.into.mkdir(parents=True, exist_ok=True)
    path = arguments.into / "results.jsonl"
    for code in arguments.arch or ["80"]:
        for source in arguments.object:
            known = [(item["object"], item["code"], item["flags"]) for item in read_results(path)]
            if (source, code, arguments.flags) not in known:
                result = compare_object(arguments, source, code)
                with path.open("a") as out:
                    out.write(json.dumps(result) + "\n")
                print(json.dumps(result), file=sys.stderr)
    results = read_results(path)
    print(render_table(results))
    return 1 if any(len(set(item["stripped"])) > 1 for item in results if item["flags"]) else 0


if __name__ == "__main__":
    sys.exit(main())
