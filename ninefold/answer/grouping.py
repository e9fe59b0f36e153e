"""Sorts runs into groups that may be compared in one table, and a group's runs into cells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from ninefold.answer.measures import SECONDS, of_score
from ninefold.answer.runs import Run, RunGroup
from ninefold.config.conf_files import is_own
from ninefold.score import SHARE, Score

Own = set[tuple[str | None, str]]  # options, and overrides of keys that only they have


@dataclass(frozen=True)
class _Key:
    dataset: str | None
    model: str | None
    batch_size: int | None
    epochs: float | None
    settings: tuple[str, ...]
    scoring: Score

    @property
    def order(self) -> tuple[Any, ...]:
        size, score = (self.batch_size or 0, self.epochs or 0), self.scoring
        said = (score.name, score.unit, score.better)
        return (self.dataset or "", self.model or "", *size, *said)

    def fits(self, run: Run, own: Own) -> bool:
        """Return whether a run that may not know all its conditions contradicts none of these.

        Its epochs are not compared: a run that ended early may record those it completed. Nor is
        its score: only runs that completed name it.
        """
        known = ((run.dataset, self.dataset), (run.model, self.model))
        same = all(mine in (None, own) for mine, own in known)
        same = same and run.own_batch in (None, self.batch_size)
        if run.overrides:
            alike = _settings(run, own) == self.settings
        else:
            alike = set(run.settings) <= set(self.settings)
        return same and alike


def _key(run: Run, epochs: float | None, own: Own) -> _Key:
    settings, scoring = _settings(run, own), replace(run.scoring, margin=None)
    return _Key(run.dataset, run.model, run.own_batch, epochs, settings, scoring)


def _settings(run: Run, own: Own) -> tuple[str, ...]:
    """What was set apart from the cell, and from what is `own` to its strategy or precision."""
    return tuple(text for text in run.settings if not {(run.parallel, text), (run.amp, text)} & own)


def _own_settings(runs: Sequence[Run]) -> Own:
    """The settings of a strategy or precision that others have no key for, with its name.

    Only where all of its runs have them, or all failed ones if it has no other: then they are a
    part of what it is in this study.
    """
    found: Own = set()
    for axis in ("parallel", "amp"):
        texts: dict[str, set[str]] = {}
        done = {getattr(run, axis) for run in runs if run.ok}
        for run in runs:
            said = {text for text in run.settings if text.startswith(f"{axis}.") and is_own(text)}
            option = getattr(run, axis)
            if run.ok or (run.overrides and option not in done):
                texts[option] = said & texts.get(option, said)
        found |= {(option, text) for option, said in texts.items() for text in said}
    return found


def groups(runs: Sequence[Run]) -> list[RunGroup]:
    """Return the groups ordered by their conditions, without runs that name no cell or don't count.

    A run that ended early may not know all its conditions. It joins each group that it does not
    contradict and that has no completed run of its cell and seed, or round if it is a timing run.
    """
    named = [run for run in runs if run.parallel and run.amp and run.counts]
    own = _own_settings(named)
    found: dict[_Key, list[Run]] = {}
    for run in sorted(named, key=lambda run: run.timed):
        if run.ok:
            key = _key(run, run.to_train, own)
            if run.timed and run.score_name is None:  # not evaluated: its name is another
                key = next((k for k in found if replace(k, scoring=key.scoring) == key), key)
            found.setdefault(key, []).append(run)
    # Those that know most come first, so that those that know less find a group to join.
    bad = [run for run in named if not run.ok]
    for run in sorted(bad, key=lambda run: (run.dataset, run.model, run.batch_size).count(None)):
        fitting = [key for key in found if key.fits(run, own)]
        for key in fitting:
            rivals = (
                other
                for other in found[key]
                if (other.cell, other.timed, other.place) == (run.cell, run.timed, run.place)
            )
            if not any(other.ok for other in rivals):
                found[key].append(run)
        if not fitting:
            found[_key(run, None, own)] = [run]
    shared = set.intersection(*(set(key.settings) for key in found)) if found else set()
    scores = {key.scoring for key in found}
    return [
        RunGroup(
            key.dataset,
            key.model,
            key.batch_size,
            key.epochs,
            variant=", ".join(
                [text for text in key.settings if text not in shared]
                + [_told(key.scoring, scores)] * (len(scores) > 1)
            ),
            runs=tuple(found[key]),
            scoring=found[key][0].scoring,
        )
        for key in sorted(found, key=lambda key: key.order)
    ]


def _told(score: Score, others: set[Score]) -> str:
    """A score's name, with its unit where another has the same name."""
    alone = len([each for each in others if each.name == score.name]) == 1
    return score.name if alone or score.unit in ("", SHARE) else f"{score.name} {score.unit}"


def largest_first(found: Sequence[RunGroup]) -> list[RunGroup]:
    """Return the groups, those with most completed runs first, of these the best by their score, or
    if none was trained the fastest.

    The answer of a report is about the first.
    """
    return sorted(found, key=lambda group: (-group.ok, -merit(group)))


def merit(group: RunGroup) -> float:
    """Return the mean score of its runs, of timing runs alone their speed; more is better."""
    measure = of_score(group.scoring) if group.training else SECONDS
    known = [value for of in measure.values(group).values() for value in of.values()]
    sign = 1 if measure.better == "more" else -1
    return sign * fmean(known) if known else -math.inf
