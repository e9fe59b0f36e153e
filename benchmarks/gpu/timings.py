"""What the checks of the part `steps` time, and what they compute from it. See steps.py."""

from __future__ import annotations

import numpy as np

from benchmarks.gpu.check import Figures, first_bad
from benchmarks.gpu.race import Contestant, race
from benchmarks.gpu.session import Session
from benchmarks.measure import estimate

ROUNDS = 7
PRECISIONS = ("fp32", "autocast", "tf32", "bf16", "scaler")
FIRST, LAST = "model.memory_format=contiguous_format", "model.memory_format=channels_last"
SILENT = "log_every=1000000"
MLP = (
    "model.net._target_=benchmarks.step.mlp",
    "model.net.width=64",
    "model.memory_format=contiguous_format",
    "dataset.shape=[1,8,8]",
)
# Name, overrides, steps of a turn: about 0.1 s of them on an H200.
NETS = {
    "MLP": (MLP, 400),
    "ConvNet 8x8": (("model=convnet", "dataset.shape=[1,8,8]"), 200),
    "ConvNet 32x32": (("model=convnet",), 200),
    "ResNet-18": (("model=resnet18",), 40),
    "AlexNet": (("model=alexnet",), 40),
    **{
        name: (("model=torchvision", f"model.net.name={name}"), 20)
        for name in ("convnext_large", "densenet201", "regnet_x_1_6gf", "resnet50")
    },
}


TINY = ("model=convnet", "model.net.width=8", "dataset.shape=[3,8,8]", "dataset.train_count=12")


def contestant(
    session: Session, label: str, net: str, *more: str, kind: str = "ours", batch: int = 64
) -> Contestant:
    """A contestant that trains `net` on random images, of which an epoch is a turn or more."""
    overrides, steps = NETS[net]
    sizes = (f"batch_size={batch}", f"dataset.train_count={max(steps, 50) * batch}")
    if session.dry:
        overrides, steps = (*TINY, "device=cpu", "threads=1"), 2
        sizes = ("batch_size=4",)
    common = ("dataset=synthetic", "dataset.test_count=64")
    return Contestant(label, kind, (*common, *overrides, *sizes, *more), steps)


def milliseconds(label: str) -> str:
    return f"{label}: a step"


def over(one: str, other: str) -> str:
    """The name of a ratio of two contestants' steps."""
    return f"{one} over {other}"


def figures(found: dict[str, list[float]], *pairs: tuple[str, str]) -> Figures:
    """Milliseconds of each contestant, and the ratios of the pairs, round by round."""
    values: Figures = {
        milliseconds(label): measured(1e3 * np.array(turns)) for label, turns in found.items()
    }
    for one, other in pairs:
        if one in found and other in found:
            values[over(one, other)] = measured(np.array(found[one]) / np.array(found[other]))
    return values


def measured(values: np.ndarray) -> dict[str, float]:
    """The median of turns and its 95 % interval."""
    middle = estimate(values)
    return {"median": middle.median, "low": middle.low, "high": middle.high}


def host(session: Session) -> Figures:
    found = session.call("host", calls=50)
    labels = {1: "each step", 50: "each 50 steps", 1000000: "none"}
    turns = race(
        session,
        [
            contestant(session, f"log points {label}", "ConvNet 8x8", f"log_every={number}")
            for number, label in labels.items()
        ],
        rounds=ROUNDS,
    )
    pairs = [(f"log points {labels[number]}", "log points none") for number in (1, 50)]
    return {**found, **figures(turns, *pairs)}


SMALL = ("MLP", "ConvNet 8x8", "ConvNet 32x32")


def small(session: Session) -> Figures:
    """Nets whose steps are mostly launches, against the raw loop in the same process."""
    groups = [
        [
            contestant(session, net, net),
            contestant(session, f"{net}, no log points", net, SILENT),
            contestant(session, f"{net}, raw", net, kind="raw"),
            contestant(session, f"{net}, raw, data on the GPU", net, kind="raw_resident"),
            contestant(session, f"{net}, again", net),
        ]
        for net in SMALL
    ]
    one_thread = contestant(session, "ConvNet 8x8, threads=1", "ConvNet 8x8", "threads=1")
    found = race(session, *groups, [one_thread], rounds=ROUNDS)
    pairs = [
        (net, f"{net}{other}")
        for net in SMALL
        for other in (", raw", ", raw, data on the GPU", ", again")
    ]
    values = figures(found, *pairs, ("ConvNet 8x8, threads=1", "ConvNet 8x8"))
    for net in SMALL:
        if net in found and f"{net}, raw" in found:
            more = np.array(found[net]) - np.array(found[f"{net}, raw"])
            values[f"{net}: more than the raw loop"] = measured(1e6 * more)
    return values


LARGE = ("ResNet-18", "AlexNet")


def nets(session: Session) -> Figures:
    """Nets that fill a GPU, in every precision, against the raw loop in the same precision."""
    amps = session.size(PRECISIONS, ("fp32", "bf16"))
    groups = [
        [
            contestant(session, f"{net} {amp}", net, f"amp={amp}"),
            contestant(session, f"{net} {amp}, raw", net, f"amp={amp}", kind="raw"),
        ]
        for net in LARGE
        for amp in amps
    ]
    pairs = [(f"{net} {amp}", f"{net} {amp}, raw") for net in LARGE for amp in PRECISIONS]
    pairs += [(f"{net} fp32", f"{net} {amp}") for net in LARGE for amp in PRECISIONS[1:]]
    pairs += [(f"{net} scaler", f"{net} autocast") for net in LARGE]
    return figures(race(session, *groups, rounds=ROUNDS), *pairs)


WRAPPED = ("ConvNet 8x8 fp32", "ConvNet 8x8 scaler", "ResNet-18 fp32")


