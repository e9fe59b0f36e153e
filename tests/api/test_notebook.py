"""ninefold.compare in the kernel of a notebook: it shows, and changes nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.api.test_compare import DEFINED
from tests.conftest import ROOT, Shell

pytestmark = pytest.mark.slow

NOTEBOOK = ROOT / "docs" / "compare.ipynb"
STATE = """
import logging, os, signal
from ninefold.errors import ConfigError

def state():
    return (
        torch.get_num_threads(), torch.get_default_dtype(), os.getcwd(), dict(os.environ),
        signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM),
        list(logging.root.handlers), threading.active_count(),
    )
"""
CELLS = [
    DEFINED + STATE,
    "before = state()\nanswer = compare(folder='first', amp=('fp32', 'autocast'))\nanswer",
    "from hydra.core.global_hydra import GlobalHydra\n"
    "assert state() == before\nassert not GlobalHydra.instance().is_initialized()\n"
    "assert str(answer.best) in answer.cells\n"
    "{(row['cell'], row['round']) for row in answer.rows()}",
    # Another class of the same name, in an async cell.
    "import asyncio\nclass Net(Net):\n    def forward(self, rows):\n"
    "        return self.fc(rows) * 2\nawait asyncio.sleep(0)\n"
    "again = compare(folder='second', parallel=('none',))\nagain.train != answer.train",
    "class Net(Net):\n    def forward(self, rows):\n        return self.fc(rows).nothing\n"
    "try:\n    compare(folder='third', parallel=('none',))\n"
    "except ConfigError as error:\n    print(error.__notes__[0])",
]


@pytest.fixture
def place(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in shell.environment({"PYTHONPATH": str(ROOT)}).items():
        monkeypatch.setenv(name, value)
    return shell.folder


def executed(notebook: Any, folder: Path) -> Any:
    client = NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    # With it set a kernel does not forward what the processes that it starts print.
    client.execute(env={k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"})
    return notebook


def shown(cell: Any) -> list[tuple[str, list[str]]]:
    """The outputs of a cell without the progress: how many lines are one output is chance."""
    outputs = [out for out in cell["outputs"] if out.get("name") != "stderr"]
    return [(out["output_type"], sorted(out.get("data", {}))) for out in outputs]


def test_a_kernel_shows_the_answer_and_stays_as_it_was(place: Path, shell: Shell) -> None:
    cells = [nbformat.v4.new_code_cell(text.strip()) for text in CELLS]
    done = executed(nbformat.v4.new_notebook(cells=cells), place).cells
    html = done[1]["outputs"][-1]["data"]["text/html"]
    progress = "".join(out["text"] for out in done[1]["outputs"] if out["output_type"] == "stream")
    assert progress.startswith("ninefold.compare: starting, in first\n4 configurations: ")
    assert "data:image/svg+xml" in html
    assert "\nnone, fp32 " in html  # the table of the console
    assert "<script" not in html
    assert len(html) < 80_000
    assert done[2]["outputs"][0]["data"]["text/plain"].count("none-fp32") >= 1
    assert done[3]["outputs"][-1]["data"]["text/plain"] == "True"
    last = "".join(out["text"] for out in done[4]["outputs"])  # progress may come behind it
    assert "return self.fc(rows).nothing" in last
    assert "Cell In[5], line 3" in last


def test_the_notebook_of_the_documentation_shows_what_it_does(place: Path) -> None:
    stored = nbformat.read(NOTEBOOK, 4)
    text = json.dumps(stored)
    assert "/tmp" not in text
    assert str(Path.home()) not in text
    codes = [cell for cell in stored.cells if cell.cell_type == "code"]
    before = [shown(cell) for cell in codes]
    for cell in codes:
        cell["source"] = cell["source"].replace("minutes=2", "minutes=0.05")
    done = executed(stored, place)
    assert [shown(cell) for cell in done.cells if cell.cell_type == "code"] == before
