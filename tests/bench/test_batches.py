"""Commands whose steps take other batches are compared by examples a second."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import LBFGS

from ninefold.bench.batches import factors, sentences, taken, times_as_many
from ninefold.bench.command import Command
from ninefold.bench.messages import Batch
from ninefold.bench.notes import compared
from ninefold.bench.summary import Summary
from ninefold.errors import ConfigError
from tests.answer.screens import found
from tests.bench.test_same import training
from tests.bench.test_strategies import BY_DDP, rank

A, B, C = (Command(f"python {name}.py", name) for name in "ABC")


@pytest.fixture
def seen(calls: Any) -> Any:
    """What sees the batches of a command, in this process."""
    made = import_module("ninefold_bench_batches").Batches(calls)
    yield made
    made.end()


def step(seen: Any) -> Batch | None:
    """What the networks have got since the last step."""
    seen.steps.clear()
    seen.step_ends("lead")
    found: list[Batch] = seen.taken("lead")
    return found[0] if found else None


def test_calls_of_a_step_add_up_and_those_of_a_skipped_step_do_not(seen: Any) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    update, call = torch.amp.GradScaler.update, seen.calls.call
    model(torch.ones(5, 4))
    torch.amp.GradScaler("cpu", enabled=False).update()
    for _ in range(3):
        model(torch.ones(6, 4))
    with torch.no_grad():
        model(torch.ones(7, 4))
    model.eval()(torch.ones(8, 4))
    assert step(seen) == ([18], 72)
    seen.end()
    seen.calls.end()
    assert torch.amp.GradScaler.update is update is not None
    assert torch.nn.Module.__call__ is call


class Batched(nn.Module):
    """A network that gets whatever a loader hands out."""

    def __init__(self, inner: Callable[[Any], torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.inner = nn.Linear(4, 4), inner

    def forward(self, batch: Any = None, scale: Any = None) -> Any:
        return self.layer(self.inner(batch))


ROWS = torch.ones(6, 4)


@pytest.mark.parametrize(
    "call",
    [
        lambda: Batched(lambda batch: batch)(ROWS),
        lambda: Batched(lambda batch: batch)(scale=torch.tensor(1.0), batch=ROWS),
        lambda: Batched(lambda batch: batch["rows"])({"rows": ROWS}),
        lambda: Batched(lambda batch: batch[0])([ROWS, torch.ones(6)]),
        lambda: Batched(torch.stack)([torch.ones(4) for _ in range(6)]),
        lambda: nn.Linear(4, 4)(nn.Linear(4, 4)(ROWS)),  # an encoder, and a decoder
        lambda: nn.CrossEntropyLoss()(Batched(lambda batch: batch)(ROWS), ROWS),
    ],
)
def test_examples_are_seen_in_what_a_network_gets_or_hands_on(
    seen: Any, call: Callable[[], object]
) -> None:
    call()
    found = step(seen)
    assert found is not None
    assert found[0] == [6]


def test_micro_batches_are_examples_and_a_batch_that_meets_other_weights_is_none(seen: Any) -> None:
    """So do SAM and LBFGS, which compute gradients of one batch several times."""
    model, rows = nn.Linear(4, 1), torch.ones(8, 4)
    for _ in range(4):
        model(rows).sum().backward()
    assert step(seen) == ([32], 128)
    optimizer = LBFGS(model.parameters(), max_iter=3)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(rows).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)  # type: ignore[arg-type]
    assert step(seen) == ([8], 32)


def test_steps_of_several_optimizers_are_parts_of_those_of_the_one_that_leads(seen: Any) -> None:
    critic, maker = nn.Linear(4, 1), nn.Linear(4, 4)
    for _ in range(3):
        for _ in range(2):
            critic(torch.ones(6, 4))
            seen.step_ends("critic")
        critic(maker(torch.ones(6, 4)))
        seen.step_ends("maker")
    assert seen.taken("maker") == [([6, 18], 96)] * 3


def test_a_network_that_cannot_be_read_trains_on(seen: Any) -> None:
    class Odd(nn.Linear):
        def parameters(self, recurse: bool = True) -> Any:
            raise RuntimeError

    assert Odd(4, 4)(ROWS).shape == (6, 4)
    assert step(seen) is None
    assert nn.Linear(4, 4)(ROWS).shape == (6, 4)


def test_a_process_that_only_calls_networks_is_left_alone_after_a_while(seen: Any) -> None:
    model, call = nn.ReLU(), seen.calls.call
    for _ in range(10_000):
        assert nn.Module.__call__ is not call
        model(ROWS)
    assert nn.Module.__call__ is call


def test_the_compiler_passes_over_a_function_and_compiles_what_it_calls(calls: Any) -> None:
    def inner(numbers: torch.Tensor) -> torch.Tensor:
        return numbers * 2

    def outer(numbers: torch.Tensor) -> torch.Tensor:
        return inner(numbers) + 1

    compiled: list[str] = []

    def noting(graph: Any, examples: Any) -> Any:
        compiled.extend(node.name for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    import_module("ninefold_bench_calls").pass_over(outer)
    assert torch.compile(outer, backend=noting)(torch.ones(1)).item() == 3
    assert compiled == ["mul"]


@pytest.mark.parametrize(
    ("what", "examples"),
    [("network", [18]), ("in place", [18]), ("layers", [18]), ("function", None)],
)
def test_a_compiled_network_is_whole_and_compiled_once_and_its_calls_add_up(
    seen: Any, what: str, examples: list[int] | None
) -> None:
    graphs = list[torch.fx.GraphModule]()

    def counting(graph: torch.fx.GraphModule, inputs: object) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    model = Batched(torch.relu)
    call: Any = model
    if what in ("in place", "layers"):
        (model if what == "in place" else model.layer).compile(backend=counting, fullgraph=True)
    else:
        call = model if what == "network" else lambda rows: model(rows).sum()
        call = torch.compile(call, backend=counting, fullgraph=True)
    for _ in range(3):
        call(ROWS)
    found = step(seen)
    assert (found and found[0]) == examples
    seen.calls.end()
    call(ROWS)
    assert len(graphs) == 1
    assert step(seen) is None


@pytest.mark.parametrize(
    ("counts", "usual"),
    [
        ([33, 32, 32, 32], 32),  # a network was called before training
        ([32, 32, 8, 32, 32], 32),  # a last batch
        ([64, 8, 64, 8, 64], 64),
        ([32, 32], 32),
        ([1013, 998, 1042, 1001], None),  # nodes of graphs
        ([1013, 998], None),
        ([32], None),
        ([], None),
    ],
)
def test_what_most_steps_take_is_what_a_step_takes(counts: list[int], usual: int | None) -> None:
    found = taken([[([count], 4 * count) for count in counts]])
    assert (found is None) == (not counts)
    assert (found.examples if found else ()) == ((usual,) if usual else ())


def steady(examples: int, elements: int) -> list[Batch]:
    """What a network gets in four steps that take as many examples."""
    return [([examples], elements)] * 4


def varying(*counts: int) -> list[Batch]:
    return [([count], 10 * count) for count in counts]


@pytest.mark.parametrize(
    ("ranks", "first", "ratio"),
    [
        ([steady(64, 640)] * 2, steady(64, 640), 2.0),
        ([steady(32, 320)] * 2, steady(64, 640), 1.0),
        ([steady(33, 330), steady(32, 320)], steady(65, 650), 1.0),
        ([steady(12, 768)] * 2, steady(12, 768), 2.0),  # positions first
        ([steady(12, 384)] * 2, steady(12, 768), 1.0),
        ([steady(16, 16384)] * 2, steady(4096, 32768), 1.0),  # all words in one row
        ([varying(1013, 998, 1042)], varying(1001, 1030, 987), 1.0),
        ([varying(4013, 3998, 4042)], varying(1001, 1030, 987), "they vary from step to step, as"),
        ([[([64, 192], 900)] * 3], [([16, 48], 225)] * 3, 4.0),
        ([[([192, 352], 900)] * 3], [([64, 96], 300)] * 3, "its networks get 192 and 352, those"),
        ([[([32, 64], 900)] * 3], [([32], 300)] * 3, 1.0),
        ([[([16, 64], 900)] * 3], [([64], 300)] * 3, "its networks get 16 and 64, those of"),
        ([[([64, 64], 900)] * 3], [([32], 300)] * 3, 2.0),
    ],
)
def test_examples_are_those_of_all_ranks_and_compared_where_neither_chance_nor_a_network_differs(
    ranks: list[list[Batch]], first: list[Batch], ratio: float | str
) -> None:
    one, other = taken(ranks), taken([first])
    assert one is not None
    assert other is not None
    found = times_as_many(one, other)
    assert found == ratio or (isinstance(found, str) and found.startswith(str(ratio)))


SIXTEEN, SIXTY_FOUR, UNSEEN = (taken([varying(*[n] * 4)]) if n else None for n in (16, 64, 0))


def test_batches_of_another_size_make_a_speedup_one_of_examples() -> None:
    said = {name: [rank(1)] for name in "ABC"}
    seen = {"A": SIXTEEN, "B": SIXTY_FOUR, "C": SIXTEEN}
    ratios = factors([A, B, C], said, seen)
    assert ratios == {"A": 1, "B": 4, "C": 1}
    assert [*sentences("A", seen, ratios)] == [
        "A step of B takes 4 times as many examples as one of A: speedups are of examples a "
        "second. The learning rate may have to change."
    ]
    assert factors([A, C], said, seen) == {}
    assert [*sentences("A", {"A": SIXTEEN, "C": SIXTEEN}, {})] == []


@pytest.mark.parametrize(
    ("of_a", "of_b", "words"),
    [
        (SIXTEEN, taken([varying(15, 17, 16, 14)]), "a step of B takes varies"),
        (SIXTEEN, UNSEEN, "a step of B takes was not seen"),
        (UNSEEN, UNSEEN, "a step takes was not seen"),
    ],
)
def test_where_batches_vary_or_are_not_seen_steps_are_compared_and_it_is_said(
    of_a: Any, of_b: Any, words: str
) -> None:
    seen = {"A": of_a, "B": of_b}
    assert factors([A, B], {name: [rank(1)] for name in "AB"}, seen) == {}
    assert [*sentences("A", seen, {})] == [f"How many examples {words}: steps are compared."]


@pytest.mark.parametrize(
    ("seen", "ranks", "why"),
    [
        ((SIXTEEN, SIXTY_FOUR, UNSEEN), (1, 1, 1), "of C takes as one of A is not known, so there"),
        ((SIXTEEN, SIXTY_FOUR, SIXTEEN), (1, 2, 1), "no DistributedDataParallel and no FSDP was"),
    ],
)
def test_where_batches_differ_by_what_is_not_known_there_is_no_speedup(
    seen: Sequence[Any], ranks: Sequence[int], why: str
) -> None:
    said = {name: [rank(n)] * n for name, n in zip("ABC", ranks, strict=True)}
    with pytest.raises(ConfigError, match=why):
        factors([A, B, C], said, dict(zip("ABC", seen, strict=True)))
    assert factors([A, B], {"A": [rank(1)], "B": BY_DDP}, {"A": SIXTEEN, "B": SIXTY_FOUR})


@pytest.mark.parametrize("number", [1, 2])
def test_what_too_few_rounds_show_is_neither_an_interval_nor_a_verdict(number: int) -> None:
    summary = Summary(found({"A": 0.2, "B": 0.1}, rounds=number))
    assert summary.table()[2][4:6] == ("", "too few rounds")
    (pair,) = summary.data(0)["pairs"]
    assert (pair["low"], pair["high"], pair["verdict"]) == (None, None, "too few rounds")


def test_the_same_data_in_another_form_are_as_many_examples_a_second() -> None:
    made = found({"A": 0.1, "B": 0.1})
    rates = [row[1] for row in Summary(made).table()]
    made.batches["B"] = taken([[([640], 640)] * 4])
    assert [row[1] for row in Summary(made).table()] == rates


def test_only_what_can_compute_the_same_is_held_against_it() -> None:
    made = found({"A": 0.2, "B": 0.1})
    made.recorded.update({name: training(name, 1, 2) for name in "AB"})
    assert compared(made).keys() == {"B"}
    made.examples.update({"A": 1.0, "B": 4.0})
    assert compared(made) == {}
