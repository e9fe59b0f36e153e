"""`ninefold bench --strategies` measures unedited scripts by the DDP of their frameworks."""

from __future__ import annotations

import json
import sys

import pytest

from tests.conftest import ROOT, Shell

pytestmark = pytest.mark.frameworks
SCRIPTS = ROOT / "examples" / "frameworks"
SPLIT = "Accelerator(dataloader_config=accelerate.DataLoaderConfiguration(split_batches=True))"


@pytest.mark.parametrize(
    ("script", "own", "times"),
    [
        ("with_lightning", ("", ""), 2),
        ("with_fabric", ("", ""), 2),
        ("with_accelerate", ("", ""), 2),
        ("with_accelerate", ("Accelerator()", SPLIT), 1),
        ("with_hf", ("", ""), 2),
    ],
)
def test_a_script_is_measured_by_ddp_and_its_batches_are_seen(
    shell: Shell, script: str, own: tuple[str, str], times: int
) -> None:
    write(shell, script, *own)
    options = ("--strategies=none,ddp", "--minutes=0.2", "--json=found.json")
    done = shell.run("-m", "ninefold", "bench", "-v", *options, f"{sys.executable} train.py")
    assert done.returncode in (0, 9), done.stderr
    seen = (
        "Seen in the first step: none in 1 process, ddp in 2 processes by DistributedDataParallel"
    )
    assert seen in done.stdout
    found = json.loads((shell.folder / "found.json").read_text())
    assert [each["examples"] for each in found["commands"]] == [64, 64 * times]


@pytest.mark.parametrize(
    ("own", "words"),
    [
        (
            "devices=1",
            "train.py:25: ValueError: You set `devices=1` and `num_nodes=1` in Lightning",
        ),
        (
            "devices=2, strategy='ddp'",
            "the script sets its processes itself: the commands do not differ",
        ),
    ],
)
def test_devices_in_the_script_are_refused(shell: Shell, own: str, words: str) -> None:
    write(shell, "with_lightning", "lightning.Trainer(", f"lightning.Trainer({own}, ")
    command = ("--strategies=none,ddp", "--minutes=0.2", f"{sys.executable} train.py")
    done = shell.run("-m", "ninefold", "bench", *command, code=2)
    assert words in done.stderr
    assert "times as fast" not in done.stdout


def write(shell: Shell, script: str, before: str, after: str) -> None:
    """Write an example as train.py, with a change of its own."""
    (shell.folder / "network.py").write_text((SCRIPTS / "network.py").read_text())
    text = (SCRIPTS / f"{script}.py").read_text()
    (shell.folder / "train.py").write_text(text.replace(before, after) if before else text)
