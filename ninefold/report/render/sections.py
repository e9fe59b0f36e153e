"""What a report shows below its answer, in this order, on the page and in report.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ninefold.errors import one_line
from ninefold.report.answer.tree import CellReport, Figures, Group, Report, RunLine
from ninefold.report.data.cell import BASELINE, Cell
from ninefold.report.data.cells import score_of, unit_of
from ninefold.report.numbers import (
    MISSING,
    NOT_KNOWN,
    between,
    capitalized,
    chance,
    counted,
    decimals_of,
    difference,
    in_words,
    number,
    plural,
    score_text,
    small,
    three_digits,
    unit_of_difference,
    with_article,
    within_margin,
)
from ninefold.report.render import pictures
from ninefold.report.render.plots import Picture
from ninefold.report.render.results import margin_of, ordered
from ninefold.report.render.tables import NONE, Column, Field, Table, Word, filled, word
from ninefold.report.stats import numerics
from ninefold.report.stats.measures import SCORE_KEY, SECONDS, TO_TARGET
from ninefold.score import PHASES
from ninefold.stats.verdicts import OPEN, Pair, Safety

_NUMERICS = {
    numerics.SAME: Word("the same", "good"),
    numerics.WITHIN: Word("within its precision", "even"),
    numerics.OTHER: Word("not the same", "bad"),
}
_NAME = Column("configuration", number=False)


@dataclass(frozen=True)
class Section:
    """A part of a report.

    about: what it shows. points: sentences. tables: with a heading each where there are several.
    fold: what the fold is called that holds its tables; None: they are open.
    legend: whether the picture has the phases of a step.
    """

    id: str
    title: str
    about: str = ""
    points: Sequence[str] = ()
    picture: Picture | None = None
    tables: Sequence[Table] = ()
    fold: str | None = None
    legend: bool = False


def of_group(group: Group, report: Report) -> list[Section]:
    """Return the sections on a group that have something to show."""
    said = [
        _safety(group, report),
        _further(group),
        _phases(group),
        _answer_table(report) if group is report.groups[0] else None,
        _curves(group),
        _numerics(group),
        _pairs(group, report),
        _steady(group, report),
    ]
    return [section for section in said if section is not None]


def of_study(report: Report, shown: int) -> list[Section]:
    """Return the sections on the whole study. shown: groups that have their own."""
    every = [_conditions(report, shown)] if len(report.groups) > shown else []
    return [*every, *([_notes(report)] if report.notes else []), _runs(report)]


def _label(group: Group, cell: Cell | None) -> str:
    found = (each.label for each in group.cells if each.cell == cell)
    return next(found, "") or str(cell)


def _own(group: Group) -> set[Cell]:
    """The cells that do work of their own."""
    return {cell.cell for cell in group.shown}


def _needed(test: Pair | Safety) -> Field:
    return Field(str(test.needed or (MISSING if test.verdict == OPEN else "")))


def _safety(group: Group, report: Report) -> Section | None:
    """Whether each score is as good as the baseline's."""
    tests = {test.cell: test for test in group.safety}
    cells = [cell for cell in ordered(group) if cell.cell in tests]
    if not cells:
        return None
    unit, more = unit_of_difference(group.unit), group.better == "more"
    rows = [
        [
            Field(_label(group, cell.cell)),
            Field(
                difference(test.difference, group.unit),
                ""
                if test.low is None or test.low == test.difference
                else f"at {'least' if more else 'most'} {difference(test.low, group.unit)}",
                word(test.verdict),
            ),
            Field(str(test.n)),
            _needed(test),
        ]
        for cell in cells
        for test in [tests[cell.cell]]
    ]
    margin = within_margin(margin_of(group, report), group.unit, group.better, BASELINE)
    columns = (in_words("difference", unit), "seeds", "seeds needed")
    return Section(
        "safety",
        f"Is {with_article(group.score)} kept?",
        f"It is kept where it is shown to be {margin}: the {'lower' if more else 'upper'} bound "
        "has to show it. Similar means alone do not.",
        tables=[filled(Table(f"Safety of {group.score}", [_NAME, *map(Column, columns)], rows))],
    )


def _further(group: Group) -> Section | None:
    """Further figures of the task, and the time to the target score."""
    cells = ordered(group)
    found = [
        (
            figure.heading + (f" ({figure.better} is better)" if figure.better else ""),
            figure.unit,
            figure.cells,
        )
        for figure in group.further
    ]
    for info in group.measures:
        if info.key == TO_TARGET and info.available:
            times = {cell.cell: each for cell in cells if (each := cell.measures.get(info.key))}
            found.append((info.title, info.unit, times))
    if not found:
        return None
    texts = [[_figure(unit, figures, cell) for cell in cells] for _, unit, figures in found]
    names = [Field(_label(group, cell.cell)) for cell in cells]
    columns = [Column(title) for title, _, _ in found]
    return Section(
        "further",
        "Further figures",
        "On the test set after the last epoch: mean ± standard deviation over the seeds. No "
        "verdict rests on them.",
        tables=[
            Table(
                "Further figures",
                [_NAME, *columns],
                [list(row) for row in zip(names, *texts, strict=True)],
            )
        ],
    )


