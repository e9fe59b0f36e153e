"""Rounds are run in order, drifted ones are repeated, and the budget is kept."""

from __future__ import annotations

from contextlib import suppress

import pytest

from tests.study.conftest import Sweep


def test_each_round_has_every_cell_once_in_a_random_order(made: Sweep) -> None:
    made.study(seeds=range(6)).run()
    cells = [[name.split("_")[1] for name in runs] for (runs,) in made.rounds("runs")]
    assert all(sorted(names) == ["ddp", "dp", "none"] for names in cells)
    assert len({tuple(names) for names in cells}) > 2
    assert made.rounds("round", "seed") == [(number, number) for number in range(6)]
    assert [int(name.split("_")[0]) for name in made.names] == list(range(18))


def test_a_sweep_without_repetitions_keeps_the_order_of_the_command(made: Sweep) -> None:
    made.probes = [1.0, 9.0]
    made.study(seeds=[3], burn_in=5).run()
    assert made.names == ["0_none_fp32_seed3", "1_dp_fp32_seed3", "2_ddp_fp32_seed3"]


def test_a_round_in_which_the_machine_drifted_is_repeated_at_the_end(
    made: Sweep, capsys: pytest.CaptureFixture[str]
) -> None:
    made.probes = [1.3, 1.2, 1.3, 1.0]  # how fast it can be shows in the second round
    made.study(seeds=[0, 1]).run()
    keys = ("round", "attempt", "drifted", "counted")
    assert made.rounds(*keys) == [(0, 0, True, False), (1, 0, False, True), (0, 1, False, True)]
    assert made.rounds("drift")[0] == pytest.approx((0.3,))
    said = capsys.readouterr().out
    assert "round 1 (seed 0): the machine was up to 30% slower than at its best; " in said
    assert "round 1 again" in said


def test_a_round_that_drifts_in_each_attempt_is_counted_in_its_last_and_marked(
    made: Sweep, capsys: pytest.CaptureFixture[str]
) -> None:
    made.probes = [1.0] * 3 + [2.0] * 9
    made.study(seeds=[0, 1], retries=2).run()
    assert made.rounds("round", "attempt", "drifted", "counted") == [
        (0, 0, False, True), (1, 0, True, False), (1, 1, True, False), (1, 2, True, True)
    ]  # fmt: skip
    assert "study.retries=2 being used up" in capsys.readouterr().out


def test_a_repetition_is_counted_on_resume_if_the_command_ended_with_its_last_run(
    made: Sweep,
) -> None:
    made.probes, made.statuses = [1.0, 1.0, 2.0], ["ok"] * 8 + ["late"]
    with pytest.raises(KeyboardInterrupt):
        made.study().run()
    made.study(resume=True).run()
    assert made.rounds("round", "attempt", "counted") == [(0, 0, False), (1, 0, True), (0, 1, True)]


def test_no_round_is_begun_that_would_pass_the_budget(
    made: Sweep, capsys: pytest.CaptureFixture[str]
) -> None:
    study = made.study(seeds=range(5), budget=2.9)  # a round is said to take three minutes
    study.run()
    assert len(made.file()["rounds"]) == 1
    assert "seeds 1, 2, 3, 4 were not run" in capsys.readouterr().out
    assert not study.finished


@pytest.mark.parametrize(
    ("statuses", "probes", "counted"),
    [(["ok"] * 7 + ["killed"], [], False), ([], [1.0] * 6 + [2.0] * 3, True)],
)
def test_a_round_that_is_no_longer_planned_is_left_unchanged(
    made: Sweep, statuses: list[str], probes: list[float], counted: bool
) -> None:
    made.statuses, made.probes = statuses, probes
    with suppress(KeyboardInterrupt):
        made.study(seeds=[0], repeats=3, retries=0).run()
    made.names = []
    made.study(seeds=[0], repeats=2, resume=True).run()
    assert made.names == []
    assert made.rounds("counted") == [(True,), (True,), (counted,)]


def test_a_finished_study_has_nothing_to_resume(made: Sweep) -> None:
    made.study().run()
    before, made.names = made.file(), []
    made.study(resume=True).run()
    assert made.names == []
    assert made.file()["rounds"] == before["rounds"]
