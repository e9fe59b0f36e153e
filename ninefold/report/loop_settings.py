"""The answer in a PyTorch loop of one's own: lines to paste, and what is not the same there."""

from __future__ import annotations

from collections.abc import Sequence
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
    *("parallel.find_unused_parameters", "parallel.loss_in_forward"),
)
TF32 = 'torch.set_float32_matmul_precision("high")'
IN_THREADS = (  # of dp, which take no dtype of autocast from the loop
    "class Autocast(torch.nn.Module):",
    "    def __init__(self, module):",
    "        super().__init__()",
    "        self.module = module",
    "    def forward(self, *inputs):",
    "        with {}:",
    "            return self.module(*inputs)",
    "model = Autocast(model)",
)
CAST = (  # the weights, but those of batch normalization
    "for module in model.modules():",
    "    if not isinstance(module, torch.nn.modules.batchnorm._BatchNorm):",
    "        for value in (*module.parameters(False), *module.buffers(False)):",
    "            if value.is_floating_point():",
    "                value.data = value.data.bfloat16()",
)


def settings(facts: StudyFacts, cell: Cell) -> LoopSettings | None:
    """Return the settings of a configuration.

    None of a strategy that a loop has no words for, and of runs on several hosts.
    """
    runs = facts.group.completed(cell)
    if cell.parallel not in STRATEGIES or not runs or (runs[0].hosts or 1) > 1:
        return None
    return loop_of(runs[0], [each.memory_format for each in facts.group.completed(PLAIN)])


def loop_of(run: Run, plain: Sequence[str | None] = ()) -> LoopSettings:
    """Return what to write in a loop that was in fp32 before, so that it trains as a run did.

    plain: memory formats of runs of the baseline. Anybody may have written the run: only values of
    the types of their keys enter the lines.
    """
    said, differs = _said(run)
    ddp, on_gpu = run.parallel == "ddp", not {*run.devices} <= {"cpu"}
    device, cast = "cuda" if on_gpu else "cpu", run.weights == "bfloat16"
    short = run.dtype if run.dtype in ("float16", "bfloat16") and not cast else None
    lines = _of_processes(run, said, on_gpu) if ddp else list[str]()
    if on_gpu and not (cast or short) and (run.tf32 or not run.tf32_convolutions):
        lines += (TF32,) if run.tf32 else FULL  # else it is PyTorch's own default
    lines += CAST if cast else ()
    if (layout := said.get(LAYOUT)) not in (None, "contiguous_format", *plain):
        lines.append(f"model.to(memory_format=torch.{layout})  # and the inputs")
    if run.compile_seconds is not None:
        mode = said.get("compile.mode", "default")
        lines.append("model.compile()" if mode == "default" else f'model.compile(mode="{mode}")')
    if run.parallel == "dp":
        if short:
            lines += [line.format(_autocast(device, short)) for line in IN_THREADS]
        lines.append("model = torch.nn.DataParallel(model)")
        if on_gpu and said.get("parallel.loss_in_forward", True):
            differs.append("Each GPU computed the loss of its part: this loop gathers the outputs.")
    if ddp:
        unused = said.get("parallel.find_unused_parameters", False)
        given = f"model, gradient_as_bucket_view=True{', find_unused_parameters=True' * unused}"
        lines.append(f"model = torch.nn.parallel.DistributedDataParallel({given})")
    lines += _of_step(device, short, cast, run, said.get("clip_grad_norm"))
    if (accumulate := said.get("accumulate", 1)) > 1:
        yours = f"Accumulation over {accumulate} batches is yours: loss / {accumulate}"
        differs.append(f"{yours}{', no_sync under DDP' * ddp}.")
    threads = "" if on_gpu else f"OMP_NUM_THREADS={_of_each(run.threads, run)} "
    start = f"torchrun {TORCHRUN} {run.processes or 1}" if ddp else "python"
    return LoopSettings(f"{threads}{start} train.py", lines, differs)


def _said(run: Run) -> tuple[dict[str, Any], list[str]]:
    """What was set of a run, and how it differs from a loop that does what is printed."""
    written = {**dict(map(key_and_value, run.settings)), LAYOUT: run.memory_format}
    said, unread = dict[str, Any](), list[str]()
    for key in (*SAID, *OTHER_KEYS):
        try:
            if text := written.get(key):
                said[key] = typed(key, text)
        except ValueError:
            unread.append(key)
    others = {key: said[key] for key in OTHER_KEYS if key in said}
    names = [key if isinstance(v, list) else f"{key}={spelled(v)}" for key, v in others.items()]
    differs = [f"It was measured with {', '.join(names)}."] if names else []
    differs += [f"Its {' and '.join(unread)} cannot be read."] if unread else []
    if run.resident_bytes:
        differs.append("Its examples were on the GPU: a DataLoader adds the copy of each batch.")
    return {key: value for key, value in said.items() if value is not None}, differs


def _of_each(count: int | None, run: Run) -> int:
    """The share that each process has of something."""
    return max(1, (count or 1) // (run.processes or 1))


def _of_processes(run: Run, said: dict[str, Any], on_gpu: bool) -> list[str]:
    """What each process of a loop of one's own does before it makes its network and its loader."""
    device = 'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))'
    batch = max(1, _of_each(run.batch_size, run) // said.get("accumulate", 1))
    loader = [f"batch_size={batch}"]
    loader += loader_arguments(run.loader_workers) if run.loader_workers else []
    loader += ["pin_memory=True"] * (on_gpu and said.get("loader.pinned", True) is not False)
    return [
        *[f"{device}  # and the model there: .cuda()"] * on_gpu,
        "torch.distributed.init_process_group()",
        "# of DataLoader, in each process:",
        f"loader = dict({', '.join(loader)})",
        "sampler = torch.utils.data.DistributedSampler(dataset)  # and no shuffle=True",
    ]


def _autocast(device: str, short: str) -> str:
    return f'torch.autocast("{device}", dtype=torch.{short})'


def _of_step(device: str, short: str | None, cast: bool, run: Run, clip: float | None) -> list[str]:
    """What differs in a step. short: the dtype of autocast; None without it."""
    lines, scales = list[str](), short == "float16" and bool(run.grad_scaler)
    if cast:
        lines += ["if inputs.is_floating_point():", "    inputs = inputs.to(torch.bfloat16)"]
    if scales:
        lines.append(f'scaler = torch.amp.GradScaler("{device}")  # before the loop')
    if cast or (short and run.parallel == "dp"):
        lines.append("loss = loss_function(model(inputs).float(), targets)")
    elif short:
        lines.append(f"with {_autocast(device, short)}:")
        lines.append("    outputs = model(inputs)  # and the loss, where the model returns it")
        lines.append("loss = loss_function(outputs.float(), targets)")
    if scales:
        lines.append("scaler.scale(loss).backward()")
    if clip is not None:
        lines += ["scaler.unscale_(optimizer)"] * scales
        call = f"torch.nn.utils.clip_grad_norm_(model.parameters(), {clip:g})"
        lines.append(call if scales else f"{call}  # between backward and step")
    if scales:
        lines += ["scaler.step(optimizer)", "scaler.update()"]
    return lines
