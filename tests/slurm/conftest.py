"""The lab of the stories: one for a module, as new for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.lab import Lab, LabSpec
from tests.slurm.story import FAST, Story


@pytest.fixture(scope="module")
def story_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Five nodes that Slurm misses within seconds."""
    with Lab.up(tmp_path_factory.mktemp("lab"), LabSpec(nodes=5, slurmd_timeout_s=4)) as lab:
        yield lab


@pytest.fixture
def story(story_lab: Lab, tmp_path: Path) -> Iterator[Story]:
    """A user of that lab with an empty ledger."""
    story = Story(story_lab, tmp_path, **FAST)
    yield story
    story.end()
