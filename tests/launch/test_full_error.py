"""HYDRA_FULL_ERROR=1 prints what caused a failure, where this process knows it."""

from __future__ import annotations

import pytest

from tests.conftest import Shell


@pytest.mark.parametrize("inline", ["false", "true"])
def test_a_failure_from_a_worker_process_is_not_explained_by_elastics_own_error(
    shell: Shell, inline: str
) -> None:
    done = shell.train(
        *("optimizer.lr=1e30", "epochs=1", "logger=quiet"),
        *(f"launch.inline={inline}", "hydra.run.dir=run"),
        env={"HYDRA_FULL_ERROR": "1"},
    )
    assert done.returncode == 6
    *traceback, line = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert bool(traceback) == (inline == "true")
    assert "Traceback" in (shell.folder / "run" / "run.log").read_text()
