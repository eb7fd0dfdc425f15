"""What `site` takes from the project."""

from __future__ import annotations

import pytest

import samples
from knowngood.cli.main import main
from knowngood_pages import site_build


class Asked(Exception):  # noqa: N818  # no error: the site was about to be made
    """The site was about to be made, for images of this repository."""


@pytest.mark.parametrize(
    ("written", "variable", "repository"),
    [
        ("", "", None),
        ("publish: {repository: registry.example/written}\n", "", "registry.example/written"),
        ("publish: {repository: registry.example/written}\n", "registry.example/named", "registry.example/named"),
    ],
)
def test_the_images_are_those_of_the_repository_that_run_and_pull_go_to(
    home, monkeypatch, written, variable, repository
):
    def build(_here, _evidence, _incidents, places):
        raise Asked(places.repository)

    monkeypatch.setattr(site_build, "build_site", build)
    monkeypatch.setenv("KNOWNGOOD_REPOSITORY", variable)
    (home.root / "matrix.yaml").write_text(samples.MATRIX + written)
    with pytest.raises(Asked) as asked:
        main(["site"])
    assert asked.value.args == (repository,)
