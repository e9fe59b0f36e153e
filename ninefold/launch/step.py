"""A process that launch.srun has started for a run: python -m ninefold.launch.step FOLDER.

FOLDER has the order. Rank 0 sends it to the others, which need not see that folder.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from ninefold import ranks, signals
from ninefold.config.spec import RunSpec
from ninefold.errors import Failure
from ninefold.launch import mailbox
from ninefold.places import take_path
from ninefold.process import SAFE_PATH


def main(folder: Path) -> NoReturn:
    """Run the order, and leave a failure in `folder`. Exits with the documented code."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signals.SIGNALS)  # until the run listens for them
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    os.environ.pop(SAFE_PATH[0], None)  # it was for this interpreter
    take_path()
    from ninefold.launch import per_rank, worker
    from ninefold.launch.run import failure_of

    me, several, code = ranks.found(os.environ), bool(ranks.started_by()), 0
    try:
        if several:
            per_rank.meet([])
        if me.rank != 0:
            code = per_rank.PerRank({}).follow()
        elif several:
            per_rank.PerRank({}).run(order(folder), me.world_size)
        else:
            worker.run(order(folder))
    except Exception as error:
        if not isinstance(error, Failure):
            traceback.print_exc()  # to srun.log
        failure = failure_of(error)
        ended = per_rank.settled(failure) if several else failure
        code = ended.code
        with suppress(OSError):  # this host may not see the folder
            mailbox.write(folder, me.rank, 0, ended)
    logging.shutdown()
    sys.stdout.flush()
    if several:
        with suppress(Failure):
            per_rank.release_store(code)
    os._exit(code)


def order(folder: Path) -> RunSpec:
    return RunSpec.of_plain(json.loads((folder / mailbox.ORDER).read_text()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