def _figure(unit: str, figures: Mapping[Cell, Figures], cell: CellReport) -> Field:
    found = figures.get(cell.cell)
    if found is None or found.mean is None:
        return NONE
    decimals = decimals_of(unit, [each.mean for each in figures.values()])
    sd = "" if found.sd is None else f"± {number(found.sd, decimals)}"
    few = f", {found.n} of {found.tried}" if found.n < found.tried else ""
    return Field(number(found.mean, decimals), f"{sd}{few}".removeprefix(", "))


def _phases(group: Group) -> Section | None:
    drawn = pictures.phases(group)
    if drawn is None:
        return None
    bound = [_label(group, cell.cell) for cell in ordered(group) if cell.data_bound]
    host = [_label(group, cell.cell) for cell in ordered(group) if cell.host_bound]
    points = []
    if bound:
        points.append(
            f"Waiting for data: {'; '.join(bound)}. A tenth or more of each step goes into its "
            "batch, whatever the configuration: more loader workers or a cache would help."
        )
    if host:
        points.append(
            f"Bound by the host: {'; '.join(host)}. The GPU has done a step almost as soon as "
            "the host has queued it: phases are times in which it mostly waits."
        )
    rows = [
        [
            Field(_label(group, cell.cell)),
            *(Field(number((cell.phases or {}).get(phase), 1)) for phase in PHASES),
        ]
        for cell in ordered(group)
    ]
    columns = [_NAME, *(Column(f"{phase} %") for phase in PHASES)]
    return Section(
        "phases",
        "Where time goes",
        "Shares of the sampled training steps.",
        points,
        drawn,
        [Table("Phases of a training step", columns, rows)],
        fold="In numbers",
        legend=True,
    )


def _answer_table(report: Report) -> Section | None:
    if (found := report.answer.table) is None:
        return None
    first, *others = found.columns
    columns = [Column(first, number=False), *map(Column, others)]
    rows = [[Field(text) for text in row] for row in found.rows]
    return Section(
        "answer-table", found.title, found.about, tables=[filled(Table(found.title, columns, rows))]
    )


def _curves(group: Group) -> Section | None:
    drawn = pictures.curves(group)
    about = f"Test {in_words(group.score, group.unit)}: a line for each run; dashed is the mean of "
    return (
        Section("curves", "Learning curves", f"{about}{BASELINE}.", picture=drawn)
        if drawn
        else None
    )


def _numerics(group: Group) -> Section | None:
    if not group.numerics:
        return None
    rows: list[list[Field]] = []
    sentences: dict[str, list[str]] = {}
    for row in group.numerics["rows"]:
        if row["cell"] not in _own(group):
            continue
        name, verdict = _label(group, row["cell"]), str(row["verdict"])
        said = _NUMERICS.get(verdict, Word(verdict, "even"))
        if said.state != "good":
            sentences.setdefault(one_line(row["sentence"]), []).append(name)
        rows.append(
            [
                Field(name),
                Field(small(row["first_loss_deviation"])),
                Field(small(row["loss_deviation"])),
                Field(number(row["cosine"], 5)),
                NONE if row["flushed"] is None else Field(f"{small(100 * row['flushed'])} %"),
                Field(number(row["update_ratio"], 4)),
                Field("", word=Word("other by design", "even") if row.get("by_design") else said),
            ]
        )
    titles = ("first loss off by", "losses off by", "cosine", "flushed to 0", "update ratio")
    columns = [_NAME, *map(Column, titles), Column("computes", number=False)]
    return Section(
        "numerics",
        "Do they compute the same?",
        one_line(group.numerics["about"]),
        [f"{'; '.join(names)}: {sentence}" for sentence, names in sentences.items()],
        tables=[Table("Numerics of each configuration", columns, rows)],
    )


def _pairs(group: Group, report: Report) -> Section | None:
    """Every pair of configurations that do work of their own."""
    settings = report.settings
    rounds = "rounds" if group.timing_rounds else "seeds"
    time = settings.confidence or 95
    tables = [
        _pair_table(group, group.pairs.seconds, "times as long", time, rounds),
        _pair_table(
            group,
            group.pairs.accuracy,
            f"{group.score}, {in_words('difference', unit_of_difference(group.unit))}",
            settings.score_confidence or time,
            "seeds",
        ),
    ]
    tables = [table for table in tables if table.rows]
    if not tables:
        return None
    return Section(
        "pairs",
        "Every pair",
        "The second of two is compared with the first. All pairs are tested together (Holm), at a "
        f"level of {small(100 * (settings.level or 0))} %.",
        tables=tables,
        fold="All pairs with their intervals",
    )


