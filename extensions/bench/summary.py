"""What a bench says: one sentence, a table, what was not counted; as text, markdown and JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ninefold.api.times import Times, interval, pair_of, shown
from ninefold.progress import aligned
from ninefold.stats.verdicts import UNDECIDED, Pair

from .engine import LEAST_ROUNDS, Found
from .gate import rounds_needed

OTHERS = 0.05  # share of the CPU time from which on other programs are named
SEEN = 0.01  # share of a command's time that was not counted, from which on it is told
MOSTLY = 0.2  # the same, from which on the sentence says so
# `bench --why`: the command and its copy, and what each twin of it does without.
AS_IT_IS, COPY = "as it is", "copy"
TWINS = {
    "batch": "reading data",
    "no-sync": "averaging gradients over ranks",
    "no-optimizer": "the optimizer",
    "threads=1": "a single thread",
}
MARK = "<!-- ninefold bench -->"  # by which a later comment finds the one that it replaces


def sentence(found: Found, times: Times) -> str:
    """What was shown, and no more."""
    best = times.best
    needs = max(LEAST_ROUNDS - found.rounds, 0)
    if best is None or (needs and not times.settled):
        minutes = minutes_for(found, LEAST_ROUNDS)
        return (
            f"Which is faster is not known yet: there was time for {found.rounds} "
            f"{'round' if found.rounds == 1 else 'rounds'}, and it takes {LEAST_ROUNDS}; --minutes "
            f"{minutes:g} would do."
        )
    pairs = [pair_of(times.pairs, best, name) for name in found.names if name != best]
    clauses = [clause(found, best, pair) for pair in pairs if pair is not None]
    return f"{_only_steps(found)}{'; '.join(clauses)}."


def clause(found: Found, best: str, pair: Pair) -> str:
    """How another command compares with the best."""
    other, options = pair.second, found.options
    level = f"{confidence(found):.1f} % interval {interval(pair)}"
    if pair.verdict == "tie":
        same = f"{100 * options.same:g} %"
        what = "equally fast" if options.by == "time" else "equal in CPU time a step"
        return f"{best} and {other} are {what} within {same} ({shown(pair.estimate)}; {level})"
    if pair.verdict in UNDECIDED:
        took = f"{other} takes {shown(pair.estimate)} of {best}'s time ({level})"
        said = f"{best} and {other} are not shown to differ: {took}"
        if rounds := needed(found, pair):
            minutes = f"--minutes {minutes_for(found, rounds):g}"
            said += f"; about {rounds} rounds would settle it: {minutes}"
        return said
    if options.by == "cpu":
        return (
            f"{best} uses {shown(pair.estimate)} times less CPU time a step than {other} ({level})"
        )
    return f"{best} is {shown(pair.estimate)} times as fast as {other} ({level})"


def confidence(found: Found) -> float:
    """The confidence of an interval, in percent: 95 % are shared out among the looks."""
    return found.settings.confidence


def needed(found: Found, pair: Pair) -> int | None:
    """How many rounds would show that a pair differs, or that it ties, whichever is nearer."""
    if pair.estimate is None:
        return None
    tie = (1 + found.options.same) ** math.copysign(1, pair.estimate - 1)
    limit = max(1.0, tie, key=lambda end: abs(math.log(pair.estimate / end)))
    return rounds_needed(pair, limit, confidence(found))


def minutes_for(found: Found, rounds: int) -> float:
    """Minutes for so many rounds, in halves."""
    each = found.seconds / max(found.rounds, 1) / 60
    return math.ceil(2 * each * rounds) / 2


def _not_counted(found: Found, name: str) -> tuple[int, int, float, float]:
    """Steps of a command that were not counted, all its steps, their seconds, share of its time."""
    marked = found.marked[name].values()
    count, seconds = sum(c for c, _ in marked), sum(s for _, s in marked)
    steps = found.counted_steps[name]
    own = sum(t.steps * t.seconds for t in found.log.turns if t.name == name)
    return count, count + steps, seconds, seconds / max(seconds + own, 1e-9)


def _only_steps(found: Found) -> str:
    share = max(_not_counted(found, name)[3] for name in found.names)
    return "In steps alone, " if share > MOSTLY else ""


def table(found: Found, times: Times) -> list[tuple[str, ...]]:
    """Header and a row for each command."""
    rows: list[tuple[str, ...]] = [
        ("", "ms per step", "CPU ms", "ratio", "interval", "verdict", "command")
    ]
    cpu = found.times("cpu").seconds
    for command in found.commands:
        name = command.name
        pair = pair_of(times.pairs, times.best, name)
        if pair is None:
            said = ("1", "", "compared with it") if name == times.best else ("", "", "")
        else:
            said = shown(pair.estimate), interval(pair), pair.verdict
        of_time = found.times("time").seconds.get(name)
        numbers = [f"{1000 * s:.4g}" if s else "" for s in (of_time, cpu.get(name))]
        rows.append((name, *numbers, *said, command.text))
    return rows


def conditions(found: Found, times: Times) -> Iterator[str]:
    """One line for each thing that a reader has to know, the most frequent first."""
    turns = [t for t in found.log.turns if t.round < found.rounds]
    each = len(turns) // max(len(found.names), 1)
    yield (
        f"{found.rounds} rounds of new processes, {each} turns of each; "
        f"{found.starts:.0f} of {found.seconds:.0f} s were starts."
    )
    if times.busy is not None and times.busy > OTHERS:
        yield f"Other programs used {100 * times.busy:.0f} % of the CPU time."
    said = found.counted()
    if said.busy:
        yield "Most turns were disturbed: these are times beside what disturbs."
    elif left := sum(said.left_out.values()):
        yield f"{100 * left:.0f} % of the turns were disturbed and are left out."
    if found.options.by == "time" and not times.settled and found.rounds >= LEAST_ROUNDS:
        for pair in found.times("cpu").pairs:
            if pair.estimate is not None:
                yield (
                    f"CPU time per step: {pair.second} / {pair.first} {shown(pair.estimate)} "
                    f"({confidence(found):.1f} % interval {interval(pair)})."
                )
    for name in found.names:
        count, steps, seconds, share = _not_counted(found, name)
        if share > SEEN:
            what = " or ".join(found.marked[name])
            yield (
                f"Not counted: in {name} {count} of {steps} steps contained {what} "
                f"({seconds:.1f} s, {100 * share:.0f} % of its time); --count all counts it."
            )
    for name, times_ in found.restarts.items():
        yield f"{name} ended and was started again {times_} times; its start and end are not timed."
    if found.written:
        files = ", ".join(sorted(found.written)[:3])
        yield (
            f"More than one wrote {files}: one may read what another wrote; {{out}} is a folder of "
            "its own, --cwd another."
        )
    told = found.told
    for name in found.names:
        if (count := told.get(name, {}).get("optimizers", 1)) > 1:
            yield f"{name} has {count} optimizers: a step ends with that which steps least often."
    sizes = {name: told[name].get("batch") for name in found.names if name in told}
    if len({*sizes.values()} - {None}) > 1:
        of = " and ".join(f"{name} of {size}" for name, size in sizes.items() if size)
        yield f"Batches differ, {of}: what is compared is a step."
    for name, share in found.drift().items():
        last = max(found.places, default=0)
        longer = "longer" if share > 0 else "shorter"
        yield (
            f"{name}'s steps take {100 * abs(share):.0f} % {longer} at the end of a round than at "
            f"its start: what is compared is the first {last} steps."
        )
    if found.options.apart:
        yield "The commands ran one after another, not in turns."


def why(found: Found, times: Times) -> Iterator[str]:
    """What each twin of a command shows, and whether its copy takes the same."""
    for name in found.names:
        pair = pair_of(times.pairs, AS_IT_IS, name)
        if pair is None or pair.estimate is None or not pair.low or not pair.high:
            continue
        share, low, high = (100 * (1 - end) for end in (pair.estimate, pair.high, pair.low))
        of = f"{shown(pair.estimate)} of its time ({interval(pair)})"
        if name == COPY:
            yield f"A copy of the command takes {of}."
        elif name == "threads=1":
            yield f"With one thread a step takes {of}."
        else:
            part = TWINS.get(name, name)
            yield f"A step spends {share:.0f} % on {part} ({low:.0f} to {high:.0f} %)."


def text(found: Found, keep: Path) -> str:
    """What a terminal shows."""
    times = found.times()
    first = [*why(found, times)] if AS_IT_IS in found.names else [sentence(found, times)]
    lines = [*first, "", *aligned(table(found, times)), ""]
    return "\n".join([*lines, *conditions(found, times), f"Output of the commands: {keep}/"])


def markdown(found: Found, verdict: str | None) -> str:
    """A comment on a pull request. verdict: of the gate: passes, fails, undecided."""
    times = found.times()
    mark = {"passes": "✅ ", "fails": "❌ ", "undecided": "❔ "}.get(verdict or "", "")
    header, *rows = (row[:-1] for row in table(found, times))
    lines = [f"| {' | '.join(row)} |" for row in [header, ("---",) * len(header), *rows]]
    more = "\n".join(f"- {line}" for line in conditions(found, times))
    commands = "\n".join(f"- {c.name}: `{c.text}`" for c in found.commands)
    return (
        f"{MARK}\n{mark}{sentence(found, times)}\n\n" + "\n".join(lines) + "\n\n<details>"
        f"<summary>Conditions</summary>\n\n{more}\n{commands}\n\n</details>\n"
    )


def data(found: Found, exit_code: int, gate: dict[str, Any] | None) -> dict[str, Any]:
    """The answer as JSON."""
    times = found.times()
    cpu = found.times("cpu").seconds
    commands = []
    for command in found.commands:
        name = command.name
        told = found.told.get(name, {})
        marked = found.marked[name].items()
        commands.append(
            {
                "name": name,
                "command": command.text,
                "torch": told.get("torch"),
                "world": told.get("world"),
                "seconds": found.times("time").seconds.get(name),
                "cpu_seconds": cpu.get(name),
                "steps": found.counted_steps[name],
                "restarts": found.restarts.get(name, 0),
                "not_counted": {k: {"steps": n, "seconds": s} for k, (n, s) in marked},
            }
        )
    kept = zip(found.counted().turns, found.cpu, strict=False)
    return {
        "version": 1,
        "sentence": sentence(found, times),
        "exit": exit_code,
        "commands": commands,
        "pairs": [
            {
                "first": pair.first,
                "second": pair.second,
                "ratio": pair.estimate,
                "low": pair.low,
                "high": pair.high,
                "confidence": confidence(found),
                "rounds": pair.n,
                "verdict": pair.verdict,
                "needed": needed(found, pair),
            }
            for pair in times.pairs
        ],
        "gate": gate,
        "others": times.busy,
        "turns": [
            [t.round, t.turn, t.name, t.seconds, seconds, t.steps, t.left_out]
            for t, seconds in kept
        ],
    }
