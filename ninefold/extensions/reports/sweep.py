"""Says which value of a plain sweep is the best: of `optimizer.lr=1e-4,1e-3`, of `model=...`."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ninefold.answer.answer import Answer, AnswerTable
from ninefold.answer.cell import Cell
from ninefold.answer.fields import word
from ninefold.answer.measures import SECONDS
from ninefold.answer.study_facts import StudyFacts
from ninefold.errors import one_line
from ninefold.numbers import (
    MISSING,
    capitalized,
    decimals_of_score,
    difference,
    listed,
    listed_and,
    number,
    plural,
    three_digits,
    times,
    with_unit,
)
from ninefold.report.data.recording import Recording
from ninefold.score import Score
from ninefold.stats.statistics import compare, estimate
from ninefold.stats.verdicts import FAILED, OPEN, UNDECIDED, Comparison, Difference, Timings
from ninefold.study_record import StudyRecord

MOST_TESTED = 200  # values of which each pair is tested: of as many more it would take minutes
CONDITIONS = ("dataset", "model", "batch_size", "epochs")
ONE_ROUND = "Every value was timed in one round: more rounds show which differences are real."
ONE_SEED = "Every value was trained with one seed: another seed may change their order."
SEEDS = "seed=0,1,2 shows which differences are real."
BEST_FEW = f"A sweep of the best few with {SEEDS}"
NOT_TESTED = f"Pairs of more than {MOST_TESTED} values are not tested. {BEST_FEW}"


@dataclass(frozen=True)
class Sweep:
    """The values of a sweep, by what they are called, in its order.

    seconds: per epoch, by seed or timing round. scores: by seed. not_ok: how runs ended that did
        not complete. out: the values that are not compared with others, as a run of them failed.
    by_time: whether times alone were asked.
    tested: whether values have verdicts: of several seeds or rounds, and not too many.
    """

    seconds: Mapping[str, Mapping[int, float]]
    scores: Mapping[str, Mapping[int, float]]
    not_ok: Mapping[str, str]
    out: Collection[str]
    scoring: Score
    by_time: bool
    tested: bool
    compared: Comparison

    def asked(self, name: str) -> Mapping[int, float]:
        """Return what a value is compared by."""
        return {} if name in self.out else self.known(name)

    def known(self, name: str) -> Mapping[int, float]:
        """Return the seconds or scores of a value."""
        return (self.seconds if self.by_time else self.scores).get(name, {})

    @property
    def others(self) -> list[str]:
        """Return the values that are compared with the best one."""
        return [name for name in self.seconds if name != self.best and name not in self.out]

    @cached_property
    def best(self) -> str:
        """The value with the best mean of what was asked."""
        return max(self.seconds, key=self.merit)

    def merit(self, name: str) -> float:
        """Return what is larger for a better value."""
        mean = estimate(self.asked(name)).mean
        sign = -1 if self.by_time else self.scoring.sign
        return -math.inf if mean is None else sign * mean

    def ties_with_best(self, name: str) -> bool:
        """Return whether the mean of a value is that of the best one."""
        return math.isclose(self.merit(name), self.merit(self.best))

    def against(self, name: str) -> tuple[str, str]:
        """Return how a value compares with the best one, and the verdict; nothing of itself."""
        if name == self.best:
            return "", ""
        if name in self.out:
            return MISSING, FAILED
        if self.by_time:
            found = self.compared.pair(self.best, name)
            return times(found.speedup if found else None), self.compared.verdict(self.best, name)
        pair = self._with_best.get(name)
        if pair is None or pair.difference is None:
            return MISSING, OPEN
        turned = pair.first == name
        said = {"better": "worse", "worse": "better"} if turned else {}
        off = -pair.difference if turned else pair.difference
        return difference(off, self.scoring.mark), said.get(pair.verdict, pair.verdict)

    @cached_property
    def _with_best(self) -> Mapping[str, Difference]:
        """The difference of each other value's score to the best one's, or of the best to it."""
        pairs = [each for each in self.compared.score if self.best in (each.first, each.second)]
        return {pair.second if pair.first == self.best else pair.first: pair for pair in pairs}


def answer(recording: Recording, found: Sequence[StudyFacts]) -> Answer | None:
    """Return which value is the best; None unless one configuration was run with several."""
    sweep = _sweep(recording.sweep, found)
    if sweep is None:
        return None
    [cell] = found[0].cells
    best, mean = one_line(sweep.best), estimate(sweep.asked(sweep.best)).mean or 0.0
    scoring, counts = sweep.scoring, [len(sweep.asked(name)) for name in sweep.seconds]
    unsure = [
        one_line(name) for name in sweep.others if sweep.against(name)[1] not in ("worse", "slower")
    ]
    several, out = max(counts) > 1, [one_line(name) for name in sweep.out]
    is_decided = several and bool(sweep.others) and not unsure
    if sweep.by_time:
        is_best = "is the fastest" if is_decided else "has the shortest times so far"
        lead = f"{best} {is_best}: {three_digits(mean)} s per epoch."
    else:
        shown = with_unit(_texts(sweep)[sweep.best], scoring.mark)
        ties = [one_line(name) for name in sweep.seconds if sweep.ties_with_best(name)]
        has = listed_and(ties) if len(ties) < 4 else f"{len(ties)} values"
        lead = f"{has} {plural(ties, 'has', 'have')} the best {scoring.name}: {shown}."
    of_seeds = f"{ONE_SEED} {SEEDS if recording.sweep.swept else BEST_FEW}"
    return Answer(
        lead,
        is_decided,
        cell if _names(found)[0] == sweep.best else best,
        reasons=[_reason(best, unsure, sweep)] * (several and sweep.tested)
        + [f"Left out, as a run of it failed: {listed_and(out)}."] * bool(out),
        caveats=[ONE_ROUND if sweep.by_time else of_seeds] * (not several)
        + [NOT_TESTED] * (several and not sweep.tested),
        surer=recording.next_steps.of_time(found[0]) if sweep.by_time and unsure else None,
        table=_table(sweep),
    )


def decided(record: StudyRecord, found: Sequence[StudyFacts]) -> bool | None:
    """Return whether it is known how each value compares with the best; None: as of `answer`."""
    sweep = _sweep(record, found)
    if sweep is None:
        return None
    return all(sweep.against(name)[1] not in UNDECIDED for name in sweep.others)


def _sweep(record: StudyRecord, found: Sequence[StudyFacts]) -> Sweep | None:
    if len(found) < 2 or any(each.cells != found[0].cells for each in found):
        return None
    alike = {replace(each.group.scoring, margin=None) for each in found if each.scores}
    names = _names(found)
    if len(found[0].cells) != 1 or len(alike) > 1 or len(set(names)) < len(names):
        return None
    swept = list(record.swept.items())

    def order(name: str) -> tuple[float, ...]:
        parts = name.split(", ")
        return tuple(
            next((n for n, value in enumerate(values) if f"{key}={value}" in parts), math.inf)
            for key, values in swept
        )

    by_name = dict(sorted(zip(names, found, strict=True), key=lambda each: order(each[0])))
    [cell] = found[0].cells
    scoring = found[0].group.scoring
    not_ok = {name: each.not_ok[cell] for name, each in by_name.items() if cell in each.not_ok}
    scores = {name: each.scores[cell] for name, each in by_name.items() if cell in each.scores}
    seconds = {name: SECONDS.values(each.group).get(cell, {}) for name, each in by_name.items()}
    by_time = not scores
    if by_time and not all(each.timed for each in found):
        return None
    asked = seconds if by_time else scores
    asked = {name: known for name, known in asked.items() if known}
    out = [name for name, each in by_name.items() if cell in each.failed]
    if asked.keys() <= {*out}:
        out = []
    asked = {name: known for name, known in asked.items() if name not in out}
    if not asked:
        return None
    tested = max(map(len, asked.values())) > 1 and len(asked) <= MOST_TESTED
    compared = compare(
        _timings({name: by_name[name] for name in asked}, cell) if by_time and tested else [],
        asked if tested and not by_time else {},
        replace(found[0].settings, baseline=None),
        floor=max(each.comparison.floor for each in found),
    )
    sweep = Sweep(seconds, scores, not_ok, out, scoring, by_time, tested, compared)
    if swept:
        return sweep
    ranked = sorted(seconds, key=sweep.merit, reverse=True)  # as of a search: they have no order
    return replace(sweep, seconds={name: seconds[name] for name in ranked})


def _timings(by_name: Mapping[str, StudyFacts], cell: Cell) -> list[Timings]:
    """The seconds of each value at each look."""

    def at(looks: Sequence[Timings]) -> Timings:
        named = dict(zip(by_name, looks, strict=True))
        seconds = {name: own for name, of in named.items() if (own := of.seconds.get(cell))}
        stretches = {name: own for name, of in named.items() if (own := of.stretches.get(cell))}
        waits = [name for name, of in named.items() if cell in of.waits]
        return replace(looks[0], seconds=seconds, stretches=stretches, waits=waits)

    return [*map(at, zip(*(each.timings for each in by_name.values()), strict=True))]


def _names(found: Sequence[StudyFacts]) -> list[str]:
    """What tells the groups of a sweep apart: `optimizer.lr=0.001`, `model=mlp`."""
    known = {
        name: [getattr(each.group, name) for each in found]
        for name in CONDITIONS
        if len({getattr(each.group, name) for each in found} - {None}) > 1
    }
    return [
        ", ".join(
            [
                *(f"{name}={listed([values[place]])}" for name, values in known.items()),
                *filter(None, [each.group.variant]),
            ]
        )
        for place, each in enumerate(found)
    ]


def _texts(sweep: Sweep) -> dict[str, str]:
    """The mean scores as text, with decimals that all of them share."""
    found = {name: estimate(known) for name, known in sweep.scores.items()}
    means, spreads = [one.mean for one in found.values()], [one.sd for one in found.values()]
    decimals = decimals_of_score(sweep.scoring.mark, means, spreads)
    return {name: number(one.mean, decimals) for name, one in found.items()}


def _reason(best: str, unsure: Sequence[str], sweep: Sweep) -> str:
    worse = "slower" if sweep.by_time else "worse"
    if not sweep.others:
        return "There is no other value to compare it with."
    if not unsure:
        return f"Every other value is shown to be {worse}."
    return f"Not shown to be {worse} than {best}: {listed_and(unsure)}."


def _table(sweep: Sweep) -> AnswerTable:
    """Return a row for each value: in the order of the sweep, or of a long search the best 50."""
    scoring = sweep.scoring
    score = ", ".join(filter(None, (scoring.name, scoring.mark)))
    texts, several = _texts(sweep), max(len(sweep.asked(name)) for name in sweep.seconds) > 1

    def row(name: str) -> list[str]:
        known, took = estimate(sweep.scores.get(name, {})), estimate(sweep.seconds[name]).mean
        text = texts.get(name, MISSING)
        if known.sd is not None and name in texts:
            text += f" ± {number(known.sd, len(texts[name].partition('.')[2]))}"
        off, verdict = sweep.against(name)
        against = f"{off} {word(verdict).text}" if verdict else "the best"
        shown = [one_line(name), *([text] if sweep.scores else [])]
        shown += [against, str(len(sweep.known(name)))] if several else []
        shown.append(MISSING if took is None else three_digits(took))
        return [*shown, sweep.not_ok.get(name, "ok")]

    shown = list(sweep.seconds)
    if len(shown) > 50:
        shown = sorted(shown, key=sweep.merit, reverse=True)[:50]
    about = "± is the standard deviation over the seeds. " if several and sweep.scores else ""
    if not sweep.by_time:
        about += "Times are of full training runs, one after another: no verdict rests on them."
    if left := len(sweep.seconds) - len(shown):
        about += f" {left} further {plural(left, 'value is', 'values are')} left out."
    columns = ["value", *([score] if sweep.scores else [])]
    columns += ["against the best", "rounds" if sweep.by_time else "seeds"] * several
    title = f"{'Time' if sweep.by_time else capitalized(scoring.name)} by value"
    rows = [row(name) for name in shown]
    if not sweep.not_ok:
        rows = [each[:-1] for each in rows]
    columns += ["s/epoch", *(["status"] if sweep.not_ok else [])]
    return AnswerTable(title, about.strip(), columns, rows, whole=True, best=one_line(sweep.best))