def _pair_table(
    group: Group, pairs: Sequence[Pair], what: str, confidence: float, unit: str
) -> Table:
    times = what == "times as long"

    def show(value: float | None) -> str:
        if value is None:
            return MISSING
        return three_digits(value) if times else difference(value, group.unit)

    rows = [
        [
            Field(_label(group, pair.second)),
            Field(_label(group, pair.first)),
            Field(show(pair.estimate), between(pair.low, pair.high, show, ""), word(pair.verdict)),
            Field(chance(pair.adjusted)),
            Field(str(pair.n)),
            _needed(pair),
        ]
        for pair in pairs
        if {pair.first, pair.second} <= _own(group)
    ]
    columns = [_NAME, Column("against", number=False)]
    titles = (f"{what} ({confidence:.3g} % interval)", "p", unit, f"{unit} needed")
    return filled(Table(capitalized(what), [*columns, *map(Column, titles)], rows))


def _steady(group: Group, report: Report) -> Section | None:
    """Whether a step in turns takes as long as in a long stretch."""
    if not group.steady:
        return None
    busy = ""
    if group.others is not None:
        busy = f" Other programs used {100 * group.others:.0f} % of the CPU time during the turns."
    rows = [
        [
            Field(_label(group, each.cell)),
            Field(
                number(each.ratio, 3),
                between(each.low, each.high, three_digits, NOT_KNOWN),
                word(each.state),
            ),
            Field(str(each.n)),
        ]
        for each in group.steady
        if each.cell in _own(group)
    ]
    columns = [_NAME, Column("turns / stretch (95 % interval)"), Column("stretches")]
    return Section(
        "steady",
        "Turns against a long stretch",
        "After its turns a process trained one long stretch alone: a step in turns should take as "
        f"long as in that stretch.{busy}",
        tables=[Table("Turns against a long stretch", columns, rows)],
    )


def _conditions(report: Report, shown: int) -> Section:
    """A line for each configuration of every group, where there are many."""
    score = in_words(score_of(report.groups), unit_of(report.groups))
    rows = []
    for group in report.groups:
        for cell in group.shown:
            time, found = (cell.measures.get(key) for key in (SECONDS.key, SCORE_KEY))
            rows.append(
                [
                    Field(group.title),
                    Field(_label(group, cell.cell)),
                    Field(str(time.tried if time else cell.seeds)),
                    Field(small(time.mean if time else None)),
                    Field(score_text(found.mean if found else None, group.unit)),
                ]
            )
    columns = [
        Column("conditions", number=False),
        _NAME,
        *map(Column, ("seeds", "s/epoch", score)),
    ]
    return Section(
        "conditions",
        "All conditions",
        f"{len(report.groups)} conditions were run. {shown} of them are shown above: those with "
        f"the most runs, and of these the best by {score_of(report.groups)}.",
        tables=[Table("All conditions", columns, rows)],
    )


def _notes(report: Report) -> Section:
    labels = {
        cell.cell: _label(group, cell.cell) for group in report.groups for cell in group.cells
    }
    points = []
    for note in report.notes:
        held = [labels.get(cell) or str(cell) for cell in note.cells]
        holders = "every configuration" if len(held) == len(labels) else "; ".join(held)
        points.append(f"{note.text}{f' ({holders})' if holders else ''}")
    return Section("notes", "Notes", points=points)


def _runs(report: Report) -> Section:
    """How the runs ended, and each of them."""
    runs, unit = report.runs, unit_of(report.groups)
    statuses = Counter(run.status for run in runs).most_common()
    about = f"{counted(runs, 'run')}: {', '.join(f'{n} {status}' for status, n in statuses)}."
    points = [_ended(run) for run in runs if run.status != "ok"]
    reasons = Counter(run.why or "" for run in runs if not run.counted)
    for why, n in reasons.items():
        points.append(f"{counted(n, 'run')} {plural(n, 'does', 'do')} not count: {why}")
    titles = ("seed", "round", "s/epoch", in_words(score_of(report.groups), unit))
    columns = [
        *(Column(name, number=False) for name in ("run", "cell", "status")),
        *map(Column, titles),
    ]
    rows = [
        [
            Field(run.folder),
            Field(str(run.cell)),
            Field(run.status + ("" if run.counted else ", not counted")),
            Field(MISSING if run.seed is None else str(run.seed)),
            Field(run.number),
            Field(small(run.seconds)),
            Field(score_text(run.accuracy, unit)),
        ]
        for run in runs
    ]
    every = Table("Every run", columns, rows)
    return Section("runs", "Runs", about, points, tables=[every], fold="Every run")


def _ended(run: RunLine) -> str:
    seed = "" if run.seed is None else f", seed {run.seed}"
    error = f": {run.error}" if run.error else ""
    return f"{run.cell}{seed} ({run.folder}) {run.status}{error}"
