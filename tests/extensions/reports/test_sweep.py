"""A plain sweep names the value with the best score, and has one table by value."""

import json
import random
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ninefold import Answer, report
from ninefold.answer import study
from ninefold.answer.cell import Cell
from ninefold.extensions.reports import answer
from ninefold.extensions.reports.sweep import _timings
from ninefold.report.tree import Report
from ninefold.stats.verdicts import Timings
from tests.report.made import built, change, recorded, result, sweep

TWO = {0.001: (0.90, 0.91, 0.905), 0.01: (0.70, 0.72, 0.71)}  # rates, and scores by seed
RATES = {"0.0001": 0.8694, "0.001": 0.975, "0.01": 0.8611}


def swept(folder: Path, seeds: int = 1, **changes: Any) -> Path:
    """A sweep over learning rates whose accuracy is known."""
    runs = [
        result(seed=seed, score=accuracy + 0.001 * (seed * n % 4), epochs=2,
               overrides=[f"optimizer.lr={rate}"], **changes)
        for n, (rate, accuracy) in enumerate(RATES.items()) for seed in range(seeds)
    ]  # fmt: skip
    return sweep(folder, *runs, swept={"optimizer.lr": list(RATES)})


def of_rates(folder, scores, **ended) -> Report:
    """A sweep over learning rates, of their scores by seed. ended: as `failed=(rate, seed)`."""
    ends = {run: status for status, run in ended.items()}
    runs = [
        result(seed=seed, overrides=[f"optimizer.lr={rate}"], score=score,
               status=ends.get((rate, seed), "ok"))
        for rate, of in scores.items() for seed, score in enumerate(of)
    ]  # fmt: skip
    return built(recorded(sweep(folder, *runs)))


def rows_of(found: Report) -> list[list[str]]:
    return found.answer.table.rows


def test_the_value_with_the_best_score_is_the_answer_on_console_page_and_in_report_md(tmp_path):
    shown = report.write(swept(tmp_path)).text
    lead = "optimizer.lr=0.001 has the best accuracy: 97.50 %."
    assert shown.splitlines()[:6] == [
        f"answer: {lead}", "",
        "value                accuracy, %  s/epoch",
        "optimizer.lr=0.0001  86.94        10.0",
        "optimizer.lr=0.001   97.50        10.0",
        "optimizer.lr=0.01    86.11        10.0",
    ]  # fmt: skip
    assert "one seed: another seed may change their order" in shown
    folder = tmp_path / "report"
    assert f"**{lead}**" in (folder / "report.md").read_text()
    assert "| **optimizer.lr=0.001** | 97.50" in (folder / "report.md").read_text()
    page = (folder / "report.html").read_text()
    assert lead in page
    assert page.count("<table") == 2  # by value, and every run
    assert 'class="plot"' not in page
    answer = json.loads((folder / "report.json").read_text())["answer"]
    assert (answer["lead"], answer["decided"]) == (lead, False)
    assert answer["table"]["best"] == "optimizer.lr=0.001"


def test_values_whose_gpu_waits_for_its_host_are_compared_by_their_stretches() -> None:
    cell = Cell("none", "fp32")

    def facts(stretch: float, waits: bool) -> Any:
        look = Timings({cell: {0: 1.0}}, {cell: {0: stretch}}, [cell] * waits)
        return SimpleNamespace(timings=[look])

    [look] = _timings({"width=8": facts(0.9, True), "width=16": facts(0.5, False)}, cell)
    assert look.seconds == {"width=8": {0: 1.0}, "width=16": {0: 1.0}}
    assert look.stretches == {"width=8": {0: 0.9}, "width=16": {0: 0.5}}
    assert look.waits == ["width=8"]


def test_a_report_asks_an_extension_once_for_its_files_and_once_for_the_console(
    tmp_path, monkeypatch
):
    asked, judge = [], answer.answer
    monkeypatch.setattr(answer, "answer", lambda *given: asked.append(1) or judge(*given))
    found = built(recorded(swept(tmp_path)))
    assert (found.answer.by_value is not None, len(asked)) == (True, 1)
    report.write(tmp_path)
    assert len(asked) == 1 + 2


def test_with_several_seeds_each_value_has_a_verdict_against_the_best(tmp_path):
    found = built(recorded(swept(tmp_path, seeds=4)))
    assert found.answer.decided
    assert [row[2] for row in rows_of(found)] == ["-10.71 worse", "the best", "-11.44 worse"]
    assert found.answer.reasons == ["Every other value is shown to be worse."]
    assert not [text for text in found.answer.caveats if "one seed" in text]


