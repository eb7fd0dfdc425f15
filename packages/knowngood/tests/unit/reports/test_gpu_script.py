"""The page's script finds the same GPU for a name as the program does."""

import json
import shutil
import subprocess

import pytest

from knowngood.core import local_files
from knowngood.core.gpus import gpu_catalog_from_sections
from knowngood.core.yaml_document import parse_yaml_data
from samples import ROOT

STATIC = local_files.data_folder() / "templates" / "site" / "static"
CASES = parse_yaml_data((ROOT / "packages/knowngood/tests/unit/core/gpu_names.yaml").read_text(), "gpu_names.yaml")
GPUS = gpu_catalog_from_sections(parse_yaml_data((ROOT / "matrix.yaml").read_text(), "matrix.yaml")["gpus"])


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no JavaScript here")
def test_the_script_finds_what_the_program_finds():
    names = [name for section in CASES.values() for name in section]
    names += [card for _, cards in GPUS.sections.values() for card in cards]
    names += [f"{name} {other}" for name in names[::7] for other in names[::11]]
    script = (STATIC / "gpu_names.js").read_text()
    data, texts = json.dumps(GPUS.name_table.matching_data()), json.dumps(names)
    calls = f"({texts}).map((it) => knowngood.matchGpuName(data, it))"
    unknown = [name for name in names if GPUS.name_table.match(name).kind == "unknown"][::9]
    nearest = f"({json.dumps(unknown)}).map((it) => knowngood.nearestGpuName(data, it))"
    program = f"{script}\nconst data = {data};\nconsole.log(JSON.stringify([{calls}, {nearest}]));"
    ended = subprocess.run(["node", "-"], input=program, capture_output=True, text=True, check=True, timeout=100)
    matches, near = json.loads(ended.stdout)
    answers = dict(zip(names, matches, strict=True))
    assert near == [GPUS.name_table.find_nearest(name) for name in unknown]
    assert answers == {name: GPUS.name_table.match(name).document() for name in names}


@pytest.mark.parametrize(
    ("text", "card"),
    {"4900": "RTX 4090", "RTX 4900": "RTX 4090", "NVIDIA GeForce RTX 5009": "RTX 5090", "H1000": "H100"}.items(),
)
def test_the_nearest_name_takes_the_fewest_mistakes(text, card):
    assert GPUS.name_table.find_nearest(text) == card
