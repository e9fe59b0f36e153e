"""`ninefold bench --precisions` measures unedited scripts in the precisions of their frameworks."""

from __future__ import annotations

import sys

import pytest

from tests.conftest import ROOT, Shell

pytestmark = pytest.mark.frameworks
SCRIPTS = ROOT / "examples" / "frameworks"


@pytest.mark.parametrize(
    ("script", "by"),
    [
        ("with_lightning", "lightning"),
        ("with_fabric", "lightning"),
        ("with_accelerate", "accelerate"),
        ("with_hf", "accelerate"),
    ],
)
def test_a_script_is_measured_in_the_precisions_that_its_framework_chooses(
    shell: Shell, script: str, by: str
) -> None:
    command = f"{sys.executable} {SCRIPTS / script}.py"
    done = shell.run(
        "-m", "ninefold", "bench", "-v", "--precisions=fp32,bf16", "--minutes=1", command
    )
    assert done.returncode in (0, 9), done.stderr
    seen = "Seen in the first step: fp32 in float32, bf16 in bfloat16, as "
    assert f"{seen}{by} chooses." in done.stdout


def test_a_loop_that_only_imports_accelerate_gets_autocast(shell: Shell) -> None:
    """As transformers does for a loop of one's own."""
    plain = (ROOT / "examples" / "bench" / "train.py").read_text()
    text = plain.replace("import torch\n", "import accelerate\nimport torch\n", 1)
    (shell.folder / "train.py").write_text(text)
    command = f"{sys.executable} train.py"
    done = shell.run(
        "-m", "ninefold", "bench", "-v", "--precisions=fp32,bf16", "--minutes=0.5", command
    )
    assert done.returncode in (0, 9), done.stderr
    assert "fp32 in float32, bf16 in bfloat16, by autocast that bench adds." in done.stdout


def test_a_precision_in_the_script_is_refused(shell: Shell) -> None:
    text = (SCRIPTS / "with_lightning.py").read_text()
    chosen = text.replace("lightning.Trainer(", "lightning.Trainer(precision='bf16-mixed', ")
    assert chosen != text
    (shell.folder / "network.py").write_text((SCRIPTS / "network.py").read_text())
    (shell.folder / "train.py").write_text(chosen)
    command = f"{sys.executable} train.py"
    done = shell.run("-m", "ninefold", "bench", "--precisions=fp32,bf16", command)
    assert "the script sets its precision itself: the commands do not differ" in done.stderr
    assert done.returncode == 2
