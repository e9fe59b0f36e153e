"""What training frameworks call things: variables of the environment, arguments, lines to write.

tests/frameworks holds what bench sets against the frameworks; nothing holds the lines to write.
"""

from __future__ import annotations

# Of each precision: what Lightning's Trainer and Fabric call it, and accelerate, by whose variables
# Hugging Face's Trainer goes, too.
LIGHTNING = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}
ACCELERATE = {"fp32": "no", "bf16": "bf16", "fp16": "fp16"}
TORCHRUN = "--standalone --nproc-per-node"  # what it takes to start processes on one host
ON_CPU = {"ACCELERATE_USE_CPU": "true"}  # else it joins a group there and averages nothing

# Lines for what may make a script faster, by the module of a framework that has its own.
BF16_LINES = {
    "lightning": 'Trainer(precision="bf16-mixed")',
    "pytorch_lightning": 'Trainer(precision="bf16-mixed")',
    "lightning_fabric": 'Fabric(precision="bf16-mixed")',
    "accelerate": 'Accelerator(mixed_precision="bf16"), or TrainingArguments(bf16=True)',
}
CALLED = "compile() of the network that is called there"
COMPILE_LINES = {
    **dict.fromkeys(("lightning", "pytorch_lightning", "lightning_fabric"), CALLED),
    "accelerate": "model.compile(), or TrainingArguments(torch_compile=True)",
}
FUSED_LINES = {
    "accelerate": 'fused=True in the optimizer, or TrainingArguments(optim="adamw_torch_fused")'
}


def precision_variables(precision: str) -> dict[str, str]:
    """Variables by which frameworks compute in fp32, bf16 or fp16, unless a script says more."""
    return {
        "PL_TRAINER_PRECISION": LIGHTNING[precision],
        "LT_PRECISION": LIGHTNING[precision],
        "ACCELERATE_MIXED_PRECISION": ACCELERATE[precision],
    }


def strategy_variables(strategy: str, processes: int) -> dict[str, str]:
    """The same for a strategy, such as auto and ddp, of so many processes.

    accelerate, Hugging Face's Trainer and loops that call DDP see by themselves what torchrun did.
    """
    devices = str(processes)
    return {
        "PL_TRAINER_STRATEGY": strategy,
        "PL_TRAINER_DEVICES": devices,
        "LT_STRATEGY": strategy,
        "LT_DEVICES": devices,
    }


def loader_arguments(workers: int) -> list[str]:
    """Arguments of a DataLoader that reads in so many processes.

    Behind `dataloader_` they are those of Hugging Face's TrainingArguments.
    """
    return [f"num_workers={workers}", *["persistent_workers=True"] * (workers > 0)]
