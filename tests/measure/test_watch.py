"""profile=python and profile=io: what they see of training steps, and what their lines say."""

from __future__ import annotations

import builtins
import csv
import io
import threading
from pathlib import Path

import pytest
import torch

from ninefold.measure.clock import Clock
from ninefold.measure.io_profile import COLUMNS, IOProfile
from ninefold.measure.python_profile import WIDE, PythonProfile, function, shortened
from ninefold.measure.watch import Watch, bottleneck
from tests.conftest import Shell

CPU = torch.device("cpu")


def phases(data: float) -> dict[str, float]:
    return {"data": data, "transfer": 0.0, "forward": 1 - data, "backward": 0.0, "optimizer": 0.0}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (0.6, "60% of its time (reading, preparing, copying): data is the bottleneck."),
        (0.2, "data is not the bottleneck, yet faster loading gains up to ×1.25 in speed."),
        (0.05, "data is not the bottleneck, and faster loading would gain little."),
    ],
)
def test_the_last_line_names_the_share_of_a_step_that_waits_for_data(
    data: float, said: str
) -> None:
    assert bottleneck(phases(data)).endswith(said)
    assert "not known" in bottleneck({})


def busy(until: threading.Event) -> None:
    while not until.is_set():
        sum(range(1000))


def test_a_python_profile_sees_every_thread_and_only_while_the_clock_runs(tmp_path: Path) -> None:
    watch = PythonProfile(tmp_path / "profile", 0)
    clock = Clock(CPU, sample=0, watch=watch)
    ended = threading.Event()
    reader = threading.Thread(target=busy, args=(ended,), name="loader_3")
    reader.start()
    clock.start()
    while watch.looks < 20:
        sorted(range(10_000))
    clock.stop()
    looks = watch.looks
    sorted(range(1_000_000))
    ended.set()
    reader.join()
    assert watch.looks == looks
    lines = (tmp_path / "profile" / "rank0.python.collapsed.txt").read_text().splitlines()
    counts = {stack: int(n) for stack, _, n in (line.rpartition(" ") for line in lines)}
    of_reader = [stack for stack in counts if stack.startswith("loader;") and "busy (" in stack]
    assert sum(counts[stack] for stack in of_reader) > looks / 2
    main = [stack for stack in counts if stack.startswith("MainThread;")]
    assert sum(counts[stack] for stack in main) == looks
    assert all(function(test_a_python_profile_sees_every_thread_and_only_while_the_clock_runs
                        .__code__) in stack for stack in main)  # fmt: skip
    said = watch.summary(phases(0.6))
    assert said[-1] == bottleneck(phases(0.6))
    assert any(line.startswith("threads loader: in Python") and "busy (" in line for line in said)
    watch.stop()  # twice is once


def test_a_long_name_in_the_table_keeps_the_function_and_its_line() -> None:
    found = shortened(f"Network.forward.<locals>.inner ({'folder/' * 20}nets.py:12)")
    assert len(found) == WIDE
    assert found.startswith("Network.forward.")
    assert found.endswith("/nets.py:12)")
    assert shortened("step (loop.py:3)") == "step (loop.py:3)"


def test_an_io_profile_counts_files_bytes_and_seconds_of_each_epoch(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(100_000))
    (tmp_path / "b.txt").write_text("line\n" * 10)
    run = tmp_path / "run"
    run.mkdir()
    (run / "own").write_bytes(bytes(7))
    epochs = iter([3, 4])
    watch = IOProfile(run / "profile", 0, lambda: next(epochs))
    plain = open

    def read() -> None:
        with open(tmp_path / "a.bin", "rb") as file:
            assert len(file.read()) == 100_000
            assert file.name == str(tmp_path / "a.bin") or file.name == tmp_path / "a.bin"
        assert (run / "own").read_bytes() == bytes(7)  # a checkpoint that is read back

    with watch:
        watch.start()
        thread = threading.Thread(target=read)
        thread.start()
        thread.join()
        with (tmp_path / "b.txt").open() as file:
            assert file.readlines() == ["line\n"] * 10
        with open(tmp_path / "a.bin", "rb", buffering=0) as raw:
            assert raw.read(10) == bytes(10)
        with open(run / "new", "w") as new:
            new.write("not counted")
        watch.stop()
        read()  # in an evaluation
        watch.start()
    assert builtins.open is plain
    assert io.open is plain
    with (run / "profile" / "rank0.io.csv").open() as file:
        first, second = csv.DictReader(file)
    assert tuple(first) == COLUMNS
    assert (first["epoch"], first["files_opened"], first["bytes_read"]) == ("3", "3", "100060")
    assert 0 < float(first["read_seconds"]) < float(first["seconds"])
    assert first["process_bytes"] == "" or float(first["process_bytes"]) >= 100_060
    assert (second["epoch"], second["files_opened"], second["bytes_read"]) == ("4", "0", "0")
    assert watch.summary(phases(0.2))[-1] == bottleneck(phases(0.2))


def test_a_mode_that_open_refuses_is_refused_as_before(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    with IOProfile(tmp_path / "run" / "profile", 0, lambda: 0) as watch:
        watch.start()
        with pytest.raises(ValueError, match="binary mode doesn't take an encoding"):
            (tmp_path / "a").open("rb", encoding="utf-8")
        with pytest.raises(FileNotFoundError):
            (tmp_path / "missing").open("rb")


def test_without_a_profile_nothing_looks_on() -> None:
    assert Watch().summary(phases(0.5)) == []
    assert list(Clock(CPU, sample=0).watch.notes) == []


def test_a_run_with_either_profile_trains_as_one_without_and_names_the_bottleneck(
    shell: Shell,
) -> None:
    job = ("max_steps=12", "clock.sample=2", "parallel=none", "log_every=1")
    shell.train(*job, "hydra.run.dir=plain")
    plain = losses(shell.folder / "plain")
    for kind, name in (("python", "rank0.python.collapsed.txt"), ("io", "rank0.io.csv")):
        done = shell.train(*job, f"profile={kind}", f"hydra.run.dir={kind}")
        assert "A training step waits for data" in done.stdout
        assert (shell.folder / kind / "profile" / name).stat().st_size
        assert losses(shell.folder / kind) == plain


def losses(folder: Path) -> list[str]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [line.partition('"loss": ')[2].partition(",")[0] for line in lines]
