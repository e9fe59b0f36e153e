"""Checkpoints: whatever happens to a writer or a file, what is read is whole and runs no code."""

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ConstantLR, MultiStepLR, ReduceLROnPlateau, SequentialLR

from ninefold.checkpoint import manifest
from ninefold.checkpoint.hashing import digest
from ninefold.checkpoint.store import Checkpoints, _write, read
from ninefold.engine.amp import Amp
from ninefold.engine.average import Average
from ninefold.engine.loss_tracker import LossTracker
from ninefold.engine.parallel import RankContext
from ninefold.engine.parallel.none import Single
from ninefold.engine.schedule import Schedule
from ninefold.engine.state import State
from ninefold.errors import CheckpointError, ConfigError, ResourceError
from ninefold.train.initial import restore
from tests.faults.writer import content, names, require_whole, verifies
from tests.kit import same

CPU = torch.device("cpu")
ALONE = RankContext(0, 1, CPU)


def saved(folder: Path, *steps: int, keep: int = 2, best: int | None = None) -> Checkpoints:
    checkpoints = Checkpoints(folder, keep)
    for step in steps:
        checkpoints.save(content(step), best=step == best)
    return checkpoints


def newest_step(folder: Path) -> int:
    """The step to go on from; the checkpoint must be whole, whatever was left around it."""
    return require_whole(Checkpoints(folder, keep=2).newest())


# What is saved


def test_the_manifest_lists_each_file_with_its_size_and_sha256(tmp_path):
    saved(tmp_path, 1, 2, best=1)
    listed = json.loads((tmp_path / "manifest.json").read_text())["files"]
    assert set(listed) == names(tmp_path) - {"manifest.json"}
    for name, (entry, *_) in listed.items():
        data = (tmp_path / name).read_bytes()
        assert entry["sha256"] == hashlib.sha256(data).hexdigest()
        assert entry["size"] == len(data)
        assert verifies(tmp_path / name)


MANIFEST = {"format": 2, "files": {}}
MANIFESTS = {
    "lost": None,
    "empty": "",
    "cut short": '{"format": 2, "files": {"last.pt": [',
    "not text": b"\xff\xfe\x00",
    "nested without end": "[" * 100_000,
    "a list": "[]",
    "of no format": {"files": MANIFEST["files"]},
    "of a newer format": {**MANIFEST, "format": 3},
    "with files of another type": {**MANIFEST, "files": ["last.pt"]},
    "without files": MANIFEST,
}


