"""`ninefold diff`: what is recorded, what is said, and the exit code."""

import json
import subprocess
import sys
from importlib import import_module
from statistics import median
from typing import Any

import pytest
import torch

from ninefold.bench.command import INJECT
from ninefold.diff.__main__ import main
from ninefold.diff.compare import Entry, Training, distance, find, growth, recording, table
from ninefold.diff.kinds import answer
from ninefold.diff.resume import begin, lost
from ninefold.diff.twice import possible
from tests.conftest import Shell
from tests.diff.plants import HERE, PLANTS, PYTHON, wrong


@pytest.fixture
def entry(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes the entry of a tensor, as a command's process records it."""
    monkeypatch.syspath_prepend(INJECT)
    for name, value in recording(5).items():
        monkeypatch.setenv(name, value)
    module = import_module("ninefold_bench_record")

    def made(tensor: torch.Tensor) -> Entry:
        module.RECORDER.note("output", "x", tensor, by_example=True)
        _, _, dtype, rows, numbers = module.RECORDER.entries.pop()
        return Entry(dtype, rows, *numbers.tolist())

    yield made
    for name in [name for name in sys.modules if name.startswith("ninefold_bench_")]:
        del sys.modules[name]


def test_data_parallel_is_the_network_where_it_has_copies_compute(entry):
    hands_on = sys.modules["ninefold_bench_record"].hands_on
    network = torch.nn.DataParallel(torch.nn.Linear(1, 1))
    assert hands_on(network)
    network.device_ids = [0, 1]
    assert not hands_on(network)


def test_entries_add_up_over_examples_and_are_apart_by_the_error_of_elements(entry):
    torch.manual_seed(0)
    whole = torch.randn(12, 70_000)
    parts = [entry(part) for part in whole.chunk(4)]
    total = parts[0].plus(parts[1]).plus(parts[2]).plus(parts[3])
    assert distance(entry(whole), total) < 1e-12
    for error in (1e-6, 1e-2):
        noisy = [entry(whole * (1 + error * torch.randn_like(whole))) for _ in range(5)]
        assert error / 30 < median(distance(entry(whole), each) for each in noisy) < 30 * error
    assert distance(entry(whole), entry(whole.flip(1))) > 0.01
    assert distance(entry(whole), entry(whole.clone().fill_(torch.nan))) == float("inf")


@pytest.mark.gpu
def test_what_a_gpu_rounds_to_tf32_is_said_by_the_setting_of_the_module(entry) -> None:
    recorder = sys.modules["ninefold_bench_record"]
    convolves, other = torch.nn.Conv2d(3, 3, 3, device="cuda"), torch.nn.Linear(3, 3)
    cudnn: Any = torch.backends.cudnn
    before = cudnn.conv.fp32_precision
    for precision, rounds in (("tf32", True), ("ieee", False)):
        cudnn.conv.fp32_precision = precision
        assert recorder.may_be_tf32(convolves) == rounds
    cudnn.conv.fp32_precision = before
    assert not recorder.may_be_tf32(other)  # PyTorch's default
    ones = torch.ones(4, 4, device="cuda")
    recorder.RECORDER.note("output", "x", ones, by_example=True, tf32=True)
    assert recorder.RECORDER.entries.pop()[2] == "TF32"
    assert entry(ones).dtype == "float32"


def training(name: str, *steps: dict[str, float], dtype: str = "float32") -> Training:
    """Steps of numbers, by phase and name: `grad a`. zeros: the share of each that is zero."""
    nothing = {
        "lacks": False,
        "data": [],
        "examples": [],
        "ties": [],
        "modules": {},
        "born": {},
        "drew": [],
    }
    random = {"rng": {"torch": name}, "after": {"torch": f"{name} later"}}
    made = []
    for step in steps:
        zeros = step.get("zeros", 0.0)
        entries = [
            [*place.split(maxsplit=1), dtype, 1, [10.0, 0.0, 10 * zeros, x, x**2, x]]
            for place, x in step.items() if place != "zeros"
        ]  # fmt: skip
        made.append([{"micro": 1, "entries": entries, "unrecorded": None, **nothing, **random}])
    return Training(name, made)


def test_gradients_alone_that_part_a_little_after_step_1_hide_nothing_that_comes_later() -> None:
    def bent(name: str, *bends: float, x: float = 1.0) -> Training:
        equal = {"output x": 1.0, "loss loss": 1.0, "grad c": 1.0}
        steps = [{**equal, "grad a": 1.0 + bend, "grad b": 1.0 + bend} for bend in bends]
        return training(name, *steps, {**equal, "input x": x, "loss loss": x})

    one = bent("A", 0.0, 0.0)
    found = answer(find(one, bent("B", 1e-2, 0.0)))
    assert (found["kind"], found["step"], found["phase"]) == ("function", 1, "grad")
    assert answer(find(one, bent("B", 0.0, 1e-2)))["kind"] == "rounding"
    found = answer(find(one, bent("B", 0.0, 1e-2, x=2.0)))
    assert (found["step"], found["phase"]) == (3, "input")


def test_no_rounding_explains_another_learning_rate() -> None:
    def steps(name: str, rounding: float, rate: float) -> Training:
        equal = {"output x": 1.0 + rounding, "loss loss": 1.0}
        rates = ({"hyper lr": 1.0}, {"hyper lr": rate})
        return training(name, *({**equal, **of} for of in rates), dtype="bfloat16")

    found = answer(find(steps("A", 0.0, 1.0), steps("B", 0.01, 1.1)))
    assert (found["kind"], found["step"]) == ("learning-rate", 2)


def test_rounding_hides_what_it_may_have_grown_to_and_no_mistake_that_is_larger() -> None:
    def steps(name: str, *values: float) -> Training:
        each = (
            {"output x": x, "loss loss": loss} for x, loss in zip((1.0, 1.0), values, strict=True)
        )
        return training(name, *each, dtype="bfloat16")

    a, b = steps("A", 1.0, 1.0), steps("B", 1.01, 1.1)
    assert "rounding has grown" in answer(find(a, b))["text"]
    found = answer(find(a, steps("B", 1.01, 4.0)))
    assert (found["kind"], found["step"]) == ("function", 2)


def test_rounding_to_16_bits_may_turn_gradients_in_step_1_and_explains_what_follows() -> None:
    def steps(name: str, *gradients: float, x: float = 1.001, **how: Any) -> Training:
        first = {"output x": x, **{f"grad {w}": g for w, g in zip("abc", gradients, strict=True)}}
        later = {"output x": x, "param a": 10 * x - 9}
        loss = {"loss loss": 1.0}
        return training(name, loss | first, loss | later, **{"dtype": "bfloat16", **how})

    one = steps("A", 1.0, 1.0, 1.0, x=1.0)
    turned = 1.2, -1.2, 0.8
    found = answer(find(one, steps("B", *turned)))
    assert found["kind"] == "rounding"
    assert found["text"].startswith("Nothing differs up to step 2 but by rounding (")
    assert "127 % at most, in gradients; from step 1, the output of x on)" in found["text"]
    # of one factor, of another size, one that vanishes
    for others in ((1.1, 1.1, 1.1), (1.5, 1.2, 0.8), (1.2, 0.8, 0.0)):
        assert answer(find(one, steps("B", *others)))["step"] == 1
    assert answer(find(one, steps("B", *turned, dtype="TF32")))["kind"] == "rounding"
    # where no output was rounded otherwise, and in float32
    for how in ({"x": 1.0}, {"x": 1.0 + 1e-6, "dtype": "float32"}):
        assert answer(find(one, steps("B", *turned, **how)))["kind"] == "function"
    apart = steps("B", *turned)
    apart.steps[0].append(steps("B", 1.2, 1.2, 0.8).first)  # of ranks that average nothing
    assert answer(find(one, apart))["kind"] == "function"


def test_gradients_that_were_let_go_are_told_where_weights_part_after_them() -> None:
    def steps(name: str, bend: float, weight: float) -> Training:
        equal = {"loss loss": 1.0, "grad b": 1.0}
        last = {**equal, "param a": weight, "grad a": 1.0}
        bends = ({**equal, "grad a": each} for each in (bend, (1 + bend) / 2))
        return training(name, last | {"param a": 1.0}, *bends, last | {"grad a": weight})

    found = answer(find(steps("A", 1.0, 1.0), steps("B", 1.02, 1.04)))
    assert found["kind"] == "step"
    assert found["text"].startswith("Equal but for rounding (1 % at most, in gradients; from ")
    assert found["text"].endswith(", and before it gradients by at most 1.4 %.")


def test_a_loss_that_adds_up_over_its_examples_is_told() -> None:
    one, other = (training(name, {"loss loss": x, "grad a": x}) for name, x in (("A", 1), ("B", 8)))
    one.first["examples"] = other.first["examples"] = [["net", [float(n) for n in range(8)]]]
    found = answer(find(one, other))
    assert found["kind"] == "sum-over-examples"
    assert found["text"].endswith("B adds up over 8 examples and does not divide by their number.")
    one.first["micro"] = 8
    assert answer(find(one, other))["kind"] == "divided-twice"


# Each by its own factor, by one, and divided.
@pytest.mark.parametrize("clipped", [(0.9, 0.6), (1.1, 0.55), (1.0, 0.5)])
def test_a_loss_that_is_not_divided_is_told_though_its_gradients_are_clipped(clipped) -> None:
    a, b = clipped
    one = training("A", {"output x": 1.0, "loss loss": 1.0, "grad a": 1.0, "grad b": 0.5})
    other = training("B", {"output x": 1.0, "loss loss": 4.0, "grad a": a, "grad b": b})
    other.steps[0][0]["micro"] = 4
    found = answer(find(one, other))
    assert found["kind"] == "accumulation"
    assert ("gradients are equal, so they are divided" in found["text"]) == (a == 1.0)


def test_what_has_grown_farther_than_rounding_does_by_itself_is_a_mistake() -> None:
    def steps(name: str, *apart: float) -> Training:
        return training(name, *({"loss loss": 1.0 + each, "grad a": 1.0} for each in apart))

    one, other = steps("A", 0, 0, 0, 0), steps("B", 0, 1e-6, 2e-5, 3e-4)
    parting = find(one, other)
    assert answer(parting)["kind"] == "rounding"
    assert parting.nudge == pytest.approx(1e-6, rel=0.1)
    chaotic = growth(one, steps("A", 1e-6, 1e-6, 1e-5, 1e-4))
    assert answer(find(one, other, grown=chaotic))["kind"] == "rounding"
    found = answer(find(one, other, grown=growth(one, steps("A", *4 * [1e-7]))))
    assert (found["kind"], found["step"]) == ("function", 3)
    assert found["text"].startswith("Equal but for rounding (1e-06 at most; from step 2, the loss ")
    assert find(one, steps("B", 0, 1e-6, 1e-6, 1e-6)).nudge == 0


def test_what_several_optimizers_train_is_not_said_to_be_trained_by_none() -> None:
    step = {"loss loss": 1.0, "grad a": 1.0}
    one, other = training("A", {**step, "grad b": 1.0}), training("B", step, {"grad b": 1.0})
    found = answer(find(one, other))
    assert found["kind"] == "structure"
    assert "another optimizer of B has it, and each optimizer's step is one" in found["text"]


def test_gradients_that_are_not_set_to_zero_and_rows_in_another_order_are_named() -> None:
    one = training("A", {"grad a": 1.0, "grad b": 3.0}, {"grad a": 2.0, "grad b": -1.0})
    other = training("B", {"grad a": 1.0, "grad b": 3.0}, {"grad a": 3.0, "grad b": 2.0})
    found = answer(find(one, other))
    assert (found["kind"], found["step"]) == ("not-zeroed", 2)
    assert found["text"].endswith("gradients of B add up: those of step 1 are in them, too "
                                  "(zero_grad is not called).")  # fmt: skip
    assert (
        "gradients of A add up"
        in answer(find(renamed_to("A", other), renamed_to("B", one)))["text"]
    )
    one, other = (
        training(name, {"input x": 1.0, "loss loss": x}) for name, x in (("A", 1.0), ("B", 2.0))
    )
    for each, rows in ((one, [1.0, 2.0]), (other, [2.0, 1.0])):
        each.first["examples"] = [["x", rows]]
    assert answer(find(one, other))["kind"] == "order"


def renamed_to(name: str, of: Training) -> Training:
    return Training(name, of.steps)


def test_indices_of_unlike_datasets_are_of_unlike_examples() -> None:
    one, other = (training(name, {"input x": x, "loss loss": x})
                  for name, x in (("A", 1.0), ("B", 2.0)))  # fmt: skip
    other.steps[0] = [other.first, {**other.first}]  # two ranks, each with a half
    for ranks, data, values in (
        (one.steps[0], "Rows[8]", [4.0]),
        (other.steps[0], "Rows[4]", [5.0, 6.0]),
    ):
        for rank, x in zip(ranks, values, strict=True):
            rank |= {"data": [[data, [0, 1]]], "examples": [["x", [x, x + 10]]]}
    found = answer(find(one, other))
    assert found["kind"] != "same-on-ranks"
    assert found["text"].endswith("; the loaders are of Rows[8] in A and Rows[4] in B.")


def numbers(x: float, n: float = 10.0, bad: float = 0.0) -> list[float]:
    return [n, bad, 0.0, x, x**2, x]


def test_gradients_that_part_beside_an_equal_loss_are_no_mean_of_means() -> None:
    one = training("A", {"output x": 1.0, "loss loss": 1.0, "grad a": 1.0, "grad b": 0.5})
    other = training("B", {"output x": 1.0, "loss loss": 1.0, "grad a": 0.9, "grad b": 0.6})
    other.first["micro"] = 4
    found = answer(find(one, other))
    assert found["kind"] == "function"
    assert "the loss is equal, so gradients are not averaged, a clip, " in found["text"]


def test_a_frozen_weight_in_one_optimizer_alone_changes_no_training() -> None:
    one, other = (training(name, {"loss loss": 1.0, "grad a": 1.0}) for name in "AB")
    other.first["entries"].append(["grad", "frozen", None, 0, [0.0] * 6])
    assert answer(find(one, other))["kind"] == "equal"
    other.first["entries"][-1][2:] = ["float32", 1, numbers(1.0)]
    assert answer(find(one, other))["kind"] == "not-trained"


def test_a_network_that_is_called_in_one_alone_is_told_where_it_has_been_in_both() -> None:
    def steps(name: str, again: dict[str, float], x: float) -> Training:
        step = {"param a": 1.0, "param c": 1.0, "loss loss": 1.0, "grad a": 1.0}
        return training(name, {**step, "output b": x}, {**step, **again})

    found = answer(find(steps("A", {}, 1.0), steps("B", {"param b": 1.0, "loss loss": 2.0}, 2.0)))
    assert found["text"].startswith("Equal but for the output of b up to step 1. At step 2: the ")
    assert "b belongs to a network that is called in B alone" in found["text"]


def test_most_weights_are_most_of_those_that_are_trained() -> None:
    def steps(name: str, moved: float) -> Training:
        frozen = {f"{phase} {w}": x for w in "bcd" for phase, x in (("param", 1.0), ("grad", 0.0))}
        step = {**frozen, "param a": 1.0, "loss loss": 1.0, "grad a": 1.0}
        return training(name, step, {**step, "param a": moved})

    assert answer(find(steps("A", 1.0), steps("B", 1.2)))["kind"] == "step"


def test_a_network_that_is_called_again_stands_where_its_last_call_does() -> None:
    one = training("A", {"input critic": 1.0, "output maker": 1.0})
    one.first["entries"].append(one.first["entries"][0])  # the critic gets what was made
    assert [*table([one.first])] == [("output", "maker"), ("input", "critic")]


def test_a_scaler_of_one_training_alone_skips_and_is_told_from_gradients() -> None:
    step = {"output x": 1.0, "loss loss": 1.0, "grad a": 1.0, "grad b": 0.5}
    one, other = training("A", step), training("B", {**step, "loss loss": 1024.0})
    for entry in other.first["entries"]:
        if entry[0] == "grad":
            entry[-1] = numbers(1024 * entry[-1][3])
    other.first["entries"].append(["scale", "scale", "float64", 0, numbers(1024.0)])
    found = answer(find(one, other))
    assert found["kind"] == "not-unscaled", found
    other.first["entries"][0][-1] = numbers(1.0, bad=2.0)
    assert "in B (its GradScaler skips such a step), 0 in A" in answer(find(one, other))["text"]


def test_gradients_of_a_step_that_both_scalers_skip_are_not_compared() -> None:
    pair = [training(name, {"loss loss": 1.0, "grad a": 1.0, "scale scale": 8.0}) for name in "AB"]
    for each, bad in zip(pair, (2.0, 3.0), strict=True):
        each.first["entries"][1][-1] = numbers(1.0, bad=bad)
    assert answer(find(*pair))["kind"] == "equal"
    pair[1].first["entries"][0][-1] = numbers(4.0)
    pair[1].first["micro"] = 4
    text = answer(find(*pair))["text"]
    assert text.endswith("B adds up 4 micro-batches and does not divide by their number.")


def test_padding_of_as_many_micro_batches_on_other_ranks_is_no_augmentation() -> None:
    one = training("A", {"input x": 1.0, "loss loss": 1.0})
    one.first["micro"] = 2
    other = training("B", {"input x": 0.5, "loss loss": 1.0})
    other.steps[0].append(other.first)
    for rank in other.steps[0]:
        rank["entries"][0][-1] = numbers(0.5, n=6.0)
    assert answer(find(one, other))["kind"] == "equal"


def test_a_batch_that_a_network_gets_in_two_calls_is_no_other_batch() -> None:
    one = training("A", {"input x": 1.0, "output x": 1.0, "loss loss": 1.0, "grad a": 1.0})
    other = training("B", {"input x": 0.5, "output x": 0.5, "loss loss": 1.0, "grad a": 1.0})
    calls = [each for each in other.first["entries"] if each[0] in ("input", "output")]
    for entry in calls:
        entry[-1] = [5.0, 0.0, 0.0, 0.5, 0.5, 0.5]
    other.first["entries"] += [[phase, "x[call 2]", *of] for phase, _, *of in calls]
    assert answer(find(one, other))["kind"] == "equal"
    for each in (one, other):
        each.first["modules"] = {"x": "BatchNorm1d"}
    calls[1][-1] = [5.0, 0.0, 0.0, 0.6, 0.5, 0.5]
    other.first["entries"] = [each for each in other.first["entries"] if each[0] != "loss"] + [
        ["loss", "loss", "float32", 1, numbers(1.2)]]  # fmt: skip
    found = answer(find(one, other))
    assert found["kind"] == "batchnorm"
    assert (
        "its calls are 1 in A and 2 in B, and it takes mean and variance over each" in found["text"]
    )


def test_an_order_that_no_input_shows_is_told_by_the_loaders_also_a_batch_ahead() -> None:
    def steps(name: str, loss: float, *given: list[list[int]]) -> Training:
        found = training(name, *({"loss loss": loss},) * len(given))
        for ranks, batches in zip(found.steps, given, strict=True):
            ranks[0]["data"] = [["Rows", of] for of in batches]
        return found

    one = steps("A", 1.0, [[1, 2]], [[3, 4]])
    ahead = steps("B", 2.0, [[1, 2], [3, 4]], [[5, 6]])
    assert answer(find(one, ahead))["kind"] != "order"
    assert answer(find(one, steps("B", 2.0, [[5, 6]], [[3, 4]])))["kind"] == "order"
    other = steps("B", 2.0, [], [[3, 4]])  # another optimizer's step gave no data
    assert answer(find(one, other))["kind"] != "order"


def test_without_indices_other_values_may_be_of_the_same_examples() -> None:
    one, other = (training(name, {"input x": x, "loss loss": x})
                  for name, x in (("A", 1.0), ("B", 2.0)))  # fmt: skip
    for each, x in ((one, 1.0), (other, 1.1)):
        each.first["examples"] = [["x", [x, x + 1]]]
    found = answer(find(one, other))
    assert found["text"].endswith("differs by 50 %: other examples, or other values of the same.")


def test_of_equal_weights_a_resumed_training_begins_at_those_next_to_the_save() -> None:
    whole = training("A", *[{"param w": number} for number in (1.0, 2.0, 2.0, 3.0)])
    assert [begin(whole, training("B", {"param w": 2.0}), saved) for saved in (1, 2)] == [1, 2]


def test_numbers_that_differ_are_shown_with_the_digits_that_tell_them_apart() -> None:
    one, other = (
        training(name, {"hyper lr": rate}) for name, rate in (("A", 1e-3), ("B", 1.00003e-3))
    )
    assert answer(find(one, other))["text"].endswith("lr is 0.001 in A and 0.00100003 in B.")


def test_an_empty_tensor_is_recorded(entry) -> None:
    assert entry(torch.empty(0, 3)).n == 0


@pytest.mark.parametrize(("dtype", "kind"), [("float16", "underflow"), ("float32", "function")])
def test_gradients_underflow_where_something_is_computed_in_float16(dtype, kind) -> None:
    step = {"output x": 1.0, "loss loss": 1.0, "grad a": 1.0, "grad b": 1.0}
    pair = (training("A", step, dtype=dtype),
            training("B", {**step, "grad a": 1.1, "zeros": 0.3}, dtype=dtype))  # fmt: skip
    assert answer(find(*pair))["kind"] == kind


def test_a_gradient_that_is_all_zero_in_float16_has_underflowed() -> None:
    step = {"output x": 1.0, "loss loss": 1.0, "grad a": 1.0, "grad b": 1.0}
    one, other = (training(name, step, dtype="float16") for name in "AB")
    other.steps[0][0]["entries"][2][-1] = [10.0, 0.0, 10.0, 0.0, 0.0, 0.0]
    assert answer(find(one, other))["kind"] == "underflow"


def test_dropout_that_a_compiler_draws_otherwise_from_the_same_state_is_dropout() -> None:
    one, other = (
        training(name, {"output x": x, "loss loss": x}) for name, x in (("A", 1.0), ("B", 2.0))
    )
    for rank in (one.first, other.first):
        rank |= {"rng": {"torch": "the same"}, "drew": ["x"]}
    assert answer(find(one, other))["kind"] == "dropout"
    other.first["after"] = one.first["after"]
    assert answer(find(one, other))["kind"] == "module"


def test_dropout_whose_output_cannot_be_compared_explains_what_comes_after_it() -> None:
    one, other = (training(name, {"output drop": 1.0, "output x": x, "loss loss": x})
                  for name, x in (("A", 1.0), ("B", 2.0)))  # fmt: skip
    one.first["drew"] = other.first["drew"] = ["drop"]
    assert answer(find(one, other))["kind"] == "module"
    other.first["micro"] = 4
    other.first["entries"][0][-1][0] = 7.0  # another size, as padding makes
    found = answer(find(one, other))
    assert found["kind"] == "dropout"
    other.first["drew"] = one.first["drew"] = ["later"]
    assert answer(find(one, other))["kind"] == "module"
    one.first["drew"], other.first["drew"] = ["later"], ["drop"]
    found = answer(find(one, other))
    assert (
        "differs by 50 % by random numbers that are drawn for drop: others where" in found["text"]
    )
    one.first["drew"] = []
    assert (
        "drawn for drop, and A draws none: no dropout there, or eval()"
        in answer(find(one, other))["text"]
    )


@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_a_learning_rate_leads_what_shows_beside_it(scale) -> None:
    """That is noise of one of several weights, or what parts the trainings by itself."""

    def steps(name: str, rate: float, noise: float, scale: float) -> Training:
        step = {f"hyper {of}": rate for of in ("lr", "lr of a", "lr of b", "eps of a", "eps of b")}
        step |= {"param a": 1.0, "param b": noise, "param c": 1.0}
        return training(name, {**step, "loss loss": scale, "grad a": scale})

    found = answer(find(steps("A", 0.1, 1.0, 1.0), steps("B", 0.2, 2.0, scale)))
    assert (found["kind"], found["name"]) == ("learning-rate", "lr")
    assert found["also"] == ["hyper", *["initial-weights"] * (scale > 1)]
    led = "At step 1: lr is 0.1 in A and 0.2 in B. In the same step, eps of a is 0.1 in A and 0.2 "
    assert f"{led}in B (first of 2 weights)" in found["text"]


def test_a_clip_that_begins_later_and_a_gradient_that_vanishes_are_no_rounding() -> None:
    def steps(name: str, second: float, third: float) -> Training:
        equal = {"loss loss": 1.0, "grad a": 1.0, "grad b": 1.0, "grad c": 0.01}
        later = {**equal, "grad a": second, "grad b": second, "grad c": 0.01 * second}
        return training(name, equal, later, {**equal, "grad c": third})

    plain = steps("A", 1.0, 0.01)
    assert answer(find(plain, steps("B", 1.04, 0.01)))["kind"] == "factor"
    assert answer(find(plain, steps("B", 1.0, 0.0)))["kind"] == "no-gradient"
    assert answer(find(plain, steps("B", 1.0, 0.0102)))["kind"] == "rounding"


def test_buffers_that_differ_alone_are_told_and_of_a_resumed_training_named_as_lost() -> None:
    equal = {"input x": 1.0, "output x": 1.0, "loss loss": 1.0}
    one, other = (training("A", {**equal, "buffer mean": mean}) for mean in (1.0, 2.0))
    found = answer(find(one, other))
    assert found["kind"] == "rounding"
    assert "but for the buffer mean, which changes no loss or gradient" in found["text"]
    assert dict(lost(one.steps, other.steps))["buffers"]
    assert not dict(lost(one.steps, one.steps))["buffers"]
    weights = {"param b": 1.0, "param c": 1.0}
    pair = [
        training(name, {**equal, "buffer mean": x}, {**equal, **weights, "param a": x})
        for name, x in (("A", 1.0), ("B", 2.0))
    ]
    assert "but for the parameter a, which changes" in answer(find(*pair))["text"]


def test_each_source_of_chance_is_tried_that_may_be_one_and_numpy_need_not_be_there() -> None:
    tried = possible(find(training("A", {"param a": 1.0}), training("B", {"param a": 2.0})))
    assert tried == ["torch", "hash", "deterministic", "threads"]
    a, b = (training(name, {"param a": 1.0}) for name in "AB")
    a.first["rng"]["numpy"] = b.first["rng"]["numpy"] = 1
    assert "default_rng" in possible(find(a, b))  # workers draw from it, and are not seen


def said(shell: Shell, text: str, *words: str) -> str:
    """What is said of train.py of this text. words: options, and with what each command starts."""
    (shell.folder / "train.py").write_text(text)
    given = (word if word.startswith("--") else f"{PYTHON} train.py {word}" for word in words)
    return shell.run("-m", "ninefold", "diff", *given, code=0).stdout


def test_a_mistake_is_named_as_a_sentence_as_data_and_by_the_exit_code(shell: Shell) -> None:
    plant = PLANTS["accumulation"]
    words = [word.replace("{s}", "0") for word in plant.words]
    command = ("-m", "ninefold", "diff", "--steps=3", "--fail", "--json=found.json", *words)
    done = shell.run(*command, code=8)
    found = json.loads((shell.folder / "found.json").read_text())
    assert not wrong(plant, found)
    assert done.stdout == found["text"] + "\n"
    assert found["text"].endswith("B adds up 4 micro-batches and does not divide by their number.")


BY_CLOSURE = """
import sys, torch
torch.manual_seed(0)
first, last = torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = first, last
    def forward(self, x):
        hidden = first(x)
        return last(hidden.detach() if sys.argv[1] == "detached" else hidden)
net = Net()
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
def closure():
    optimizer.zero_grad()
    loss = net(torch.randn(16, 8)).square().mean()
    loss.backward()
    return loss
for _ in range(8):
    optimizer.step(closure)
"""


WRAPS = """
import torch
class Wraps(torch.optim.Optimizer):
    def __init__(self, weights, lr):
        super().__init__(weights, {})
        self.inner = torch.optim.Adam(self.param_groups, lr)
    def step(self, closure):
        return self.inner.step(closure=closure)
"""


@pytest.mark.parametrize("optimizer", ["torch.optim.Adam", "torch.optim.LBFGS", "Wraps"])
def test_gradients_are_those_that_the_first_call_of_a_closure_computes(
    shell: Shell, optimizer: str
) -> None:
    text = WRAPS + BY_CLOSURE.replace("torch.optim.Adam", optimizer)
    found = said(shell, text, "--steps=3", "whole", "detached")
    assert "At step 1: 2 of 4 parameters, first first.weight, have a gradient in A" in found


RESUMED = """
import os, sys, torch
torch.manual_seed(0)
net = torch.nn.Linear(8, 1)
optimizer, out = torch.optim.AdamW(net.parameters(), 1e-3), sys.argv[1]
saved = {"step": 0} if len(sys.argv) < 3 else torch.load(out + "/last.pt")
if saved["step"]:
    net.load_state_dict(saved["net"])
    optimizer.load_state_dict(saved["optimizer"])
for step, x in enumerate(torch.randn(20, 16, 8)[saved["step"]:], saved["step"] + 1):
    def closure():
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        return loss
    optimizer.step(closure)
    if step == 2:
        saved = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(saved, out + "/last.pt")
"""


def test_what_was_restored_is_known_where_closures_call_the_network(shell: Shell) -> None:
    found = said(shell, RESUMED, "--resume", "--steps=6", "{out}", "{out} again")
    restored = "Restored: learning rate, weights, optimizer, position in the data"
    assert found.startswith(f"B goes on after A's step 2. {restored}")


TEACHER = """
import copy, sys, torch
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.Tanh(), torch.nn.Linear(64, 5))
teacher = copy.deepcopy(net).requires_grad_(False)
optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
inputs, scale = torch.randn(20, 32, 20), float(sys.argv[2])
for x in inputs:
    with torch.no_grad():
        aim = teacher(x)
    optimizer.zero_grad()
    output = scale * net(x) / scale
    loss = output.square().mean() + (output.softmax(1) - aim.softmax(1)).square().mean()
    loss.backward()
    optimizer.step()
    if sys.argv[1] == "follows":
        with torch.no_grad():
            for mine, theirs in zip(teacher.parameters(), net.parameters()):
                mine.lerp_(theirs, 0.02)
"""


def test_a_mistake_that_grows_from_a_tiny_difference_is_no_rounding(shell: Shell) -> None:
    found = said(shell, TEACHER, "follows 1", "stays 1")
    assert found.startswith("Equal but for rounding (")
    assert "; from step 2, the loss on) up to step " in found
    assert said(shell, TEACHER, "follows 1", "follows 3").startswith(
        "Nothing differs up to step 20"
    )


PACKED = """
import sys, torch
micro = int(sys.argv[1])
torch.manual_seed(0)
net, optimizer = torch.nn.LSTM(4, 8, batch_first=True), None
optimizer = torch.optim.SGD(net.parameters(), 0.1)
inputs, lengths = torch.randn(20, 8, 6, 4), torch.randint(1, 7, (20, 8))
for x, of in zip(inputs, lengths):
    optimizer.zero_grad()
    for part in torch.arange(8).chunk(micro):
        packed = torch.nn.utils.rnn.pack_padded_sequence(x[part], of[part], True, False)
        net(packed)[0].data.square().sum().backward()
    optimizer.step()
"""


def test_indices_among_outputs_do_not_add_up_and_are_not_compared(shell: Shell) -> None:
    assert said(shell, PACKED, "--steps=3", "1", "2").startswith("Nothing differs up to step 3")


BY_VMAP = """
import sys, torch
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
net[0].requires_grad_(sys.argv[1] == "all")
optimizer = torch.optim.SGD(net.parameters(), 0.1)
tasks = torch.randn(4, 16, 8)
while True:
    optimizer.zero_grad()
    torch.func.vmap(lambda x: net(x).square().mean())(tasks).sum().backward()
    optimizer.step()
"""


def test_gradients_are_compared_where_vmap_hides_what_layers_compute(shell: Shell) -> None:
    found = said(shell, BY_VMAP, "--steps=3", "all", "head")
    assert "At step 1: 2 of 4 parameters, first 0.weight, have a gradient in A" in found
    assert "Not all could be recorded in A: RuntimeError: tensors of vmap" in found


BY_FUNCTIONS = """
import sys, torch
micro, wide = int(sys.argv[1]), float(sys.argv[2])
torch.manual_seed(0)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)
    def forward(self, x):
        return self.last(wide * torch.nn.functional.dropout(self.first(x)))
net = Net()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
x, y = torch.linspace(-1, 1, 3200).reshape(400, 8), torch.arange(400) % 4
torch.rand(micro)
for step in range(20):
    optimizer.zero_grad()
    for some in torch.arange(step * 16, step * 16 + 16).chunk(micro):
        (torch.nn.CrossEntropyLoss()(net(x[some]), y[some]) / micro).backward()
    optimizer.step()
"""


def test_dropout_by_a_function_is_told_from_a_module_that_computes_something_else(
    shell: Shell,
) -> None:
    found = said(shell, BY_FUNCTIONS, "--steps=3", "1 1", "4 1")
    assert "the output of last (Linear) differs by" in found
    assert "% by random numbers that are drawn for it: others where micro-batches" in found
    assert "Behind that, with no dropout in both: nothing differs up to step 3" in found
    found = said(shell, BY_FUNCTIONS, "--steps=3", "1 1", "1 1.1")
    assert found.endswith("%, and all compared outputs before are equal.\n")


IN_GROUPS = """
import sys, torch
torch.manual_seed(0)
net = torch.nn.Linear(8, 1)
groups = [net.parameters()] if sys.argv[1] == "one" else [[net.weight], [net.bias]]
rates = eval(sys.argv[2])
groups = [{"params": of, "lr": torch.tensor(rate) if sys.argv[1] == "tensors" else rate}
          for of, rate in zip(groups, rates)]
optimizer = torch.optim.Adam(groups, capturable=False, foreach=False)
for _ in range(5):
    optimizer.zero_grad()
    net(torch.randn(16, 8)).square().mean().backward()
    optimizer.step()
"""


TWICE = """
import sys, torch
torch.manual_seed(0)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.act = torch.nn.ReLU()
    def forward(self, x):
        return self.act(float(sys.argv[1]) * self.last(self.act(self.first(x))))
net, scaler = Net(), torch.amp.GradScaler("cpu", init_scale=1024.0)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(5):
    optimizer.zero_grad()
    loss = net(torch.randn(16, 8)).square().mean()
    (scaler.scale(loss) if sys.argv[2] == "scaled" else loss).backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("words", "begins"),
    [
        ("1.1 plain", "the output of act[call 2] (ReLU) differs by "),
        ("1.0 scaled", "in B gradients are 1.02e+03 times as large as in A: that is the "),
    ],
)
def test_a_module_that_is_called_twice_and_a_scale_that_stays_are_named(
    words, begins, shell: Shell
) -> None:
    found = said(shell, TWICE, "--steps=2", "1.0 plain", words)
    assert found.startswith(f"At step 1: {begins}")


@pytest.mark.parametrize(
    ("words", "begins"),
    [
        ("two [0.1,0.2]", "At step 1: lr of bias is 0.1 in A and 0.2 in B.\n"),
        ("tensors [0.1,0.1]", "Nothing differs up to step 2"),
    ],
)
def test_options_are_compared_weight_by_weight(words, begins, shell: Shell) -> None:
    found = said(shell, IN_GROUPS, "--only", "--steps=2", "one [0.1]", words)
    assert found.startswith(begins)


SKIPPED = """
import sys, torch
torch.manual_seed(0)
net = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=float(sys.argv[1]))
for _ in range(30):
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.float16):
        loss = net(1e3 * torch.randn(16, 8)).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""


