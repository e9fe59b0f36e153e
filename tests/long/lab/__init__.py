"""Does what is said of a known truth hold? Benches, studies and `bench --try` in virtual time.

    python -m tests.long.lab [SHAPE ...] [--studies 400] [--jobs 2] [--seed 1]

Scripts have known steps; their true speedup is that of an uninterrupted run of the same script. The
schedule, which turns count, the intervals and the verdicts are the package's own functions, which
`adapter` alone knows. `world` has the machine and its scripts, `cases.json` the shapes, and
`thresholds.json` what must hold, within two standard errors; the exit code is 1 where it does not.

misses: 95 % intervals at the end that do not hold the truth, of those that are told; at any look:
pairs of which any interval that was shown did not. false: studies with any false verdict at any
look. decided: pairs with a verdict at the end; of a study that asks for the best, that it is named;
of `--try`, the change that is truly faster is named, or none is. half-width: of the intervals,
median. rms error, bias: of the logarithm of the speedup.

Not simulated: caches, the scheduler, clocks of a GPU, what the hook of bench counts as a step.
"""
