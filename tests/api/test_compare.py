"""ninefold.compare, called by scripts without a main guard, in real processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess

import pytest

import ninefold
from ninefold.errors import ConfigError
from tests.conftest import ROOT, Shell, wait_until

pytestmark = pytest.mark.slow

DEFINED = """
import threading

import torch
from torch import nn

import ninefold

print("script begins")
SCALE = 0.5
X, Y = torch.randn(256, 8), torch.randint(0, 3, (256,))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 3)

    def forward(self, rows):
        if FAILS_UNDER_AUTOCAST and torch.is_autocast_enabled("cpu"):
            raise TypeError("not under autocast")
        return self.fc(rows)


class Rows:
    def __len__(self):
        return 256

    def __getitem__(self, number):
        if number == RAISES_AT:
            raise KeyError("seventeen")
        return X[number], Y[number]


def loss(output, target):
    return nn.functional.cross_entropy(output * SCALE, target)


FAILS_UNDER_AUTOCAST, RAISES_AT = False, None


def compare(**named):
    few = {"parallel": ("none", "ddp"), "amp": ("fp32",), "processes": 2, "minutes": 0.02}
    return ninefold.compare(Net, Rows(), loss, **{**few, "folder": "made", **named})
"""
SHOWN = "answer = compare()\nprint('best', answer.best, str(answer.best) in answer.cells)\n"
IN_A_THREAD = (
    "def called():\n    print('best', compare(show=False).best)\n"
    "thread = threading.Thread(target=called)\nthread.start()\nthread.join()\n"
)


def environment() -> dict[str, str]:
    path = filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
    return {"PYTHONPATH": os.pathsep.join(path), "PYTHONUNBUFFERED": "1"}


def as_file(shell: Shell, code: str) -> list[str]:
    (shell.folder / "script.py").write_text(code)
    return ["script.py"]


def ran(shell: Shell, code: str) -> subprocess.CompletedProcess[str]:
    return shell.run(*as_file(shell, code), env=environment(), code=0)


@pytest.mark.parametrize(("how", "call"), [("script.py", SHOWN), ("-c", IN_A_THREAD), ("-", SHOWN)])
def test_a_script_needs_no_main_guard_and_runs_once(how: str, call: str, shell: Shell) -> None:
    path = shell.folder / as_file(shell, DEFINED + call)[0]
    given = [how, DEFINED + call] if how == "-c" else [how]
    with path.open() as script:
        done = shell.run(*given, stdin=script, env=environment(), code=0)
    assert done.stdout.count("script begins") == 1
    assert done.stdout.count("best ") == 1
    assert "script begins" not in done.stderr
    assert not shell.survivors()
    rows = ninefold.Answer(shell.folder / "made").rows()
    assert {row["round"] for row in rows} <= {0, 1, 2}  # an answer takes three
    assert {row["cell"] for row in rows} == {"none-fp32", "ddp-fp32", "control-fp32"}
    assert all(row["seconds"] > 0 for row in rows)


def test_a_cell_that_fails_does_not_end_the_others(shell: Shell) -> None:
    code = f"{DEFINED}FAILS_UNDER_AUTOCAST = True\n"
    code += "answer = compare(parallel=('none',), amp=('fp32', 'autocast'))\nprint(answer)\n"
    ran(shell, code)
    answer = ninefold.Answer(shell.folder / "made")
    assert answer.best is not None
    assert (answer.best.parallel, answer.best.amp) == ("none", "fp32")
    assert list(answer.failed) == ["none-autocast"]
    line = DEFINED.splitlines().index('            raise TypeError("not under autocast")') + 1
    assert f"{shell.folder}/script.py:{line}" in answer.failed["none-autocast"]
    assert 'raise TypeError("not under autocast")' in answer.failed["none-autocast"]


def test_where_all_cells_fail_the_first_failure_is_raised_with_the_callers_line(
    shell: Shell,
) -> None:
    code = f"{DEFINED}RAISES_AT = 17\n"
    code += (
        "try:\n    compare(show=False)\nexcept ninefold.errors.DataError as error:\n"
        "    print('raised', error, error.__notes__)\n"
    )
    done = ran(shell, f"import ninefold.errors\n{code}")
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("raised")]
    assert "error: dataset=Rows: item 17 raised KeyError: 'seventeen'" in line
    assert "raise KeyError(" in line


UNUSABLE = """
try:
    ninefold.compare(Net, Rows(), loss, test=Rows(), metric=lambda *_: 1.0, folder="made")
except ninefold.errors.ConfigError as error:
    print("raised", error)
"""


def test_a_metric_that_is_no_number_for_each_example_is_told_before_anything_is_timed(
    shell: Shell,
) -> None:
    code = f"import ninefold.errors\n{DEFINED}{UNUSABLE}"
    done = ran(shell, code)
    assert "raised error: metric=float: it has no number for each example" in done.stdout
    known = ninefold.Answer(shell.folder / "made").cells.values()
    assert {cell["mean"] for cell in known} == {None}


REFUSED = """
few = {"folder": "made", "minutes": 0.02}
data = X.repeat(32, 1), Y.repeat(32)  # in files of their own
for amp in ("bf17", "fp32"):
    try:
        print("best", ninefold.compare(Net, data, loss, amp=amp, **few).decided)
    except ninefold.errors.ConfigError as error:
        print("raised", error, *Path("made").rglob("given"))