@pytest.mark.parametrize("damage", MANIFESTS)
def test_without_its_manifest_a_run_is_not_gone_on_with(tmp_path, damage):
    folder = tmp_path / "run" / "checkpoints"
    folder.parent.mkdir()
    checkpoints = saved(folder, 1, 2)
    given = MANIFESTS[damage]
    if given is None:
        (folder / "manifest.json").unlink()
    else:
        text = given if isinstance(given, str | bytes) else json.dumps(given)
        (folder / "manifest.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    before = names(folder)
    with pytest.raises(CheckpointError, match=r"manifest\.json is missing, damaged") as caught:
        checkpoints.newest()
    assert caught.value.code == 3
    assert "found last.pt, step-00000001.pt, step-00000002.pt" in str(caught.value)
    # and a run that starts afresh there loses nothing that was there under another name
    saved(folder, 3)
    assert before <= names(folder)
    assert newest_step(folder) == 3


@pytest.mark.parametrize(
    "entries",
    [
        None,
        {},
        ["text"],
        [{}],
        [{"sha256": 3, "size": 1, "step": 9}],
        [{"sha256": "0" * 64, "size": 1, "step": "9"}],
        [{"sha256": "0" * 64, "size": 1, "step": True}],
        [{"sha256": "0" * 64, "size": 1, "step": 1e400}],
        [{"sha256": "0" * 64, "step": 9}],
    ],
    ids=str,
)
def test_entries_of_a_manifest_that_are_not_well_formed_are_none(tmp_path, entries, caplog):
    checkpoints = saved(tmp_path, 1, 2)
    written = json.loads((tmp_path / "manifest.json").read_text())
    written["files"] |= {"last.pt": entries, "step-00000009.pt": entries}
    (tmp_path / "manifest.json").write_text(json.dumps(written))
    assert set(checkpoints.manifest()) == {"step-00000001.pt", "step-00000002.pt"}
    assert require_whole(checkpoints.newest()) == 2
    assert caplog.records == []
    saved(tmp_path, 3)
    assert newest_step(tmp_path) == 3


@pytest.mark.parametrize(
    "name",
    ["../outside.pt", "/{0}/outside.pt", "{0}/outside.pt", "..", ".", "", ".outside.pt", "a/b.pt",
     "last.pt\n", "x" * 65, "step-\u0661.pt", "\ud800.pt", "step-1.pt\0"],
    ids=ascii,
)  # fmt: skip
def test_a_name_in_a_manifest_leads_nowhere_outside_its_folder(tmp_path, name):
    folder = tmp_path / "checkpoints"
    checkpoints = saved(folder, 1)
    torch.save(content(9), tmp_path / "outside.pt")
    sha256 = hashlib.sha256((tmp_path / "outside.pt").read_bytes()).hexdigest()
    written = json.loads((folder / "manifest.json").read_text())
    outside = [{"sha256": sha256, "size": 1, "step": 9}]
    written["files"] = {name.format(tmp_path): outside, **written["files"]}
    (folder / "manifest.json").write_text(json.dumps(written))
    assert set(checkpoints.manifest()) == {"last.pt", "step-00000001.pt"}
    for path in folder.glob("*.pt"):
        path.unlink()
    with pytest.raises(CheckpointError, match="no checkpoint in it can be used"):
        checkpoints.newest()
    saved(folder, 10, keep=1)
    assert (tmp_path / "outside.pt").exists()


def test_a_manifest_without_end_is_no_manifest(tmp_path):
    checkpoints = saved(tmp_path, 1)
    with (tmp_path / "manifest.json").open("ab") as file:
        file.truncate(1 << 40)  # a terabyte of zeros that takes no room
    assert checkpoints.manifest() == {}


def test_a_file_that_differs_from_its_manifest_is_not_read(tmp_path):
    saved(tmp_path, 1)
    torch.save(content(9), tmp_path / "last.pt")  # whole, but not what was saved there
    with pytest.raises(CheckpointError, match="its sha256 is not the one in the manifest"):
        read(tmp_path / "last.pt")


# Disks that are full


@pytest.mark.parametrize("found", ["a file", "nothing above it"])
def test_a_folder_that_cannot_be_made_is_a_resource_error(tmp_path, found):
    folder = tmp_path / "run" / "checkpoints"
    if found == "a file":
        folder.parent.mkdir()
        folder.write_bytes(b"")
    reason = "File exists" if found == "a file" else "No such file or directory"
    with pytest.raises(ResourceError, match=rf"written \({reason}\); .*then start again") as caught:
        saved(folder, 1)
    assert str(caught.value).startswith(f"error: checkpoint={folder}: ")


# Foreign and hostile files


WHOLE = io.BytesIO()
torch.save(content(1, size=1000), WHOLE)
CANNOT = "it cannot be read"
NO_CHECKPOINT: dict[str, tuple[Any, str]] = {
    "missing": (None, CANNOT), "a folder": (..., CANNOT), "empty": (b"", CANNOT),
    "text": (b"this is text\n", CANNOT), "a pickle": (b"\x80\x04", CANNOT),
    "zeros": (bytes(1000), CANNOT),
    **{f"{share} of one": (WHOLE.getvalue()[: int(len(WHOLE.getvalue()) * share)], CANNOT)
       for share in (0.1, 0.5, 0.9, 0.999)},
    "a module": (nn.Identity(), r"it holds a torch\.nn\.modules.*Identity; only"),
    "a list": ([torch.zeros(1)], "it holds a list; a dictionary"),
    "a tensor": (torch.zeros(1), "it holds a Tensor; a dictionary"),
    "a number": (3, "it holds a int; a dictionary"),
    "a newer one": (
        {**content(1), "format": 3}, "a newer format version, 3; this one reads up to 2"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NO_CHECKPOINT)
def test_a_file_that_is_no_checkpoint_is_one_line_that_says_why(tmp_path, name):
    path, (given, said) = tmp_path / "file.pt", NO_CHECKPOINT[name]
    if given is ...:
        path.mkdir()
    elif isinstance(given, bytes):
        path.write_bytes(given)
    elif given is not None:
        torch.save(given, path)
    with pytest.raises(CheckpointError, match=rf"^error: ckpt=\S+: .*{said}") as failure:
        read(path)
    assert "weights_only" not in str(failure.value)  # as torch would have it


def test_a_folder_of_an_extension_that_is_not_here_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "last.dcp").mkdir()
    entry = {"sha256": digest(tmp_path / "last.dcp"), "size": 0, "step": 1, "files": {}}
    manifest.write(tmp_path, {"last.dcp": [entry]})
    gone = "ninefold.extensions.gone.dcp"
    monkeypatch.setattr("ninefold.checkpoint.loading.READS_SHARDED", gone)
    with pytest.raises(CheckpointError, match="an extension wrote, which is not here") as caught:
        read(Checkpoints(tmp_path, keep=2).newest(), "resume")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("format", [1, 2, "zip", "99", None, [3], 3.0], ids=repr)
def test_what_is_no_format_of_ours_is_read(tmp_path, format):
    path = tmp_path / "file.pt"
    torch.save({**content(1), "format": format}, path)
    assert read(path)["format"] == format


@pytest.mark.parametrize(
    "text", ["[]", "{}", "null", "not json", '{"files": []}', '{"files": ["file.pt"]}']
)
def test_a_manifest_of_another_program_is_in_nobodys_way(tmp_path, text):
    path = tmp_path / "file.pt"
    torch.save({"weight": torch.ones(2)}, path)
    (tmp_path / "manifest.json").write_text(text)
    assert torch.equal(read(path)["weight"], torch.ones(2))


# The state of a run


def fresh(seed: int, scaler: bool = True) -> State:
    """A run's objects, with dropout, momentum, a scheduler and a scaler that all have a state."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    amp = Amp(dtype="bfloat16", scaler=scaler, init_scale=16.0, growth_interval=3)
    scheduler = ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
    grad_scaler = amp.grad_scaler(CPU)
    losses = LossTracker(optimizer, grad_scaler, CPU, skip=False)
    return State(
        model, optimizer, Schedule(scheduler, optimizer), grad_scaler, Average(model, 0.9), losses
    )


def advance(state: State, steps: int) -> list[float]:
    """Train; the losses depend on everything that the state holds."""
    losses = []
    for _ in range(steps):
        state.step += 1
        inputs = torch.rand(6, 4)
        loss = state.model(inputs).square().sum()
        state.scaler.scale(loss).backward()
        if state.step % 5 == 0 and state.scaler.is_enabled():  # a step that is skipped
            next(state.model.parameters()).grad.fill_(torch.inf)
        state.scaler.step(state.optimizer)
        state.scaler.update()
        state.optimizer.zero_grad()
        state.losses.add(loss.detach())
        state.schedule.end_epoch(1.0)
        losses.append(loss.item())
    return losses


def test_a_schedule_of_several_goes_on_after_its_state_was_taken_back(tmp_path):
    run = fresh(0)
    rates = ConstantLR(run.optimizer, 0.5, 2), MultiStepLR(run.optimizer, [3], 0.1)
    run.schedule = Schedule(SequentialLR(run.optimizer, [*rates], [2]), run.optimizer)
    Checkpoints(tmp_path, keep=1).save(run.capture(Single(), ALONE), best=False)
    for saved in (run.capture(Single(), ALONE), read(tmp_path / "last.pt")):
        run.restore(saved, Single(), ALONE)
        advance(run, 4)
        assert run.optimizer.param_groups[0]["lr"] == pytest.approx(0.05)


@pytest.mark.parametrize("scaler", [False, True])
def test_a_restored_run_goes_on_exactly_where_it_was(tmp_path, scaler):
    run = fresh(0, scaler)
    advance(run, 7)
    run.best_score, run.train_seconds, run.evaluate_seconds = 0.75, 12.5, 2.5
    run.epoch_seconds = [5.0, 7.5]
    Checkpoints(tmp_path, keep=1).save(run.capture(Single(), ALONE), best=False)
    expected = advance(run, 7)

    other = fresh(1, scaler)
    advance(other, 2)
    other.restore(read(tmp_path / "last.pt"), Single(), ALONE)
    assert other.step == 7
    assert (other.best_score, other.train_seconds, other.evaluate_seconds) == (0.75, 12.5, 2.5)
    assert other.epoch_seconds == [5.0, 7.5]
    assert int(other.scaler.skipped) == (1 if scaler else 0)
    assert advance(other, 7) == expected
    assert same(other.capture(Single(), ALONE), run.capture(Single(), ALONE))


def test_memory_that_runs_out_in_a_resume_is_not_the_checkpoints_fault(tmp_path, monkeypatch):
    def full(*arguments: Any) -> None:
        raise RuntimeError(text)

    run, checkpoints = fresh(0), Checkpoints(tmp_path, keep=1)
    checkpoints.save(run.capture(Single(), ALONE), best=False)
    monkeypatch.setattr(run, "restore", full)
    text = "CUDA error: out of memory"
    with pytest.raises(RuntimeError, match=text):
        restore(run, checkpoints, "", Single(), ALONE)
    text = "size mismatch for 0.weight"
    with pytest.raises(CheckpointError, match=text):
        restore(run, checkpoints, "", Single(), ALONE)


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("step", "abc", "step: a count is expected, it is 'abc'"),
        ("measured", -1, "measured: a count is expected, it is -1"),
        ("train_seconds", 10**400, "figures: OverflowError"),
        ("rng", [None], "it does not fit this run; rng: TypeError"),
        ("losses", 5, "it does not fit this run; losses: "),
        ("scheduler", 7, "it does not fit this run; scheduler: "),
        ("scheduler.last_epoch", 10**30, "last_epoch: a count is expected, it is 1000"),
        ("optimizer", None, "it does not fit this run; "),
        ("model", [1], "it does not fit this run; "),
        ("best_score", None, "it does not fit this run; "),
        ("epoch_seconds", ["x"], "it does not fit this run; "),
    ],
)
def test_a_damaged_value_in_a_file_that_verifies_is_named_by_its_key(tmp_path, key, value, told):
    run = fresh(0)
    advance(run, 3)
    content = run.capture(Single(), ALONE)
    *outer, last = key.split(".")
    context: Any = content
    for name in outer:
        context = context[int(name)] if isinstance(context, list) else context[name]
    context[last] = value
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1)
    checkpoints.begin()
    checkpoints.save({**content, "step": 3}, best=False)
    if key == "step":
        content = {**content, "step": value}
        entry = _write(tmp_path / "checkpoints" / ".new.pt", content)
        checkpoints.take(tmp_path / "checkpoints" / ".new.pt", {**entry, "step": 4}, best=False)
    with pytest.raises(CheckpointError) as caught:
        restore(fresh(1), checkpoints, "", Single(), ALONE)
    assert told in str(caught.value)
    assert f"resume={tmp_path}/checkpoints/" in str(caught.value)


def test_the_state_of_a_fused_optimizer_has_the_shapes_of_its_parameters(tmp_path):
    """Its kernels would write elsewhere."""
    run, other, checkpoints = fresh(0), fresh(1), Checkpoints(tmp_path, keep=1)
    advance(run, 1)
    other.optimizer.param_groups[0]["fused"] = True
    content = run.capture(Single(), ALONE)
    content["optimizer"]["state"][0]["exp_avg"] = torch.zeros(1)
    checkpoints.save(content, best=False)
    with pytest.raises(CheckpointError, match=r"exp_avg of parameter 0 in its optimizer is \[1\]"):
        restore(other, checkpoints, "", Single(), ALONE)


def test_a_job_that_was_edited_after_the_checkpoint_is_not_resumed(tmp_path):
    run = fresh(0)
    checkpoints = Checkpoints(tmp_path, keep=1)
    content = {**run.capture(Single(), ALONE), "config": "seed: 0\nepochs: 2\n"}
    checkpoints.save(content, best=False)
    restore(fresh(1), checkpoints, "seed: 0\nepochs: 3\n", Single(), ALONE)
    with pytest.raises(ConfigError, match=r"its config.yaml was edited: seed=1 \(was 0\)"):
        restore(fresh(1), checkpoints, "seed: 1\nepochs: 2\n", Single(), ALONE)


def two_processes(run: State) -> dict[str, Any]:
    """What two processes would have captured together, each with its own losses and RNG."""
    torch.manual_seed(10)
    first = run.capture(Single(), ALONE)
    torch.manual_seed(11)
    second = run.capture(Single(), ALONE)
    rng = [torch.cat(pair) for pair in zip(first["rng"], second["rng"], strict=True)]
    return {
        **first,
        "rng": rng,
        "losses": torch.tensor([[2.0, 0.0], [5.0, 0.0]], dtype=torch.float64),
    }


@pytest.mark.parametrize(("rank", "loss_sum"), [(0, 2.0), (1, 5.0)])
def test_each_process_takes_up_its_own_losses_and_random_numbers(rank, loss_sum):
    run = fresh(0)
    run.restore(two_processes(run), Single(), RankContext(rank, 2, CPU))
    drawn = torch.rand(5)
    torch.manual_seed(10 + rank)
    assert torch.equal(drawn, torch.rand(5))
    assert run.losses.total == loss_sum


@pytest.mark.parametrize(
    "context", [ALONE, RankContext(0, 4, CPU), RankContext(3, 4, CPU)], ids=str
)
def test_on_another_number_of_processes_the_losses_are_averaged_and_the_rng_starts_afresh(context):
    run, other = fresh(0), fresh(1)
    advance(run, 3)
    captured = two_processes(run)
    torch.manual_seed(42)
    other.restore(captured, Single(), context)
    drawn = torch.rand(5)
    torch.manual_seed(42)
    assert torch.equal(drawn, torch.rand(5))
    assert other.losses.total == 3.5
    assert other.step == 3
    assert same(other.model.state_dict(), run.model.state_dict())