@pytest.mark.parametrize(
    ("ties", "lead"),
    [
        (2, "optimizer.lr=0 and optimizer.lr=1 have the best accuracy: 90.00 %."),
        (4, "4 values have the best accuracy: 90.00 %."),
    ],
)
def test_values_that_share_the_best_score_are_all_told_to_have_it(tmp_path, ties, lead):
    scores = {n: [0.9 if n < ties else 0.8] for n in range(5)}
    assert of_rates(tmp_path, scores).answer.lead == lead


def test_values_that_are_not_shown_to_be_worse_are_named(tmp_path):
    close = {64: (0.90, 0.93, 0.91), 128: (0.92, 0.91, 0.91)}
    runs = [result(seed=seed, batch_size=size, score=score)
            for size, scores in close.items() for seed, score in enumerate(scores)]  # fmt: skip
    found = built(recorded(sweep(tmp_path, *runs)))
    assert not found.answer.decided
    assert found.answer.lead.startswith("batch_size=64 and batch_size=128 have the best accuracy:")
    assert found.answer.reasons[0].startswith("Not shown to be worse than batch_size=")


@pytest.mark.parametrize(("score", "best"), [("more", "mlp"), ("less", "convnet")])
def test_a_sweep_over_models_names_the_model_whatever_is_better(tmp_path, score, best):
    of_task = {"score_name": "RMSE", "score_unit": "m", "score_better": score}
    runs = [result(model="convnet", score=1.5, **of_task),
            result(model="mlp", score=2.5, **of_task)]  # fmt: skip
    found = built(recorded(sweep(tmp_path, *runs, swept={"model": ["convnet", "mlp"]})))
    assert found.answer.lead.startswith(f"model={best} has the best RMSE: ")
    assert [row[0] for row in rows_of(found)] == ["model=convnet", "model=mlp"]


def test_a_value_whose_run_failed_keeps_its_row(tmp_path):
    folder = swept(tmp_path)
    change(folder / "runs" / "2_none_fp32" / "result.json", status="diverged", error="error: a=b")
    found = built(recorded(folder))
    assert rows_of(found)[-1] == ["optimizer.lr=0.01", "–", "–", "diverged"]


def test_a_value_whose_runs_diverge_has_a_row_of_its_own(shell):
    words = ("dataset=digits", "model=mlp", "epochs=1", "optimizer.lr=0.01,1e38", "seed=0,1")
    done = shell.train("-m", *words, "hydra.sweep.dir=s")
    assert "2 of 4 runs are not ok." in done.stdout
    assert re.search(r"^optimizer.lr=1e\+38  –  .* 0  .* diverged$", done.stdout, re.MULTILINE)


def test_a_value_of_which_a_run_failed_is_not_compared(tmp_path):
    of = {**TWO, 10: (0.99, 0.98, 0.985)}
    report = of_rates(tmp_path, of, diverged=(10, 2))
    found = report.answer
    assert found.decided
    assert found.lead.startswith("optimizer.lr=0.001 has the best accuracy")
    assert found.reasons == ["Every other value is shown to be worse.",
                             "Left out, as a run of it failed: optimizer.lr=10."]  # fmt: skip
    assert rows_of(report)[-1][1:4] == ["98.50 ± 0.71", "– failed", "2"]
    answer = Answer(tmp_path)
    assert all(f"\noptimizer.lr={rate} " in repr(answer) for rate in of)
    (failed,) = answer.failed
    assert (tmp_path / failed).is_dir()


def test_a_run_that_was_stopped_leaves_its_value_in_the_comparison_and_one_alone_is_not_decided(
    tmp_path,
):
    stopped = of_rates(tmp_path / "stopped", TWO, preempted=(0.001, 2)).answer
    alone = of_rates(tmp_path / "failed", TWO, diverged=(0.001, 2)).answer
    assert stopped.lead.startswith("optimizer.lr=0.001 has the best")
    assert alone.lead.startswith("optimizer.lr=0.01 has the best")
    assert not alone.decided
    assert alone.reasons[0] == "There is no other value to compare it with."


