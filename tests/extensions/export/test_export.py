"""An exported file computes what the evaluation computes, and is there only once that is seen."""

import hashlib
import inspect
import json
import math
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from ninefold.checkpoint.store import read
from ninefold.checkpoint.weights import LoadReport
from ninefold.dataset.loader import HostSource
from ninefold.dataset.preparation import resized
from ninefold.engine import evaluation
from ninefold.engine.amp import Amp
from ninefold.engine.parallel import RankContext
from ninefold.engine.task import Objective
from ninefold.errors import ConfigError, NumericsError
from ninefold.extensions.export import check, graph
from ninefold.extensions.export.__main__ import SUFFIXES, main
from ninefold.extensions.export.resize import Resize
from ninefold.extensions.export.run import alone
from ninefold.task.classification import Classification
from ninefold.train import build
from ninefold.train.evaluate import Restored
from tests.dataset import scenes
from tests.extensions.export.made import Different, run_folder

ALONE, FP32 = RankContext(0, 1, torch.device("cpu")), Amp(dtype="float32")


@pytest.fixture(scope="module")
def masks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    counts = {"train": 16, "test": 20}
    return scenes.write(tmp_path_factory.mktemp("scenes"), counts=counts)


MODELS = ("unet", "resnet18", "alexnet", "timm")


def job_of(name: str, masks: Path) -> list[str]:
    if name == "unet":
        return ["task=segmentation", "dataset=masks", f"dataset.root={masks}", "dataset.classes=3",
                "dataset.ignore=11", "dataset.shape=[3,24,32]", "model=unet",
                "model.net.width=4", "model.net.depth=2"]  # fmt: skip
    more = {
        "alexnet": ["model.input_size=64"],
        "timm": ["model.net.name=mobilenetv3_small_050", "model.input_size=32"],
    }
    return ["dataset=digits", f"model={name}", *more.get(name, [])]


def opened(path: Path, name: str, job: DictConfig) -> Callable[[Tensor], Tensor]:
    """The function in a file, read without any code of ninefold that exports."""
    if name == "onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        return lambda inputs: torch.from_numpy(session.run(None, {"input": inputs.numpy()})[0])
    if name == "pt2":
        return torch.export.load(str(path)).module()
    from safetensors.torch import load_file

    model = build.network(job).eval()
    model.load_state_dict(load_file(str(path)))
    return lambda inputs: model(inputs)


def described(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "export" / "export.json").read_text())


