"""The keys of train.py and evaluate.py outside the groups: type, default and meaning of each.

A section is a class whose fields are its keys; the sentence of a key stands below it.
docs/reference/keys.md and the keys in conf/train.yaml and conf/evaluate.yaml are generated from
here: `python -m tests.reference`.
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
    Duration,
    Fraction,
    Names,
    NotNegative,
    Positive,
    Probability,
    Processes,
    Questions,
    Rounds,
    RunFolder,
    Section,
    Seed,
    Share,
    StudyFolder,
    Text,
    Turns,
    Whole,
    Workers,
)

Threads = Annotated[int, Meta(ge=1, le=1024)]  # OpenMP crashes on very many


class AugmentKeys(Section, kw_only=True):
    """Augmentation of training examples, besides dataset.flip and dataset.crop."""

    mixup: NotNegative = 0
    """Mix examples and their classes in pairs, in a share drawn from Beta(mixup, mixup); 0: off."""
    cutmix: NotNegative = 0
    """Replace a rectangle of each image by another image's, and mix their classes by area; 0: off.
    With mixup, each example gets one of the two."""
    erasing: Probability = 0
    """Probability that a rectangle of a normalized image is set to 0."""


class CheckpointKeys(Section, kw_only=True):
    """Writing checkpoints."""

    every: Whole | None = 0
    """Steps between checkpoints; 0: after each epoch, null: only when a signal stops the run."""
    keep: AtLeast2 = 2
    """Step checkpoints to keep besides last.pt and best.pt."""


class LoaderKeys(Section, kw_only=True):
    """Loading examples."""

    workers: Workers | Literal["auto"] = "auto"
    """Threads per training process that read ahead (processes for dataset=mapped). auto: none for
    data in memory, one on a CPU, else up to 8; for dataset=mapped none on a CPU, else up to 16, if
    all have room in memory and /dev/shm."""
    share: Share = 0.25
    """Share of a host's free memory that batches read ahead may take."""
    pinned: Literal["auto"] | bool = "auto"
    """Read batches into page-locked memory, for faster copies to a GPU; auto: on CUDA."""


class CompileKeys(Section, kw_only=True):
    """torch.compile; compile=true is short for compile.mode=default."""

    mode: (
        Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] | None
    ) = None
    """torch.compile's mode for training steps; null: off. reduce-overhead and max-autotune record
    CUDA graphs."""


class ClockKeys(Section, kw_only=True):
    """Measuring speed."""

    warmup: Whole = 3
    """Untimed steps at the start, then undone; at least 3 for a compiled model."""
    sample: Whole = 20
    """Time the phases of one step in this many; 0: of none."""


class LaunchKeys(Section, kw_only=True):
    """Starting and stopping worker processes."""

    inline: bool = False
    """Run a job of one process inside the launcher, for a debugger."""
    timeout: Annotated[Duration, NO_EFFECT] = 1800
    """Seconds that a process waits for its peers."""
    grace: Annotated[Duration, NO_EFFECT] = 30
    """Seconds from a signal until workers are killed; the final checkpoint may use 80 % of them."""
    max_restarts: Annotated[Whole, NO_EFFECT] = 0
    """Times that crashed workers are restarted from the last checkpoint."""
    cpu_processes: Processes = 2
    """Processes of ddp or fsdp on a CPU with parallel.processes=auto."""


