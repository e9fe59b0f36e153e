"""Weights from anybody's file: what fits is loaded, and what does not is told."""

from collections import OrderedDict
from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor, nn
from torchvision.models import mnasnet0_5

from ninefold.checkpoint.store import read
from ninefold.checkpoint.weights import aligned, load_weights, weights
from ninefold.engine.parallel.none import Single
from tests.kit import same


def small(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 2))


class Adapter(nn.Module):
    """A model that calls a part of its own `module`, as a wrapper would."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(2, 2)
        self.head = nn.Linear(2, 2)


def compiled_blocks(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key.replace(".", "._orig_mod."): value for key, value in state.items()}


PREFIXES = ("", "module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module.",
            "module.module.", "_orig_mod.module._orig_mod.")  # fmt: skip


@pytest.mark.parametrize("make", [lambda: small(1), Adapter], ids=["small", "Adapter"])
@pytest.mark.parametrize("prefix", PREFIXES)
def test_wrappers_prefixes_are_dropped_in_any_nesting_but_no_name_of_the_models_own(prefix, make):
    model, theirs = make(), make().state_dict()
    report = load_weights(model, {prefix + key: value for key, value in theirs.items()})
    assert report.complete, str(report)
    assert report.loaded == sorted(theirs)
    assert same(model.state_dict(), theirs)
    assert load_weights(small(0), compiled_blocks(small(1).state_dict())).complete


@pytest.mark.parametrize("key", [None, "model", "state_dict", "model_state_dict"])
def test_weights_are_found_bare_or_under_a_usual_key(tmp_path, key):
    theirs = small(1).state_dict()
    held = theirs if key is None else {key: theirs, "epoch": 3, "optimizer": {"state": {}}}
    torch.save(held, tmp_path / "file.pt")
    assert same(weights(read(tmp_path / "file.pt")), theirs)


def test_what_is_no_tensor_is_no_weight():
    found = weights(OrderedDict(weight=torch.ones(1), epoch=3, name="net"))
    assert list(found) == ["weight"]


def test_a_parameter_that_is_called_model_does_not_hide_the_others():
    found = {"model": torch.ones(1), "head": torch.ones(2)}
    assert same(weights(found), found)


def test_the_report_tells_missing_unexpected_and_mismatched_tensors():
    model = small(0)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    found = small(1).state_dict()
    del found["0.bias"]
    found["extra"] = torch.ones(1)
    found["2.weight"] = torch.ones(5, 2)
    report = load_weights(model, found)
    assert not report.complete
    assert report.missing == ["0.bias"]
    assert report.unexpected == ["extra"]
    assert report.mismatched == ["2.weight: [5, 2] for [2, 2]"]
    assert set(report.loaded) == set(before) - {"0.bias", "2.weight"}
    after = model.state_dict()
    assert all(torch.equal(after[key], before[key]) for key in ("0.bias", "2.weight"))
    assert all(torch.equal(after[key], found[key]) for key in report.loaded)


def test_the_report_reads_as_one_line():
    found = small(1).state_dict()
    found.pop("0.bias")
    text = str(load_weights(small(0), {**found, **{f"x{k}": torch.ones(1) for k in range(6)}}))
    assert text == (
        "8 tensors loaded, 1 missing (0.bias), 6 unexpected (x0, x1, x2, x3, ...), 0 mismatched"
    )


def test_loading_keeps_the_models_dtype_and_memory_format():
    model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    found = {key: value.double() for key, value in nn.Conv2d(3, 4, 3).state_dict().items()}
    assert load_weights(model, found).complete
    assert model.weight.dtype == torch.float32
    assert model.weight.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(model.weight, found["weight"].float())


KINDS: list[tuple[Callable[[Tensor], Tensor], str | None]] = [
    (Tensor.half, None), (Tensor.bfloat16, None), (Tensor.double, None),
    (lambda tensor: tensor.to(torch.complex64), "complex64 for float32"),
    (Tensor.long, "int64 for float32"), (Tensor.bool, "bool for float32"),
    (lambda tensor: tensor.to(torch.float8_e4m3fn), "float8_e4m3fn for float32"),
    (Tensor.to_sparse, "sparse for plain"), (Tensor.to_sparse_csr, "sparse_csr for strided"),
    (lambda tensor: tensor.to("meta"), "meta for plain"),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize(("make", "told"), KINDS, ids=lambda value: str(value)[:20])
def test_a_tensor_of_another_kind_does_not_fit(make, told):
    model = nn.Linear(2, 2, bias=False)
    report = load_weights(model, {"weight": make(torch.ones(2, 2))})
    assert report.mismatched == ([f"weight: {told}"] if told else [])
    assert bool((model.weight == 1).all()) is (told is None)


def test_a_counter_takes_any_integer_and_no_float():
    model = nn.BatchNorm1d(2)
    assert load_weights(model, {**model.state_dict(), "num_batches_tracked": torch.tensor(
        3, dtype=torch.int32)}).complete  # fmt: skip
    report = load_weights(model, {**model.state_dict(), "num_batches_tracked": torch.tensor(3.0)})
    assert report.mismatched == ["num_batches_tracked: float32 for int64"]


@pytest.mark.parametrize("first", [True, False])
def test_a_second_tensor_for_one_name_is_told_and_not_taken(first):
    model, theirs = small(0), small(1).state_dict()
    second = {"module.0.bias": torch.full((2,), 9.0)}
    report = load_weights(model, {**second, **theirs} if first else {**theirs, **second})
    assert report.unexpected == ["module.0.bias"]
    assert same(model.state_dict(), theirs)


@pytest.mark.parametrize(("theirs", "ours"), [("net.", ""), ("", "backbone.")])
def test_a_prefix_of_the_file_or_of_the_model_is_found(theirs, ours):
    state = small(1).state_dict()
    names = {f"{ours}{key}" for key in state}
    found = aligned({f"{theirs}{key}": value for key, value in state.items()}, names)
    expected = {f"{ours}{key}" for key in state}
    assert found.keys() == expected
    assert aligned(state, set(state)).keys() == state.keys()


def test_a_file_from_before_batches_were_counted_is_complete():
    state = small(1).state_dict()
    old = {key: value for key, value in state.items() if not key.endswith("num_batches_tracked")}
    assert len(old) < len(state)
    assert load_weights(small(0), old).complete


def test_a_model_that_loads_its_own_version_only_is_loaded_and_restored():
    model, other = (mnasnet0_5(num_classes=3) for _ in range(2))
    plain = dict(other.state_dict())
    assert load_weights(model, plain).complete
    assert same(dict(model.state_dict()), plain)
    nn.init.zeros_(model.layers[0].weight)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    saved = {"model": plain, "optimizer": optimizer.state_dict(), "average": {}}
    Single().load(saved, model, optimizer, {})
    assert same(dict(model.state_dict()), dict(other.state_dict()))
