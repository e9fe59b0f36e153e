"""Compares the batch sizes of a study by how soon each reaches the same score.

The time of an epoch alone would not do: a larger batch takes fewer steps in it, and learns less
from each example. What counts is the score per second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ninefold.report.answer.evidence import Evidence
from ninefold.report.answer.pairs import Pairs
from ninefold.report.answer.wording import how_many
from ninefold.report.data.cell import PLAIN, Cell, plainness
from ninefold.report.numbers import three_digits, times
from ninefold.report.stats.measures import SECONDS, target_text, to_target
from ninefold.score import SHARE, Score
from ninefold.stats.statistics import compare, estimate


@dataclass(frozen=True)
class BatchAnswer:
    """Which batch size reaches the same score sooner.

    lead: in at most 14 words. cell: the configuration with its batch that is named, None without.
    reasons: what was measured, a sentence for each configuration and batch size.
    """

    lead: str
    cell: str | None
    reasons: list[str]


LEAST = 2  # seeds of the baseline: with fewer nothing can be shown


@dataclass(frozen=True)
class Setting:
    """A cell with a batch size, and what it is called.

    seconds: by seed, to the score; hosts: numbers of those that they were measured on; runs: in
        which it was trained.
    """

    cell: Cell
    batch_size: int
    per_epoch: float
    score: float | None
    seconds: Mapping[int, float]
    hosts: Mapping[int, tuple[int, ...]]
    runs: int
    name: str

    @cached_property
    def mean(self) -> float | None:
        """Mean seconds to the score; None unless each run reached it."""
        return estimate(self.seconds).mean if len(self.seconds) == self.runs else None


def score_per_second(found: Sequence[Evidence]) -> BatchAnswer | None:
    """The answer for groups that differ in their batch size alone; None where there are none.

    The baseline is none-fp32 with the smallest batch, its mean score less the margin (or
    report.target) the score to reach. It is compared with each cell and batch whose epoch takes no
    longer, the largest of each cell among them.
    """
    sized = sorted(
        (each for each in found if each.group.batch_size),
        key=lambda each: each.group.batch_size or 0,
    )
    base = next((each for each in sized if len(each.accuracy.get(PLAIN, {})) >= LEAST), None)
    if base is None or base.target is None:
        return None
    alike = [each for each in sized if _conditions(each) == _conditions(base)]
    settings = [each for evidence in alike for each in _settings(evidence, base.target)]
    settings.sort(key=lambda each: (each.batch_size, plainness(each.cell)))
    first = (base.group.batch_size, PLAIN)
    plain = next((s for s in settings if (s.batch_size, s.cell) == first), None)
    if plain is None or settings[-1].batch_size == plain.batch_size:
        return None  # a run of it failed, or there is no larger batch
    floor = max(each.comparison.floor for each in alike)
    return _answer(base, plain, settings, base.target, floor)


def _conditions(evidence: Evidence) -> tuple[object, ...]:
    """What groups have in common that differ in their batch size alone."""
    group = evidence.group
    return group.dataset, group.model, group.epochs, group.variant, group.scoring


def _settings(evidence: Evidence, target: float) -> list[Setting]:
    group = evidence.group
    to_score = to_target(target, evidence.points, group.scoring)
    seconds, hosts = evidence.values(to_score), evidence.hosts(to_score)
    scores, per_epoch = evidence.accuracy, evidence.values(SECONDS)
    return [
        Setting(
            cell,
            group.batch_size or 0,
            estimate(per_epoch[cell]).mean or 0.0,
            estimate(scores.get(cell, {})).mean,
            seconds.get(cell, {}),
            hosts.get(cell, {}),
            len(scores.get(cell, {})),
            f"{evidence.label(cell)} with batch {group.batch_size}",
        )
        for cell in per_epoch
        if scores.get(cell)
        and not any(
            cell in each
            for each in (evidence.bad, evidence.copies, evidence.needless, evidence.different)
        )
    ]


def largest_for_the_same_time(
    plain: Setting, settings: Sequence[Setting], same: float
) -> list[Setting]:
    """Of each cell the largest batch whose epoch takes no longer than `plain`'s, by the means."""
    found: dict[Cell, Setting] = {}
    for each in settings:  # in the order of their batch sizes
        if each.batch_size > plain.batch_size and each.per_epoch <= plain.per_epoch * (1 + same):
            found[each.cell] = each
    return list(found.values())


