import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from knowngood.harvest import metadata
from knowngood.harvest.index import File, Unreadable


def files(*names):
    return [
        File(name=name, url="", sha256="", version=Version("1"), yanked=False, requires_python=None) for name in names
    ]


def test_requirements_as_they_apply_on_linux():
    text = (
        "Metadata-Version: 2.1\nName: torch\nVersion: 2.3.1\n"
        'Requires-Dist: triton (==2.3.1) ; platform_system == "Linux" and python_version < "3.12"\n'
        'Requires-Dist: mkl ; platform_system == "Windows"\n'
        'Requires-Dist: Optree>=0.9 ; extra == "optree"\n'
        "Requires-Dist: cuda-toolkit[cublas,cudart]==13.0.2\n"
    )
    core = metadata.parse_metadata(text)
    assert metadata.requirement_map(core.on("3.11")) == {
        "cuda-toolkit": "[cublas,cudart]==13.0.2",
        "triton": "==2.3.1",
    }
    assert "triton" not in core.on("3.12")
    assert "optree" in core.on("3.12", extra="optree")


@pytest.mark.parametrize(
    ("text", "reason"),
    [("", "no name or no version"), ("Name: x\nVersion: 1\nRequires-Dist: a b c\n", "does not parse")],
)
def test_broken_metadata_is_a_reason(text, reason):
    with pytest.raises(Unreadable, match=reason):
        metadata.parse_metadata(text)


@pytest.mark.parametrize(
    ("line", "pin"), [("a==1.2", "1.2"), ("a==1.*", None), ("a>=1", None), ("a>=1,==2", None), ("a", None)]
)
def test_exact_pin(line, pin):
    assert metadata.exact(Requirement(line)) == pin


def test_bounds_have_one_spelling():
    assert metadata.bounds(Requirement("a<2,>=1,!=1.5")) == ">=1,!=1.5,<2"


def test_pythons_of_wheel_tags():
    found = files(
        "t-1-cp310-cp310-manylinux1_x86_64.whl",
        "t-1-cp37-cp37m-manylinux1_x86_64.whl",
        "t-1-cp313-cp313t-manylinux_2_28_x86_64.whl",
        "t-1-cp312-cp312-win_amd64.whl",
        "t-1-cp311-cp311-manylinux_2_28_aarch64.whl",
        "t-1.tar.gz",
    )
    assert metadata.pythons(found) == ["3.7", "3.10"]
    assert metadata.free_threaded(found) == ["3.13t"]
    assert metadata.abi3_from(found) is None


def test_stable_abi_serves_up_to_the_end_of_requires_python():
    found = files("t-1-cp312-abi3-manylinux_2_28_x86_64.whl")
    assert metadata.pythons(found, ">=3.11,<3.15") == ["3.12", "3.13", "3.14"]
    assert metadata.pythons(found, ">=3.11") == ["3.12"]
    assert metadata.abi3_from(found) == "3.12"


@pytest.mark.parametrize(
    ("tag", "glibc"),
    [
        ("manylinux1_x86_64", "2.5"),
        ("manylinux_2_27_x86_64.manylinux_2_28_x86_64", "2.27"),
        ("manylinux2014_x86_64.manylinux_2_17_x86_64", "2.17"),
        ("linux_x86_64", None),
    ],
)
def test_glibc_of_tags(tag, glibc):
    assert metadata.glibc_of_tags(f"t-1-cp311-cp311-{tag}.whl") == glibc


@pytest.mark.parametrize(("specifier", "oldest"), [(">=3.9,<3.13", "3.9"), (None, "3.11"), (">=3.10.0", "3.10")])
def test_oldest_python(specifier, oldest):
    assert metadata.oldest_python(specifier) == oldest
