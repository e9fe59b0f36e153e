"""The keys of train.py and evaluate.py outside the groups: type, default and meaning of each.

A section is a class whose fields are its keys; the sentence of a key stands below it.
docs/keys.md and the keys in conf/train.yaml and conf/evaluate.yaml are generated from here:
`python -m ninefold.config.reference`.
"""

# No `from __future__ import annotations`: to evaluate each from its text takes 2 ms of a command.
from typing import Annotated, Literal

from msgspec import Meta

from ninefold.types import (
    MAY_CHANGE,
    NO_EFFECT,
    AnyPath,
    AtLeast2,
    Count,
    Device,
    Fraction,
    Names,
    NotNegative,
    Positive,
    Probability,
    Questions,
    RunFolder,
    Seconds,
    Section,
    Seed,
    Share,
    StudyFolder,
    Text,
    Whole,
    Workers,
)

Threads = Annotated[int, Meta(ge=1, le=1024)]  # OpenMP crashes on very many


class AugmentKeys(Section, kw_only=True):
    """Augmentation of training examples, besides dataset.flip and dataset.crop."""

    mixup: NotNegative = 0
    """Mix each example with another of its batch in a share drawn from Beta(mixup, mixup), and
    their classes alike; 0: do not."""
    cutmix: NotNegative = 0
    """Replace a rectangle of each image by that of another of its batch, whose share of the area is
    drawn from Beta(cutmix, cutmix), and their classes alike; 0: do not. With mixup, each example
    gets one of the two."""
    erasing: Probability = 0
    """Probability that a rectangle of a normalized image is set to 0."""


class CheckpointKeys(Section, kw_only=True):
    """Writing checkpoints."""

    every: Whole | None = 0
    """Steps between checkpoints; 0: at the end of each epoch, null: only when a signal stops the
    run. One that is due while another is being written is left out, unless it is the best or the
    last."""
    keep: AtLeast2 = 2
    """Step checkpoints that are kept besides last.pt and best.pt."""


class LoaderKeys(Section, kw_only=True):
    """Loading examples."""

    workers: Workers | Literal["auto"] = "auto"
    """Threads per training process that read batches ahead, processes for dataset=mapped; auto:
    none for data in memory and for dataset=mapped, else as many as memory and cores allow, up to 8,
    and one on a CPU."""
    share: Share = 0.25
    """Share of the free memory that batches read ahead may take, over all processes of a host."""
    pinned: Literal["auto"] | bool = "auto"
    """Read batches into page-locked memory, from which copies to a GPU do not wait; auto: on
    CUDA."""


class CompileKeys(Section, kw_only=True):
    """torch.compile; compile=true is short for compile.mode=default."""

    mode: (
        Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] | None
    ) = None
    """Mode of torch.compile for training steps; reduce-overhead and max-autotune record CUDA
    graphs; null: not compiled. Evaluation never is."""


class ClockKeys(Section, kw_only=True):
    """Measuring speed."""

    warmup: Whole = 3
    """Untimed steps at the start, which are then undone; a compiled model takes at least 3."""
    sample: Whole = 20
    """Time the phases of one step in this many; 0: of no step."""


class LaunchKeys(Section, kw_only=True):
    """Starting and stopping worker processes."""

    inline: bool = False
    """Run a job of one process inside the launcher, for a debugger."""
    timeout: Annotated[Seconds, NO_EFFECT] = 1800
    """Seconds that a process waits for its peers."""
    grace: Annotated[Seconds, NO_EFFECT] = 30
    """Seconds from a signal until workers are killed; a save has 0.8 of them."""
    max_restarts: Annotated[Whole, NO_EFFECT] = 0
    """Times that crashed workers are restarted from the last checkpoint."""
    cpu_processes: Count = 2
    """Processes that parallel.processes=auto means on a CPU."""


