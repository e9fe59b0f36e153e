"""The keys of train.py and evaluate.py outside the groups: type, default and meaning of each.

docs/keys.md, `--help`, the JSON Schemas in conf/schema/ and the comments in conf/train.yaml and
conf/evaluate.yaml are generated from here: `python -m ninefold.config.reference`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ninefold.config.kinds import (
    DEVICE,
    FLAG,
    NAMES,
    PATH,
    RUN,
    SECTION,
    TEXT,
    Kind,
    number,
    one_of,
    optional,
    whole,
)

BY_OPTION = object()  # the default of a key whose value each option of its group sets
COMPILE_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


@dataclass(frozen=True)
class Key:
    """One key of the configuration.

    kind: the values it accepts.
    default: its value in conf/, or BY_OPTION.
    meaning: one sentence for users.
    may_change: a resumed run may have another value; holds for all keys below this one too.
    affects_results: whether it can change a figure of the run; if not, all keys below neither.
    later: older stored runs lack it, and mean its default.
    """

    kind: Kind
    default: Any
    meaning: str
    may_change: bool = False
    affects_results: bool = True
    later: bool = False


SEED = whole(0, most=2**32 - 1)
SECONDS = number(0, below=10**8)  # a timedelta takes no more

TRAIN: dict[str, Key] = {
    "seed": Key(
        SEED, 0, "Seed of the initial weights, the order of the examples and the augmentation."
    ),
    "epochs": Key(whole(0), 10, "Passes over the training examples.", may_change=True),
    "batch_size": Key(
        whole(1),
        64,
        "Examples in an optimizer step, over all processes: every strategy takes the same batches "
        "in the same order.",
    ),
    "accumulate": Key(
        whole(1),
        1,
        "Micro-batches that each batch is split into to save memory; their gradients are added.",
    ),
    "max_steps": Key(
        whole(0, otherwise=(None,)),
        None,
        "Optimizer steps after which the run ends, counted from its very start; null: no limit.",
        may_change=True,
    ),
    "patience": Key(
        whole(1, otherwise=(None,)),
        None,
        "Epochs without a better score after which the run ends; null: never.",
        may_change=True,
    ),
    "init": Key(
        TEXT,
        None,
        "Weights to start a new run with: a run folder (its last checkpoint), a checkpoint, or any "
        ".pt, .pth or .safetensors file with tensors by name; null: drawn from the seed.",
        later=True,
    ),
    "init_partial": Key(
        FLAG,
        False,
        "Load the tensors of init that fit and keep the others as they are drawn from the seed.",
        later=True,
    ),
    "init_without": Key(
        NAMES,
        None,
        "Parts of the model that init leaves as drawn from the seed, such as its head, by the "
        "beginnings of their tensors' names; null: none.",
        later=True,
    ),
    "freeze": Key(
        NAMES,
        None,
        "Parts of the model that are not trained, by the beginnings of their parameters' names; "
        "their batch normalization stays as in evaluations. null: none.",
        later=True,
    ),
    "ema": Key(
        optional(number(0, below=1)),
        None,
        "Decay of an exponential moving average of the weights, such as 0.999, which is evaluated "
        "and saved; null: none.",
    ),
    "ema_warmup": Key(
        FLAG,
        False,
        "Use the decay min(ema, (1 + t) / (10 + t)) at step t, so that the average forgets the "
        "initial weights soon.",
        later=True,
    ),
    "clip_grad_norm": Key(
        optional(number(0)),
        None,
        "Clip the gradients to this total norm before each optimizer step; null: no clipping.",
        later=True,
    ),
    "clip_grad_value": Key(
        optional(number(0)),
        None,
        "Clip each gradient element to this absolute value before each optimizer step; null: no "
        "clipping.",
        later=True,
    ),
    "checkpoint_activations": Key(
        NAMES,
        [],
        "Parts of the model, by name, whose activations are computed again in the backward pass "
        "instead of kept: less memory for more time.",
        later=True,
    ),
    "on_nonfinite": Key(
        one_of("stop", "skip"),
        "stop",
        "What to do about a loss or gradient that is not finite: stop with exit code 6, or skip "
        "the step.",
    ),
    "deterministic": Key(
        FLAG,
        False,
        "Use deterministic algorithms only; on a GPU some are slower and some are missing.",
    ),
    "cudnn_benchmark": Key(
        FLAG,
        False,
        "Have cuDNN try its algorithms for each new shape and take the fastest, which need not be "
        "the same in each run; without effect on a CPU.",
        later=True,
    ),
    "log_every": Key(
        whole(1),
        50,
        "Steps between log points; each waits for the device and costs about 0.2 ms.",
        may_change=True,
    ),
    "device": Key(
        DEVICE,
        "auto",
        "Device to train on; auto: the GPUs if there are any, cuda:1: GPU 1 alone.",
    ),
    "threads": Key(
        whole(1, most=1024, otherwise=("auto",)),  # OpenMP crashes on very many
        "auto",
        "CPU threads of all processes on a host together; auto: all its cores.",
    ),
    "graph": Key(
        FLAG,
        False,
        "Record the training step as one CUDA graph, which the host starts by one call; one "
        "process on one GPU. A no-op on a CPU.",
        may_change=True,
        later=True,
    ),
    "profile": Key(
        FLAG,
        False,
        "Record five steps before training for TensorBoard and Perfetto, and print at the end what "
        "the run is bound by.",
        may_change=True,
    ),
    "numerics": Key(
        whole(0),
        0,
        "First steps whose loss, gradient norm and update size are recorded for the report; the "
        "steps are then undone.",
    ),
    "resume": Key(
        RUN,
        None,
        "Folder of the run to resume in place; auto: the newest unfinished run of this job.",
        affects_results=False,
    ),
    "checkpoint": Key(
        SECTION, None, "Writing checkpoints.", may_change=True, affects_results=False
    ),
    "checkpoint.every": Key(
        whole(0, otherwise=(None,)),
        0,
        "Steps between checkpoints; 0: at the end of each epoch, null: only when a signal stops "
        "the run. One that is due while another is being written is left out, unless it is the "
        "best or the last.",
    ),
    "checkpoint.keep": Key(
        whole(2),  # if the newest is damaged, there is one before it
        2,
        "Step checkpoints that are kept besides last.pt and best.pt.",
    ),
    "checkpoint.format": Key(
        one_of("whole", "sharded"),
        "whole",
        "One file of whole tensors (whole), which rank 0 writes in the background, or a folder to "
        "which each process writes its own parts while the training waits (sharded); any strategy "
        "resumes either.",
        later=True,
    ),
    "checkpoint.on_error": Key(
        one_of("stop", "continue"),
        "stop",
        "What to do when a checkpoint cannot be written: stop with exit code 5, or continue.",
    ),
    "loader": Key(SECTION, None, "Loading examples.", may_change=True),
    "loader.workers": Key(
        whole(0, otherwise=("auto",)),
        "auto",
        "Threads per training process that read batches ahead; auto: none for data in memory, else "
        "as many as memory and cores allow, up to 8, and one on a CPU.",
    ),
    "loader.share": Key(
        number(0, most=1),
        0.25,
        "Share of the free memory that batches read ahead may take, over all processes of a host.",
        later=True,
    ),
    "loader.pinned": Key(
        one_of("auto", True, False),
        "auto",
        "Read batches into page-locked memory, from which copies to a GPU do not wait; auto: on "
        "CUDA.",
        later=True,
    ),
    "compile": Key(SECTION, None, "torch.compile; compile=true is short for compile.mode=default."),
    "compile.mode": Key(
        optional(one_of(*COMPILE_MODES)),
        None,
        "Mode of torch.compile for training steps; reduce-overhead and max-autotune record CUDA "
        "graphs; null: not compiled. Evaluation never is.",
    ),
    "clock": Key(SECTION, None, "Measuring speed."),
    "clock.warmup": Key(
        whole(0),
        3,
        "Untimed steps at the start, which are then undone; a compiled model takes at least 3.",
    ),
    "clock.sample": Key(whole(0), 20, "Time the phases of one step in this many; 0: of no step."),
    "clock.probe": Key(
        number(0, inclusive=True, below=60),
        0.05,
        "Seconds of fixed work before and after training that reveal a change in machine speed.",
    ),
    "clock.ceiling": Key(
        whole(0),
        0,
        "Steps on a batch that is already in memory, then undone: the speed without loading data.",
    ),
    "clock.link": Key(
        number(0, inclusive=True, below=60),
        0,
        "Seconds of timed all-reduces before training, and of undone steps without communication, "
        "recorded as link and compute_seconds; 0: none.",
        later=True,
    ),
    "launch": Key(SECTION, None, "Starting and stopping worker processes.", may_change=True),
    "launch.inline": Key(
        FLAG, False, "Run a job of one process inside the launcher, for a debugger."
    ),
    "launch.engine": Key(
        one_of("auto", "elastic", "srun"),
        "auto",
        "What starts the processes: elastic on this host, srun in a Slurm allocation; auto: srun "
        "where a run has more than this node has tasks.",
        affects_results=False,
        later=True,
    ),
    "launch.timeout": Key(
        SECONDS, 1800, "Seconds that a process waits for its peers.", affects_results=False
    ),
    "launch.grace": Key(
        SECONDS,
        30,
        "Seconds from a signal until workers are killed; a save has 0.8 of them.",
        affects_results=False,
    ),
    "launch.max_restarts": Key(
        whole(0),
        0,
        "Times that crashed workers are restarted from the last checkpoint.",
        affects_results=False,
    ),
    "launch.cpu_processes": Key(
        whole(1), 1, "Processes that parallel.processes=auto means on a CPU."
    ),
    "launch.dry": Key(
        FLAG,
        False,
        "Print what each process would hold and send instead of training; parallel.processes may "
        "be any number.",
        affects_results=False,
        later=True,
    ),
}

EVALUATE: dict[str, Key] = {
    "ckpt": Key(
        PATH,
        "???",
        "Run folder (its last checkpoint is evaluated), checkpoint, or any file with a state_dict.",
    ),
    "weights": Key(
        optional(one_of("average", "raw")),
        None,
        "Evaluate the moving average of the weights or the raw weights; null: the average where "
        "the checkpoint has one.",
        later=True,
    ),
    "batch_size": replace(
        TRAIN["batch_size"],
        default=256,
        meaning="Examples in a batch, over all processes; it need not divide anything.",
    ),
    "device": replace(
        TRAIN["device"], meaning="Device to evaluate on; auto: the GPUs if there are any."
    ),
    "threads": TRAIN["threads"],
    "load": Key(SECTION, None, "Loading weights."),
    "load.partial": Key(
        FLAG, False, "Load the tensors that fit and leave the others as initialized."
    ),
    **{
        name: key
        for name, key in TRAIN.items()
        if name.partition(".")[0] in ("loader", "launch") and name != "launch.dry"
    },
}
