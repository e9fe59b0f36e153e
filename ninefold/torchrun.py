"""Under torchrun: rank 0 composes, the others are handed the frozen job through its store.

Imported late, because it imports torch: see ninefold.launch.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from ninefold.order import Order

KEY = "ninefold/order"


def store() -> Any:
    """The store that torchrun's agent serves: the one that the process group will use, too."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.TCPStore(address, port, is_master=False, timeout=timedelta(minutes=15))


def hand_out(order: Order) -> None:
    """Rank 0: give `order` to the other ranks."""
    content = {**asdict(order), "folder": str(order.folder)}
    store().set(KEY, json.dumps(content))


def dismiss(code: int) -> None:
    """Rank 0: tell ranks that still wait for an order to leave with exit code `code`."""
    store().compare_set(KEY, "", json.dumps(code))


def receive() -> Order | int:
    """Any other rank: the order, or the exit code to leave with."""
    content = json.loads(store().get(KEY))
    if isinstance(content, int):
        return content
    return Order(**{**content, "folder": Path(content["folder"])})


def first_to_report() -> bool:
    """Whether no other rank has reported this run's failure yet."""
    return bool(store().add("ninefold/failed", 1) == 1)
