"""The keys of train.py and evaluate.py: type, default and meaning of each that is ours.

A section is a class whose fields are its keys; the sentence of a key stands below it. The keys of
one option alone stand beside its class, see ninefold.config.options. Arguments of PyTorch's
optimizers and schedulers, of networks and of your own classes need no entry.
docs/reference/keys.md is generated from here: `python -m tests.reference`.
"""

# No `from __future__ import annotations`: to evaluate each from its text takes 2 ms of a command.
from typing import Annotated, Literal

from msgspec import Meta

from ninefold.engine.amp_keys import AmpKeys
from ninefold.types import (
    MAY_CHANGE,
    NO_EFFECT,
    AnyPath,
    AtLeast2,
    Call,
    ClassNumber,
    Count,
    Device,
    Duration,
    Folder,
    Fraction,
    FractionOrZero,
    GpuNumbers,
    Loss,
    Names,
    NotNegative,
    Numbers,
    OptionKeys,
    ParameterGroups,
    Part,
    Positive,
    Positives,
    Processes,
    Questions,
    Rounds,
    RunFolder,
    Section,
    Seed,
    Shape,
    SplitName,
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


class CheckpointKeys(Section, kw_only=True):
    """Writing checkpoints."""

    every: Whole | None = 0
    """Steps between checkpoints, besides those after evaluations; 0: these alone, null: only when a
    signal stops the run."""
    keep: AtLeast2 = 2
    """Step checkpoints to keep besides last.pt and best.pt."""


class LoaderKeys(Section, kw_only=True):
    """Loading examples."""

    workers: Workers | Literal["auto"] = "auto"
    """Threads per training process that read ahead (processes for dataset=mapped). auto: none for
    data in memory, one on a CPU, else up to 8; for dataset=mapped none on a CPU, else up to 16, if
    all have room in memory and /dev/shm."""
    pinned: Literal["auto"] | bool = "auto"
    """Read batches into page-locked memory, for faster copies to a GPU; auto: on CUDA."""


class CompileKeys(Section, kw_only=True):
    """torch.compile."""

    mode: (
        Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] | None
    ) = None
    """torch.compile's mode for training steps; null: off. compile=true is short for
    compile.mode=default. reduce-overhead and max-autotune record CUDA graphs."""


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
    """The keys of a training run."""

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
    threads: Annotated[Threads | Literal["auto"], MAY_CHANGE] = "auto"
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
    """The keys of an evaluation."""

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

    rounds: Rounds | None = None
    """Rounds of full training runs; null: one for each seed of the sweep."""
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
    """Minutes of the speed comparison. The turns of the first three rounds may take half
    as long again."""
    turn: Duration = 0.1
    """Timed seconds per turn, after 0.04 s of warm-up; of several processes at least 0.3 s, after
    0.3 s. At least four steps, or fewer where these would take too much of the time."""
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
    """Folder of a study to go on with; without -m with the words that began it, and the command's
    own."""


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


# What options of a group have in common. A key without a default has one in each option.


class ParallelKeys(OptionKeys, kw_only=True):
    """How training is spread over devices and processes."""

    processes: Annotated[Count | Literal["auto"], MAY_CHANGE]
    """Processes to start; auto: one per GPU, on a CPU launch.cpu_processes."""
    max_processes: Count | None
    """Processes that the strategy can use at most; null: any number."""
    device: Device
    """Set it by the top-level key device."""
    devices: Annotated[GpuNumbers, MAY_CHANGE] = None
    """Numbers of the GPUs to use, the first one for results; null: all."""
    timeout: Annotated[Duration, MAY_CHANGE, NO_EFFECT]
    """Set it by launch.timeout."""


