"""Writes report.md, and what the console shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ninefold.errors import one_line
from ninefold.report.answer.gate import Gate, GroupChanges
from ninefold.report.answer.notes import number_notes
from ninefold.report.answer.tree import Answer, Report
from ninefold.report.answer.tree import Group as ReportGroup
from ninefold.report.data.cells import MOST, Group, groups, shown
from ninefold.report.data.runs import Run
from ninefold.report.numbers import MISSING, decimals_for, ratio, with_article
from ninefold.report.render import matrix, scales
from ninefold.report.render.markdown import code, grid, items, plain, section
from ninefold.report.render.tables import mark_cells, measure_table, superscript
from ninefold.report.stats.measures import SCORE_KEY, SECONDS, Measure, of_score
from ninefold.report.stats.recordings import Change
from ninefold.report.stats.statistics import estimate

_DEVIATIONS = ("first_loss_deviation", "loss_deviation", "cosine", "flushed", "update_ratio")


def report_text(report: Report, tables: str) -> str:
    """Return the text of report.md: the answer, its evidence, then the text of table.md."""
    parts = [f"# {plain(report.title)}"]
    if report.question:
        parts.append(f"Question: {plain(report.question)}")
    parts.append(_answer(report.answer))
    for group in report.groups[:MOST]:
        sections = [text for text in _verdicts(group, report) if text]
        if len(report.groups) > 1 and sections:
            parts.append(f"## {plain(group.title)}")
        parts += sections
    lowered = "\n".join(f"#{line}" if line.startswith("#") else line for line in tables.split("\n"))
    return "\n\n".join([*parts, lowered.rstrip("\n")]) + "\n"


def _answer(answer: Answer) -> str:
    parts = [f"**{plain(answer.sentence)}**"]
    if answer.train:
        parts.append(f"Train with it: {code(answer.train)}")
    for goal in answer.goals:
        article = "" if goal.goal.startswith("fastest to") else "the "
        parts.append(f"## For {article}{goal.goal}\n\n{plain(goal.sentence)}")
        if goal.reasons:
            parts.append("\n".join(f"- {plain(reason)}" for reason in goal.reasons))
    parts.append(items("## Caveats", [f"- {plain(caveat)}" for caveat in answer.caveats]))
    return "\n\n".join(part for part in parts if part)


def _verdicts(group: ReportGroup, report: Report) -> list[str]:
    """Return the sections on what the group's runs show."""
    settings = report.settings
    scores = settings.score_confidence or settings.confidence
    levels = {SECONDS.key: settings.confidence, SCORE_KEY: scores}
    tested = ["p", "seeds", "seeds needed"]
    of_time = ["p", "rounds", "rounds needed"] if group.timing_rounds else tested
    score = plain(group.score)
    headings = {SECONDS.key: "seconds per epoch", SCORE_KEY: f"test {score}"}
    found = [
        section(
            f"## Verdicts on {headings[each.key]}",
            [
                "cell",
                "against",
                "verdict",
                "estimate",
                f"{levels[each.key] or 95:.3g} % interval",
                *(of_time if each.key == SECONDS.key else tested),
            ],
            [
                [row.name, row.against, row.verdict, row.value, row.interval, *_tested(row)]
                for row in each.rows
            ],
        )
        for each in matrix.pairs(group)
    ]
    margin = settings.margin or 0.0
    found.append(
        section(
            f"## Is {with_article(score)} safe?",
            ["cell", "verdict", "difference, points", "lower bound", *tested],
            [
                [row.name, row.verdict, row.value, row.interval, *_tested(row)]
                for row in matrix.safety(group, margin)
            ],
            f"A cell is safe if its test {score} is shown to be less than {margin:g} points below "
            "none-fp32's: the lower bound has to show it, not the mean alone.",
        )
    )
    found.append(
        section(
            "## A/A control",
            ["cell", "the same work as", "ratio of seconds", "interval", "control"],
            [
                [row.name, row.against, row.value, row.interval, row.verdict]
                for row in matrix.controls(group)
            ],
            "dp on one device does the same work as none: except for a few µs a step of its "
            "wrapper, differences between them are noise.",
        )
    )
    found.append(
        section(
            "## Turns against a long stretch",
            ["cell", "turns / stretch", "interval", "stretches", "control"],
            [
                [row.name, row.value, row.interval, str(row.n), row.verdict]
                for row in matrix.steady(group)
            ],
            "After its turns a process trained one long stretch alone: a step in turns should take "
            "as long as in that stretch.",
        )
    )
    rounds = [] if group.timing_rounds else [_rounds(group, settings.drift)]
    return [*found, *_scaling(group), _numerics(group.numerics), *rounds]


