"""The keys of the options in conf/GROUP/: type, default and meaning of each that is ours.

Arguments of PyTorch's optimizers and schedulers, of networks and of your own classes need no entry.
"""

from __future__ import annotations

from ninefold.config.keys import BY_OPTION, SECONDS, Key
from ninefold.config.kinds import (
    CALL,
    CUTS,
    DEVICE,
    DEVICE_LIST,
    FLAG,
    GRAY_LEVELS,
    LOSS,
    NAMES,
    NUMBERS,
    PARAMETER_GROUPS,
    PART,
    POSITIVE,
    SECTION,
    SHAPE,
    SPACING,
    SPLIT,
    STRING,
    TARGET,
    TEXT,
    UNITS,
    WINDOW,
    number,
    one_of,
    optional,
    whole,
)

GROUPS = {
    "parallel": Key(
        SECTION, None, "How training is spread over devices and processes.", may_change=True
    ),
    "amp": Key(SECTION, None, "Precision: the dtype of the forward pass, and loss scaling."),
    "dataset": Key(SECTION, None, "The examples, and how images are prepared."),
    "task": Key(SECTION, None, "The loss and the scores."),
    "model": Key(SECTION, None, "The network and the input that it takes."),
    "optimizer": Key(SECTION, None, "The optimizer: a class and its arguments."),
    "scheduler": Key(SECTION, None, "The learning-rate scheduler: a class and its arguments."),
    "logger": Key(
        SECTION, None, "Where figures are logged.", may_change=True, affects_results=False
    ),
}
BUILT = ("parallel", "amp", "dataset", "task", "optimizer", "scheduler")  # groups of one object

