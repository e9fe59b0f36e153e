"""What a report shows below its answer, in this order, on the page and in report.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ninefold.answer.answer import Answer
from ninefold.answer.cell import Cell
from ninefold.answer.fields import Field, Word, word
from ninefold.answer.measures import FIGURE, SECONDS, TO_TARGET, Measure, of_score
from ninefold.answer.runs import Run, finite
from ninefold.answer.study_facts import OTHER, SAME, WITHIN
from ninefold.errors import one_line
from ninefold.numbers import (
    MISSING,
    between,
    chance,
    counted,
    decimals_of,
    in_words,
    number,
    plural,
    score_text,
    small,
    three_digits,
)
from ninefold.report.render.figures import Bar, Plot, phases, plot
from ninefold.report.render.results import about, ordered, results, table_of_answer
from ninefold.report.render.tables import NONE, Table, Texts, filled, table_of
from ninefold.report.tree import CellReport, Group, Note, Report
from ninefold.result import TIMING
from ninefold.score import PHASES

_NUMERICS = {
    SAME: Word("the same", "good"),
    WITHIN: Word("within its precision", "even"),
    OTHER: Word("not the same", "bad"),
}
_NAME = "configuration"


@dataclass(frozen=True)
class Section:
    """A part of a report.

    about: what it shows. points: sentences. plot, bars: what is drawn. table: of figures. command,
        code: to be copied. folded: whether the page shows its title alone. finding: what it shows
        in a few words, for who does not unfold it.
    """

    id: str
    title: str
    about: str = ""
    points: Sequence[str] = ()
    plot: Plot | None = None
    bars: Sequence[Bar] = ()
    table: Table | None = None
    command: str = ""
    code: str = ""
    folded: bool = True
    finding: str = ""


def of_next(report: Report) -> list[Section]:
    """Return the sections on what to do next: train with the answer, or make it surer."""
    answer = report.answer
    if answer.train:
        about = " ".join(answer.trains)
        said = [Section("train", "Train with it", about, command=answer.train, folded=False)]
        if own := answer.settings:
            title, code = "The same in your own loop", "\n".join(own.code)
            about = f"Not the same: {' '.join(own.differs)}" if own.differs else ""
            said += [Section("own", title, about, command=own.run, code=code, folded=False)]
        return said
    if (more := answer.surer) is None:
        return []
    about = f"{more.text} It takes {more.takes}." if more.takes else more.text
    return [Section("surer", "To be surer", about, command=more.command, folded=False)]


def of_answer(report: Report) -> list[Section]:
    """Return the sections on what the answer rests on."""
    table = None if report.answer.by_value else answer_table(report.answer)
    said = [
        *([table] if table else []),
        Section("why", "Why", points=report.answer.reasons, folded=False),
        Section("caveats", "Keep in mind", points=report.answer.caveats, folded=False),
    ]
    return [section for section in said if section.points or section.table]


def of_group(group: Group, report: Report) -> list[Section]:
    """Return the sections on a group that have something to show; the first is its results."""
    table = results(group)
    fields = f"{group.title}. {about(group)}"
    check = Section("check", "Check", points=group.check, finding="".join(group.control))
    said = [
        Section("results", "Results", fields, plot=plot(group), table=table, folded=False),
        check if check.points else None,
        _further(group),
        _phases(group),
        _numerics(group),
        _pairs(group),
    ]
    return [section for section in said if section is not None]


def of_study(report: Report, shown: int, environment: str) -> list[Section]:
    """Return the sections on the whole study.

    shown: groups that have their own. environment: what the runs were made with, as JSON.
    """
    notes = [note for note in report.notes if note.text not in report.answer.caveats]
    said = [_notes(report, notes)] if notes else []
    return [*said, _runs(report, shown), _conditions(report, environment)]


def _score_and_unit(found: Sequence[Group]) -> tuple[str, str]:
    """What the groups' score is called, and its unit; `score` and empty where there is not one."""
    names, units = {group.score for group in found}, {group.unit for group in found}
    return names.pop() if len(names) == 1 else "score", units.pop() if len(units) == 1 else ""


