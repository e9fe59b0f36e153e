"""A command as a whole: what it keeps of its runs, and a study that has nothing left to do."""

from ninefold.errors import NumericsError
from ninefold.launch.run import Outcome
from ninefold.launch.runs import Runs


def test_a_command_does_not_keep_the_failures_of_its_runs_and_so_their_models(tmp_path, capsys):
    runs = Runs([])
    runs.keep(Outcome(6, (NumericsError("loss", "nan", "a", "b", "c"),)), tmp_path)
    assert runs.outcomes == [Outcome(6)]
    assert "error: loss=nan" in capsys.readouterr().err
