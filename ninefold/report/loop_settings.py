"""The answer in the words of other training loops: text to paste, and what is not the same there.

tests/frameworks/test_settings.py holds each line against the framework itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from ninefold.answer.answer import LoopSettings
from ninefold.answer.cell import BASELINE, PLAIN, Cell
from ninefold.answer.runs import Run
from ninefold.answer.study_facts import StudyFacts
from ninefold.config.rules import typed
from ninefold.frameworks import ACCELERATE, LIGHTNING, TORCHRUN, loader_arguments
from ninefold.numbers import number
from ninefold.types import spelled
from ninefold.words import key_and_value

STRATEGIES = (PLAIN.parallel, "dp", "ddp")
FULL = (
    'torch.backends.cuda.matmul.fp32_precision = "ieee"',
    'torch.backends.cudnn.conv.fp32_precision = "ieee"  # PyTorch\'s default is TF32',
    'torch.backends.cudnn.rnn.fp32_precision = "ieee"  # and of this',
)
# Keys of training that are no part of what is printed: with one of them it trains otherwise.
OTHER_KEYS = ("clip_grad_value", "ema", "ema_warmup", "freeze", "parallel.sync_batchnorm")
LAYOUT = "model.memory_format"
SAID = (  # those that are
    *("accumulate", "clip_grad_norm", "compile.mode", "loader.pinned", LAYOUT),
    "parallel.find_unused_parameters",
)
WIDTH = 76  # characters of a line
CLIPS = "  # between backward and step"
CASTS_ALL = "Batch normalization is cast to bfloat16, too."
TF32 = 'torch.set_float32_matmul_precision("high")'
CAST = (  # the weights, but those of batch normalization
    "for module in model.modules():",
    "    if not isinstance(module, torch.nn.modules.batchnorm._BatchNorm):",
    "        for value in (*module.parameters(False), *module.buffers(False)):",
    "            if value.is_floating_point():",
    "                value.data = value.data.bfloat16()",
)


@dataclass(frozen=True)
class LoopSetup:
    """A configuration, in terms that fit any framework.

    device: cpu or cuda. precision: fp32, tf32, default (PyTorch's), bf16, fp16 (with a GradScaler),
    fp16-unscaled or bf16-weights. strategy: one of STRATEGIES. batch: examples per process and
    forward pass. accumulate: forward passes per step. clip: largest norm of the gradient; None: it
    is not clipped. workers: processes that read for each that trains. layout: memory format of
    weights and inputs, if it differs from the baseline's. compile: the mode of torch.compile; None:
    not compiled. unused: whether DDP looks for parameters without gradients. pinned: whether
    batches are in pinned memory. differs: how the measured run differs from any of these loops.
    """

    device: str = "cpu"
    precision: str = "fp32"
    strategy: str = "none"
    processes: int = 1
    threads: int = 1
    batch: int = 1
    accumulate: int = 1
    clip: float | None = None
    workers: int = 0
    layout: str | None = None
    compile: str | None = None
    unused: bool = False
    pinned: bool = True
    differs: tuple[str, ...] = ()

    @property
    def several(self) -> bool:
        return self.strategy == "ddp"

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda"

    @property
    def of_ddp(self) -> list[str]:
        """Arguments of DistributedDataParallel."""
        return ["gradient_as_bucket_view=True", *["find_unused_parameters=True"] * self.unused]

    @property
    def variables(self) -> str:
        """Variables of the environment for a command, where it needs some."""
        return "" if self.on_gpu else f"OMP_NUM_THREADS={self.threads} "

    @property
    def short(self) -> str | None:
        """The dtype of autocast; None without it."""
        return {"bf16": "bfloat16", "fp16": "float16", "fp16-unscaled": "float16"}.get(
            self.precision
        )


class Unnamed(Exception):
    """A framework has no word for a configuration, or none that was held against it."""


def pytorch(setup: LoopSetup) -> LoopSettings:
    """A loop of one's own, in fp32 before."""
    cast, scales = setup.precision == "bf16-weights", setup.precision == "fp16"
    lines = [*_of_float32(setup), *(CAST if cast else ()), *_of_network(setup)]
    if setup.several:
        lines = [*_of_processes(setup), *lines]
    if setup.strategy == "dp":
        lines.append("model = torch.nn.DataParallel(model)")
    if setup.several:
        given = ", ".join(["model", *setup.of_ddp])
        lines.append(f"model = torch.nn.parallel.DistributedDataParallel({given})")
    if cast:
        lines += ["if inputs.is_floating_point():", "    inputs = inputs.to(torch.bfloat16)"]
        lines.append("loss = loss_function(model(inputs).float(), targets)")
    if scales:
        lines.append(f'scaler = torch.amp.GradScaler("{setup.device}")  # before the loop')
    if setup.short:
        lines.append(f'with torch.autocast("{setup.device}", dtype=torch.{setup.short}):')
        lines.append("    outputs = model(inputs)  # and the loss, where the model returns it")
        lines.append("loss = loss_function(outputs.float(), targets)")
    if scales:
        lines.append("scaler.scale(loss).backward()")
    if setup.clip is not None:
        lines += ["scaler.unscale_(optimizer)"] * scales
        clip = f"torch.nn.utils.clip_grad_norm_(model.parameters(), {setup.clip:g})"
        lines.append(clip if scales else f"{clip}{CLIPS}")
    if scales:
        lines += ["scaler.step(optimizer)", "scaler.update()"]
    differs = _accumulation(setup, "no_sync")
    return LoopSettings("torch", "PyTorch", _command(setup), lines, differs)


def lightning(setup: LoopSetup) -> LoopSettings:
    options = _of_trainer(setup)
    if setup.accumulate > 1:
        options.append(f"accumulate_grad_batches={setup.accumulate}")
    if setup.clip is not None:
        options.append(f"gradient_clip_val={setup.clip:g}")
    lines = ["import lightning", *_bucket_views(setup, "lightning.pytorch")]
    lines.append(_call("trainer = lightning.Trainer", options))
    lines += [*_loader(setup), *_of_network(setup, "trainer.fit, of the network in your module")]
    differs = ["The loss is computed inside autocast, too."] if setup.short else []
    if setup.precision == "bf16-weights":
        differs = [CASTS_ALL, "The loss is computed in bfloat16."]
    return LoopSettings("lightning", "Lightning", _alone(setup), lines, differs)


def fabric(setup: LoopSetup) -> LoopSettings:
    options = _of_trainer(setup)
    lines = ["import lightning", *_bucket_views(setup, "lightning.fabric")]
    lines.append(_call("fabric = lightning.Fabric", options))
    differs = [f"Inputs are cast to {setup.short} before the network."] if setup.short else []
    differs += [CASTS_ALL] * (setup.precision == "bf16-weights")
    differs += _accumulation(setup, "no_backward_sync")
    loop = _of_network(setup, "fabric.setup")
    if setup.clip is not None:
        loop.append(f"fabric.clip_gradients(model, optimizer, max_norm={setup.clip:g}){CLIPS}")
    lines = [*lines, *_loader(setup), *loop]
    return LoopSettings("fabric", "Fabric", _alone(setup), lines, differs)


def accelerate(setup: LoopSetup) -> LoopSettings:
    _require(setup, "bf16", "fp16")
    word = ACCELERATE.get(setup.precision, ACCELERATE["fp32"])
    options = [f'mixed_precision="{word}"', *["cpu=True"] * (not setup.on_gpu)]
    if setup.accumulate > 1:
        options.append(f"gradient_accumulation_steps={setup.accumulate}")
    lines = ["import accelerate"]
    if setup.several:
        lines.append(_call("views = accelerate.DistributedDataParallelKwargs", setup.of_ddp))
        options.append("kwargs_handlers=[views]")
    lines.append(_call("accelerator = accelerate.Accelerator", options))
    loop = _of_network(setup, "accelerator.prepare")
    if setup.accumulate > 1:
        loop.append("with accelerator.accumulate(model):  # around the work on each batch")
    if setup.clip is not None:
        clip = f"accelerator.clip_grad_norm_(model.parameters(), {setup.clip:g}){CLIPS}"
        loop.append(f"if accelerator.sync_gradients: {clip}" if setup.accumulate > 1 else clip)
    lines = [*_of_float32(setup), *lines, *_loader(setup), *loop]
    return LoopSettings("accelerate", "accelerate", _command(setup), lines)


def hf(setup: LoopSetup) -> LoopSettings:
    _require(setup, "bf16", "fp16")
    word = {"bf16": "bf16=True", "fp16": "fp16=True"}.get(setup.precision)
    options = [f"per_device_train_batch_size={setup.batch}", *filter(None, [word])]
    if setup.precision in ("fp32", "tf32") and setup.on_gpu:
        options.append(f"tf32={setup.precision == 'tf32'}")
    options += ["use_cpu=True"] * (not setup.on_gpu)
    options.append(f"gradient_accumulation_steps={setup.accumulate}")
    options.append(f"max_grad_norm={setup.clip or 0:g}")  # 1 if nothing is said
    options += [f"ddp_find_unused_parameters={setup.unused}"] * setup.several
    if setup.workers:
        options += [f"dataloader_{each}" for each in loader_arguments(setup.workers)]
    differs = []
    if setup.several:
        differs.append("DDP copies gradients out of its buckets, which takes memory.")
    if setup.precision == "tf32":
        differs.append("Convolutions use TF32 by PyTorch's default alone.")
    run = _command(setup)
    if setup.on_gpu and setup.strategy == "none":
        run = f"CUDA_VISIBLE_DEVICES=0 {run}"  # it would take all, by DataParallel
    made = _call("arguments = transformers.TrainingArguments", options)
    lines = [*_of_float32(setup), "import transformers", made]
    lines += _of_network(setup, "transformers.Trainer")
    return LoopSettings("hf", "Hugging Face Trainer", run, lines, differs)


OTHERS: tuple[Callable[[LoopSetup], LoopSettings], ...] = (lightning, fabric, accelerate, hf)


def settings(facts: StudyFacts, cell: Cell) -> list[LoopSettings]:
    """Return the settings of a configuration in each framework that has words for it."""
    runs = facts.group.completed(cell)
    if cell.parallel not in STRATEGIES or not runs:
        return []
    plain = [each.memory_format for each in facts.group.completed(PLAIN)]
    setup = setup_of(runs[0], plain)
    found = [_and(pytorch(setup), setup.differs)]
    unscaled = [_with_scaler(facts, cell)] * (setup.precision == "fp16-unscaled")
    if unscaled:
        setup = replace(setup, precision="fp16")
    for make in OTHERS:
        with suppress(Unnamed):
            there = make(setup)
            found.append(_and(there, (*unscaled, *setup.differs)))
    return found


def _and(settings: LoopSettings, differs: Sequence[str]) -> LoopSettings:
    """Settings with more of what is not the same, said first."""
    return replace(settings, differs=[*differs, *settings.differs])


def setup_of(run: Run, plain: Sequence[str | None]) -> LoopSetup:
    """The setup of a run. plain: memory formats of runs of the baseline.

    Anybody may have written the run: only values of the types of their keys enter the setup.
    """
    written = {**dict(map(key_and_value, run.settings)), LAYOUT: run.memory_format}
    said, unread = dict[str, Any](), list[str]()
    for key in (*SAID, *OTHER_KEYS):
        try:
            if text := written.get(key):
                said[key] = typed(key, text)
        except ValueError:
            unread.append(key)
    processes, batch = run.processes or 1, run.batch_size or 1
    accumulate = said.get("accumulate", 1)
    layout, compiled = said.get(LAYOUT), run.compile_seconds is not None
    others = {key: said[key] for key in OTHER_KEYS if key in said}
    names = [key if isinstance(v, list) else f"{key}={spelled(v)}" for key, v in others.items()]
    differs = [f"It was measured with {', '.join(names)}."] if names else []
    differs += [f"Its {' and '.join(unread)} cannot be read."] if unread else []
    if run.resident_bytes:
        differs.append("Its examples were on the GPU: a DataLoader adds the copy of each batch.")
    return LoopSetup(
        device="cpu" if {*run.devices} <= {"cpu"} else "cuda",
        precision=_precision(run),
        strategy=run.parallel or PLAIN.parallel,
        processes=processes,
        threads=max(1, (run.threads or 1) // processes),
        batch=max(1, batch // processes // accumulate),
        accumulate=accumulate,
        clip=said.get("clip_grad_norm"),
        workers=run.loader_workers or 0,
        layout=None if layout in (None, "contiguous_format", *plain) else layout,
        compile=said.get("compile.mode") or "default" if compiled else None,
        unused=said.get("parallel.find_unused_parameters", False),
        pinned=said.get("loader.pinned", True) is not False,
        differs=tuple(differs),
    )


def _precision(run: Run) -> str:
    if run.weights == "bfloat16":
        return "bf16-weights"
    if run.dtype == "float16":
        return "fp16" if run.grad_scaler else "fp16-unscaled"
    if run.dtype == "bfloat16":
        return "bf16"
    return "tf32" if run.tf32 else "default" if run.tf32_convolutions else "fp32"


def _with_scaler(facts: StudyFacts, cell: Cell) -> str:
    """What is said where a framework cannot leave the GradScaler out."""
    said = "float16 has a GradScaler there; without one it was measured"
    if (speed := facts.speedup(cell._replace(amp="scaler"))) is None:
        return f"{said}."
    return f"{said}, and with one it is {number(speed.value, 2)} times as fast as {BASELINE}."


def _require(setup: LoopSetup, *short: str) -> None:
    """Raise Unnamed for DataParallel, and for a precision other than float32 and these."""
    if setup.strategy == "dp" or setup.precision not in ("fp32", "tf32", "default", *short):
        raise Unnamed


def _call(function: str, options: Sequence[str]) -> str:
    """A call; of a long one each argument has a line."""
    line = f"{function}({', '.join(options)})"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{function}(", *(f"    {option}," for option in options), ")"])


def _command(setup: LoopSetup) -> str:
    """The command that starts as many processes as are needed."""
    several = f"torchrun {TORCHRUN} {setup.processes} train.py"
    return setup.variables + (several if setup.several else "python train.py")


def _alone(setup: LoopSetup) -> str:
    """The command of a framework that starts its processes by itself."""
    return f"{setup.variables}python train.py"


def _of_float32(setup: LoopSetup) -> Sequence[str]:
    """What a GPU computes float32 in."""
    if not setup.on_gpu:
        return ()
    return {"fp32": FULL, "tf32": (TF32,)}.get(setup.precision, ())


def _of_network(setup: LoopSetup, before: str = "") -> list[str]:
    """What is done to the network before it is wrapped. before: the call that wraps it."""
    lines = list[str]()
    if setup.layout is not None:
        lines.append(f"model.to(memory_format=torch.{setup.layout})  # and the inputs")
    if setup.compile is not None:
        mode = "" if setup.compile == "default" else f'mode="{setup.compile}"'
        lines.append(f"model.compile({mode})")
    return [f"# before {before}:", *lines] if lines and before else lines


def _of_processes(setup: LoopSetup) -> list[str]:
    """What each process of a loop of one's own does before it makes its network and its loader."""
    device = 'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))'
    return [
        *[f"{device}  # and the model there: .cuda()"] * setup.on_gpu,
        "torch.distributed.init_process_group()",
        *_loader(setup),
        "sampler = torch.utils.data.DistributedSampler(dataset)  # and no shuffle=True",
    ]


def _accumulation(setup: LoopSetup, no_sync: str) -> list[str]:
    """What is said where a loop accumulates by itself."""
    if setup.accumulate == 1:
        return []
    under = f", {no_sync} under DDP" * setup.several
    return [
        f"Accumulation over {setup.accumulate} batches is yours: loss / {setup.accumulate}{under}."
    ]


def _of_trainer(setup: LoopSetup) -> list[str]:
    """What Lightning's Trainer and Fabric have in common."""
    _require(setup, *LIGHTNING)
    found = [f'accelerator="{"gpu" if setup.on_gpu else "cpu"}"', f"devices={setup.processes}"]
    found += ["strategy=views"] * setup.several
    return [*found, f'precision="{LIGHTNING.get(setup.precision, LIGHTNING["fp32"])}"']


def _bucket_views(setup: LoopSetup, package: str) -> list[str]:
    lines = [*_of_float32(setup)]
    if setup.several:
        lines.append(f"from {package}.strategies import DDPStrategy")
        lines.append(_call("views = DDPStrategy", setup.of_ddp))
    return lines


def _loader(setup: LoopSetup) -> list[str]:
    """What a DataLoader of the user's own is to be given."""
    said = [f"batch_size={setup.batch}"]
    if setup.workers:
        said += loader_arguments(setup.workers)
    said += ["pin_memory=True"] * (setup.on_gpu and setup.pinned)
    return ["# of DataLoader, in each process:", _call("loader = dict", said)]
