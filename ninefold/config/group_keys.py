"""The keys that options of a group have in common: type, default and meaning of each that is ours.

Those of one option alone stand beside its class, see ninefold.config.options.
Arguments of PyTorch's optimizers and schedulers, of networks and of your own classes need no entry.
A key without a default has one in each option.
"""

# No `from __future__ import annotations`: to evaluate each from its text takes 2 ms of a command.
from typing import Annotated, Literal

from ninefold.engine.amp_keys import AmpKeys
from ninefold.types import (
    MAY_CHANGE,
    NO_EFFECT,
    Call,
    ClassNumber,
    Count,
    Device,
    Duration,
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
    Section,
    Shape,
    SplitName,
    Text,
    Whole,
)


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

    root: Text
    """Folder of the data; null for a dataset that needs none."""
    download: Annotated[bool, NO_EFFECT] = False
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
    cache_dir: Annotated[Text, MAY_CHANGE, NO_EFFECT] = "~/.cache/ninefold"
    """Folder of the examples that cache=disk keeps, for all runs."""
    resident: Annotated[Literal["auto"] | bool, MAY_CHANGE] = "auto"
    """Copy the examples to the GPU once. auto: if they are in memory and take at most 1/16 of the
    GPU's; true: always; an error if they are not in memory, or take more than half of what is free
    there."""


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
    """Parameter groups: PATTERN is a glob of names; a _target_ is a function of the network that
    returns torch's groups."""


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
