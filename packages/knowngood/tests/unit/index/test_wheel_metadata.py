import pytest
from packaging.requirements import Requirement

from knowngood.index import wheel_metadata
from knowngood.index.artefact import UnreadableError


def test_requirements_as_they_apply_on_linux():
    text = (
        "Metadata-Version: 2.1\nName: torch\nVersion: 2.3.1\n"
        'Requires-Dist: triton (==2.3.1) ; platform_system == "Linux" and python_version < "3.12"\n'
        'Requires-Dist: mkl ; platform_system == "Windows"\n'
        'Requires-Dist: Optree>=0.9 ; extra == "optree"\n'
        "Requires-Dist: cuda-toolkit[cublas,cudart]==13.0.2\n"
    )
    core = wheel_metadata.parse_metadata(text)
    assert wheel_metadata.requirement_map(core.requirements_on("3.11")) == {
        "cuda-toolkit": "[cublas,cudart]==13.0.2",
        "triton": "==2.3.1",
    }
    assert "triton" not in core.requirements_on("3.12")
    assert "optree" in core.requirements_on("3.12", extra="optree")


@pytest.mark.parametrize(
    ("text", "reason"),
    [("", "no name or no version"), ("Name: x\nVersion: 1\nRequires-Dist: a b c\n", "does not parse")],
)
def test_broken_metadata_is_a_reason(text, reason):
    with pytest.raises(UnreadableError, match=reason):
        wheel_metadata.parse_metadata(text)


@pytest.mark.parametrize(
    ("line", "pin"), [("a==1.2", "1.2"), ("a==1.*", None), ("a>=1", None), ("a>=1,==2", None), ("a", None)]
)
def test_exact_pin(line, pin):
    assert wheel_metadata.exact_pin(Requirement(line)) == pin


def test_bounds_have_one_spelling():
    assert wheel_metadata.specifier_text(Requirement("a<2,>=1,!=1.5")) == ">=1,!=1.5,<2"


@pytest.mark.parametrize(("specifier", "oldest"), [(">=3.9,<3.13", "3.9"), (None, "3.11"), (">=3.10.0", "3.10")])
def test_oldest_python(specifier, oldest):
    assert wheel_metadata.oldest_python(specifier) == oldest
