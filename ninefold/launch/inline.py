"""Run a job in the launcher's own process, for a debugger: launch.inline=true."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

from ninefold.config.spec import RunSpec
from ninefold.launch import Launcher, worker
from ninefold.launch.run_folder import stopped


class Inline(Launcher):
    """Launcher for a single process, that of the command itself."""

    @staticmethod
    def applies(settings: Mapping[str, Any]) -> bool:
        return bool(settings["inline"])

    def run(self, spec: RunSpec, processes: int) -> None:
        assert processes == 1
        try:
            worker.run(spec, inline=True)
        except KeyboardInterrupt:
            raise stopped(signal.SIGINT, spec.folder) from None