def _label(group: Group, cell: Cell | None) -> str:
    return next((each.label for each in group.cells if each.cell == cell), str(cell))


def _own(group: Group) -> set[Cell]:
    """The cells that do work of their own."""
    return {cell.cell for cell in group.shown}


def _further(group: Group) -> Section | None:
    """Further figures of the task, and the time to the target score."""
    found = [info for info in group.measures if info.key.startswith((TO_TARGET, FIGURE))]
    if not found:
        return None
    rows: list[Texts] = [
        [cell.label, *(_figure(info, group, cell) for info in found)] for cell in ordered(group)
    ]
    titles = [
        f"{info.title}{info.unit and f', {info.unit}'}"
        + (f" ({info.better} is better)" if info.better else "")
        for info in found
    ]
    return Section(
        "further",
        "Further figures",
        "On the test set after the last epoch: mean ± standard deviation over the seeds. No "
        "verdict rests on them.",
        table=table_of("Further figures", [_NAME], titles, rows),
        finding=f"no verdict: {', '.join(info.title for info in found)}",
    )


def _figure(info: Measure, group: Group, cell: CellReport) -> Field:
    found = cell.measures.get(info.key)
    if found is None or found.mean is None:
        return NONE
    decimals = decimals_of(info.unit, [other.mean(info.key) for other in group.cells])
    sd = "" if found.sd is None else f"± {number(found.sd, decimals)}"
    few = f", {found.n} of {found.tried}" if found.n < found.tried else ""
    return Field(number(found.mean, decimals), f"{sd}{few}".removeprefix(", "))


def _phases(group: Group) -> Section | None:
    if not (bars := phases(group)):
        return None
    rows = [
        [cell.label, *(number((cell.phases or {}).get(phase), 1) for phase in PHASES)]
        for cell in ordered(group)
    ]
    titles = [f"{phase} %" for phase in PHASES]
    table = table_of("Phases of a training step", [_NAME], titles, rows)
    about = (
        "Shares of the sampled training steps. Which change would make a training command faster: "
        "ninefold bench --try 'COMMAND'."
    )
    shares = {
        phase: [found[phase] for cell in ordered(group) if phase in (found := cell.phases or {})]
        for phase in PHASES
    }
    most = max(shares, key=lambda phase: sum(shares[phase]))
    ends = sorted({f"{end:.0f}" for end in (min(shares[most]), max(shares[most]))}, key=float)
    finding = f"mostly {most}, {' to '.join(ends)} % of a step"
    return Section("phases", "Where time goes", about, bars=bars, table=table, finding=finding)


def answer_table(answer: Answer) -> Section | None:
    """Return the table that an answer to another question rests on."""
    if (found := answer.table) is None:
        return None
    table = table_of_answer(found)
    return Section("answer-table", found.title, found.about, table=table, folded=False)


def _numerics(group: Group) -> Section | None:
    if not group.numerics:
        return None
    rows: list[Texts] = []
    sentences: dict[str, list[str]] = {}
    others: list[str] = []
    for row in group.numerics.rows:
        if row.cell not in _own(group):
            continue
        name, said = _label(group, row.cell), _NUMERICS[row.verdict]
        if said.state == "bad" and not row.by_design:
            others.append(name)
        if said.state != "good":
            sentences.setdefault(row.sentence, []).append(name)
        rows.append(
            [
                name,
                Field("", word=Word("other by design", "even") if row.by_design else said),
                small(row.first_loss_deviation),
                small(row.loss_deviation),
                number(row.cosine, 5),
                MISSING if row.flushed is None else f"{small(100 * row.flushed)} %",
                number(row.update_ratio, 4),
            ]
        )
    titles = ("first loss off by", "losses off by", "cosine", "flushed to 0", "update ratio")
    return Section(
        "numerics",
        "Do they compute the same?",
        group.numerics.about,
        [f"{'; '.join(names)}: {sentence}" for sentence, names in sentences.items()],
        table=table_of("Numerics of each configuration", [_NAME, "computes"], titles, rows),
        finding=f"not {'; '.join(others)}" if others else "yes, within their precision",
    )