"""


def test_a_comparison_that_is_refused_keeps_no_data_and_its_folder_is_free(shell: Shell) -> None:
    code = f"import ninefold.errors\nfrom pathlib import Path\n{DEFINED}{REFUSED}"
    said = ran(shell, code).stdout
    assert re.search(r"^raised error: amp=bf17: [^/]*$", said, re.MULTILINE)
    assert "\nbest " in said


DETECTOR = """
class Detector(Net):
    def forward(self, rows, targets=None):
        if not self.training:
            return [super().forward(rows)]
        return {"loss": nn.functional.cross_entropy(super().forward(rows), targets)}


def forward(model, batch):
    return sum(model(*batch).values())


few = {"parallel": ("none", "ddp"), "amp": "fp32", "minutes": 0.02, "folder": "made"}
print("best", ninefold.compare(Detector, Rows(), None, forward=forward, **few).best)
"""


def test_a_question_of_time_evaluates_nothing(shell: Shell) -> None:
    """A detector, of which a loss is known in training mode alone."""
    done = ran(shell, DEFINED + DETECTOR)
    assert "best " in done.stdout


def test_the_loop_of_the_page_on_migration_is_compared_as_it_is_printed(shell: Shell) -> None:
    page = (ROOT / "docs" / "start" / "migrate.md").read_text()
    block = re.findall(r"```python\n(.*?)\n```", page, re.DOTALL)[2]
    code = (
        "import torch.nn.functional as F\nfrom torch.utils.data import DataLoader\n"
        "MyDataset = Rows\n"
        f"{block[:-1]}    parallel='none', amp='fp32', minutes=0.02)\nprint('best', answer.best)\n"
    )
    done = ran(shell, DEFINED + code)
    assert "best none-fp32" in done.stdout


def running(shell: Shell, call: str) -> subprocess.Popen[str]:
    """A script whose comparison has begun to measure."""
    process = shell.start(*as_file(shell, DEFINED + call), env=environment())
    wait_until(lambda: list(shell.folder.glob("made/timing/0/*/config.yaml")), process)
    assert isinstance(process, subprocess.Popen)
    return process


CAUGHT = (
    "try:\n    compare(minutes=3)\nexcept KeyboardInterrupt as error:\n"
    "    print('interrupted', error, flush=True)\n"
)


def test_ctrl_c_ends_all_and_says_once_how_to_resume(shell: Shell) -> None:
    process = running(shell, CAUGHT)
    process.send_signal(signal.SIGINT)
    done = shell.finish(process, code=0)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("interrupted")]
    assert line.endswith("ninefold.Answer('made') has what is known, and resume() of it goes on")
    assert (done.stdout + done.stderr).count("study.resume=") == 1  # for a shell
    answer = ninefold.Answer(shell.folder / "made")
    assert not answer.failed
    assert "It was interrupted, or still runs: resume() goes on with it." in answer.caveats


EARLY = """
import time
from pathlib import Path


class Slow(Rows):
    def __getitem__(self, number):
        if not Path("reached").exists():
            Path("reached").touch()
            time.sleep(60)
        return super().__getitem__(number)


try:
    ninefold.compare(Net, Slow(), loss, parallel="none", minutes=0.02, folder="made")
except KeyboardInterrupt as error:
    print("interrupted", error, flush=True)
"""


def test_an_answer_goes_on_from_any_folder_for_some_minutes_and_no_strangers_does(
    shell: Shell,
) -> None:
    # Of these no round shows which is faster, or that neither is. Where turns are given, both are
    # timed, though they do the same work.
    alike = "parallel='none', amp=('fp32', 'tf32')"
    alike += ", overrides=['report.same=0.001', 'study.turns=2', 'study.pairs=all']"
    code = f"{DEFINED}first = compare({alike})\nprint(len(first.rows()))\n"
    code += "import os\nfound = ninefold.Answer(os.path.abspath('made'))\nos.chdir('made')\n"
    code += "more = found.resume(minutes=0.1)\nprint(len(more.rows()))\n"
    done = ran(shell, code)
    before, after = map(int, done.stdout.split()[-2:])
    assert after > before
    (shell.folder / "made" / "given" / "command.json").chmod(0o666)
    with pytest.raises(ConfigError, match=r"no comparison of yours can be resumed there; .*others"):
        ninefold.Answer(shell.folder / "made").resume()


def test_ctrl_c_before_a_comparison_has_begun_says_that_nothing_is_measured(shell: Shell) -> None:
    process = shell.start(*as_file(shell, DEFINED + EARLY), env=environment())
    wait_until((shell.folder / "reached").exists, process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert "study.resume" not in out + err
    assert "[HYDRA]" not in out + err
    assert err.count("error:") == 1
    assert "nothing is measured yet" in out


def test_a_script_that_is_killed_leaves_no_process_and_what_was_measured(shell: Shell) -> None:
    process = running(shell, "compare(minutes=3)\n")
    wait_until(lambda: (shell.folder / "made/timing/1").exists(), process)
    shell.kill(process)  # which sees that none survives 5 s
    assert ninefold.Answer(shell.folder / "made").rows()


@pytest.mark.gpu
def test_a_script_that_has_used_the_gpu_is_compared_and_its_module_there_is_refused(
    shell: Shell,
) -> None:
    code = (
        f"import ninefold.errors\n{DEFINED}torch.zeros(1, device='cuda')\n"
        "answer = compare()\nprint('best', answer.best, dict(answer.failed))\n"
        "try:\n    ninefold.compare(Net().cuda(), Rows(), loss)\n"
        "except ninefold.errors.ConfigError as error:\n    print('refused', error)\n"
    )
    done = ran(shell, code)
    best, refused = done.stdout.splitlines()[-2:]
    assert best.startswith("best ")
    assert best.endswith(" {}")
    assert refused.startswith("refused error: model=Net: ")
    assert ".cpu()" in refused