def test_steps_that_a_scaler_skips_from_the_start_are_not_waited_for(shell: Shell) -> None:
    found = said(shell, SKIPPED, "--steps=3", "1e30", "1e29")
    assert found == "At step 1: the GradScaler's scale is 1e+30 in A and 1e+29 in B.\n"


IN_WORKERS = """
import sys, torch
torch.manual_seed(0)
scale, net = torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1)
class Set(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, number):
        item = scale(torch.full((2, 8), float(number)))[0].detach()
        assert not sys.modules["ninefold_bench_record"].RECORDER.entries
        return item
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for batch in torch.utils.data.DataLoader(Set(), 8, num_workers=1):
    optimizer.zero_grad()
    net(batch).square().mean().backward()
    optimizer.step()
"""


def test_nothing_is_recorded_in_workers_of_a_loader(shell: Shell) -> None:
    found = said(shell, IN_WORKERS, "--steps=3", "--only", "")
    assert found == "Nothing differs up to step 3: bit for bit.\n"


IN_PARTS = """
import os, sys, torch
from torch import distributed
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
distributed.init_process_group("gloo")
rank = distributed.get_rank()
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.ReLU(), torch.nn.Linear(6, 1))
if sys.argv[1] == "fully_shard":
    model = fully_shard(net, mesh=distributed.init_device_mesh("cpu", (2,)))
elif sys.argv[1] == "fsdp":
    model = FullyShardedDataParallel(net, device_id=torch.device("cpu"))
else:
    model = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
for _ in range(8):
    batch = torch.randn(16, 8)[rank::2]
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("how", "parts"), [("fully_shard", 0), ("fsdp", 1)])
def test_a_sharded_training_is_compared_with_one_that_is_not(how, parts, shell: Shell) -> None:
    (shell.folder / "train.py").write_text(IN_PARTS)
    run = f"{PYTHON} -m torch.distributed.run --standalone --nproc-per-node 2 train.py"
    done = shell.run("-m", "ninefold", "diff", "--steps=4", f"{run} ddp", f"{run} {how}", code=0)
    what = "Of what could be recorded, nothing" if parts else "Nothing"
    assert done.stdout.startswith(f"{what} differs up to step 4")
    assert done.stdout.count("Not all could be recorded in B: weights are in parts") == parts
    assert "other gradients" not in done.stdout


@pytest.mark.slow
def test_weights_that_are_not_recorded_are_not_said_to_be_lost(shell: Shell) -> None:
    (shell.folder / "train.py").write_text(IN_PARTS)
    run = f"{PYTHON} -m torch.distributed.run --standalone --nproc-per-node 2 train.py fsdp"
    command = ("-m", "ninefold", "diff", "--steps=5", "--resume", "--kill-after=2", run, run)
    done = shell.run(*command, code=0)
    assert done.stdout.startswith("B goes on after A's step 2. Not restored: ")
    assert "weights" not in done.stdout.partition("Not all could")[0]


def test_a_training_that_saves_in_each_step_needs_more_steps_to_be_resumed(shell: Shell) -> None:
    saving = BY_CLOSURE.replace("    return loss", "    torch.save(net, 'net.pt')\n    return loss")
    (shell.folder / "train.py").write_text(saving.replace("range(8)", "range(20)"))
    line = f"{PYTHON} train.py whole"
    done = shell.run("-m", "ninefold", "diff", "--resume", "--steps=5", line, line, code=2)
    assert ": each step calls torch.save: it ended after step 9; a checkpoint is" in done.stderr


def test_two_starts_alone_are_compared_once(shell: Shell) -> None:
    text = BY_CLOSURE.replace("torch.manual_seed(0)", "")
    found = said(shell, text, "--steps=2", "--only", "--keep=k", "whole")
    assert found.startswith("Two starts differ from step 1 on, first in the parameter ")
    assert len([*(shell.folder / "k").glob("*/*.log")]) == 2


def test_recording_changes_no_loss_and_two_starts_are_equal_bit_for_bit(shell: Shell) -> None:
    assert recorded(shell, "closure") == "Nothing differs up to step 6: bit for bit.\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("compiled", "Nothing differs"),
        ("checkpoint", "Nothing differs"),
        ("checkpoint-reentrant", "Nothing differs"),
        ("two", "Nothing differs"),
        ("functional", "Not all could be recorded in A: "),
    ],
)
def test_recording_changes_no_loss_of_other_kinds_of_steps(shell, kind, words) -> None:
    assert words in recorded(shell, kind)


def recorded(shell: Shell, kind: str) -> str:
    """What is said of two starts, whose losses are those of one that is not recorded."""
    line = f"{PYTHON} {HERE}/kinds_of_steps.py {kind}"
    alone = subprocess.run(line.split(), capture_output=True, text=True, check=True)
    done = shell.run("-m", "ninefold", "diff", "--keep=k", line, code=0)
    for log in (shell.folder / "k").glob("*/*.log"):
        losses = log.read_text()
        assert losses
        assert alone.stdout.startswith(losses)
    return done.stdout


def test_a_command_that_takes_no_step_is_an_error_and_so_is_a_third_one(shell: Shell) -> None:
    for words in (("true", "true"), ("a", "b", "c")):
        done = shell.run("-m", "ninefold", "diff", *words, code=2)
        assert done.stdout == ""
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--kill-after=2", "x"), "error: --kill-after=2: it has no effect without --resume; "),
        (("--only", "--resume", "x", "y"), "error: --only=True: it has no effect with --resume; "),
        (("--resume", "x"), "error: --resume=1: so many commands were given; one that is killed "),
    ],
)
def test_an_option_without_an_effect_is_refused(capsys, words, line):
    assert main(words) == 2
    assert capsys.readouterr().err.startswith(line)


SUMS = """
import sys, torch
torch.manual_seed(0)
net = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(9):
    optimizer.zero_grad()
    (net(torch.randn(3, 4) + float(sys.argv[1])) ** 2).mean().backward()
    optimizer.step()
