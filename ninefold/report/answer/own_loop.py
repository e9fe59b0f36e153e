"""The recommended configuration as lines of plain PyTorch, for people who keep their own loop."""

from __future__ import annotations

from ninefold.report.answer.evidence import Evidence
from ninefold.report.data.cell import PLAIN, Cell

WRAPS = {
    "dp": "model = torch.nn.DataParallel(model)",
    "ddp": "model = torch.nn.parallel.DistributedDataParallel(model)  # started by torchrun",
}


def own_loop(evidence: Evidence, cell: Cell) -> list[str]:
    """Return the lines that make a training loop in fp32 do what a configuration does.

    Empty where nothing is to be changed, or where a few lines are not enough.
    """
    runs = [run for run in evidence.runs(cell) if run.ok]
    if cell.parallel not in (PLAIN.parallel, *WRAPS) or not runs:
        return []
    run = runs[0]
    device = "cpu" if set(run.devices) <= {"cpu"} else "cuda"
    lines = [WRAPS[cell.parallel]] if cell.parallel in WRAPS else []
    if run.tf32:
        lines.append('torch.set_float32_matmul_precision("high")  # and torch.backends.cudnn: TF32')
    if run.dtype in ("bfloat16", "float16"):
        lines.append(f'with torch.autocast("{device}", dtype=torch.{run.dtype}):')
        lines.append("    loss = loss_function(model(inputs), targets)")
    if run.grad_scaler:
        lines.append(f'scaler = torch.amp.GradScaler("{device}")  # before the loop')
        lines.append("scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()")
    return lines
