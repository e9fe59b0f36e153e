"""The part `smoke`: does each path run on a GPU, and say what it should? No speed is judged."""

from __future__ import annotations

from benchmarks.gpu import runs
from benchmarks.gpu.check import Check, Expectation, ends_with

CHECKS = [
    Check(
        "machine",
        "Which devices and versions are these, and can something be compiled here?",
        runs.machine,
        [
            Expectation("GPUs"),
            Expectation(
                "compute capability",
                low=8,
                means="before Ampere tf32 repeats fp32, and bf16 is refused: leave them out",
            ),
            Expectation("bfloat16", among=(True,), means="amp=bf16 is refused on this GPU"),
            Expectation("cuDNN"),
            Expectation("NCCL"),
            Expectation(
                "can compile",
                among=(True,),
                means="without a C compiler and Python.h runs with compile end with exit code 2",
            ),
        ],
        seconds=15,
    ),
    Check(
        "default",
        "Does `python train.py` train on the GPU, and does it measure what it says?",
        runs.default,
        [
            ends_with(means="the default run does not work: read this first"),
            Expectation("devices"),
            Expectation(
                "accuracy, less the CPU's",
                high=1,
                unit="points",
                means="the GPU learns something else than the CPU",
            ),
            Expectation(
                "phases", among=(5,), gpus=0, means="a phase of the step is not timed: see Clock"
            ),
            Expectation(
                "peak memory", high=100, unit="MB", means="more is allocated than this net needs"
            ),
            Expectation(
                "from launch to result",
                high=20,
                unit="s",
                means="starting takes longer than training: its run.log has times",
            ),
            Expectation("images per second"),
        ],
        seconds=25,
    ),
    Check(
        "cells",
        "Does each strategy run in each precision, as that precision?",
        runs.cells,
        [
            ends_with(),
            Expectation(
                "cells that ended well", among=(15,), gpus=0, means="the log names those that fail"
            ),
            Expectation(
                "dtypes of autocast and scaler",
                among=(["float16"],),
                means="autocast computes in something else than float16",
            ),
            Expectation(
                "cells in TF32",
                among=(["tf32"],),
                means="TF32 is on or off in the wrong precision: every ratio to fp32 is wrong",
            ),
            Expectation("cells that say that they repeat none"),
            Expectation("points of accuracy between cells"),
        ],
        seconds=80,
    ),
    Check(
        "nets",
        "Do torchvision's nets run, which bring torch._dynamo into the forkserver?",
        runs.nets,
        [
            ends_with(),
            Expectation(
                "dtype with a GradScaler", among=("float16",), means="the scaler has no float16"
            ),
        ],
        seconds=20,
    ),
    Check(
        "resume",
        "Does a resumed run end with the weights of one that was never stopped?",
        runs.resume,
        [
            ends_with(),
            Expectation(
                "bitwise",
                among=(True,),
                gpus=0,
                means="resuming is not exact on a GPU: docs must not promise it",
            ),
            Expectation("steps of the whole run"),
            Expectation("steps of the resumed run"),
        ],
        seconds=25,
    ),
    Check(
        "user_module",
        "Does a model work whose module asks for CUDA while it is imported?",
        runs.user_module,
        [
            ends_with(
                means="the forkserver imports users' modules, and no process that it forks can "
                "use CUDA then"
            )
        ],
        seconds=8,
    ),
    Check(
        "signals",
        "Does a run on a GPU save and stop after any step, twice?",
        runs.signals,
        [
            Expectation(
                "exit codes",
                among=([75, 75],),
                gpus=0,
                means="a run on a preemptible machine would lose its steps",
            ),
            Expectation(
                "steps between the signals",
                low=1,
                gpus=0,
                means="the resumed run has not gone on from where it was saved",
            ),
        ],
        seconds=25,
    ),
    Check(
        "profile",
        "Does a profile hold the GPU's kernels, and say what bounds ResNet-18 in bf16, batch 64?",
        runs.profile,
        [
            ends_with(),
            Expectation("trace", among=(True,), gpus=0, means="no trace was written"),
            Expectation("first steps recorded", among=(True,), gpus=0, means="no numerics.npz"),
            Expectation(
                "bound by",
                among=("host",),
                means="the GPU is busier than predicted",
            ),
            Expectation("its line"),
        ],
        seconds=20,
    ),
    Check(
        "evaluate",
        "Is what float16 on the GPU judges what fp32 on the CPU judges?",
        runs.evaluate,
        [
            ends_with(),
            Expectation(
                "examples judged otherwise than on the CPU",
                high=1.5,
                means="a checkpoint evaluates differently on the CPU",
            ),
        ],
        seconds=20,
    ),
    Check(
        "launchers",
        "Does torchrun work, and are more processes than GPUs refused?",
        runs.launchers,
        [
            ends_with(),
            Expectation(
                "exit code of more processes than GPUs",
                among=(2,),
                means="NCCL would fail later, with many lines",
            ),
            Expectation("what it says"),
        ],
        seconds=15,
    ),
    Check(
        "deterministic",
        "Can the default net be trained with deterministic kernels only?",
        runs.deterministic,
        [
            ends_with(
                0, 2, means="the missing kernel is not reported as a configuration that cannot be"
            ),
            Expectation("what it says"),
        ],
        seconds=8,
    ),
    Check(
        "loader",
        "Do threads that read ahead work beside CUDA?",
        runs.loader,
        [ends_with(), Expectation("loader threads", among=(4,), gpus=0)],
        seconds=8,
    ),
    Check(
        "compiled",
        "Does torch.compile work, alone and with its own CUDA graphs under ddp?",
        runs.compiled,
        [
            ends_with(gpus=1, means="a compiler or Python.h may be missing: see the check machine"),
            Expectation("compiling", high=60, unit="s", means="compiling takes very long here"),
            Expectation("compiling, with graphs, ddp, bf16", unit="s"),
            Expectation(
                "outputs that a replay overwrote",
                among=(False,),
                means="something keeps an output of a graph over its next replay",
            ),
        ],
        seconds=90,
        gpus=1,
    ),
    Check(
        "memory",
        "Is too large a batch one line about memory?",
        runs.memory,
        [
            Expectation(
                "exit code of ResNet-18, batch 40,000",
                among=(0, 5),
                means="out of memory is not recognized: what=batch_size would end its search",
            ),
            Expectation("what it says"),
            Expectation(
                "exit code of AlexNet, batch 20,000",
                among=(0, 5),
                means="a kernel's 32-bit limit is not recognized: what=batch_size would end there",
            ),
            Expectation("what AlexNet says"),
        ],
        seconds=40,
        gpus=1,
    ),
    Check(
        "tests",
        "Do the tests that are marked gpu pass, where pytest is installed?",
        runs.tests,
        [ends_with(gpus=1), Expectation("what pytest says")],
        seconds=60,
        gpus=1,
    ),
    Check(
        "several",
        "Do dp and ddp over all GPUs run, and does ddp resume exactly?",
        runs.several,
        [
            ends_with(gpus=2),
            Expectation("replicas of dp", low=2, gpus=2, means="dp uses one GPU only"),
            Expectation("processes of ddp", low=2, gpus=2, means="ddp uses one GPU only"),
            Expectation("bitwise", among=(True,), gpus=2, means="ddp does not resume exactly"),
        ],
        seconds=60,
        gpus=2,
    ),
    Check(
        "failing_rank",
        "How soon does a command end when one rank fails while its peers wait in NCCL?",
        runs.failing_rank,
        [
            ends_with(5, gpus=2, means="the failure that came first is not the one reported"),
            Expectation(
                "from launch to the end",
                high=20,
                unit="s",
                gpus=2,
                means="the peers are waited for until launch.grace",
            ),
            Expectation("line", gpus=2),
        ],
        seconds=40,
        gpus=2,
    ),
]
