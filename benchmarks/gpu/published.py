"""The part `published`: figures of others, which ours should be, or be explained."""

from __future__ import annotations

from benchmarks.gpu.check import Check, Expectation, Figures
from benchmarks.gpu.race import race
from benchmarks.gpu.session import Session
from benchmarks.gpu.timings import FIRST, LAST, contestant, figures, over

# milabench: images per second of convnext_large, by GPU, with the batch size.
SPEEDS = {
    "H100": (64, {"fp32": 113, "tf32": 201, "autocast": 657}),
    "H200": (128, {"fp32": 111, "tf32": 297, "autocast": 738}),
}
MEMORY = {"fp32": 24989, "tf32": 24995, "autocast": 15089}  # MiB at batch 64
LAYOUTS = {"resnet50": 1.47, "regnet_x_1_6gf": 0.60}  # timm on an RTX 3090: by channels_last


def convnext(session: Session) -> Figures:
    name = "H200" if "H200" in str(session.call("machine")["gpu_names"]) else "H100"
    batch, speeds = SPEEDS[name]
    found: Figures = {"the published are of an": name}
    sizes = dict.fromkeys((amp, size) for size in (64, batch) for amp in speeds)
    for amp, size in [*sizes, ("fp32", 1), ("autocast", 1)]:
        job = contestant(session, amp, "convnext_large", f"amp={amp}", batch=size).overrides
        said = session.call("long", overrides=job, lasts=session.size(6, 0.1))
        found[f"{amp}, batch {size}"] = 1e3 * size / said["ms"]
        if size == batch:
            found[f"{amp}: speed"] = found[f"{amp}, batch {size}"] / speeds[amp]
        if size == 64:
            found[f"{amp}: memory"] = said.get("MiB", 0) / MEMORY[amp]
    found["batch 1: fp32 over float16"] = found["fp32, batch 1"] / found["autocast, batch 1"]
    return found


def layouts(session: Session) -> Figures:
    """The step of contiguous memory over that of channels_last, under float16."""
    pairs, groups = [], []
    for net in LAYOUTS:
        names = [f"{net}, contiguous", f"{net}, channels_last"]
        groups.append(
            [
                contestant(session, name, net, "amp=autocast", layout)
                for name, layout in zip(names, (FIRST, LAST), strict=True)
            ]
        )
        pairs.append((names[0], names[1]))
    return figures(race(session, *groups, rounds=session.size(7, 1)), *pairs)


def wrappers(session: Session) -> Figures:
    """dp against ddp on one GPU."""
    dp, ddp = (
        contestant(
            session, name, "resnet50", "amp=autocast", f"parallel={name}",
            *session.size(("parallel.devices=[0]",), ()),
        )
        for name in ("dp", "ddp")
    )  # fmt: skip
    return figures(race(session, [dp], [ddp], rounds=session.size(7, 1)), ("dp", "ddp"))


CHECKS = [
    Check(
        "convnext",
        "Are the speed and memory of convnext_large those of milabench?",
        convnext,
        [
            *(
                Expectation(
                    f"{amp}: {what}", 0.85, 1.15, unit="× the published",
                    means="not what milabench has: explain or mend it",
                )
                for amp in MEMORY
                for what in ("speed", "memory")
            ),
            Expectation(
                "batch 1: fp32 over float16", 1.05, 1.35, unit="×",
                means="published: 24.9 to 20.6 images a second; explain it",
            ),
        ],
        seconds=150,
    ),
    Check(
        "layouts",
        "What does channels_last give under float16?",
        layouts,
        [
            Expectation(
                over(f"{net}, contiguous", f"{net}, channels_last"), 0.8 * gain,
                1.2 * gain,
                unit="×",
                means=f"published: {gain} (timm, RTX 3090); explain it",
            )
            for net, gain in LAYOUTS.items()
        ],
        seconds=45,
    ),
    Check(
        "wrappers",
        "Do dp and ddp differ on one GPU?",
        wrappers,
        [
            Expectation(
                over("dp", "ddp"), 0.94, 1.03, unit="×", means="published: nothing; explain it"
            )
        ],
        seconds=45,
    ),
]  # fmt: skip
