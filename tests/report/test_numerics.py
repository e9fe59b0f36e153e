"""Whether cells compute the same thing: how their first steps are read and judged."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ninefold.answer.first_steps import summarize
from ninefold.answer.numerics import Row, rows
from ninefold.answer.runs import Run
from ninefold.answer.study_facts import OTHER, SAME, WITHIN, CellNumerics
from ninefold.report.data.csv_files import read_records, write_records
from ninefold.result import NUMERICS

RUN = Run(
    folder="none", status="ok", parallel="none", amp="fp32", seed=0, dtype="float32", replicas=1
)
DDP = replace(RUN, folder="ddp", parallel="ddp", replicas=2)
SPLIT = replace(RUN, folder="split", parallel="split", chunks=4)
CAST = replace(RUN, folder="cast", amp="autocast", dtype="float16")
Arrays = dict[str, Any]
Change = dict[str, Callable[[Any], Any]]  # what is made of an array, by its name

OTHER_EXAMPLES: Change = {"loss": lambda of: 1.01 * of, "gradients": lambda of: of[:, ::-1]}
BATCH_NORM: Change = {**OTHER_EXAMPLES, "batch_norm": np.ones_like}
OTHER_RATE: Change = {"updates": lambda of: 2 * of}
SUMMED: Change = {"gradients": lambda of: 2 * of}
OTHER_WEIGHTS: Change = {"weights": lambda of: of[:, ::-1]}
UNDERFLOWN: Change = {"gradients": lambda of: np.where(np.abs(of) < 0.1, 0, of)}
ROUNDED: Change = {"gradients": np.float16, "loss": lambda of: 1.001 * of}
ROUNDED_LESS: Change = {"gradients": lambda of: (1 + 1e-6) * of, "loss": lambda of: of + 1e-6}
HALF_INFINITE: Change = {"gradients": lambda of: np.where(np.arange(len(of[0])) < 600, np.inf, of)}
ZERO: Change = {"gradients": lambda of: 0 * of}


def arrays(change: Change | None = None, n: int = 1000) -> Arrays:
    draw = np.random.default_rng(0)
    content = {
        "loss": np.array([2.4, 2.3]),
        "gradients": draw.normal(size=(2, n)).astype(np.float32),
        "updates": draw.normal(size=(2, n)).astype(np.float32) / 1000,
        "weights": draw.normal(size=(2, n)).astype(np.float32),
        "skipped": np.array([False, False]),
        "batch_norm": np.array(False),
    }
    for name, made in (change or {}).items():
        content[name] = made(content[name]).astype(content[name].dtype)
    return content


def write(folder: Path, run: Run, content: Arrays) -> None:
    (folder / run.folder).mkdir()
    np.savez(folder / run.folder / NUMERICS, **content)


def judged(folder: Path, run: Run, content: Arrays) -> CellNumerics:
    """The entry of `run`, which has kept `content`, beside a none-fp32 that kept `arrays`."""
    write(folder, RUN, arrays())
    write(folder, run, content)
    written = rows(folder, [RUN, run])
    write_records(folder / "numerics.csv", Row, written)
    assert read_records(folder / "numerics.csv", Row) == written
    found = summarize(written, [RUN, run])
    reference, entry = found.rows
    assert (str(reference.cell), reference.verdict) == ("none-fp32", SAME)
    assert entry.cell == run.cell
    return entry


@pytest.mark.parametrize(
    ("run", "change", "verdict", "sentence"),
    [
        (DDP, ROUNDED_LESS, SAME, "no more than rounding"),
        (DDP, OTHER_EXAMPLES, OTHER, "first loss is 1.0% off, its gradient has a cosine of "),
        (DDP, BATCH_NORM, OTHER, "each replica's own part of a batch, of which there are 2"),
        (replace(DDP, replicas=1), BATCH_NORM, OTHER, "it takes other examples, or computes"),
        (DDP, OTHER_RATE, OTHER, "and is 1.0 times as large, its update 2.0 times: "),
        (DDP, SUMMED, OTHER, "and is 2.0 times as large, its update 1.0 times: "),
        (DDP, OTHER_WEIGHTS, OTHER, "other weights"),
        (DDP, ROUNDED, OTHER, "first loss is 0.1% off, its gradient has a cosine of 1.0 with"),
        (DDP, HALF_INFINITE, OTHER, "zero or not finite"),
        (DDP, ZERO, OTHER, "zero or not finite"),
        (CAST, ROUNDED, WITHIN, "what float16 rounds away"),
        (CAST, UNDERFLOWN, OTHER, r"% of its gradient is zero where none, fp32's is not"),
    ],
)
def test_each_difference_is_told_from_the_others(run, change, verdict, sentence, tmp_path):
    entry = judged(tmp_path, run, arrays(change))
    assert entry.verdict == verdict
    assert sentence in entry.sentence


@pytest.mark.parametrize(
    ("run", "size", "by_design"),
    [(DDP, 1, True), (replace(DDP, replicas=1), 1, False), (SPLIT, 1, True), (SPLIT, 2, False)],
)
def test_batch_norm_of_parts_is_by_design_unless_more_is_wrong(run, size, by_design, tmp_path):
    entry = judged(tmp_path, run, arrays({**BATCH_NORM, "updates": lambda of: size * of}))
    assert entry.by_design is by_design
    assert ("batch norm takes the mean and variance" in entry.sentence) is by_design


def test_first_steps_are_compared_only_of_batches_of_one_size(tmp_path):
    """Where scaling is weak, four processes take four times the examples that one takes."""
    one = replace(RUN, batch_size=64, processes=1, max_processes=1, scaling="weak")
    ddp = [replace(DDP, folder=f"x{n}", batch_size=64 * n, processes=n, scaling="weak")
           for n in (1, 4)]  # fmt: skip
    for run in (one, *ddp):
        write(tmp_path, run, arrays(OTHER_EXAMPLES if run.folder == "x4" else None))
    assert {row.folder for row in rows(tmp_path, [one, *ddp])} == {"none", "x1"}


def test_batch_norm_explains_a_gradient_of_another_size_alone(tmp_path):
    larger: Change = {"gradients": lambda of: 1.1 * of, "batch_norm": np.ones_like}
    entry = judged(tmp_path, DDP, arrays(larger))
    assert (entry.verdict, entry.by_design) == (OTHER, True)
    assert "batch norm takes the mean and variance" in entry.sentence


def test_a_cell_is_as_wrong_as_the_worst_of_its_runs_whose_cosine_its_sentence_has(tmp_path):
    runs = [replace(run, folder=f"{run.folder}{seed}", seed=seed)
            for seed in (0, 1) for run in (RUN, DDP, CAST)]  # fmt: skip
    changes = {"ddp0": OTHER_RATE, "ddp1": OTHER_EXAMPLES, "cast1": ROUNDED}
    for run in runs:
        write(tmp_path, run, arrays(changes.get(run.folder, ROUNDED_LESS)))
    _, cast, ddp = summarize(rows(tmp_path, runs), runs).rows
    assert (ddp.verdict, ddp.update_ratio) == (OTHER, pytest.approx(2))
    assert f"a cosine of {ddp.cosine:.4f}".rstrip("0") in ddp.sentence
    assert cast.sentence == "The gradient of the first step differs by what float16 rounds away."


DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:2000]),
    "no zip": lambda path: path.write_bytes(b"PK no zip"),
    "pickled": lambda path: np.savez(path, **{**arrays(), "loss": np.array([object(), None])}),
    "of another model": lambda path: np.savez(path, **arrays(n=7)),
    "ragged": lambda path: np.savez(path, **{**arrays(), "weights": arrays()["weights"][:1]}),
    "of texts": lambda path: np.savez(path, **{**arrays(), "updates": np.array([["a"], ["b"]])}),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_that_is_damaged_or_a_strangers_is_passed_over(damage, tmp_path):
    for run in (RUN, DDP):
        write(tmp_path, run, arrays())
    DAMAGES[damage](tmp_path / "ddp" / NUMERICS)
    assert {row.folder for row in rows(tmp_path, [RUN, DDP])} == {"none"}


def test_a_small_file_that_unpacks_to_a_large_one_is_passed_over(tmp_path, monkeypatch):
    monkeypatch.setattr("ninefold.answer.numerics.MAX_BYTES", 10**6)
    (tmp_path / "none").mkdir()
    content = {**arrays(), "gradients": np.zeros((2, 10**6), np.float32)}
    np.savez_compressed(tmp_path / "none" / NUMERICS, **content)
    assert rows(tmp_path, [RUN]) == []


def test_a_precision_of_ones_own_is_judged_by_what_it_computes_in(tmp_path):
    own = replace(RUN, folder="own", amp="fast", tf32=True)
    entry = judged(tmp_path, own, arrays({"loss": lambda of: 1.001 * of}))
    assert entry.verdict == WITHIN
    assert "what TF32 rounds away" in entry.sentence


TURNED: Change = {  # a cosine of 0.15, as that of ResNet-50 in bfloat16
    "gradients": lambda of: 0.15 * of + (1 - 0.15**2) ** 0.5 * np.roll(of, 1, axis=1),
    "loss": lambda of: 1.03 * of,
}


@pytest.mark.parametrize(
    ("dtype", "replicas", "change", "verdict", "by_design"),
    [
        ("bfloat16", 1, TURNED, WITHIN, False),
        ("float16", 1, TURNED, OTHER, False),
        ("bfloat16", 1, SUMMED, OTHER, False),
        ("bfloat16", 1, {"gradients": lambda of: -of}, OTHER, False),
        ("bfloat16", 1, {"gradients": lambda of: 1.1 * of}, WITHIN, False),
        ("bfloat16", 1, {"updates": lambda of: 1.25 * of}, OTHER, False),
        ("bfloat16", 1, {"loss": lambda of: 1.08 * of}, OTHER, False),
        ("bfloat16", 2, TURNED, OTHER, True),  # batch norm of halves, whatever the precision
        ("bfloat16", 2, {"weights": lambda of: 1.002 * of}, OTHER, True),  # they are in bfloat16
        ("float16", 2, UNDERFLOWN, OTHER, False),
    ],
)
def test_rounding_to_bfloat16_may_turn_a_gradient_and_not_change_its_size(
    dtype, replicas, change, verdict, by_design, tmp_path
):
    content = arrays({**change, "batch_norm": np.ones_like})
    entry = judged(tmp_path, replace(CAST, dtype=dtype, replicas=replicas), content)
    assert (entry.verdict, entry.by_design) == (verdict, by_design)
    assert ("batch norm takes the mean and variance" in entry.sentence) is by_design