OPTIONS: dict[str, Key] = {
    **{
        f"{group}._target_": Key(TARGET, BY_OPTION, "Dotted name of the class or function to call.")
        for group in BUILT
    },
    "parallel.processes": Key(
        whole(1, otherwise=("auto",)),
        BY_OPTION,
        "Processes; auto: one per GPU, on a CPU launch.cpu_processes.",
        may_change=True,
    ),
    "parallel.max_processes": Key(
        whole(1, otherwise=(None,)),
        BY_OPTION,
        "Processes that the strategy can use at most; null: any number.",
    ),
    "parallel.device": Key(
        DEVICE, BY_OPTION, "The device, cpu or cuda: set it by the top-level key device."
    ),
    "parallel.devices": Key(
        DEVICE_LIST,
        None,
        "Numbers of the GPUs to use, the first one for results; null: all that there are. "
        "parallel=split also takes names, the CPU's as the first one: [cpu,cuda:0].",
        may_change=True,
        later=True,
    ),
    "parallel.timeout": Key(
        SECONDS,
        BY_OPTION,
        "Seconds that a process waits for its peers: set it by launch.timeout.",
        may_change=True,
        affects_results=False,
    ),
    "parallel.at": Key(
        CUTS,
        BY_OPTION,
        "The modules of the network with which the next device begins, such as [layer3]; auto: "
        "such that the devices have about the same number of parameters.",
        may_change=True,
    ),
    "parallel.chunks": Key(
        whole(1),
        BY_OPTION,
        "Parts of a batch that go through the devices one after the other, so that these work at "
        "the same time.",
    ),
    "parallel.loss_in_forward": Key(
        FLAG,
        True,
        "Have each replica of DataParallel compute its own loss; false: gather all outputs on the "
        "first GPU and compute it there. Without effect on a CPU or a single GPU.",
        later=True,
    ),
    "parallel.gradient_as_bucket_view": Key(
        FLAG, True, "Keep gradients inside DDP's communication buckets, which saves a copy."
    ),
    "parallel.broadcast_buffers": Key(
        FLAG, True, "Broadcast buffers such as BatchNorm's statistics before each forward pass."
    ),
    "parallel.find_unused_parameters": Key(
        FLAG, False, "Search for parameters without a gradient in each step."
    ),
    "parallel.static_graph": Key(
        FLAG, False, "Promise DDP that the graph is the same in each step."
    ),
    "parallel.bucket_cap_mb": Key(
        optional(number(0)),
        None,
        "Size of a DDP bucket in MiB; null: PyTorch's default of 25, and 1 for the first.",
    ),
    "parallel.sync_batchnorm": Key(
        FLAG, False, "Replace BatchNorm by SyncBatchNorm, on GPUs only."
    ),
    "parallel.replicas": Key(
        whole(1),
        1,
        "Whole copies of the parameters, each spread over processes / replicas (HSDP).",
    ),
    "parallel.reshard_after_forward": Key(
        FLAG,
        True,
        "Drop gathered parameters after the forward pass and gather them again for the backward "
        "pass; false: more memory for a third less communication.",
    ),
    "parallel.units": Key(
        UNITS,
        "auto",
        "Submodules whose parameters are gathered together, apart from all others; auto: children "
        "of the network, and of lists in it, of at least `least` parameters.",
    ),
    "parallel.least": Key(whole(0), 1_000_000, "Parameters of a unit at least, with units=auto."),
    "parallel.colwise": Key(
        NAMES,
        None,
        "Linear layers of which each process computes a part of the outputs (parallel=tensor).",
    ),
    "parallel.rowwise": Key(
        NAMES,
        None,
        "Linear layers that take such parts and follow them; their outputs are summed over the "
        "processes (parallel=tensor).",
    ),
    "parallel.reduce_dtype": Key(
        one_of(None, "float32", "bfloat16", "float16"),
        None,
        "dtype in which gradients are averaged over processes; null: their own.",
    ),
    "amp.dtype": Key(
        one_of("auto", "float32", "float16", "bfloat16"),
        BY_OPTION,
        "dtype of autocast; auto: float16 on CUDA and bfloat16 on a CPU, float32: no autocast.",
    ),
    "amp.scaler": Key(FLAG, BY_OPTION, "Scale the loss with a GradScaler."),
    "amp.tf32": Key(
        FLAG, BY_OPTION, "Compute float32 convolutions and matrix products in TF32, on CUDA."
    ),
    "amp.init_scale": Key(number(0, below=2**127), 65536.0, "The GradScaler's initial scale."),
    "amp.growth_factor": Key(
        number(1), 2.0, "Factor of the scale after growth_interval steps without overflow."
    ),
    "amp.backoff_factor": Key(number(0, below=1), 0.5, "Factor of the scale after an overflow."),
    "amp.growth_interval": Key(
        whole(1), 2000, "Steps without overflow after which the scale grows."
    ),
    "dataset.root": Key(TEXT, BY_OPTION, "Folder of the data; null for a dataset that needs none."),
    "dataset.download": Key(
        FLAG, False, "Download the data into root if it is not there.", affects_results=False
    ),
    "dataset.limit": Key(
        whole(1, otherwise=(None,)), None, "Use only this many training examples; null: all."
    ),
    "dataset.val": Key(
        number(0, inclusive=True, below=1),
        0,
        "Share of the training examples kept for validation, drawn by the seed, on which patience "
        "and best.pt are selected; 0: none, they are selected on the test set.",
        later=True,
    ),
    "dataset._recursive_": Key(
        FLAG, BY_OPTION, "False: what the section describes is built when a split is loaded."
    ),
    "dataset.train": Key(
        SPLIT,
        BY_OPTION,
        "The training split: its name (dataset=hf), or a _target_ and its arguments "
        "(dataset=mapped).",
    ),
    "dataset.test": Key(SPLIT, BY_OPTION, "The test split, as dataset.train."),
    "dataset.keys": Key(
        NAMES, BY_OPTION, "Keys of the input and the target, in items that are mappings."
    ),
    "dataset.name": Key(TEXT, BY_OPTION, "Name of a dataset of the Hugging Face hub; null: root."),
    "dataset.config": Key(TEXT, BY_OPTION, "Name of its configuration, where it has several."),
    "dataset.revision": Key(TEXT, BY_OPTION, "Its revision: a branch, a tag or a commit."),
    "dataset.image": Key(TEXT, BY_OPTION, "The column of images."),
    "dataset.label": Key(TEXT, BY_OPTION, "The column of classes."),
    "dataset.exif": Key(FLAG, False, "Turn images as their EXIF orientation says.", later=True),
    "dataset.classes": Key(
        whole(1, otherwise=(None,)),
        BY_OPTION,
        "Number of classes; null: as many as the data has (dataset=folder, dataset=hf).",
    ),
    "dataset.class_names": Key(NAMES, BY_OPTION, "Names of the classes, for evaluations."),
    "dataset.shape": Key(SHAPE, BY_OPTION, "Channels, (depth,) height and width of an example."),
    "dataset.mean": Key(
        NUMBERS,
        BY_OPTION,
        "Mean of each channel, of pixels from 0 to 1, to normalize with; null: no normalization.",
    ),
    "dataset.std": Key(
        POSITIVE, BY_OPTION, "Standard deviation of each channel; null together with mean."
    ),
    "dataset.flip": Key(FLAG, BY_OPTION, "Mirror training images at random."),
    "dataset.crop": Key(
        whole(0), BY_OPTION, "Pad training images by this many pixels and crop them at random."
    ),
    "dataset.ignore": Key(
        whole(0, most=32767, otherwise=(None,)),
        BY_OPTION,
        "The number of a mask's pixels or voxels that do not count (void); null: all count.",
    ),
    "dataset.values": Key(
        GRAY_LEVELS,
        None,
        "The gray level or palette index of each class in a mask, in the order of the classes; "
        "null: they are the class numbers.",
    ),
    "dataset.mask_suffix": Key(
        STRING, "", "What the name of a mask has after the name of its image, such as _mask."
    ),
    "dataset.spacing": Key(
        SPACING, BY_OPTION, "Millimeters between the voxels of a prepared volume along z, y, x."
    ),
    "dataset.order": Key(
        one_of("xyz", "zyx"),
        BY_OPTION,
        "Order of the three numbers of a landmark in the JSON file.",
    ),
    "dataset.unit": Key(
        one_of("voxel", "mm"),
        "voxel",
        "Unit of a landmark in the JSON file: voxel (indices along the file's axes) or mm (right, "
        "anterior, superior).",
    ),
    "dataset.targets": Key(
        one_of(None, "landmarks", "masks"),
        None,
        "What volumes have to be learned: landmarks (a JSON file) or masks (labelsTr); null: what "
        "dataset.root holds.",
        later=True,
    ),
    "dataset.landmarks": Key(
        NAMES, None, "Names of the landmarks in their order; null: all in the JSON file, sorted."
    ),
    "dataset.window": Key(
        WINDOW,
        None,
        "Values of the files that become 0 and 1; null: the percentiles 0.5 and 99.5 of each.",
    ),
    "dataset.dtype": Key(
        one_of("int16", "uint8"), "int16", "dtype of a volume until it is on the device."
    ),
    "dataset.cache": Key(
        one_of(None, "ram", "disk"),
        None,
        "Where decoded examples are kept, to be decoded once: ram, disk; null: nowhere.",
        may_change=True,
        later=True,
    ),
    "dataset.cache_rate": Key(
        number(0, most=1),
        1.0,
        "Share of the examples that cache=ram keeps; the others are decoded when they are needed.",
        may_change=True,
        later=True,
    ),
    "dataset.cache_dir": Key(
        TEXT,
        "~/.cache/ninefold",
        "Folder in which cache=disk keeps decoded examples, for all runs.",
        may_change=True,
        later=True,
        affects_results=False,
    ),
    "dataset.resident": Key(
        one_of("auto", True, False),
        "auto",
        "Copy the examples to the GPU once, and take batches there; auto: on CUDA, where they are "
        "in memory and take at most 1/16 of that of the GPU, and half of what is free; true: they "
        "must, up to that half.",
        may_change=True,
        later=True,
    ),
    "dataset.train_count": Key(whole(1), 4096, "Training examples of dataset=synthetic."),
    "dataset.test_count": Key(whole(1), 512, "Test examples of dataset=synthetic."),
    "task.classes": Key(
        whole(1, otherwise=(None,)), BY_OPTION, "Number of classes; null only as dataset.classes."
    ),
    "task.ignore": Key(
        whole(0, most=32767, otherwise=(None,)),
        BY_OPTION,
        "The number of a mask's pixels that do not count; null: all count.",
    ),
    "task.loss": Key(
        LOSS,
        None,
        "A loss function in place of the task's own: a _target_ and its arguments; called with "
        "the network's output and the targets, and returns a number for each example.",
        later=True,
    ),
    "task.shape": Key(optional(SHAPE), BY_OPTION, "Shape of an example: dataset.shape."),
    "task.spacing": Key(
        optional(SPACING), BY_OPTION, "Millimeters between voxels along z, y, x: dataset.spacing."
    ),
    "task.sigma": Key(
        number(0), 4.0, "Standard deviation in mm of the Gaussian heatmaps of landmarks."
    ),
    "task.within": Key(number(0), 4.0, "Error in mm up to which a landmark counts for the score."),
    "model.net": Key(CALL, BY_OPTION, "The network: a _target_ and its arguments."),
    "model.input_channels": Key(
        whole(1), BY_OPTION, "Channels of the network's input; gray images are repeated."
    ),
    "model.input_size": Key(
        whole(1, otherwise=(None,)),
        BY_OPTION,
        "Pixels that images are resized to in height and width; null: not resized.",
    ),
    "model.output": Key(
        PART,
        None,
        "The part of what the network returns that is the prediction: a key of a mapping or an "
        "index; null: it returns a tensor.",
        later=True,
    ),
    "model.memory_format": Key(
        one_of("auto", "contiguous_format", "channels_last", "channels_last_3d"),
        BY_OPTION,
        "Memory layout of inputs and weights; channels_last is for images, channels_last_3d for "
        "volumes. auto: one of these two, but contiguous on CUDA in full float32 (without TF32).",
    ),
    "optimizer.lr": Key(number(0), BY_OPTION, "Learning rate."),
    "optimizer.weight_decay": Key(number(0, inclusive=True), BY_OPTION, "Weight decay."),
    "optimizer.fused": Key(
        FLAG,
        True,
        "One kernel per step; with a GradScaler it also saves a synchronization.",
        may_change=True,
    ),
    "optimizer.groups": Key(
        PARAMETER_GROUPS,
        None,
        "Parameter groups with options of their own: a list of {match: PATTERN, option: value}, "
        "the pattern a glob of parameter names.",
        later=True,
    ),
    "scheduler.per": Key(
        one_of("epoch", "step"),
        "epoch",
        "When the scheduler is stepped: after each epoch or each optimizer step.",
        later=True,
    ),
    "scheduler.warmup": Key(
        whole(0), 0, "Optimizer steps of linear learning-rate warm-up; 0: none.", later=True
    ),
    "scheduler.T_max": Key(
        whole(0),
        BY_OPTION,
        "Epochs of the cosine from the initial learning rate to zero, whatever scheduler.per is.",
    ),
    "scheduler.patience": Key(
        whole(0), 3, "Epochs without a lower training loss before the learning rate is reduced."
    ),
}
