"""A command as a whole: what it keeps of its runs, and a study that has nothing left to do."""

import os
import subprocess
import sys

from ninefold.errors import NumericsError
from ninefold.launch.run import Outcome
from ninefold.launch.runs import Runs


def test_a_command_does_not_keep_the_failures_of_its_runs_and_so_their_models(tmp_path, capsys):
    runs = Runs([])
    runs.keep(Outcome(6, (NumericsError("loss", "nan", "a", "b", "c"),)), tmp_path)
    assert runs.outcomes == [Outcome(6)]
    assert "error: loss=nan" in capsys.readouterr().err


def test_what_a_terminal_has_no_letter_for_is_printed_as_a_question_mark() -> None:
    code = "from ninefold.streams import open_streams; open_streams(); print('1 ± 2 –')"
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    assert subprocess.check_output([sys.executable, "-c", code], env=env, text=True) == "1 ? 2 ?\n"
