"""fleet.yaml, and its defects."""

from __future__ import annotations

import pytest

from knowngood.core.errors import InputError, UsageError
from knowngood.executors import fleet_config

WHOLE = """\
schema: 1
executors:
  hopper:
    engine: slurm
    folder: /shared/knowngood
    run: apptainer
    images: registry.example/team/knowngood
    gres: {sm_90: "gpu:h100"}
    at-once: 4
    options: --reservation=night
  prod:
    engine: kubernetes
    images: registry.example/team/knowngood
    pull-secrets: [one]
"""


def test_fleet_yaml_is_read():
    sections = fleet_config.parse_fleet(WHOLE, "fleet.yaml")
    hopper = fleet_config.choose_section(sections, "hopper", "fleet.yaml")
    assert (hopper.gres, hopper.at_once, hopper.options) == ({"sm_90": "gpu:h100"}, 4, ("--reservation=night",))
    assert sections["prod"].pull_secrets == ("one",)
    assert isinstance(fleet_config.choose_section({}, "local", "fleet.yaml"), fleet_config.LocalSection)
    with pytest.raises(UsageError, match="there are hopper, prod, local"):
        fleet_config.choose_section(sections, "ampere", "fleet.yaml")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("- x\n", "1:1: the file must be a mapping with `schema` and `executors`"),
        ("schema: 2\nexecutors: {}\n", "1:9: `schema` must be 1"),
        ("schema: 1\nexecutors: {}\nfoo: 1\n", "3:1: unknown key 'foo'; the keys here are schema, executors"),
        ("schema: 1\nexecutors:\n  A: {engine: local}\n", "3:3: 'A' is not a name such as hopper"),
        ("schema: 1\nexecutors:\n  a: 3\n", "3:6: an executor is a mapping"),
        ("schema: 1\nexecutors:\n  a: {engine: pbs}\n", "3:15: `engine` must be one of local, slurm, kubernetes"),
        (WHOLE.replace("/shared", "shared"), "5:13: 'shared/knowngood' is not an absolute path"),
        (WHOLE.replace("at-once: 4", "at-once: x"), "9:14: executors.hopper.at-once is malformed"),
        (WHOLE.replace("at-once", "atonce"), "9:5: unknown key 'atonce'; did you mean 'at-once'?"),
        (WHOLE.replace("sm_90", "sm90"), "8:12: 'sm90' is not written like sm_90"),
        (WHOLE.replace("--reservation=night", "night"), "10:14: 'night' is not an option of sbatch"),
        (WHOLE.replace("run: apptainer", "run: environment"), "4:5: `run: environment` needs `environments`"),
        (WHOLE.replace("images: registry.example/team/knowngood\n    gres", "environments: /e\n    gres"),
         "7:19: '/e' is one folder for all cells"),
        (WHOLE.replace("pull-secrets: [one]", "namespace: ''"), "14:16: "),
    ],
)  # fmt: skip
def test_a_defect_of_fleet_yaml_has_its_line_and_column(text, problem):
    with pytest.raises(InputError) as caught:
        fleet_config.parse_fleet(text, "fleet.yaml")
    assert f"fleet.yaml:{problem}" in str(caught.value)
