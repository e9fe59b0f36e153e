"""Compares the batch sizes of a study by how soon each reaches the same score.

The time of an epoch alone would not do: a larger batch takes fewer steps in it, and learns less
from each example. What counts is the score per second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ninefold.answer.answer import Answer, Compared
from ninefold.answer.cell import PLAIN, Cell, plainness
from ninefold.answer.measures import SECONDS, target_text, to_target
from ninefold.answer.runs import Point
from ninefold.answer.study_facts import StudyFacts
from ninefold.numbers import counted, number, three_digits, times
from ninefold.report.data.recording import Recording
from ninefold.score import SHARE, Score
from ninefold.stats.statistics import compare, estimate
from ninefold.stats.verdicts import Timings
from ninefold.types import LEAST_ROUNDS

UNTIMED = "No verdict on batch sizes: times were not interleaved."


@dataclass(frozen=True)
class Setting:
    """A cell with a batch size, and what it is called.

    epoch: seconds of an epoch, by timing round; without these by seed.
    seconds: to the score, by seed: its epochs until then, times the seconds of an epoch in a timing
        round of its own; without timing rounds those of the run itself.
    runs: in which it was trained. reached: of these, those that reached the score.
    """

    cell: Cell
    batch_size: int
    epoch: Mapping[int, float]
    score: float | None
    seconds: Mapping[int, float]
    runs: int
    reached: int
    name: str

    @cached_property
    def per_epoch(self) -> float:
        """Mean seconds of an epoch."""
        return estimate(self.epoch).mean or 0.0

    @cached_property
    def mean(self) -> float | None:
        """Mean seconds to the score; None unless each run reached it."""
        return estimate(self.seconds).mean if self.reached == self.runs else None


def answer(recording: Recording, found: Sequence[StudyFacts]) -> Answer | None:
    """Return the answer for groups that differ in their batch size alone; None without these.

    The baseline is none-fp32 with the smallest batch, its mean score less the margin (or
    report.target) the score to reach. It is compared with each cell and batch whose epoch takes no
    longer, the largest of each cell among them.
    """
    made = compared(found, recording.points)
    return None if made is None else _answer(recording, *made)


def compared(
    found: Sequence[StudyFacts], points: Sequence[Point] = ()
) -> tuple[StudyFacts, Setting, list[Setting], list[StudyFacts]] | None:
    """Return the group of the baseline, its setting, all settings, and their groups."""
    sized = sorted(
        (each for each in found if each.group.batch_size),
        key=lambda each: each.group.batch_size or 0,
    )
    # Of a baseline with one seed nothing can be shown.
    base = next((each for each in sized if len(each.scores.get(PLAIN, {})) > 1), None)
    if base is None or base.target is None:
        return None
    alike = [each for each in sized if _conditions(each) == _conditions(base)]
    settings = _settings(alike, base.target, points)
    settings.sort(key=lambda each: (each.batch_size, plainness(each.cell)))
    first = (base.group.batch_size, PLAIN)
    plain = next((s for s in settings if (s.batch_size, s.cell) == first), None)
    if plain is None or settings[-1].batch_size == plain.batch_size:
        return None  # a run of it failed, or there is no larger batch
    return base, plain, settings, alike


def _conditions(facts: StudyFacts) -> tuple[object, ...]:
    """Return what groups have in common that differ in their batch size alone."""
    group = facts.group
    return group.dataset, group.model, group.epochs, group.variant, group.scoring


def _name(facts: StudyFacts, cell: Cell) -> str:
    return f"{facts.label(cell)} with batch {facts.group.batch_size}"


def _settings(found: Sequence[StudyFacts], target: float, points: Sequence[Point]) -> list[Setting]:
    """The cells of each group that were timed and trained.

    Seeds and timing rounds know nothing of each other: any order of them is a fair one.
    """
    times_of = [SECONDS.values(facts.group) for facts in found]
    seeds = sorted({n for each in found for known in each.scores.values() for n in known})
    rounds = sorted({n for each in times_of for known in each.values() for n in known})
    settings = []
    for facts, per_epoch in zip(found, times_of, strict=True):
        group, size = facts.group, facts.group.batch_size or 0
        epochs_of = to_target(target, points, group.scoring, "epoch").values(group)
        seconds_of = to_target(target, points, group.scoring).values(group)
        for cell, scores in facts.scores.items():
            if cell not in per_epoch or facts.excluded(cell) is not None:
                continue
            took, epochs = per_epoch[cell], epochs_of.get(cell, {})
            seconds = seconds_of.get(cell, {})
            if facts.timed:
                pairs = zip(seeds, rounds, strict=False)
                seconds = {s: epochs[s] * took[n] for s, n in pairs if s in epochs and n in took}
            score = estimate(scores).mean
            counts = len(scores), len(epochs)
            settings.append(Setting(cell, size, took, score, seconds, *counts, _name(facts, cell)))
    return settings


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
    recording: Recording,
    base: StudyFacts,
    plain: Setting,
    settings: Sequence[Setting],
    alike: Sequence[StudyFacts],
) -> Answer:
    score, keep = base.group.scoring, f"Keep batch {plain.batch_size}"
    larger = largest_for_the_same_time(plain, settings, base.settings.same)
    said = [f"The score to reach is {target_text(base.target or 0.0, score)}."]
    said += [_line(each, plain, each in larger, score) for each in settings]
    failed = [_name(each, cell) for each in alike for cell in each.failed]
    said += [f"Left out, as a run of it failed: {'; '.join(failed)}."] * bool(failed)
    if not all(each.timed for each in alike):
        return _named(UNTIMED, None, said)
    if min(len(each.epoch) for each in settings) < LEAST_ROUNDS:
        return _named("Too few rounds to tell which batch to use.", None, said)
    floor = max(each.comparison.floor for each in alike)
    if not larger:
        epochs = {each.name: each.epoch for each in settings}
        times_of = compare([Timings(epochs)], {}, base.settings, floor=floor)
        longer = [each for each in settings if each.batch_size > plain.batch_size]
        if any(times_of.verdict(plain.name, each.name) != "slower" for each in longer):
            return _named("Not decided: an epoch of a larger batch may take no longer.", None, said)
        return _named(f"{keep}: an epoch of every larger one compared takes longer.", plain, said)
    if plain.mean is None:
        easier = "lower" if score.better == "more" else "higher"
        said.append(
            f"{plain.name} reached it in {plain.reached} of {counted(plain.runs, 'run')}: it has "
            f"no time to compare with. report.target sets a {easier} score."
        )
        return _named(f"No answer: {plain.name} did not always reach the score.", None, said)
    longest = plain.per_epoch * (1 + base.settings.same)
    others = [each for each in settings if each is not plain and each.per_epoch <= longest]
    reached = [each for each in others if each.mean is not None]
    if not reached:
        return _named(f"{keep}: no faster epoch always reaches the score.", plain, said)
    seconds = {each.name: each.seconds for each in (plain, *reached)}
    compared = compare([Timings(seconds)], {}, base.settings, floor=floor)
    best = min(reached, key=lambda each: each.mean or 0.0)
    if (speed := Compared.of(compared.pair(plain.name, best.name))) is None:
        said.append(f"{best.name} reaches the score in a time that cannot be compared.")
    else:
        sooner = f"reaches the score {number(speed.value, 2)} times as soon"
        said.append(f"{best.name} {sooner} as {plain.name} ({speed.sure(base.settings)}).")
        if speed.verdict == "faster":
            return _named(f"Use {best.name}: it {sooner}.", best, said)
        if speed.verdict in ("slower", "tie"):
            return _named(f"{keep}: no larger one reaches the score sooner.", plain, said)
    found = _named(f"Not decided: {best.name} may reach the score sooner.", None, said)
    rounds = len(plain.epoch)
    if plain.runs >= rounds:
        return found
    seeds = min(2 * plain.runs, rounds)  # of more, each needs a timing round of its own
    text = f"{counted(seeds, 'seed')} in all may decide it."
    return replace(found, surer=recording.next_steps.of_seeds(seeds, text))


def _named(lead: str, setting: Setting | None, said: list[str]) -> Answer:
    """The answer that names a setting, or none."""
    name = None if setting is None else setting.name
    return Answer(lead, setting is not None, name, reasons=said)


def _final(value: float, score: Score) -> str:
    return f"{value:.2f} %" if score.unit == SHARE else score.text(value)


def _line(setting: Setting, plain: Setting, largest: bool, scoring: Score) -> str:
    """What was measured of a setting. largest: whether its batch is its cell's largest for the
    time of an epoch of `plain`."""
    epoch = f"{three_digits(setting.per_epoch)} s per epoch"
    if setting is not plain and plain.per_epoch:
        epoch += f" ({times(plain.per_epoch / setting.per_epoch, 3)})"
    score = "" if setting.score is None else f", {_final(setting.score, scoring)} at the end"
    if setting.mean is not None:
        until = f"{three_digits(setting.mean)} s to the score"
    else:
        until = f"reached the score in {setting.reached} of {counted(setting.runs, 'run')}"
    most = "; the largest batch for the same time an epoch" if largest else ""
    return f"{setting.name}: {epoch}{score}, {until}{most}."
