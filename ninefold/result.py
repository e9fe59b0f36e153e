"""result.json: the results of a run and the conditions under which it ran."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from ninefold.files import read_json, write_json
from ninefold.places import option_files
from ninefold.score import IMAGES, SCORE, SHARE, Counted, Score, by_present_keys
from ninefold.secrets import redacted

FILE = "result.json"
VERSION = 2  # of its keys
Number = int | float  # as it is written: 10 epochs are 10, not 10.0
NUMERICS = "numerics.npz"  # in a run folder: loss, gradient, update of the first steps
PROCESSES = "parallel.processes"  # a study that sweeps it has a cell for each number of them
TIMING = "timing"  # in a study's folder: the runs of its timing rounds
ON_GPU = "During turns on a GPU: "  # how notes begin that reports show
SLOW = ("This CPU has no instructions", "float16 has no fast kernels")  # so begin notes, shown too
OWN_AUTOCAST = "The model enters autocast itself: each precision computes in that."  # likewise
AS_FLOAT32 = "The float64 numbers of the dataset are taken as float32."  # a note, shown too
BEHIND = 0.5  # share of its steps that a GPU is behind with if it is the limit
# Columns of a timing run's turns, each a field of `tournament.taken.TakenTurn`; or empty.
TURN_COLUMNS = {
    "turn_seconds": "seconds",
    "turn_begins": "begin",
    "turn_ends": "end",
    "turn_others": "others",
}


def in_columns(turns: Sequence[object]) -> dict[str, list[Any]]:
    """Turns (`tournament.taken.TakenTurn`) as files hold them: by TURN_COLUMNS."""
    columns = {name: [getattr(turn, of) for turn in turns] for name, of in TURN_COLUMNS.items()}
    return {name: [] if None in values else values for name, values in columns.items()}


def strategy_name(parallel: str, processes: int | str | None) -> str:
    """Return what a cell's strategy is called: `ddp x4`, if a study swept the processes.

    processes: None where they were not swept, or the strategy has one whatever is asked for.
    """
    return parallel if processes is None else f"{parallel} x{processes}"


def cell_name(cell: Mapping[str, str]) -> str:
    """`none-fp32`, followed by the other keys of a planned cell: `none-fp32 optimizer.lr=0.1`.

    Numbers of processes follow the strategy: `ddp x4-fp32`.
    """
    keys = dict(cell)
    parallel, amp = keys.pop("parallel", ""), keys.pop("amp", "")
    if are_digits(keys.get(PROCESSES)):
        parallel = strategy_name(parallel, keys.pop(PROCESSES))
    return " ".join([f"{parallel}-{amp}", *(f"{key}={text}" for key, text in keys.items())])


def option_name(group: str, choices: Mapping[Any, Any], values: Mapping[Any, Any]) -> str | None:
    """The option of a group; the name of the class where there is none (`override /model: null` and
    a section), or it is one of ours for items of any class (`dataset.train`).
    """
    option, section = choices.get(group), values.get(group)
    section = section if isinstance(section, Mapping) else {}
    of_items = isinstance(built := section.get("train"), Mapping)
    if option is not None and not (of_items and option in [f.stem for f in option_files(group)]):
        return str(option)
    built = built if of_items else section.get("net", section)
    target = built.get("_target_") if isinstance(built, Mapping) else None
    return option if target is None else str(target).rpartition(".")[2]


def identity(choices: Mapping[Any, Any], values: Mapping[Any, Any]) -> dict[str, Any]:
    """The fields of a result that tell what a configuration trains, as far as it says it.

    choices: the option of each group. values: the configuration, with or without defaults.
    """
    parallel = values.get("parallel")
    most = parallel.get("max_processes") if isinstance(parallel, Mapping) else None
    return {
        "study": choices.get("experiments"),
        "parallel": choices.get("parallel"),
        "max_processes": most if isinstance(most, int) else None,
        "amp": choices.get("amp"),
        "dataset": option_name("dataset", choices, values),
        "model": option_name("model", choices, values),
        "seed": values.get("seed"),
    }


def are_digits(value: object) -> bool:
    """Whether a number of processes, as written, is one: of others int() may raise."""
    return re.fullmatch("[1-9][0-9]{0,8}", str(value)) is not None


def are_numbers(values: object) -> bool:
    """Whether the values that a study gave to a key are several whole numbers, as written."""
    return isinstance(values, list) and len(values) > 1 and all(map(are_digits, values))


@dataclass
class Result:
    """The fields of result.json. Times are seconds, memory bytes, scores in their unit.

    Unknown values are None.

    score: of the task on the test set, with the last weights.
    score_name, score_unit, score_better, score_margin: what it is, see Score.
    scores: further figures of the task on the test set, by Figure.key.
    figures: name, unit and better of each of these whose task gives them.
    val_score, val_loss, val_count: of the validation split; None if there is none.
    selection: the set that best.pt and patience are selected on, val or test.
    best_score: the best score on that set.
    exit_code: exit code of a command that makes this run alone.
    epochs: epochs trained, a fraction if max_steps ended one early.
    planned_epochs: epochs to train if patience does not end the run earlier.
    hosts: on how many hosts these processes were; environment.hosts says which.
    max_processes: that the strategy can use; None: any number.
    chunks: parts of a batch that a network split over devices computes one after the other.
    no_op: whether the strategy had nothing to do on these devices, so that the run computed what
        one process on one device does.
    backend: of the process group, nccl or gloo; None: there was none.
    threads: CPU threads of all processes together.
    loader_workers: threads of each process, or processes, that read batches ahead.
    random_inputs: whether the examples were drawn at random, so that a score says nothing.
    mean_loss: whether the loss of a batch is the mean of the losses of its halves, so that several
        replicas, or micro-batches, train what a whole batch does; None: it was not tried.
    resident_bytes: of the examples that are on the GPU of a process; 0: none are.
    units, units_per_example: what a throughput is shown in, such as tokens, and how many of them an
        example has; examples_per_second itself is of examples, whatever these are. None: images.
    turns: turns of a timing run; None of a run that was trained as a whole.
    stretch_seconds: seconds per step of a long stretch that it trained alone after its turns.
    train_seconds: training steps only (the inner clock).
    total_seconds: from launch to result (the outer clock).
    weights: dtype of the weights that are trained.
    tf32, tf32_convolutions: whether float32 products and convolutions were computed in TF32; None
        of convolutions: the GPU has none.
    memory_format: layout of inputs and weights, by torch's name.
    cudnn_benchmark: whether cuDNN chose its algorithms by their times.
    compile_seconds: included in total_seconds only; None: not compiled.
    phase_seconds: estimated share of each of PHASES in train_seconds.
    gpu_behind: share of sampled steps that a GPU was busy with when they were queued, see Clock.
    peak_memory_bytes: of each GPU what PyTorch's allocator held at most in training; of a CPU's
        processes the peak resident set, evaluations included.
    load: how busy each of these devices was in training steps. Of a GPU, by its driver, the share
        of time in which any kernel ran; of a CPU's processes the CPU seconds of each in a second,
        threads that read included. Empty: not known, or steps took less than a second in all.
    overrides: of the command line, and what the file of an experiment sets of training, other than
        cell, seed and paths.
    """

    status: str
    error: str | None = None
    version: int = VERSION
    exit_code: int = 0
    study: str | None = None
    parallel: str | None = None
    max_processes: int | None = None
    amp: str | None = None
    dataset: str | None = None
    model: str | None = None
    seed: int | None = None
    dtype: str | None = None
    weights: str | None = None
    grad_scaler: bool | None = None
    tf32: bool | None = None
    tf32_convolutions: bool | None = None
    memory_format: str | None = None
    cudnn_benchmark: bool | None = None
    processes: int | None = None
    hosts: int | None = None
    replicas: int | None = None
    chunks: int | None = None
    no_op: bool | None = None
    backend: str | None = None
    devices: list[str] = field(default_factory=list)
    threads: int | None = None
    loader_workers: int | None = None
    random_inputs: bool | None = None
    mean_loss: bool | None = None
    resident_bytes: int | None = None
    batch_size: int | None = None
    epochs: Number | None = None
    planned_epochs: Number | None = None
    steps: int | None = None
    skipped_steps: int | None = None
    score: Number | None = None
    best_score: Number | None = None
    test_loss: Number | None = None
    test_count: int | None = None
    score_name: str | None = None
    score_unit: str | None = None
    score_better: str | None = None
    score_margin: Number | None = None
    scores: dict[str, Number | None] = field(default_factory=dict)
    figures: dict[str, dict[str, str]] = field(default_factory=dict)
    selection: str | None = None
    val_score: Number | None = None
    val_loss: Number | None = None
    val_count: int | None = None
    compile_seconds: Number | None = None
    train_seconds: Number | None = None
    evaluate_seconds: Number | None = None
    total_seconds: Number | None = None
    epoch_seconds: list[Number] = field(default_factory=list)
    turns: int | None = None
    stretch_seconds: Number | None = None
    examples_per_second: Number | None = None
    units: str | None = None
    units_per_example: int | None = None
    phase_seconds: dict[str, Number] = field(default_factory=dict)
    phase_sampled_steps: int = 0
    gpu_behind: Number | None = None
    peak_memory_bytes: list[int] = field(default_factory=list)
    load: list[Number] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    overrides: list[str] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)

    @property
    def scoring(self) -> Score:
        """What its score is; that of a result which does not say what is better is a share."""
        unit = SHARE if self.score_better is None else self.score_unit or ""  # runs.csv has no ""
        better = "less" if self.score_better == "less" else "more"
        return Score(self.score_name or SCORE, unit, better, self.score_margin)

    @property
    def counting(self) -> Counted:
        """What its throughput counts."""
        plain = self.units is not None and self.units.isalpha() and len(self.units) <= 16
        return Counted(self.units or "", self.units_per_example or 1) if plain else IMAGES

    @classmethod
    def of(cls, stored: object) -> Result:
        """The result in a result.json. Raises ValueError if it is damaged."""
        if not isinstance(stored, dict) or not isinstance(stored.get("status"), str):
            raise ValueError(f"{FILE} is not a JSON object with a status")
        present = by_present_keys(stored)
        known = {key: value for key, value in present.items() if value is not None}
        try:
            return msgspec.convert(known, Result)
        except msgspec.ValidationError as problem:
            raise ValueError(f"cannot read {FILE}: {problem}") from problem

    @classmethod
    def read(cls, folder: Path) -> Result:
        """The result in a run folder. Raises OSError or ValueError if there is none to read."""
        return cls.of(read_json(folder / FILE))

    @classmethod
    def of_end(cls, folder: Path) -> Result | None:
        """The result in a run folder; None unless the run finished."""
        try:
            result = cls.read(folder)
        except (OSError, ValueError):
            return None
        return result if result.status == "ok" else None

    def write(self, folder: Path, **turn_columns: list[Any]) -> None:
        columns = {name: turn_columns.get(name, []) for name in TURN_COLUMNS}
        write_json(folder / FILE, redacted({**asdict(self), **columns}))