"""


def test_inputs_that_come_from_no_loader_are_told_apart_by_their_values(shell: Shell) -> None:
    found = said(shell, SUMS, "--only", "--steps=3", "0", "1")
    assert found.startswith("At step 1: the input of the network (Linear) differs by ")
    assert ": other examples, or other values of the same.\n" in found


PADDED = """
import sys, torch
from torch.nn.utils.rnn import pad_sequence
micro = int(sys.argv[1])
torch.manual_seed(0)
torch.set_num_threads(1)
texts = [torch.randint(1, 32, (int(size),)) for size in torch.randint(3, 12, (64,))]
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.last = torch.nn.Embedding(32, 16, 0), torch.nn.Linear(8, 2)
        self.body = torch.nn.LSTM(4, 8, 2)
    def forward(self, x):
        of_texts = self.embed(x).sum(1)
        _, (state, _) = self.body(of_texts.reshape(len(x), 4, 4).transpose(0, 1))
        return self.last(state[-1])
net = Net()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
padded = lambda items: pad_sequence(items, batch_first=True)
order = torch.Generator().manual_seed(int(sys.argv[2]))
loader = torch.utils.data.DataLoader(texts, 16 // micro, True, collate_fn=padded, generator=order)
for number, batch in enumerate(loader, 1):
    torch.nn.functional.cross_entropy(net(batch), batch[:, 0] % 2).backward()
    if number % micro == 0:
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize("order", [0, 1])
def test_padding_and_states_of_an_rnn_hide_no_mistake(order, shell: Shell) -> None:
    found = said(shell, PADDED, "--steps=2", "1 0", f"4 {order}")
    assert "t step 1: in B the loss is 4 times as large as in A: B adds up" in found
    others = " of 16 examples are others: " in found.partition("Behind that")[0]
    assert others == bool(order), found


def batches(name: str, x: float, *indices: list[int]) -> Training:
    """A step that each rank takes with these examples. x: the input and the loss."""
    found = training(name, {"input x": x, "loss loss": x})
    found.steps[0] = [{**found.first, "data": [["Rows", of]]} for of in indices]
    return found


@pytest.mark.parametrize(
    ("one", "other", "kind"),
    [
        (([1, 2],), ([1, 2], [1, 2]), "same-on-ranks"),
        (([1, 2],), ([1, 2], [3, 4]), "batch"),
        (([1, 2], [1, 2]), ([3, 4], [3, 4]), "order"),
    ],
)
def test_examples_of_a_step_are_told_apart_by_number_rank_and_order(one, other, kind) -> None:
    found = answer(find(batches("A", 1.0, *one), batches("B", 2.0, *other)))
    assert found["kind"] == kind


def test_an_order_is_that_of_the_loaders_that_all_ranks_have() -> None:
    first = [["Rows", [0, 2]], ["Validation", [9]], ["Rows", [4, 6]]]
    ranks = [{"data": data} for data in (first, [["Rows", [1, 3]], ["Rows", [5, 7]]])]
    assert Training("A", [ranks]).order() == {"Rows": [*range(8)]}


def test_examples_of_each_loader_count() -> None:
    one, other = batches("A", 1.0, [1, 2]), batches("B", 2.0, [3, 4])
    for training in (one, other):
        training.first["data"].append(["Unlabeled", [1, 2]])
    assert answer(find(one, other))["kind"] == "order"


EVALUATED = """
import sys, torch
shift = float(sys.argv[1])
net, rows = torch.nn.Linear(4, 2), torch.randn(64, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for batch in torch.utils.data.DataLoader(rows, 8):
    with torch.no_grad():
        for other in torch.utils.data.DataLoader(rows[:16], 8) if shift else []:
            net(other)
    (net(batch + shift) ** 2).mean().backward()
    optimizer.step()
"""


def test_batches_of_an_evaluation_are_no_examples_of_a_step(shell: Shell) -> None:
    found = said(shell, EVALUATED, "--only", "--steps=2", "0", "1")
    assert found.startswith("At step 1: the indices are the same, but the input of the net")


def test_a_module_that_is_first_called_later_has_its_class() -> None:
    one, other = (training(name, {}, {"output late": x, "loss loss": x})
                  for name, x in (("A", 1.0), ("B", 2.0)))  # fmt: skip
    one.steps[1][0]["modules"] = {"late": "Linear"}
    assert "At step 2: the output of late (Linear) differs" in answer(find(one, other))["text"]


def test_an_output_that_is_the_same_in_each_call_hides_no_mistake() -> None:
    fixed = {"input net[1]": 1.0, "output wpe": 1.0}  # a mask, and an embedding of positions
    one = training("A", {**fixed, "output x": 1.0, "loss loss": 1.0, "grad a": 1.0})
    other = training("B", {**fixed, "output x": 1.0, "loss loss": 4.0, "grad a": 4.0})
    other.steps[0][0]["micro"] = 4
    for entry in other.steps[0][0]["entries"][:2]:
        entry[-1][0] = 40.0  # elements: four calls of as many
    assert answer(find(one, other))["kind"] == "accumulation"
