"""What a bench says: one sentence, a table, what was not counted; as text, markdown and JSON."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from ninefold.answer.needed import rounds_for_pair
from ninefold.answer.screen import NOTES, narrowed, screen
from ninefold.answer.times import Times
from ninefold.answer.words import clause, content, disturbed, shown, speedup
from ninefold.bench import batches, gate, precisions, ranks, strategies
from ninefold.bench.changes import BOUNDS
from ninefold.bench.engine import Found
from ninefold.bench.same import Same, same
from ninefold.bench.same import sentences as sentences_of_same
from ninefold.errors import Undecided, one_line
from ninefold.numbers import counted, plural
from ninefold.progress import aligned
from ninefold.stats.verdicts import UNDECIDED, WITHIN, Pair
from ninefold.tables import code, plain
from ninefold.types import LEAST_ROUNDS

VERSION = 3  # of the JSON
OTHERS = 0.05  # share of the CPU time from which on other programs are named
QUIETER, FEW = "a quieter machine", "too few rounds"
SEEN = 0.01  # share of a command's time that was not counted, from which on it is told
MOSTLY = 0.2  # the same, from which on the sentence says so
ROLLOUT = "a block without gradients"  # of MARKS: in reinforcement learning a part of training
LINES = 12  # of all that is shown on a terminal
DETAILS = "details.md"  # in the folder of the commands' output
MARK = "<!-- ninefold bench -->"  # by which a later comment finds the one that it replaces


def sentence(found: Found, times: Times) -> str:
    """What was shown, and no more: of several commands how the best compares with the first."""
    if is_early(found, times):
        return (
            f"Not decided: there was time for {counted(found.rounds, 'round')}, and an answer "
            f"takes {LEAST_ROUNDS} that count."
        )
    pairs, best = times.against_baseline, told(times)
    said = against_first(found, times, best)
    if len(pairs) > 1 and best.verdict not in ("faster", *UNDECIDED):
        number = speedup(best, found.settings)
        said = f"No command is faster than {best.first}; the closest is {best.second}, {number}"
    more = [
        f"{count} more {plural(count, 'is', 'are')} {what}"
        for verdicts, what in ((("faster",), "faster, too"), (UNDECIDED, "not decided"))
        if (count := sum(pair.verdict in verdicts for pair in pairs if pair is not best))
    ]
    left_out = max(_not_counted(found, name)[3] for name in found.names)
    alone = f"in steps alone, without {100 * left_out:.0f} % of the time"
    where = "; ".join(["one after another"] * found.apart + [alone] * (left_out > MOSTLY))
    return f"{'; '.join([said, *more])}{where and f' ({where})'}."


def is_early(found: Found, times: Times) -> bool:
    """Whether there were too few rounds to say anything, and there is something left to say."""
    if found.helps is not None and len(found.names) == 1 and found.rounds:
        return False
    verdicts = {pair.verdict for pair in times.against_baseline}
    few = found.rounds < LEAST_ROUNDS
    return found.rounds == 0 or (few and (verdicts <= {*UNDECIDED} or found.counted().busy))


def against_first(found: Found, times: Times, pair: Pair) -> str:
    """How another command compares with the first, how sure that is, and what would decide it."""
    said, first, other = clause(pair, found.settings, found.what), pair.first, pair.second
    if found.examples.get(other, 1.0) != 1 and {first, other} <= times.seconds.keys():
        longer = times.seconds[other] / times.seconds[first]
        said += f"; its steps take {shown(longer)} times as long"
    one, several = (found.told[name].get("world", 1) for name in (first, other))
    if one != several and pair.speedup:
        share = 100 * pair.speedup * one / several
        said += f"; each of its {counted(several, 'process', 'processes')} does {share:.0f} %"
    if pair.verdict == WITHIN:
        return f"{said}; alternating itself changes the times by as much"
    if pair.verdict in UNDECIDED and (rounds := rounds_for_pair(pair, found.same)):
        return f"{said}; about {rounds} rounds would decide it"
    return said


def next_step(found: Found, times: Times) -> str:
    """What to do now: use a command, or what would decide it; empty: nothing is left to do."""
    if found.paced:
        return "--apart, one command at a time"
    if is_early(found, times):
        return f"--minutes {minutes_for(found, max(LEAST_ROUNDS, found.rounds + 1)):g}"
    pairs = times.against_baseline if found.helps is None else found.helps.open
    if open_ := [pair for pair in pairs if pair.verdict in UNDECIDED]:
        return next_for(found, open_)
    used = to_use(found, times)
    unsure = ", if it trains as well" if found.examples.get(used, 1.0) != 1 else ""
    if _steps_to_block(found):
        unsure = ", if its blocks without gradients are no part of training"
    return used and f"use {used}{unsure}"


def told(times: Times) -> Pair:
    """The pair that the sentence tells: the fastest of those that are faster than the first; else
    of those that are open, else of all.
    """
    pairs = times.against_baseline
    faster = [pair for pair in pairs if pair.verdict == "faster"]
    open_ = [pair for pair in pairs if pair.verdict in UNDECIDED]
    return max(faster or open_ or pairs, key=lambda pair: pair.speedup or 0.0)


def to_use(found: Found, times: Times) -> str:
    """What is to be used once nothing is open."""
    if found.helps is not None:
        named = [str(change["name"]) for change in found.helps.changes[:1]]
        together = [str(found.helps.together.second)] if found.helps.together else []
        return next(iter([*together, *named]), "")
    best = told(times)
    if best.verdict == "tie":
        return "either" if len(found.names) == 2 else best.first
    return str(best.second if best.verdict == "faster" else best.first)


def next_for(found: Found, pairs: Sequence[Pair]) -> str:
    """What would decide these pairs, or give each as many rounds as that takes; empty without."""
    few = [LEAST_ROUNDS - pair.rounds for pair in pairs if has_few(pair)]
    rounds = (
        [found.rounds + max(few)] if few else [rounds_for_pair(pair, found.same) for pair in pairs]
    )
    more = [minutes_for(found, each) for each in rounds if each is not None]
    if not pairs:
        return ""
    return f"--minutes {max(more):g}" if len(more) == len(rounds) else QUIETER


def minutes_for(found: Found, rounds: int) -> float:
    """Minutes for so many rounds, in halves."""
    each = found.seconds / max(found.rounds, 1) / 60
    return math.ceil(2 * each * rounds) / 2


def _not_counted(found: Found, name: str) -> tuple[int, int, float, float]:
    """Steps of a command that were not counted, all its steps, their seconds, share of its time."""
    marked = [seconds for of in found.marked[name].values() for seconds in of]
    turns = [turn for turn in found.log.turns if turn.name == name]
    own = sum(turn.steps * turn.seconds for turn in turns)
    steps = len(marked) + sum(turn.steps for turn in turns)
    return len(marked), steps, sum(marked), sum(marked) / max(sum(marked) + own, 1e-9)


def _sentence_of_not_counted(found: Found) -> Iterator[str]:
    """What was not counted, by command, where it is worth a line."""
    said, whats = list[str](), dict[str, None]()
    for name in found.names:
        count, steps, seconds, share = _not_counted(found, name)
        if share > SEEN:
            cost = f"({seconds:.1f} s, {100 * share:.0f} % of its time)"
            said.append(f"in {name} {count} of {steps} {cost}")
            whats |= dict.fromkeys(found.marked[name])
    if said:
        yield f"Not counted are steps that contained {' or '.join(whats)}: {', '.join(said)}."


def _steps_to_block(found: Found) -> dict[str, int]:
    """Of commands that spend much time in long blocks without gradients, steps to one of these."""
    long = dict[str, int]()
    for name in found.names:
        _, steps, seconds, share = _not_counted(found, name)
        blocks = found.marked[name].get(ROLLOUT, [])
        if share * sum(blocks) > MOSTLY * seconds:
            long[name] = round(steps / len(blocks))
    return long


def _sentence_of_blocks(found: Found) -> Iterator[str]:
    """What times whole updates, where steps alone may be a small part of training."""
    if long := _steps_to_block(found):
        yield (
            f"{' and '.join(long)} {plural(len(long), 'has', 'have')} one block without gradients "
            f"to {' and '.join(map(str, long.values()))} steps: if it is a part of training, as a "
            "rollout is, --step MODULE:FUNCTION times whole updates."
        )


def table(found: Found, times: Times) -> list[tuple[str, ...]]:
    """Header and a row for each command; examples a second where all are known."""
    unit = "ms per step" if found.starts else "ms per run"
    known = {name: batches.examples(found.taken.get(name)) for name in found.names}
    counts = known if all(known.values()) and found.names == [*times.seconds] else {}
    of_steps = ("examples/s",) if counts else ()
    peaks = {name: fmean(of.values()) for name, of in found.memory.items() if of}
    of_memory = ("memory, GiB",) if peaks.keys() >= {*found.names} else ()
    interval_ = f"{found.settings.confidence:g} % interval"
    header = (
        "",
        *of_steps,
        unit,
        f"speedup{found.what}",
        interval_,
        "verdict",
        *of_memory,
        "command",
    )
    rows: list[tuple[str, ...]] = [header]
    for command in found.commands:
        name = command.name
        wall = f"{1000 * times.seconds[name]:.4g}" if name in times.seconds else ""
        rate = [f"{(counts[name] or 0) / times.seconds[name]:,.4g}" for _ in of_steps]
        cells = times.cells(name)
        if found.paced and name != times.baseline:
            cells = "", "", "not decided"
        elif has_few(times.pair(times.baseline, name)):
            cells = cells[0], "", FEW
        elif name in BOUNDS:
            cells = *cells[:2], "upper bound"
        memory = [f"{peaks[name] / 2**30:.2f}" for _ in of_memory]
        rows.append((name, *rate, wall, *cells, *memory, one_line(command.text)))
    return rows


def has_few(pair: Pair | None) -> bool:
    """Whether a pair had too few rounds for a verdict."""
    return pair is not None and pair.rounds < LEAST_ROUNDS


def as_data(found: Found, pair: Pair) -> dict[str, Any]:
    """A pair as JSON has it."""
    less = {"low": None, "high": None, "verdict": FEW} if has_few(pair) else {}
    more = {"confidence": found.settings.confidence, "needed": rounds_for_pair(pair, found.same)}
    return {**content(pair), **less, **more}


def compared(found: Found) -> dict[str, Same]:
    """How commands compare that take as many examples in a step as the first."""
    factors = found.examples
    return same([c for c in found.commands if factors.get(c.name, 1.0) == 1], found.recorded)


def notes(found: Found, times: Times) -> Iterator[str]:
    """One line for each thing that a reader should know, the most important first."""
    yield from () if found.helps is None else found.helps.lines[1:]
    yield from _sentence_of_blocks(found)
    yield from disturbed(found.counted(), None, told=0.005)
    if times.busy is not None and times.busy > OTHERS:
        yield f"Other programs used {100 * times.busy:.0f} % of the CPU time."
    if found.beside_on_gpu:
        yield f"Other programs computed on the GPU in {counted(found.beside_on_gpu, 'turn')}."
    if found.limits:
        said = [f"in {counted(n, 'turn')} {limit}" for limit, n in found.limits.items()]
        yield f"On the GPU, {'; '.join(said)}."
    for name in found.names:
        if found.told[name].get("unscaled"):
            yield f"{name} computes in fp16 without a GradScaler: small gradients become zero."
    yield from ranks.sentences(found.own)
    yield from batches.sentences(found.names[0], found.taken, found.examples)
    yield from precisions.sentences(found.precisions)
    yield from strategies.sentences(found.commands, found.said, found.examples)
    first = found.names[0] if found.helps is None else "the script"
    yield from sentences_of_same(first, compared(found))
    yield from () if found.helps is None else found.helps.notes
    if found.waits:
        waits = f"{' and '.join(sorted(found.waits))} wait{'s' * (len(found.waits) == 1)}"
        yield (
            f"{waits} for the host: what is compared with that is compared by long stretches, and "
            "speedups may be up to 10 % too small."
        )
    for name in found.names:
        if share := found.drift(name):
            last = max(found.places[t.order] for t in found.log.turns if t.name == name)
            yield (
                f"{name}'s steps take {100 * abs(share):.0f} % {'longer' if share > 0 else 'less'} "
                f"at the end of a round than at its start: compared are its first {last}."
            )
    for name, count in found.restarts.items():
        yield f"{name} ended and was started again {count} times; its start and end are not timed."
    yield from _sentence_of_not_counted(found)
    for name in found.names:
        if (count := found.told[name].get("optimizers", 1)) > 1:
            yield f"{name} has {count} optimizers: a step ends with that which steps least often."


def conditions(found: Found) -> Iterator[str]:
    """One line for each thing that tells how it was measured, and changes no answer."""
    if found.cuda and len(found.names) > 1 and not found.apart:
        yield "Each took its first step after that of the one before, as they use a GPU."
    if found.starts:
        turns = sum(turn.round < found.rounds for turn in found.log.turns)
        starts = f"{found.starts:.0f} of {found.seconds:.0f} s were starts"
        yield f"The rounds had new processes and {counted(turns, 'turn')}; {starts}."


def no_verdict(found: Found) -> Undecided | None:
    """Why turns show nothing, if it is so."""
    if not found.paced:
        return None
    name, of = next(iter(found.paced.items()))
    command = next(each for each in found.commands if each.name == name)
    return Undecided(
        "command",
        command.text,
        f"its steps catch up after a pause: {1000 * of.first:.4g} ms right after one of "
        f"{of.pause:.1f} s, {1000 * of.later:.4g} ms later",
        "steps are compared in turns if they wait for no clock and for nothing from outside",
        "--apart pauses no command for another, --whole times full runs",
    )


def too_early(found: Found) -> Undecided | None:
    """The failure of a bench that had no time for an answer, if it is so."""
    times = found.times()
    if not is_early(found, times):
        return None
    return Undecided(
        "minutes",
        f"{found.minutes:g}",
        f"there was time for {counted(found.rounds, 'round')}",
        f"an answer takes {LEAST_ROUNDS} that count",
        next_step(found, times),
    )


def lead(found: Found, times: Times, verdict: str | None) -> str:
    """The answer in one line. verdict: of the gate, None without one."""
    if found.paced:
        names = " and ".join(found.paced)
        return f"Not decided: {names} catches up after each pause, so that taking turns misleads."
    if verdict is not None and found.allowed is not None:
        return gate.sentence(times.pairs[0], found.allowed, found.settings, found.what)
    if found.helps is not None and not is_early(found, times):
        return found.helps.lines[0]
    return sentence(found, times)


def text(found: Found, keep: Path, verdict: str | None, whole: bool) -> str:
    """What a terminal shows. verdict: as above. whole: with all rows and notes."""
    times = found.times()
    rows, said = table(found, times), [*notes(found, times)]
    said += conditions(found) if whole else ()
    shown_rows = rows if whole else narrowed(rows, times.seconds)
    most = None if whole else min(NOTES, LINES - 5 - len(shown_rows[1:]))
    next_ = next_step(found, times)
    after = f"{counted(found.rounds, 'round')} in {found.seconds / 60:.1f} min"
    after = f"{after}; next: {next_}." if next_ and verdict is None else f"{after}."
    left = len(rows) - len(shown_rows)
    more = f", with {counted(left, 'more row')}" if left else ""
    details = f"{after} Details{more}: {os.path.relpath(keep / DETAILS)}"
    return screen(lead(found, times, verdict), aligned(shown_rows), said, details, most=most)


def markdown(found: Found, verdict: str | None) -> str:
    """A comment on a pull request. verdict: of the gate: passes, fails, undecided."""
    mark = {"passes": "✅ ", "fails": "❌ ", "undecided": "❔ "}.get(verdict or "", "")
    said, rows, more = _parts(found, verdict)
    return (
        f"{MARK}\n{mark}{said}\n\n{rows}\n\n<details><summary>Conditions</summary>\n\n"
        f"{more}\n\n</details>\n"
    )


def details(found: Found, verdict: str | None) -> str:
    """All that is known, as Markdown."""
    return "\n\n".join(_parts(found, verdict)) + "\n"


def _parts(found: Found, verdict: str | None) -> tuple[str, str, str]:
    """The lead; the table; the notes and the commands, as Markdown."""
    times = found.times()
    header, *rows = (row[:-1] for row in table(found, times))
    of_rows = [tuple(map(plain, row)) for row in (header, *rows)]
    lines = [f"| {' | '.join(r)} |" for r in (of_rows[0], ("---",) * len(header), *of_rows[1:])]
    commands = [f"{plain(c.name)}: {code(c.text)}" for c in found.commands]
    more = [f"- {line}" for line in (*notes(found, times), *conditions(found), *commands)]
    return lead(found, times, verdict), "\n".join(lines), "\n".join(more)


def data(found: Found, exit_code: int, verdict: str | None) -> dict[str, Any]:
    """The answer as JSON. verdict: of the gate."""
    times, allowed = found.times(), found.allowed
    apart = compared(found)
    return {
        "version": VERSION,
        "sentence": lead(found, times, verdict),
        "notes": [*notes(found, times), *conditions(found)],
        "exit": exit_code,
        "seed": found.seed,
        "commands": [
            {
                "name": (name := command.name),
                "command": command.text,
                "torch": found.told[name].get("torch"),
                "world": found.told[name].get("world"),
                "examples": batches.examples(found.taken.get(name)),
                "seconds": times.seconds.get(name),
                "memory": [*found.memory[name].values()],
                "revision": command.copy and command.copy.commit,
                "restarts": found.restarts[name],
                "apart": apart[name]._asdict() if name in apart else None,
                "catches_up": name in found.paced,
                "not_counted": {
                    what: {"steps": len(of), "seconds": sum(of)}
                    for what, of in found.marked[name].items()
                },
            }
            for command in found.commands
        ],
        "pairs": [as_data(found, pair) for pair in found.pairs(times)],
        "changes": found.helps and found.helps.changes,
        "gate": verdict and {"allowed": allowed, "verdict": verdict},
        "others": times.busy,
        "turns": [
            [t.round, t.turn, t.name, t.seconds, t.steps, t.left_out] for t in found.counted().turns
        ],
    }
