"""`knowngood doctor` on a real environment: torch without its CUDA libraries, xformers of another torch. 20 s."""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys

import pytest
import registry_server
from uv import find_uv_bin

from knowngood.cli.main import main
from knowngood.core.cell import parse_cell
from knowngood.index.gpu_code import sort_architectures
from knowngood.lock import resolver
from knowngood.registry import manifests, registry_client
from knowngood.registry.image_reference import Repository
from knowngood_diagnose.doctor import probe
from knowngood_facts.facts import fact_store
from knowngood_facts.facts.torch_reader import TorchFacts

pytestmark = pytest.mark.integration

TORCH, XFORMERS = "2.11.0", "0.0.29.post3"


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """An environment with two wheels of the index, and nothing that they require."""
    folder = tmp_path_factory.mktemp("doctor") / "env"
    wheels = [f"torch=={TORCH}", f"xformers=={XFORMERS}"]
    making = [["venv", "-p", sys.executable, folder], ["pip", "install", "--no-deps", "-p", folder, *wheels]]
    for command in making:
        words = [find_uv_bin(), *command, "--quiet", *resolver.uv_config_options()]
        subprocess.run(words, env=resolver.uv_environment(), check=True, timeout=300)
    return folder


@pytest.fixture(scope="module")
def seen(environment):
    return probe.read_system_state(str(environment), os.environ, print)


def test_the_binary_has_the_code_and_the_abi_that_the_facts_say(seen):
    known = fact_store.load_facts("torch", TorchFacts)[TORCH].facts
    library = next(item for item in seen.binaries if item.path == "torch/lib/libtorch_cuda.so")
    most = next(iter(library.code))
    assert tuple(sort_architectures(most.sass)) == known.sass
    assert tuple(sort_architectures(most.ptx)) == known.ptx
    assert (seen.torch.cuda, seen.torch.cxx11abi) == (known.cuda, known.cxx11abi)


def test_what_is_missing_is_what_ld_so_misses(seen):
    library = next(item for item in seen.binaries if item.path == "torch/lib/libtorch_python.so")
    with pytest.raises(OSError, match="cannot open shared object file") as error:
        ctypes.CDLL(f"{seen.python.folders[0]}/{library.path}")
    assert re.match(r"[^:]+", str(error.value))[0] in [name for name, _ in library.linked.missing]


def test_a_build_for_another_torch_is_red(environment, capsys):
    assert main(["doctor", "--json", "--python", str(environment), "--gpu", "H100"]) == 1
    lines = {line["id"]: line for line in json.loads(capsys.readouterr().out)["lines"]}
    line = lines["binary:xformers"]
    assert f"compiled for another torch; {TORCH}" in line["because"]
    assert "c10::Error::Error(c10::SourceLocation, std::string)" in line["because"]
    assert line["incidents"] == ["extension-other-torch"]
    assert lines["versions:requires:xformers:torch"]["verdict"] == "bad"
    assert "libcudnn.so.9" in lines["binary:torch"]["because"]


def test_an_image_is_judged_by_its_configuration_in_a_registry(registry_program, tmp_path, capsys):
    """Nothing is pulled: the registry has no layer to give."""
    cell = "sm90-cu130-torch2.11.0-tf4.57.6-fa0-triton3.6.0-py311"
    server = registry_server.Server(registry_program, tmp_path)
    server.start()
    try:
        name = f"{server.address}/team/knowngood"
        there = registry_client.Registry(Repository.parse(f"http://{name}"))
        labels = {f"io.knowngood.{axis}": value for axis, value in parse_cell(cell).axes().items()}
        config = {"architecture": "amd64", "os": "linux", "config": {"Labels": {"io.knowngood.cell": cell, **labels}}}
        described = there.put_bytes(json.dumps(config).encode(), "application/vnd.oci.image.config.v1+json")
        document = {
            "schemaVersion": 2,
            "mediaType": manifests.MANIFEST_MEDIA_TYPE,
            "config": described.document(),
            "layers": [],
        }
        there.put_manifest(
            manifests.RegistryManifest(data=json.dumps(document).encode(), media=manifests.MANIFEST_MEDIA_TYPE), "one"
        )
        ask = ["doctor", "--json", "--image"]
        assert main([*ask, f"http://{name}:one", "--gpu", "V100", "--driver", "550.54"]) == 1
        told = json.loads(capsys.readouterr().out)
        lines = {line["id"]: line for line in told["lines"]}
        assert told["subject"] == f"{name}:one"
        assert lines["driver"]["incidents"] == ["nvidia-driver-too-old"]
        assert lines["versions:torch-runs-on-gpu"]["verdict"] == "bad"
        assert main([*ask, f"http://{name}:one", "--gpu", "H100", "--driver", "580.65.06"]) == 0
        assert main([*ask, f"http://{name}:two"]) == 4
    finally:
        server.kill()
