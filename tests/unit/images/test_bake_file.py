"""The bake file that does the same as `docker buildx build` commands, and the output of a bake."""

from __future__ import annotations

from pathlib import Path

import pytest

from knowngood.images import bake_file, build_command


def test_a_bake_target_does_what_the_command_does():
    argv = ["docker", "--host", "unix:///x", "buildx", "build", "--progress", "plain", "--no-cache", "--file", "D"]
    argv += [
        "--network",
        "host",
        "--build-context",
        "base=oci-layout:///b@sha256:1",
        "--secret",
        "id=env,src=$KNOWNGOOD_TMP/env",
    ]
    argv += ["--build-arg", "A=b=c", "--label", "l=1", "--provenance", "false", "--sbom", "false"]
    argv += ["--metadata-file", "m", "--load", "--tag", "knowngood:a.b", "ctx"]
    document = bake_file.render_bake_file({"a.b": argv})
    assert document == {
        "variable": {"KNOWNGOOD_TMP": {"default": "."}},
        "group": {"default": {"targets": ["a_b"]}},
        "target": {
            "a_b": {
                "context": "ctx",
                "dockerfile": "D",
                "contexts": {"base": "oci-layout:///b@sha256:1"},
                "args": {"A": "b=c"},
                "labels": {"l": "1"},
                "network": "host",
                "attest": ["type=provenance,disabled=true", "type=sbom,disabled=true"],
                "output": ["type=docker"],
                "secret": ["id=env,src=${KNOWNGOOD_TMP}/env"],
                "tags": ["knowngood:a.b"],
                "no-cache": True,
            }
        },
    }


def test_an_option_that_bake_cannot_have_is_an_error():
    with pytest.raises(ValueError, match="--ssh"):
        bake_file.bake_target(["docker", "buildx", "build", "--ssh", "default", "."])


def test_a_bake_target_keeps_the_stage_and_the_caches():
    argv = ["docker", "buildx", "build", "--builder", "far", "--target", "layers", "--output", "type=cacheonly"]
    argv += ["--cache-from", "type=registry,ref=r:a", "--cache-from", "type=registry,ref=r:b"]
    target = bake_file.bake_target([*argv, "--cache-to", "type=registry,ref=r:c,mode=min", "ctx"])
    assert (target["target"], target["output"]) == ("layers", ["type=cacheonly"])
    assert target["cache-from"] == ["type=registry,ref=r:a", "type=registry,ref=r:b"]
    assert target["cache-to"] == ["type=registry,ref=r:c,mode=min"]


def test_the_compose_file_gives_each_target_the_network():
    document = bake_file.render_network_file(["a.b", "c"], "host")
    assert document == {"services": {"a_b": {"build": {"network": "host"}}, "c": {"build": {"network": "host"}}}}


FAILED_BAKE = """\
#14 [cell-b layer-own 1/1] RUN install
#14 0.2 failed to download a wheel: connection reset; retrying
#14 ...

#17 [cell-a layer-own 1/1] RUN install
#17 3.1 error: hash for numpy is not as expected
#17 ERROR: process "/bin/sh -c install" did not complete successfully: exit code: 1

#14 [cell-b layer-own 1/1] RUN install
#14 CANCELED
------
 > [cell-a layer-own 1/1] RUN install:
3.1 error: hash for numpy is not as expected
------
ERROR: failed to solve: process "/bin/sh -c install" did not complete successfully: exit code: 1
"""


@pytest.mark.parametrize(
    ("output", "name"),
    [
        (FAILED_BAKE, "cell-a"),
        ("------\n > [cell-b] exporting to image:\n------\nERROR: failed to solve: x\n", "cell-b"),
        ("ERROR: target cell-c: failed to solve: x\n", "cell-c"),
        ("ERROR: Cannot connect to the Docker daemon\n", None),
    ],
)
def test_a_failed_bake_names_the_target_that_failed_first(output, name):
    assert bake_file.parse_failed_target(output) == name


def test_the_failure_of_a_bake_is_not_explained_by_what_another_target_printed():
    error = build_command.explain_build_failure(FAILED_BAKE, Path("/l"))
    assert (type(error).__name__, error.exit_code) == ("KnowngoodError", 1)
    assert "hash for numpy is not as expected" in str(error)