class TrainKeys(Section, kw_only=True):
    """The keys of a training run: conf/train.yaml."""

    seed: Seed = 0
    """Seed of the initial weights, the order of the examples and the augmentation."""
    epochs: Annotated[Whole, MAY_CHANGE] = 10
    """Passes over the training examples."""
    batch_size: Count = 64
    """Examples in an optimizer step, over all processes: every strategy takes the same batches in
    the same order. The rest of an epoch that fills no batch is left out of it."""
    accumulate: Count = 1
    """Micro-batches that each batch is split into to save memory; their gradients are added."""
    max_steps: Annotated[Whole | None, MAY_CHANGE] = None
    """Optimizer steps after which the run ends, counted from its very start; null: no limit."""
    patience: Annotated[Count | None, MAY_CHANGE] = None
    """Epochs without a better score after which the run ends; null: never."""
    init: Text = None
    """Weights to start a new run with: a run folder (its last checkpoint), a checkpoint, or any
    .pt, .pth or .safetensors file with tensors by name; null: drawn from the seed."""
    init_partial: bool = False
    """Load the tensors of init that fit and keep the others as they are drawn from the seed."""
    init_without: Names = None
    """Parts of the model that init leaves as drawn from the seed, such as its head, by the
    beginnings of their tensors' names; null: none."""
    freeze: Names = None
    """Parts of the model that are not trained, by the beginnings of their parameters' names; their
    batch normalization stays as in evaluations. null: none."""
    ema: Fraction | None = None
    """Decay of an exponential moving average of the weights, such as 0.999, which is evaluated and
    saved; null: none."""
    ema_warmup: bool = False
    """Use the decay min(ema, (1 + t) / (10 + t)) at step t, so that the average forgets the initial
    weights soon."""
    clip_grad_norm: Positive | None = None
    """Clip the gradients to this total norm before each optimizer step; null: no clipping."""
    clip_grad_value: Positive | None = None
    """Clip each gradient element to this absolute value before each optimizer step; null: no
    clipping."""
    on_nonfinite: Literal["stop", "skip"] = "stop"
    """What to do about a loss or gradient that is not finite: stop with exit code 6, or skip the
    step."""
    deterministic: bool = False
    """Use deterministic algorithms only; on a GPU some are slower and some are missing."""
    cudnn_benchmark: bool = False
    """Have cuDNN try its algorithms for each new shape and take the fastest, which need not be the
    same in each run; without effect on a CPU."""
    log_every: Annotated[Count, MAY_CHANGE] = 50
    """Steps between log points; each waits for the device and costs about 0.3 ms."""
    device: Device = "auto"
    """Device to train on; auto: the GPUs if there are any, cuda:1: GPU 1 alone."""
    threads: Threads | Literal["auto"] = "auto"
    """CPU threads of all processes on a host together; auto: all its cores."""
    graph: Annotated[bool, MAY_CHANGE] = False
    """Record the training step as one CUDA graph, which the host starts by one call; one process on
    one GPU. A no-op on a CPU."""
    profile: Annotated[bool, MAY_CHANGE] = False
    """Record five steps before training for TensorBoard and Perfetto, and print at the end what the
    run is bound by."""
    numerics: Whole = 0
    """First steps whose loss, gradient norm and update size are recorded for the report; the steps
    are then undone."""
    resume: Annotated[RunFolder, NO_EFFECT] = None
    """Folder of the run to resume in place; auto: the newest unfinished run of this job."""
    augment: AugmentKeys
    checkpoint: Annotated[CheckpointKeys, MAY_CHANGE, NO_EFFECT]
    loader: Annotated[LoaderKeys, MAY_CHANGE]
    compile: CompileKeys
    clock: ClockKeys
    launch: Annotated[LaunchKeys, MAY_CHANGE]


class LoadKeys(Section, kw_only=True):
    """Loading weights."""

    partial: bool = False
    """Load the tensors that fit and leave the others as initialized."""


class EvaluateKeys(Section, kw_only=True):
    """The keys of an evaluation: conf/evaluate.yaml."""

    ckpt: AnyPath = "???"
    """Run folder (its last checkpoint is evaluated), checkpoint, or any file with a state_dict."""
    weights: Literal["average", "raw"] | None = None
    """Evaluate the moving average of the weights or the raw weights; null: the average where the
    checkpoint has one."""
    batch_size: Count = 256
    """Examples in a batch, over all processes; it need not divide anything."""
    device: Device = "auto"
    """Device to evaluate on; auto: the GPUs if there are any."""
    threads: Threads | Literal["auto"] = "auto"
    """CPU threads of all processes on a host together; auto: all its cores."""
    trust: bool = False
    """Build what the checkpoint's configuration names, your own classes too; only of a run that you
    made."""
    load: LoadKeys
    loader: Annotated[LoaderKeys, MAY_CHANGE]
    launch: Annotated[LaunchKeys, MAY_CHANGE]


class CommandKeys(Section, kw_only=True):
    """The keys of a training command that are not of its run."""

    trust: bool = False
    """With resume: build what the run's configuration names, your own classes too; only of a run
    that you made."""


class StudyKeys(Section, kw_only=True):
    """A sweep with repetitions; a round is one run of every cell."""

    seed: Seed = 0
    """Seed of the order in which the cells of a round are run."""
    repeats: Count | Literal["auto"] | None = None
    """Rounds; null: one for each seed of the sweep, auto: until the answer is settled."""
    ask: Questions = None
    """The questions: [time], [accuracy] or [time, accuracy]. time: cells train in short turns, all
    alive at once. accuracy: whole runs. null: both, where only parallel, amp and
    parallel.processes have several values and cells can take turns (not with launch.inline or
    another launcher of Hydra's than basic); else accuracy."""
    pairs: Literal["best", "all"] = "best"
    """What timing rounds decide. best: which cell is the fastest, and cells that cannot be are not
    measured further; all: every pair of cells."""
    time_budget: Positive = 3
    """Minutes of timing rounds. The second, too, may end half a minute later: one decides
    little."""
    slice: Positive = 0.1
    """Seconds that are timed in a turn, after 0.04 that are not; of several processes 0.3 after
    0.3. At least two steps after one; of steps of a second and more, one after one."""
    turns: AtLeast2 | Literal["auto"] = "auto"
    """Turns that each cell has in a timing round, besides one that is not counted. auto: at least
    two, those of slow cells fewer but longer, so that 6 rounds fill study.time_budget; longer where
    starting the processes takes most of such a round."""
    scaling: Literal["strong", "weak"] = "strong"
    """Where parallel.processes is swept. strong: batch_size is that of each step, whatever the
    number of processes; weak: batch_size times the processes is."""
    budget: Positive | None = None
    """Minutes of rounds: another starts if it is expected to end in time; null: no limit."""
    resume: StudyFolder = None
    """Folder of an interrupted study to resume."""


class ReportKeys(Section, kw_only=True):
    """What the report of a sweep recommends."""

    margin: Positive | None = None
    """What a cell may lose of the score against none-fp32 and still be safe: percentage points of a
    share, as accuracy is one, else in the score's unit. null: as the task says, of a share 0.5."""
    same: Fraction = 0.02
    """Times that differ by less than this share count as equal."""
    target: float | None = None
    """Score whose time to reach is measured, of a share from 0 to 1; null: that of none-fp32 less
    the margin."""


class SweepKeys(Section, kw_only=True):
    """The keys of a sweep, which no single run has."""

    study: StudyKeys
    report: ReportKeys