def strategies(session: Session) -> Figures:
    """dp and ddp on one device, which spread nothing: what their wrappers cost."""
    groups, pairs = [], []
    for label in session.size(WRAPPED, WRAPPED[:1]):
        net, _, amp = label.rpartition(" ")
        one = () if session.dry else ("parallel.devices=[0]",)
        names = {name: f"{label}, {name}" for name in ("none", "dp", "ddp")}
        made = {
            name: contestant(
                session,
                names[name],
                net,
                f"amp={amp}",
                f"parallel={name}",
                *(() if name == "none" else one),
            )
            for name in names
        }
        groups += [[made["none"], made["dp"]], [made["ddp"]]]
        pairs += [(names[name], names["none"]) for name in ("dp", "ddp")]
    return figures(race(session, *groups, rounds=ROUNDS), *pairs)


# Name: net, overrides, batch.
RESIDENT = {
    "ConvNet 8x8": ("ConvNet 8x8", (), 64),
    "ConvNet 32x32, augmented": ("ConvNet 32x32", ("dataset.flip=true", "dataset.crop=4"), 64),
    "ConvNet 32x32, batch 1024": ("ConvNet 32x32", (), 1024),
    "ResNet-18 bf16": ("ResNet-18", ("amp=bf16",), 64),
}


def resident(session: Session) -> Figures:
    """Examples that stay on the GPU, against those that are copied there batch by batch."""
    groups, pairs = [], []
    for label, (net, more, batch) in RESIDENT.items():
        there, copied = f"{label}, on the GPU", f"{label}, copied"
        on = () if session.dry else ("dataset.resident=true",)
        groups.append(
            [
                contestant(session, there, net, *more, *on, batch=batch),
                contestant(session, copied, net, *more, "dataset.resident=false", batch=batch),
            ]
        )
        pairs.append((there, copied))
    return figures(race(session, *groups, rounds=ROUNDS), *pairs)


def inputs(session: Session) -> Figures:
    """The input path alone, and whether a GPU makes the CPU's pixels."""
    found = session.call("pixels", images=session.size(64, 8), size=session.size(227, 40))
    for label, net, batch in (
        ("ConvNet 32x32, batch 64", "ConvNet 32x32", 64),
        ("ConvNet 32x32, batch 1024", "ConvNet 32x32", 1024),
        ("AlexNet at 227, batch 64", "AlexNet", 64),
    ):
        overrides = contestant(session, label, net, batch=batch).overrides
        answer = session.call("inputs", overrides=overrides, turns=session.size(5, 1))
        found[f"{label}: a batch"] = answer["ms"]
    return found


LAYOUTS = ("ResNet-18", "AlexNet", "ConvNet 32x32")


def layouts(session: Session) -> Figures:
    """Both memory layouts in each precision, and cuDNN's own choice of algorithms."""
    groups, pairs = [], []
    for net in session.size(LAYOUTS, LAYOUTS[:1]):
        for amp in session.size(("fp32", "tf32", "bf16"), ("fp32",)):
            names = {layout: f"{net} {amp}, {layout}" for layout in ("channels_last", "contiguous")}
            groups.append(
                [
                    contestant(session, name, net, f"amp={amp}", layout, batch=256)
                    for name, layout in zip(names.values(), (LAST, FIRST), strict=True)
                ]
            )
            pairs.append((names["channels_last"], names["contiguous"]))
    return figures(race(session, *groups, rounds=session.size(5, 1)), *pairs)


def kernels(session: Session) -> Figures:
    """cuDNN's search for the fastest algorithms, which is a process's, and the layout `auto`."""
    groups, pairs = [], []
    for amp in session.size(("fp32", "bf16"), ("fp32",)):
        names = {on: f"ResNet-18 {amp}, cudnn_benchmark={on}" for on in ("true", "false")}
        groups += [
            [contestant(session, name, "ResNet-18", f"amp={amp}", f"cudnn_benchmark={on}")]
            for on, name in names.items()
        ]
        pairs.append((names["true"], names["false"]))
    return figures(race(session, *groups, rounds=ROUNDS), *pairs)


def compiled(session: Session) -> Figures:
    groups, pairs = [], []
    for net, amp in (("ConvNet 32x32", "fp32"), ("ResNet-18", "bf16")):
        options = ("", "default", "reduce-overhead")
        made = [
            contestant(
                session,
                f"{net} {amp}{f', {mode}' if mode else ''}",
                net,
                f"amp={amp}",
                *([f"compile.mode={mode}"] if mode else []),
            )
            for mode in options
        ]
        groups.append(made)
        pairs += [(each.name, made[0].name) for each in made[1:]]
    return figures(race(session, *groups, rounds=ROUNDS), *pairs)


def scaling(session: Session) -> Figures:
    """Images per second of dp and ddp over all GPUs, as a share of as many times none's."""
    found: Figures = {}
    for net, batch in (("resnet18", 256), ("alexnet", 128)):
        speeds, codes = {}, []
        for name in ("none", "dp", "ddp"):
            count = 1 if name == "none" else session.gpus
            options = (f"parallel={name}", f"model={net}", f"batch_size={batch * count}")
            sizes = (f"dataset.train_count={100 * batch * count}", "dataset.test_count=512")
            common = ("dataset=synthetic", "amp=bf16", "epochs=1", "logger=quiet")
            done = session.train(*common, *options, *sizes, "checkpoint.every=null")
            codes.append(done.code)
            speeds[name] = done.result.get("images_per_second")
        found["exit code"] = first_bad(found.get("exit code", 0), *codes)
        for name in ("dp", "ddp"):
            if speeds["none"] and speeds[name]:
                found[f"{net}: {name}"] = speeds[name] / speeds["none"] / session.gpus
    return found