@torch.no_grad()
@pytest.mark.slow
@pytest.mark.parametrize("name", ["convnet", *MODELS])
def test_a_file_decides_on_the_whole_test_set_as_the_evaluation_does(name, masks, tmp_path):
    job = run_folder(tmp_path, *job_of(name, masks))
    _, examples, prepare, _ = build.examples_and_preparation(job, FP32, ALONE, None)
    examples = examples.first(300)
    model = build.network(job)
    model.load_state_dict(read(tmp_path / "checkpoints" / "last.pt")["model"])
    task = build.built_task(job)
    result = evaluation.evaluate(
        Objective(model, task), HostSource(examples), task=task, batch_size=256, prepare=prepare,
        parallel=build.make(job.parallel, "parallel"), context=ALONE,
    )  # fmt: skip
    rows = np.arange(len(examples))
    raw = torch.from_numpy(np.array(examples.inputs[rows]))
    prepared, targets = prepare(raw, torch.from_numpy(np.array(examples.targets[rows])), None)
    for kind, suffix in SUFFIXES.items():
        words = ["threads=1", "trust=true"]  # another network of timm than conf/ names
        assert main([f"ckpt={tmp_path}", f"format={kind}", *words]) == 0
        path = tmp_path / "export" / f"model{suffix}"
        about = described(tmp_path)
        assert about["prepare"] == (kind != "safetensors")
        given = raw if about["prepare"] else prepared
        assert about["inputs"] == [
            {"name": "input", "shape": ["batch", *given.shape[1:]],
             "dtype": str(given.dtype).removeprefix("torch.")}
        ]  # fmt: skip
        call = opened(path, kind, job)
        parts = [call(some.contiguous()) for some in given.split([1, len(given) - 1])]
        scores = task.scores(task.measure(torch.cat(parts), targets), examples.names)
        assert scores.score == result.scores.score
        assert dict(scores.each) == dict(result.scores.each)
        assert about["difference"] <= 1e-4
        assert about["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
        assert [entry["format"] for entry in about["others"]] == list(SUFFIXES)[
            : list(SUFFIXES).index(kind)
        ][::-1]
    assert sorted(os.listdir(tmp_path / "export")) == [
        "export.json", "model.onnx", "model.pt2", "model.safetensors"
    ]  # fmt: skip


@pytest.mark.slow
def test_an_export_leaves_no_file_in_the_temporary_folder_and_no_telemetry_on(shell, monkeypatch):
    """onnxruntime's would make its identity and its events files there, before it sends them."""
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY", raising=False)  # as an export before has set it
    run_folder(shell.folder / "run", "dataset=digits", "model=convnet")
    with TemporaryDirectory(prefix="nf-") as place:
        words = ("ninefold", "export", "ckpt=run", "format=onnx", "threads=1")
        shell.run("-m", *words, env={"TMPDIR": place}, fresh=True, code=0)
        assert [name for name in os.listdir(place) if "torchinductor" not in name] == []


def test_without_preparation_a_graph_takes_what_the_network_takes(tmp_path):
    run_folder(tmp_path, "dataset=digits", "model=convnet")
    out = tmp_path / "elsewhere" / "net.pt2"
    assert main([f"ckpt={tmp_path}", "format=pt2", "prepare=false", f"out={out}"]) == 0
    about = json.loads((out.parent / "export.json").read_text())
    assert about["inputs"][0] == {"name": "input", "shape": ["batch", 1, 8, 8], "dtype": "float32"}
    assert (about["file"], about["prepare"]) == ("net.pt2", False)
    call = torch.export.load(str(out)).module()
    assert [len(call(torch.rand(n, 1, 8, 8))) for n in (1, 3)] == [1, 3]


def mine(folder: Path, name: str) -> list[str]:
    """The arguments for a network of tests.extensions.export.made."""
    yaml = folder / "conf" / "model" / "mine.yaml"
    yaml.parent.mkdir(parents=True, exist_ok=True)
    yaml.write_text(
        f"net: {{_target_: tests.extensions.export.made.{name}, classes: 10}}\ninput_channels: 1\n"
        "input_size: null\nmemory_format: contiguous_format\n"
    )
    return [f"--config-dir={folder / 'conf'}", "model=mine"]


@pytest.mark.slow
def test_the_export_of_a_network_that_samples_says_so(tmp_path, capsys):
    """What draws the same numbers again is verified; onnxruntime draws its own."""
    own = mine(tmp_path, "Sampling")
    run = tmp_path / "run"
    run_folder(run, *own, "dataset=digits")
    common = [f"ckpt={run}", *own[1:], own[0]]
    assert main([*common, "format=safetensors"]) == 0
    assert "note: The network samples; outputs were compared" in capsys.readouterr().out
    assert main([*common, "format=onnx"]) == 6
    said = capsys.readouterr().err
    assert "as the network samples: it draws other random numbers than the file does" in said
    assert not (run / "export" / "model.onnx").exists()


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("Different", "error: export=pt2: outputs differ by 0.13; 0.0001 and the same decisions "),
        ("Turned", "error: export=pt2: 64 of 64 decisions are others; "),
    ],
)
def test_a_file_that_computes_something_else_never_gets_its_name(tmp_path, capsys, name, line):
    model = Different(10)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    (tmp_path / "export").mkdir()
    (tmp_path / "export" / "model.pt2").write_text("the old file")
    arguments = [f"ckpt={tmp_path / 'weights.pt'}", "format=pt2", "dataset=digits"]
    assert main([*mine(tmp_path, name), *arguments]) == 6
    assert capsys.readouterr().err.startswith(line)
    assert os.listdir(tmp_path / "export") == ["model.pt2"]
    assert (tmp_path / "export" / "model.pt2").read_text() == "the old file"


def test_a_network_that_no_graph_can_hold_is_refused_with_its_line_of_code(tmp_path, capsys):
    """Unless torch does not tell it, as that of a size which the code makes a number of."""
    torch.save(Different(10).state_dict(), tmp_path / "weights.pt")
    file = Path(inspect.getfile(Different))
    number = 1 + file.read_text().partition("if float(found.sum()) > 0")[0].count("\n")
    for name, said in (
        ("Unexportable", f"{file}:{number}, "),
        ("OneSize", "its code fixes the number of examples in a batch, and a file takes any"),
    ):
        arguments = [f"ckpt={tmp_path / 'weights.pt'}", "format=onnx", "dataset=digits"]
        assert main([*mine(tmp_path, name), *arguments]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"error: format=onnx: the network cannot be exported so; {said}")


def test_a_file_that_returns_another_shape_is_refused_with_its_format():
    model, ones = torch.nn.Identity(), torch.ones(5, 3)
    source = graph.Exported(model, model, model, ones, ones, ones, False)
    with pytest.raises(NumericsError, match=r"^error: export=onnx: the file returns torch.float32"):
        check.compared(source, lambda inputs: inputs[:, :2], Classification(3), "onnx")