class DatasetKeys(OptionKeys, kw_only=True):
    """The examples, and how images are prepared."""

    root: Annotated[Text, MAY_CHANGE]
    """Folder of the data; null for a dataset that needs none."""
    download: Annotated[bool, MAY_CHANGE, NO_EFFECT] = False
    """Download the data into root if it is not there."""
    limit: Count | None = None
    """Use only this many training examples; null: all."""
    val: FractionOrZero = 0
    """Share of the training examples kept for validation, on which patience and best.pt select; 0:
    they select on the test set."""
    _recursive_: bool
    """False: what the section describes is built when a split is loaded."""
    train: SplitName
    """The training split: its name (dataset=hf), or a _target_ and its arguments
    (dataset=mapped)."""
    test: SplitName
    """The test split, as dataset.train."""
    exif: bool = False
    """Turn images as their EXIF orientation says."""
    classes: Count | None
    """Number of classes; null: as the data says, or none."""
    class_names: Names
    """Names of the classes, for evaluations."""
    shape: Shape
    """Shape of an example; null: that of the first item (dataset=mapped)."""
    mean: Numbers
    """Mean of each channel, of pixels from 0 to 1, to normalize with; null: not normalized."""
    std: Positives
    """Standard deviation of each channel; null together with mean."""
    flip: bool
    """Mirror training images at random."""
    crop: Whole
    """Pad training images by this many pixels and crop them at random."""
    ignore: ClassNumber | None
    """The number of a mask's pixels or voxels that are ignored; null: none."""
    cache: Annotated[Literal["disk"] | None, MAY_CHANGE] = None
    """disk: decode each example once and keep it there; null: decode it each time."""
    cache_dir: Annotated[Folder, MAY_CHANGE, NO_EFFECT] = "~/.cache/ninefold"
    """Folder of the examples that cache=disk keeps, for all runs."""
    resident: Annotated[Literal["auto"] | bool, MAY_CHANGE] = "auto"
    """Copy the examples to the GPU once. auto: if they are in memory and take at most 1/16 of the
    GPU's; true: always; an error if they are not in memory, or take more than half of what is free
    there; false: never."""


class TaskKeys(OptionKeys, kw_only=True):
    """The loss and the scores."""

    classes: Count | None
    """Number of classes; null only as dataset.classes."""
    ignore: ClassNumber | None
    """The number of a mask's pixels that are ignored; null: none."""
    loss: Loss = None
    """A loss in place of the task's: called with output and targets, it returns a number for each
    example."""
    label_smoothing: FractionOrZero
    """Share of each target that is spread evenly over all classes in the training loss."""
    shape: Shape
    """Shape of an example: dataset.shape."""


class ModelKeys(Section, kw_only=True):
    """The network and the input that it takes."""

    net: Call
    """The network: a _target_ and its arguments."""
    input_channels: Count | None
    """Channels of the network's input; gray images are repeated; null: as the examples have."""
    input_size: Count | None
    """Pixels that images are resized to in height and width; null: not resized."""
    output: Part = None
    """Key or index of the prediction in what the network returns; null: it is a tensor."""
    memory_format: Literal["auto", "contiguous_format", "channels_last", "channels_last_3d"]
    """Memory layout of inputs and weights. auto: channels_last for images, channels_last_3d for
    volumes; contiguous on CUDA in full float32 (without TF32), and for other inputs."""


class OptimizerKeys(OptionKeys, kw_only=True):
    """The optimizer: a class and its arguments."""

    lr: Positive
    """Learning rate."""
    weight_decay: NotNegative
    """Weight decay."""
    fused: Annotated[bool, MAY_CHANGE] = True
    """One kernel per step; with a GradScaler it also saves a synchronization."""
    groups: ParameterGroups = None
    """Parameter groups: PATTERN is a glob of names."""


class SchedulerKeys(OptionKeys, kw_only=True):
    """The learning-rate scheduler: a class and its arguments."""

    per: Literal["epoch", "step"] = "epoch"
    """Step the scheduler after each epoch or each optimizer step."""
    warmup: Whole = 0
    """Optimizer steps of linear learning-rate warm-up; 0: none."""
    T_max: Whole
    """Epochs of the cosine from the initial rate to zero, whatever scheduler.per is."""
    patience: Whole = 3
    """Epochs without a lower mean training loss before the rate is reduced."""


class LoggerKeys(Section, kw_only=True):
    """Where figures are logged."""


class Groups(Section, kw_only=True):
    """The groups, of which a job takes an option each."""

    parallel: Annotated[ParallelKeys, MAY_CHANGE]
    amp: AmpKeys
    dataset: DatasetKeys
    task: TaskKeys
    model: ModelKeys
    optimizer: OptimizerKeys
    scheduler: SchedulerKeys
    logger: Annotated[LoggerKeys, MAY_CHANGE, NO_EFFECT]
