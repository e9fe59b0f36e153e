"""dataset.classes=null: the launcher counts them before the job is frozen."""

import pytest

from benchmarks import ours
from ninefold.errors import DataError
from tests.dataset.kit import photos


def test_the_frozen_job_holds_the_number_of_class_folders_in_all_that_refers_to_it(tmp_path):
    root = photos(tmp_path / "photos", {"train": 10, "test": 10})
    job = ["dataset=folder", f"dataset.root={root}", "dataset.shape=[3,8,8]", "batch_size=10"]
    frozen = ours.job(*job).text
    assert frozen.count("classes: 2\n") == 3, "of dataset, task and model.net"
    assert "classes: null" not in frozen
    with pytest.raises(DataError, match=r"^error: dataset\.classes=4: "):
        ours.job(*job, "dataset.classes=4")