def _answer(
    base: Evidence, plain: Setting, settings: Sequence[Setting], target: float, floor: float
) -> BatchAnswer:
    """The answer. floor: the noise floor of times."""
    score = base.group.scoring
    to, easier = target_text(target, score), "lower" if score.better == "more" else "higher"
    longest = plain.per_epoch * (1 + base.settings.same)
    larger = largest_for_the_same_time(plain, settings, base.settings.same)
    said = [f"The score to reach is {to}."]
    said += [_line(each, plain, each in larger, score) for each in settings]
    if not larger:
        lead = f"Keep batch {plain.batch_size}: an epoch of any larger batch takes longer."
        return BatchAnswer(lead, plain.name, said)
    if plain.mean is None:
        said.append(
            f"{plain.name} reached it in {len(plain.seconds)} of {plain.runs} runs: it has no "
            f"time to compare with. report.target sets a {easier} score."
        )
        return BatchAnswer(f"No answer: {plain.name} did not always reach the score.", None, said)
    others = [each for each in settings if each is not plain and each.per_epoch <= longest]
    reached = [each for each in others if each.mean is not None]
    if not reached:
        lead = f"Keep batch {plain.batch_size}: no faster epoch always reaches the score."
        return BatchAnswer(lead, plain.name, said)
    values = {each.name: each.seconds for each in (plain, *reached)}
    hosts = {each.name: each.hosts for each in (plain, *reached)}
    pairs = Pairs(compare(values, {}, base.settings, hosts=hosts, floor=floor))
    best = min(reached, key=lambda each: each.mean or 0.0)
    said.append(f"{best.name} takes {_against(pairs, plain, best, base)}.")
    verdict, ratio = pairs.verdict(plain.name, best.name), pairs.ratio(plain.name, best.name)
    if verdict == "faster" and ratio:
        sooner = f"reaches the score {how_many(1 / ratio[0])} times as soon"
        return BatchAnswer(f"Use {best.name}: it {sooner}.", best.name, said)
    if verdict in ("slower", "tie"):
        lead = f"Keep batch {plain.batch_size}: no larger one reaches the score sooner."
        return BatchAnswer(lead, plain.name, said)
    lead = f"Not decided: {best.name} may reach the score sooner."
    return BatchAnswer(lead, None, said)


def _final(value: float, score: Score) -> str:
    return f"{value:.2f} %" if score.unit == SHARE else score.text(value)


def _against(pairs: Pairs, plain: Setting, best: Setting, base: Evidence) -> str:
    known = pairs.ratio(plain.name, best.name)
    if known is None:
        return "a time that cannot be compared"
    value, low, high = known
    text = f"{value:.3f} times that of {plain.name}"
    if low is None or high is None:
        return f"{text} (interval not known yet)"
    return f"{text} ({base.settings.confidence:.3g} % interval {low:.3f} to {high:.3f})"


def _line(setting: Setting, plain: Setting, largest: bool, scoring: Score) -> str:
    """What was measured of a setting. largest: whether its batch is its cell's largest for the
    time of an epoch of `plain`."""
    epoch = f"{three_digits(setting.per_epoch)} s per epoch"
    if setting is not plain and plain.per_epoch:
        epoch += f" ({times(setting.per_epoch / plain.per_epoch, 3)})"
    score = "" if setting.score is None else f", {_final(setting.score, scoring)} at the end"
    if setting.mean is not None:
        until = f"{three_digits(setting.mean)} s to the score"
    else:
        until = f"reached the score in {len(setting.seconds)} of {setting.runs} runs"
    most = "; the largest batch for the same time an epoch" if largest else ""
    return f"{setting.name}: {epoch}{score}, {until}{most}."
