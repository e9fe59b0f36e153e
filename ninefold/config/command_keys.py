"""The keys of a command that no single run has: of find and of sweeps."""

from __future__ import annotations

from ninefold.config.keys import SEED, Key
from ninefold.config.kinds import (
    FLAG,
    QUESTIONS,
    SECTION,
    STUDY,
    number,
    one_of,
    optional,
    whole,
)

# The keys of a command that looks for a value instead of training.
FIND: dict[str, Key] = {
    "find": Key(
        optional(one_of("batch_size", "lr")),
        None,
        "Find the largest batch_size that fits into memory, or a learning rate, instead of "
        "training; null: train.",
    ),
    "find_lr": Key(SECTION, None, "The learning rates that find=lr tries."),
    "find_lr.low": Key(number(0), 1e-7, "Learning rate of its first step."),
    "find_lr.high": Key(number(0), 1.0, "Learning rate of its last step."),
    "find_lr.steps": Key(whole(10), 100, "Its steps, if the loss does not diverge before."),
}

# The keys of a sweep, which no single run has.
SWEEP: dict[str, Key] = {
    "study": Key(SECTION, None, "A sweep with repetitions; a round is one run of every cell."),
    "study.seed": Key(SEED, 0, "Seed of the order in which the cells of a round are run."),
    "study.repeats": Key(
        whole(1, otherwise=(None, "auto")),
        None,
        "Rounds; null: one for each seed of the sweep, auto: until the answer is settled.",
    ),
    "study.ask": Key(
        QUESTIONS,
        None,
        "The questions: [time], [accuracy] or [time, accuracy]. time: cells train in short turns, "
        "all alive at once. accuracy: whole runs, without a check for drift. null: both from the "
        "same whole runs.",
    ),
    "study.pairs": Key(
        one_of("best", "all"),
        "best",
        "What timing rounds decide. best: which cell is the fastest, and cells that cannot be are "
        "not measured further; all: every pair of cells.",
    ),
    "study.time_budget": Key(
        number(0),
        3,
        "Minutes of timing rounds. The second, too, may end half a minute later: one decides "
        "nothing.",
    ),
    "study.slice": Key(
        number(0),
        0.04,
        "Seconds that are timed in a turn: after 0.04 that are not, at least two steps after one; "
        "of several processes 0.3 after 0.3.",
    ),
    "study.turns": Key(
        whole(2, otherwise=("auto",)),
        "auto",
        "Turns that each cell has in a timing round, besides one that is not counted. auto: cells "
        "train for about as long as each other, so that 12 rounds fill study.time_budget; longer "
        "where starting the processes takes most of such a round.",
    ),
    "study.scaling": Key(
        one_of("strong", "weak"),
        "strong",
        "Where parallel.processes is swept. strong: batch_size is that of each step, whatever the "
        "number of processes; weak: batch_size times the processes is.",
    ),
    "study.budget": Key(
        optional(number(0)),
        None,
        "Minutes of rounds: another starts if it is expected to end in time; null: no limit.",
    ),
    "study.burn_in": Key(
        whole(0),
        50,
        "Steps of a first run that is not counted, where cells are repeated; 0: none.",
    ),
    "study.drift": Key(
        number(0),
        0.1,
        "Share by which the machine may become slower within a round before the round is repeated.",
    ),
    "study.retries": Key(whole(0), 2, "How often a round is repeated at most."),
    "study.max_batch": Key(FLAG, False, "Also find the largest batch that fits, for each cell."),
    "study.resume": Key(STUDY, None, "Folder of an interrupted study to resume."),
    "study.mixed": Key(
        FLAG,
        False,
        "Resume even if code or machine changed; runs from before and after are reported in "
        "separate tables.",
    ),
    "report": Key(SECTION, None, "What the report of a sweep recommends."),
    "report.margin": Key(
        number(0),
        0.5,
        "Percentage points of the score that a cell may lose against none-fp32 and still be safe.",
    ),
    "report.same": Key(
        number(0, below=1), 0.02, "Times that differ by less than this share count as equal."
    ),
    "report.target": Key(
        optional(number(0, below=1)),
        None,
        "Score from 0 to 1 whose time to reach is measured; null: that of none-fp32 minus the "
        "margin.",
    ),
}

NOT_OF_A_RUN = {**FIND, **SWEEP}