def _scaling(group: ReportGroup) -> list[str]:
    if group.scaling is None:
        return []
    about = {
        "strong": "Strong scaling: every step has the same global batch.",
        "weak": "Weak scaling: every process has the same batch.",
    }
    return [
        section(
            f"## More processes: {plain(series.parallel)}, {plain(series.amp)}",
            scales.HEADER,
            scales.rows(series),
            about.get(group.scaling.kind, ""),
            "\n".join(f"- {plain(text)}" for text in series.said),
        )
        for series in group.scaling.series
    ]


def _tested(row: matrix.Row) -> list[str]:
    return [row.adjusted, str(row.n), row.needed or MISSING]


def _numerics(numerics: Mapping[str, Any] | None) -> str:
    if not numerics:
        return ""
    rows = [
        [
            str(row.get("cell")),
            str(row.get("verdict")),
            *(_three_digits(row.get(name)) for name in _DEVIATIONS),
            plain(str(row.get("sentence") or "")),
        ]
        for row in numerics.get("rows") or []
    ]
    header = ["cell", "verdict", "loss, first step", "loss, all", "cosine", "flushed"]
    return section(
        "## Do the cells compute the same?",
        [*header, "update ratio", ""],
        rows,
        plain(str(numerics.get("about") or "")),
    )


def _three_digits(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, int | float) else MISSING


def _rounds(group: ReportGroup, limit: float | None) -> str:
    rows = [
        [
            found.number,
            str(found.seed),
            MISSING if found.drift is None else f"{100 * found.drift:.1f} %",
            "yes" if found.drifted else "no",
            "yes" if found.counted else "no",
        ]
        for found in group.rounds
    ]
    about = (
        "A round is one run of every cell with one seed. Its drift is how much slower the machine "
        "was in it than at its best."
    )
    if limit:
        about += f" Above {100 * limit:g} % it has drifted, and is repeated: 2.2 is the second try."
    return section("## Rounds", ["round", "seed", "drift", "drifted", "counted"], rows, about)


def console_text(report: Report, runs: Sequence[Run]) -> str:
    """Return what the console shows: the answer, then the tables of time and score."""
    answer = report.answer
    lines = [f"answer: {one_line(answer.sentence)}"]
    lines += [f"caveat: {one_line(caveat)}" for caveat in answer.caveats]
    if answer.train:
        lines.append(f"train with it: {answer.train}")
    every = groups(runs)
    found = shown(every)
    notes = number_notes(runs)
    marks = [mark_cells(group, notes) for group in found]
    used = {mark for each in marks for text in each.values() for mark in text.split()}
    numbered = [(superscript(number), note) for note, number in notes.items()]
    bad = sum(not run.ok for run in runs)
    parts = [
        "\n".join(lines),
        *_scaling_lines(report),
        *(_tables(group, own) for group, own in zip(found, marks, strict=True)),
        "\n".join(f"{mark} {one_line(note)}" for mark, note in numbered if mark in used),
        _left_out(every),
        f"{bad} of {len(runs)} runs are not ok" if bad else "",
    ]
    return "\n\n".join(part for part in parts if part)


def _scaling_lines(report: Report) -> list[str]:
    """What the answer's group shows of its processes, a paragraph for each strategy."""
    found = report.groups[0].scaling if report.groups else None
    return [
        "\n".join(f"scaling: {one_line(text)}" for text in series.said)
        for series in (found.series if found else [])
    ]


def _left_out(every: Sequence[Group]) -> str:
    more = len(every) - MOST
    return f"{more} more conditions are in table.md of the report" if more > 0 else ""


def _tables(group: Group, marks: Mapping[str, str]) -> str:
    tables = [
        f"{plain(measure.title)}\n{measure_table(group, measure, marks)}"
        for measure in _measures_of(group)
    ]
    return "\n\n".join([plain(group.title), *tables])


def _measures_of(group: Group) -> list[Measure]:
    """The measures that the console shows; runs that were only timed have no score."""
    scored = group.training or not group.timing
    return [SECONDS, of_score(group.score)] if scored else [SECONDS]


def gate_text(gate: Gate) -> str:
    """Return the change of each cell's seconds per epoch, a table for each group."""
    return "\n".join(line for group in gate.groups for line in _changes(group))


def _changes(group: GroupChanges) -> list[str]:
    rows = [
        [
            change.cell,
            _mean(group.before[change.cell]),
            _mean(group.now[change.cell]),
            ratio(change.ratio),
            _interval(change),
            "slower" if change.slower else "",
        ]
        for change in group.changes
    ]
    table = grid(["cell", "s per epoch before", "now", "ratio", "interval", ""], rows)
    new = [f"{cell} has no time before" for cell in group.now if cell not in group.before]
    return ["", group.title, table, *new]


def _mean(known: Mapping[int, float]) -> str:
    mean = estimate(known).mean or 0.0
    return f"{mean:.{decimals_for(mean)}f} ({len(known)})"


def _interval(change: Change) -> str:
    if change.low is None or change.high is None:
        return "too few runs"
    return f"{ratio(change.low)} to {ratio(change.high)}"
