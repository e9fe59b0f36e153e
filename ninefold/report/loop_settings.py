"""The answer in a PyTorch loop of one's own: lines to paste, and what is not the same there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ninefold.answer.answer import LoopSettings
from ninefold.answer.cell import PLAIN, Cell
from ninefold.answer.runs import Run
from ninefold.answer.study_facts import StudyFacts
from ninefold.config.rules import typed
from ninefold.frameworks import TORCHRUN, loader_arguments
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
    """A configuration, in the terms of a training loop.

    device: cpu or cuda. precision: fp32, tf32, default (PyTorch's), bf16, fp16 (with a GradScaler),
    fp16-unscaled or bf16-weights. strategy: one of STRATEGIES. batch: examples per process and
    forward pass. accumulate: forward passes per step. clip: largest norm of the gradient; None: it
    is not clipped. workers: processes that read for each that trains. layout: memory format of
    weights and inputs, if it differs from the baseline's. compile: the mode of torch.compile; None:
    not compiled. unused: whether DDP looks for parameters without gradients. pinned: whether
    batches are in pinned memory. differs: how the measured run differs from such a loop.
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
    def command(self) -> str:
        """The command that starts as many processes as are needed."""
        threads = "" if self.on_gpu else f"OMP_NUM_THREADS={self.threads} "
        several = f"torchrun {TORCHRUN} {self.processes}"
        return f"{threads}{several if self.several else 'python'} train.py"

    @property
    def short(self) -> str | None:
        """The dtype of autocast; None without it."""
        return {"bf16": "bfloat16", "fp16": "float16", "fp16-unscaled": "float16"}.get(
            self.precision
        )


def pytorch(setup: LoopSetup) -> LoopSettings:
    """Return what to write in a loop that was in fp32 before."""
    cast, scales = setup.precision == "bf16-weights", setup.precision == "fp16"
    lines = [*_of_float32(setup), *(CAST if cast else ()), *_of_network(setup)]
    if setup.several:
        lines = [*_of_processes(setup), *lines]
    if setup.strategy == "dp":
        lines.append("model = torch.nn.DataParallel(model)")
    if setup.several:
        unused = ", find_unused_parameters=True" if setup.unused else ""
        given = f"model, gradient_as_bucket_view=True{unused}"
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
        lines.append(clip if scales else f"{clip}  # between backward and step")
    if scales:
        lines += ["scaler.step(optimizer)", "scaler.update()"]
    differs = [*setup.differs]
    if setup.accumulate > 1:
        yours = f"Accumulation over {setup.accumulate} batches is yours: loss / {setup.accumulate}"
        differs.append(f"{yours}{', no_sync under DDP' * setup.several}.")
    return LoopSettings(setup.command, lines, differs)


def settings(facts: StudyFacts, cell: Cell) -> LoopSettings | None:
    """Return the settings of a configuration; None of a strategy that a loop has no words for."""
    runs = facts.group.completed(cell)
    if cell.parallel not in STRATEGIES or not runs:
        return None
    plain = [each.memory_format for each in facts.group.completed(PLAIN)]
    return pytorch(setup_of(runs[0], plain))


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


def _of_float32(setup: LoopSetup) -> Sequence[str]:
    """What a GPU computes float32 in."""
    if not setup.on_gpu:
        return ()
    return {"fp32": FULL, "tf32": (TF32,)}.get(setup.precision, ())


def _of_network(setup: LoopSetup) -> list[str]:
    """What is done to the network before it is wrapped."""
    lines = list[str]()
    if setup.layout is not None:
        lines.append(f"model.to(memory_format=torch.{setup.layout})  # and the inputs")
    if setup.compile is not None:
        mode = "" if setup.compile == "default" else f'mode="{setup.compile}"'
        lines.append(f"model.compile({mode})")
    return lines


def _of_processes(setup: LoopSetup) -> list[str]:
    """What each process of a loop of one's own does before it makes its network and its loader."""
    device = 'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))'
    loader = [f"batch_size={setup.batch}"]
    loader += loader_arguments(setup.workers) if setup.workers else []
    loader += ["pin_memory=True"] * (setup.on_gpu and setup.pinned)
    return [
        *[f"{device}  # and the model there: .cuda()"] * setup.on_gpu,
        "torch.distributed.init_process_group()",
        "# of DataLoader, in each process:",
        f"loader = dict({', '.join(loader)})",
        "sampler = torch.utils.data.DistributedSampler(dataset)  # and no shuffle=True",
    ]