def changed(folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Make a run folder whose checkpoint holds what `change` leaves of its content."""
    run_folder(folder, "dataset=digits", "model=convnet")
    path = folder / "checkpoints" / "last.pt"
    content = read(path)
    change(content)
    torch.save(content, path)
    return path


def test_an_export_of_partly_loaded_weights_says_so_beside_and_in_the_file(tmp_path):
    from safetensors import safe_open

    changed(tmp_path, lambda content: content["model"].pop("classifier.bias"))
    assert main([f"ckpt={tmp_path}", "format=safetensors", "load.partial=true"]) == 0
    said = described(tmp_path)["load"]
    assert "1 missing (classifier.bias)" in said
    with safe_open(tmp_path / "export" / "model.safetensors", "pt") as file:
        assert file.metadata()["load"] == said


@pytest.mark.parametrize(
    ("package", "kind"),
    [("onnxruntime", "onnx"), ("onnxscript", "onnx"), ("safetensors.torch", "safetensors")],
)
def test_without_its_package_a_format_names_it(tmp_path, monkeypatch, capsys, package, kind):
    run_folder(tmp_path, "dataset=digits", "model=convnet")
    monkeypatch.setitem(sys.modules, package, None)
    assert main([f"ckpt={tmp_path}", f"format={kind}"]) == 2
    name = package.partition(".")[0]
    line = f"error: format={kind}: {name} is not installed; the extra {kind} has it; pip install "
    assert capsys.readouterr().err.startswith(line)


def test_where_two_classes_are_as_good_as_equal_either_may_be_chosen():
    tied = torch.tensor([[1.0, 1.0 + 1e-6], [2.0, 1.0]])
    assert check.compared_choices(tied, tied.flip(1)) == (2, 1)


def strangers(content: dict[str, Any]) -> None:
    target = "ninefold.model.convnet.ConvNet"
    content["config"] = content["config"].replace(target, "os.system")


def not_finite(content: dict[str, Any]) -> None:
    content["model"]["classifier.bias"].fill_(math.nan)


REFUSED: list[tuple[Callable[[dict[str, Any]], object], list[str], int, str]] = [
    (len, [], 2, "error: format=null: nothing says what to write; safetensors, onnx, pt2 are"),
    (len, ["format=tflite"], 2, "error: format=tflite: no such value; safetensors, onnx, pt2 are"),
    (len, ["format=pt2", "wich=best"], 2, "error: wich=best: no such key; "),
    (len, ["format=pt2", "which=best"], 3, "error: which=best: there is no such checkpoint; "),
    (len, ["format=safetensors", "prepare=true"], 2, "error: prepare=true: a file of weights "),
    (len, ["format=onnx", "out=a.pt"], 2, "error: out=a.pt: not the name of a file to write as "),
    (len, ["format=pt2", "model.net.wdth=4"], 2, "error: "),
    (len, ["format=pt2", "weights=average"], 3, "error: weights=average: this checkpoint has none"),
    (len, ["format=pt2", "model=alexnet"], 3, "error: ckpt="),
    (strangers, ["format=pt2"], 3, "its configuration has model.net._target_=os.system"),
    (not_finite, ["format=onnx"], 6, "last.pt: classifier.bias in it is not finite; 10 of its "),
]


@pytest.mark.slow
@pytest.mark.parametrize(("change", "arguments", "code", "line"), REFUSED)
def test_what_cannot_be_exported_is_one_line(tmp_path, capsys, change, arguments, code, line):
    changed(tmp_path, change)
    assert main([f"ckpt={tmp_path}", *arguments]) == code
    (found,) = capsys.readouterr().err.splitlines()
    assert found.startswith("error: ")
    assert line in found
    assert os.listdir(tmp_path) == ["checkpoints"]


def test_the_moving_average_is_exported_where_there_is_one(tmp_path):
    def change(content: dict[str, Any]) -> None:
        content["average"] = {key: value + 0.125 for key, value in content["model"].items()}

    raw = read(changed(tmp_path, change))["model"]
    for chosen, added in ((["weights=raw"], 0), ([], 0.125)):
        assert main([f"ckpt={tmp_path}", "format=safetensors", *chosen]) == 0
        found = read(tmp_path / "export" / "model.safetensors")
        assert found.keys() == raw.keys()
        assert all(torch.equal(found[key], raw[key] + added) for key in raw)
        assert described(tmp_path)["weights"] == ("average" if added else "raw")


def test_a_damaged_safetensors_file_is_refused_in_a_line(tmp_path, capsys):
    path = tmp_path / "weights.safetensors"
    path.write_bytes(b"\xff" * 64)
    arguments = ["model=convnet", "dataset=digits", "format=pt2"]
    assert main([f"ckpt={path}", *arguments]) == 3
    (found,) = capsys.readouterr().err.splitlines()
    assert found.startswith(f"error: ckpt={path}: it cannot be read; ")


def test_the_infinity_of_a_mask_in_a_buffer_is_accepted_and_nan_is_not(tmp_path):
    network = torch.nn.BatchNorm1d(2)
    found = Restored(network, OmegaConf.create({}), tmp_path, "raw", LoadReport([], [], [], []), {})
    network.running_mean[0] = -math.inf  # as a mask of attention has it
    found.require_finite()
    network.running_mean[0] = math.nan
    with pytest.raises(NumericsError, match="running_mean in it is not finite; 1 of its 2 values"):
        found.require_finite()


@pytest.mark.parametrize("what", ["a symbolic link", "a FIFO"])
@pytest.mark.parametrize("given", [True, False])
def test_an_export_replaces_nothing_but_a_regular_file(tmp_path, capsys, what, given):
    run_folder(tmp_path, "dataset=digits", "model=convnet")
    file = tmp_path / "export" / "model.safetensors"
    file.parent.mkdir()
    os.mkfifo(file) if what == "a FIFO" else file.symlink_to(tmp_path / "precious")
    out = [f"out={file}"] if given else []
    assert main([f"ckpt={tmp_path}", "format=safetensors", *out]) == 2
    (found,) = capsys.readouterr().err.splitlines()
    assert found.startswith(f"error: out={file}: it is {what}, a regular file is expected; ")
    assert os.listdir(file.parent) == [file.name]
    assert not (tmp_path / "precious").exists()


@pytest.mark.parametrize(
    ("height", "width", "size"), [(8, 8, 32), (32, 32, 227), (64, 48, 20), (24, 32, 32), (5, 7, 3)]
)
def test_bytes_are_resized_in_a_graph_bitwise_as_in_an_evaluation(height, width, size):
    torch.manual_seed(height)
    images = torch.randint(0, 256, (9, 3, height, width), dtype=torch.uint8)
    images[:2] = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1)
    assert torch.equal(Resize(height, width, size)(images), resized(images, size).float())


@pytest.mark.parametrize("kind", [pytest.param("onnx", marks=pytest.mark.slow), "pt2"])
def test_a_graph_resizes_and_repeats_channels_as_an_evaluation_does(tmp_path, kind):
    job = run_folder(tmp_path, "dataset=digits", "model=convnet", "model.input_size=12",
                     "model.net.channels=3", "model.input_channels=3")  # fmt: skip
    assert main([f"ckpt={tmp_path}", f"format={kind}"]) == 0
    about = described(tmp_path)
    assert about["inputs"][0]["shape"] == ["batch", 1, 8, 8]
    assert about["difference"] <= 1e-4
    assert about["verified"]["decisions"] == 64
    call = opened(tmp_path / "export" / f"model{SUFFIXES[kind]}", kind, job)
    assert call(torch.zeros(3, 1, 8, 8, dtype=torch.uint8)).shape == (3, 10)


def test_a_preparation_that_a_graph_would_not_repeat_bitwise_is_refused():
    def doubled(inputs: Tensor, targets: Tensor, draw: None) -> tuple[Tensor, Tensor]:
        return inputs * 2.0, targets

    raw = torch.randint(0, 256, (5, 3, 4, 4), dtype=torch.uint8)
    model = torch.nn.Flatten()
    with pytest.raises(ConfigError, match="error: prepare=true: the dataset prepares its inputs"):
        graph.source(model, model, raw, torch.zeros(5), doubled, True)
    assert graph.source(model, model, raw, torch.zeros(5), doubled, False).inputs.max() > 255


def test_exports_to_a_folder_wait_for_each_other_and_remove_what_killed_ones_left(tmp_path):
    (tmp_path / ".ninefold-export-0a_b1cd2").mkdir()
    (tmp_path / ".ninefold-export-0a_b1cd2" / "model.pt2").touch()
    (tmp_path / ".ninefold-exports").mkdir()  # somebody's own
    done = threading.Event()

    def second() -> None:
        with alone(tmp_path):
            done.set()

    other = threading.Thread(target=second)
    with alone(tmp_path) as folder:
        assert sorted(os.listdir(tmp_path)) == sorted([Path(folder).name, ".ninefold-exports"])
        other.start()
        assert not done.wait(0.2)
        assert Path(folder).is_dir()
    other.join(10)
    assert done.is_set()
    assert os.listdir(tmp_path) == [".ninefold-exports"]
