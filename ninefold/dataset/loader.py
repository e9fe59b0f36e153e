"""Batches of examples, read when they are asked for or ahead of that by threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from ninefold.dataset import Array, Rows
from ninefold.errors import ResourceError

AHEAD = 2  # batches that each thread may have read before they are asked for


def gathered(
    arrays: Sequence[Array], batches: Sequence[Rows], workers: int
) -> Generator[list[Tensor], None, None]:
    """For each of `batches`, in order, its rows of each of `arrays`, in memory.

    workers: threads that read ahead, each a whole batch; 0: read when asked for. Decoding images
    and reading files let the training's own thread compute meanwhile. Closing the generator ends
    the threads, after the batches that they are reading. Raises what reading a row raises, and
    ResourceError if no thread can be started.
    """

    def read(rows: Rows) -> list[Tensor]:
        return [torch.from_numpy(array[rows]) for array in arrays]

    if not workers:
        yield from map(read, batches)
        return
    ahead: deque[Future[list[Tensor]]] = deque()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="loader")
    try:
        for rows in batches:
            try:
                ahead.append(pool.submit(read, rows))
            except RuntimeError as error:  # the first ones start a thread each
                raise ResourceError(
                    "loader.workers",
                    workers,
                    f"no loader thread can be started ({error})",
                    "each takes some memory and counts as a process",
                    "lower loader.workers; 0 starts none",
                ) from error
            if len(ahead) > AHEAD * workers:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