def test_a_long_search_shows_its_best_values(tmp_path):
    scores = {n: [n / 100] for n in range(60)}
    found = of_rates(tmp_path / "many", scores)
    assert [row[0] for row in rows_of(found)] == [f"optimizer.lr={n}" for n in range(59, 9, -1)]
    assert "10 further values are left out." in found.answer.table.about
    few = of_rates(tmp_path / "few", {n: scores[n] for n in range(9)})
    assert [row[0] for row in rows_of(few)] == [f"optimizer.lr={n}" for n in range(8, -1, -1)]


def test_a_search_of_very_many_values_has_no_verdicts_and_says_so(tmp_path, monkeypatch):
    scores = {n: [0.5 + n / 100 + seed / 1000 for seed in range(3)] for n in range(6)}
    assert "not tested" not in " ".join(of_rates(tmp_path / "a", scores).answer.caveats)
    monkeypatch.setattr("ninefold.extensions.reports.sweep.MOST_TESTED", 5)
    found = of_rates(tmp_path / "b", scores).answer
    assert not found.decided
    assert [text for text in found.caveats if "values are not tested" in text]
    assert found.lead == "optimizer.lr=5 has the best accuracy: 55.10 %."


def test_a_sweep_of_times_alone_names_the_fastest_value(tmp_path):
    runs = [result(model=model, seed=seed, train_seconds=took + (seed * took % 7) / 1000)
            for model, took in {"convnet": 20.0, "mlp": 10.0}.items()
            for seed in range(4)]  # fmt: skip
    cells = [{"parallel": "none", "amp": "fp32", "model": model} for model in ("convnet", "mlp")]
    folder = sweep(tmp_path, *runs, turns=True, rounds=[], settings={"study": {"ask": ["time"]}},
                   swept={"model": ["convnet", "mlp"]}, planned_cells=cells)  # fmt: skip
    found = built(recorded(folder))
    assert found.answer.lead == "model=mlp is the fastest: 1.00 s per epoch."
    assert found.answer.train == "parallel=none amp=fp32 model=mlp"
    assert [row[1] for row in rows_of(found)] == ["×0.50 slower", "the best"]


def test_a_value_that_alone_did_not_fail_is_not_told_to_be_the_fastest(tmp_path):
    runs = [result(model=model, seed=seed) for model in ("convnet", "mlp") for seed in range(4)]
    folder = sweep(tmp_path, *runs, turns=True, settings={"study": {"ask": ["time"]}}, rounds=[])
    path = folder / "timing" / "3" / "none-fp32_mlp" / "result.json"
    change(path, status="failed", error="error: a=b: c; d; e")
    found = built(recorded(folder)).answer
    assert found.lead == "model=convnet has the shortest times so far: 2.00 s per epoch."
    assert not found.decided


def test_values_whose_times_are_open_have_a_command_that_times_them_further(tmp_path):
    chance = random.Random(1)
    runs = [result(model=model, seed=seed, train_seconds=chance.uniform(10, 20))
            for model in ("convnet", "mlp") for seed in range(4)]  # fmt: skip
    sweep(tmp_path, *runs, turns=True, rounds=[], command="train.py", timing_seconds=180.0,
          settings={"study": {"ask": ["time"], "time_budget": 3}})  # fmt: skip
    found = built(replace(recorded(tmp_path), folder=Path("mine"))).answer
    assert "shortest times so far" in found.lead
    assert found.train is None  # without its cells, its values are not known
    assert found.surer is not None
    assert found.surer.command == "python train.py study.resume=mine study.time_budget=6"


@pytest.mark.parametrize(("noise", "known"), [(0.001, True), (0.3, False)])
def test_a_study_of_values_goes_on_until_they_are_compared_with_each_other(tmp_path, noise, known):
    chance = random.Random(1)
    runs = [
        result(
            seed=seed, overrides=[f"loader.workers={workers}"],
            score=0.8 - 0.05 * workers + noise * chance.uniform(-0.5, 0.5),
            train_seconds=20.0 * (1 + workers) * (1 + 2 * noise * chance.uniform(-1, 1)),
        )
        for workers in (0, 1, 2) for seed in range(4)
    ]  # fmt: skip
    sweep(tmp_path, *runs, turns=True, swept={"loader.workers": ["0", "1", "2"]})
    look = study.look_at(*report.read_runs(tmp_path), "best")
    assert (look.decided, look.left) == (known, None)
    for path in tmp_path.glob("runs/*/result.json"):  # then times alone were asked
        path.unlink()
    look = study.look_at(*report.read_runs(tmp_path), "best")
    assert (look.decided, look.left) == (known, None)