def _pairs(group: Group) -> Section | None:
    """How the times of each two configurations compare that do work of their own."""
    settings, own = group.settings, _own(group)
    pairs = [pair for pair in group.comparison.seconds if {pair.first, pair.second} <= own]
    rows: list[Texts] = [
        [
            _label(group, pair.second),
            _label(group, pair.first),
            Field(
                three_digits(pair.speedup),
                between(pair.low, pair.high, three_digits, ""),
                word(pair.verdict),
            ),
            chance(pair.adjusted),
            pair.rounds,
        ]
        for pair in pairs
        if pair.speedup is not None and pair.low is not None
    ]
    if not rows:
        return None
    about = (
        "The first of two is compared with the second. The verdict and p, of a difference, are of "
        f"all pairs tested together (Holm), at a level of {small(100 * settings.level)} % over the "
        "whole study; an interval is of its pair alone, extended to no difference where the "
        "verdict is open. “The same” has a test of its own."
    )
    if len(rows) < len(pairs):
        about += " Pairs of too few rounds for an interval are left out."
    titles = (f"speedup ({settings.confidence:.3g} % interval)", "p", "rounds")
    table = filled(table_of("Speedups", [_NAME, "compared with"], titles, rows))
    differ = sum(pair.verdict in ("faster", "slower") for pair in pairs)
    finding = f"{differ} of {len(pairs)} differ in time"
    return Section("pairs", "Every pair", about, table=table, finding=finding)


def _notes(report: Report, notes: Sequence[Note]) -> Section:
    labels = {cell.cell: cell.label for group in report.groups for cell in group.cells}
    points = []
    for note in notes:
        held = [labels.get(cell) or str(cell) for cell in note.cells]
        holders = "every configuration" if len(held) == len(labels) else "; ".join(held)
        points.append(f"{note.text}{f' ({holders})' if holders else ''}")
    first = notes[0].text.partition(":")[0].rstrip(".")
    more = f", and {len(points) - 1} more" if len(points) > 1 else ""
    return Section("notes", "Notes", points=points, finding=f"{first}{more}")


def _runs(report: Report, shown: int) -> Section:
    """How the runs ended, and each of them."""
    runs, (score, unit) = report.runs, _score_and_unit(report.groups)
    statuses = Counter(run.status for run in runs).most_common()
    finding = f"{counted(runs, 'run')}: {', '.join(f'{n} {status}' for status, n in statuses)}"
    about = f"{finding}."
    if len(report.groups) > shown:
        most = "those with the most runs"
        about += f" Of {len(report.groups)} conditions {shown} have tables above, {most}."
    points = [_ended(run) for run in runs if run.status != "ok"]
    for why, n in Counter(report.uncounted.values()).items():
        points.append(f"{counted(n, 'run')} {plural(n, 'does', 'do')} not count: {why}")
    rows: list[Texts] = []
    for run in runs:
        status = run.status + ("" if run.counts else ", not counted")
        place = MISSING if run.round is None else str(run.round + 1)
        place = f"timing {place}" if run.folder.startswith(f"{TIMING}/") else place
        took, score_of = finite(SECONDS.value(run)), of_score(run.scoring).value(run)
        figures = MISSING if took is None else three_digits(took), score_text(score_of, unit)
        rows.append([run.folder, str(run.cell), status, run.seed, place, *figures])
    titles = ("seed", "round", "s/epoch", in_words(score, unit))
    table = table_of("Every run", ["run", _NAME, "status"], titles, rows)
    return Section("runs", "Runs", about, points, table=table, finding=finding)


def _conditions(report: Report, environment: str) -> Section:
    files = ["report.json, runs.csv and environment.json are in the same folder"]
    about = " · ".join(report.conditions + (files if environment else []))
    return Section(
        "conditions-of-runs",
        "Conditions",
        about,
        command=report.command or "",
        code=environment,
        finding=report.machine,
    )


def _ended(run: Run) -> str:
    seed = "" if run.seed is None else f", seed {run.seed}"
    error = f": {one_line(run.error)}" if run.error else ""
    return f"{run.cell}{seed} ({run.folder}) {run.status}{error}"