class TrainKeys(Section, kw_only=True):
    """The keys of a training run: conf/train.yaml."""

    seed: Seed = 0
    """Seed of the initial weights, the order of the examples and the augmentation."""
    epochs: Annotated[Whole, MAY_CHANGE] = 10
    """Passes over the training examples."""
    batch_size: Count = 64
    """Examples in an optimizer step, over all processes."""
    accumulate: Count = 1
    """Micro-batches per batch, to save memory; their gradients are added."""
    max_steps: Annotated[Whole | None, MAY_CHANGE] = None
    """Optimizer steps after which the run ends, counted from its very start; null: no limit."""
    patience: Annotated[Count | None, MAY_CHANGE] = None
    """Epochs without a better score after which the run ends; null: never."""
    init: Text = None
    """Weights to start a new run with: a run folder (its last checkpoint), or a .pt, .pth or
    .safetensors file with tensors by name; null: randomly initialized."""
    init_partial: bool = False
    """Load the tensors of init that fit; randomly initialize the others."""
    init_without: Names = None
    """Beginnings of the names of parameters to initialize randomly despite init, such as a head;
    null: none."""
    freeze: Names = None
    """Beginnings of the names of parameters not to train; BatchNorm below them uses its
    running statistics. null: none."""
    ema: Fraction | None = None
    """Decay of an exponential moving average of the weights, such as 0.999, which is evaluated and
    saved; null: none."""
    ema_warmup: bool = False
    """Use the decay min(ema, (1 + t) / (10 + t)) at step t, for short runs."""
    clip_grad_norm: Positive | None = None
    """Clip the gradients' total norm to this; null: off."""
    clip_grad_value: Positive | None = None
    """Clip each gradient element to this absolute value; null: off."""
    on_nonfinite: Literal["stop", "skip"] = "stop"
    """At a loss or gradient that is not finite: stop with exit code 6, or skip the step."""
    deterministic: bool = False
    """Use deterministic algorithms only; on a GPU some are slower or missing."""
    cudnn_benchmark: bool = False
    """Have cuDNN take the fastest algorithm for each shape by timing; it may differ from run to
    run."""
    log_every: Annotated[Count, MAY_CHANGE] = 50
    """Steps between log points; each waits for the device and costs about 0.3 ms."""
    device: Device = "auto"
    """Device to train on; auto: the GPUs if there are any, cuda:1: GPU 1 alone."""
    threads: Threads | Literal["auto"] = "auto"
    """CPU threads of all processes on a host together; auto: all its cores."""
    profile: Annotated[bool, MAY_CHANGE] = False
    """Record five steps for TensorBoard and Perfetto, and print what limits the run."""
    numerics: Whole = 0
    """First steps whose loss, gradient and update are recorded for the report, then undone."""
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
    """Evaluate the moving average of the weights or the raw weights; null: the average if there is
    one."""
    batch_size: Count = 256
    """Examples in a batch, over all processes; any number."""
    device: Device = "auto"
    """Device to evaluate on; auto: the GPUs if there are any."""
    threads: Threads | Literal["auto"] = "auto"
    """CPU threads of all processes on a host together; auto: all its cores."""
    trust: bool = False
    """Use all text in the checkpoint's configuration, such as your own classes; only of a run that
    you made."""
    load: LoadKeys
    loader: Annotated[LoaderKeys, MAY_CHANGE]
    launch: Annotated[LaunchKeys, MAY_CHANGE]


class CommandKeys(Section, kw_only=True):
    """The keys of a training command that are not of its run."""

    like: Text = None
    """Folder of a study or a run: its command's words come first, and this command's replace
    them."""
    trust: bool = False
    """With resume or like: use all text in that configuration, such as your own classes; only of a
    run or a study that you made."""


class StudyKeys(Section, kw_only=True):
    """A sweep in rounds: each is one run of every configuration."""

    seed: Seed = 0
    """Seed of the order of the configurations in a round."""
    rounds: Rounds | Literal["auto"] | None = None
    """Rounds of full training runs; null: one for each seed of the sweep, auto: until the answer is
    decided."""
    ask: Questions = None
    """What to compare. time: speed, in turns. score: of full training runs. null: both,
    if only parallel, amp and parallel.processes are swept, without launch.inline or another
    launcher of Hydra's than basic; else score."""
    pairs: Literal["best", "all"] = "best"
    """What the speed comparison decides. best: the fastest; others are eliminated. all: every
    pair."""
    control: bool = False
    """Time the first configuration twice, the second time as parallel=control: an A/A control."""
    time_budget: Duration = 3
    """Minutes of the speed comparison. A second round is made if it ends at most 30 s over
    budget."""
    turn: Duration = 0.1
    """Timed seconds per turn, after 0.04 s of warm-up; of several processes at least 0.3 s, after
    0.3 s. At least two steps, or one of a second or more."""
    turns: Turns | Literal["auto"] = "auto"
    """Turns of each configuration in a round. auto: for 6 rounds in study.time_budget (8 with
    study.pairs=all), or fewer if starting processes takes most of it."""
    scaling: Literal["strong", "weak"] = "strong"
    """Of a sweep over parallel.processes. strong: batch_size is each step's; weak: each
    process's."""
    budget: Positive | None = None
    """Minutes of full training runs: another round starts if it is expected to end in time;
    null: no limit."""
    resume: StudyFolder = None
    """Folder of an interrupted study to resume."""


class ReportKeys(Section, kw_only=True):
    """What the report of a sweep recommends."""

    margin: Positive | None = None
    """How much of the score may be lost compared with none, fp32: points of a share, else in the
    score's unit. null: the task's, of a share 0.5."""
    same: Fraction = 0.02
    """Times that differ by less than this share count as equal."""
    target: float | None = None
    """Score for the time to target, of a share from 0 to 1; null: that of none, fp32 less the
    margin."""


class SweepKeys(Section, kw_only=True):
    """The keys of a sweep, which no single run has."""

    study: StudyKeys
    report: ReportKeys
