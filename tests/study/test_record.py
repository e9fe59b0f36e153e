"""sweep.json holds what a study needs to be resumed and reported."""

import json

import pytest

from ninefold.errors import ConfigError
from ninefold.study.record import StudyFolder


def test_a_recording_is_read_back_as_it_was_written(made):
    made.name = "nine_way"
    made.study().run()
    before = made.file()
    StudyFolder.open(made.folder).write()
    after = made.file()
    assert {**after, "wall_seconds": 0} == {**before, "wall_seconds": 0}


def test_the_question_and_the_planned_cells_are_recorded(made):
    made.name = "nine_way"
    made.study("+optimizer.more=1", budget=0).run()
    file = made.file()
    assert file["question"].startswith("does the whole nine-way comparison run here")
    assert file["planned_cells"] == [
        {"parallel": parallel, "amp": "fp32"} for parallel in ("none", "dp", "ddp")
    ]
    made.folder, made.name = made.folder / "other", None
    made.folder.mkdir()
    made.study(budget=0).run()
    assert made.file()["question"] is None


def test_a_study_that_an_earlier_version_began_is_refused_in_one_line(made):
    made.statuses = ["ok"] * 4 + ["killed"]
    with pytest.raises(KeyboardInterrupt):
        made.study().run()
    content = made.file()
    del content["made_with"]
    (made.folder / "sweep.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=r"^error: study.resume=\S+: an earlier version of "):
        made.study(resume=True)
    assert made.file() == content
