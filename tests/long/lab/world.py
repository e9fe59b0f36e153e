"""A machine on a clock that only its processes move, and scripts whose steps are known."""

from collections import deque
from itertools import islice

import numpy as np

CALM = {"sd": 0.01, "turn": 0.03, "tails": 0, "round": 0.03}  # of a case that names no other noise


def lognormal(rng, cv):
    """Yield factors with mean 1 and this coefficient of variation."""
    sd = np.sqrt(np.log1p(cv**2))
    while True:
        yield from np.exp(rng.normal(-(sd**2) / 2, sd, 256)).tolist()


def loader(spec, rng):
    """Yield steps that wait for W workers: each prefetches 2 batches, which are taken in order."""
    count, now, sent = spec["workers"], 0.0, 0
    work = (spec["work"] * each for each in lognormal(rng, spec.get("cv", 0.1)))
    free, ready = [0.0] * count, deque()

    def send():
        worker = sent % count
        free[worker] = max(now, free[worker]) + next(work)
        ready.append(free[worker])

    for sent in range(2 * count):  # noqa: B007
        send()
    while True:
        began, now = now, max(now, ready.popleft())
        sent += 1
        send()
        now += spec["compute"]
        yield now - began


def steps_of(spec, rng, order):
    """Yield the seconds of each step of one process. order: draws what batches cost."""
    if "workers" in spec:
        return loader(spec, rng)
    step, own = spec["step"], lognormal(rng, 0.005)
    if every := spec.get("every"):
        last, heavy = every - 1, spec["heavy"]
        return (step * each * (heavy if n % every == last else 1) for n, each in enumerate(own))
    if cv := spec.get("batches"):
        fixed = spec.get("fixed", 0.0)  # share of a mean step that does not depend on the batch
        cost = lognormal(rng if spec.get("anew") else order, cv)
        return (step * (fixed + (1 - fixed) * next(cost)) * each for each in own)
    return (step * each for each in own)


def truth(scripts):
    """Seconds of a step of an uninterrupted run; sets `step` where it is `times` another's."""
    found = {}
    for name, spec in sorted(scripts.items(), key=lambda each: "of" in each[1]):
        heavy, every = spec.get("heavy", 1), spec.get("every", 1)
        if "of" in spec:
            spec["step"] = spec["times"] * found[spec["of"]] / (1 + (heavy - 1) / every)
        each, count = steps_of(spec, *map(np.random.default_rng, (7, 8))), 60_000 - 60_000 % every
        found[name] = sum(islice(each, 3000, 3000 + count)) / count
    return found


def noise(rng, sd, tails, size=None):
    """Logarithms: normal, or Student's t with so many degrees of freedom, cut at -0.4 and 1."""
    if not tails:
        return rng.normal(0, sd, size)
    return np.clip(rng.standard_t(tails, size) * sd / np.sqrt(tails / (tails - 2)), -0.4, 1.0)


class World:
    """now: seconds so far. others: share of the CPU time that others used in the last turn."""

    def __init__(self, case, seed):
        self.case, self.scripts, self.seed = {**CALM, **case}, case["scripts"], seed
        self.rng, self.now, self.others = np.random.default_rng([seed, 1]), 0.0, 0.0
        # What all processes of a round share, and the rounds that have had a turn.
        self.rounds, self.timed = {}, set()
        self.bursts, at, of = deque(), 0.0, case.get("bursts")
        while of and at < 3600:
            at += self.rng.exponential(100 / of["per_100s"])
            end = at + np.exp(self.rng.uniform(*np.log([of["least"], of["most"]])))
            self.bursts.append((at, end, of["slow"], of["seen"]))
            at = end

    def spec(self, name):
        """The script of a contestant; changes that are made together have all their speedups."""
        if name in self.scripts:
            return self.scripts[name]
        base = next(iter(self.scripts.values()))["step"]
        return {
            "step": base
            * float(np.prod([self.scripts[n]["step"] / base for n in name.split(" + ")]))
        }

    def elapse(self, active):
        """Let undisturbed seconds pass; return those of the clock, and of others' CPU time."""
        began, used = self.now, 0.0
        while self.bursts and active > 0:
            begin, end, slow, seen = self.bursts[0]
            if end <= self.now:
                self.bursts.popleft()
                continue
            free = min(active, max(begin - self.now, 0.0))
            self.now, active = self.now + free, active - free
            if active > 0:
                wall = min(active * slow, end - self.now)
                self.now, active, used = self.now + wall, active - wall / slow, used + seen * wall
        self.now += max(active, 0.0)
        return self.now - began, used


class Process:
    """A process that is stopped but for its turns. place: in the order of starts."""

    def __init__(self, world, name, number, place):
        self.spec = case = {**world.case, **world.spec(name)}
        self.name, self.world = name, world
        common = world.rounds.setdefault(number, world.rng.normal(0, case["round"]))
        first = case.get("first_started", 0.0) * (place == 0)
        effect = common + noise(world.rng, case["sd"], case["tails"]) + first
        self._factor, self._number, self.steps = np.exp(effect), number, 0
        order = np.random.default_rng([world.seed, 42])  # the same in every start
        self._each = steps_of(self.spec, world.rng.spawn(1)[0], order)

    def train(self, lead, timed, alone=False):
        """Return the mean seconds of `timed` steps, after `lead` others. alone: it is no turn."""
        world, case = self.world, self.spec
        if self._number not in world.timed and not alone:
            world.timed.add(self._number)
            self._factor *= np.exp(case.get("first_timed", 0.0))
        sd = case["turn"] * (0.3 if alone else 1.0)
        luck = self._factor * (1.0 if alone else case.get("in_turns", 1.0))
        luck *= np.exp(noise(world.rng, sd, case["tails"]) - sd**2 / 2)
        if (
            (of := case.get("bursts"))
            and of.get("with") == self.name
            and world.rng.random() < of["share"]
        ):
            world.bursts.appendleft((world.now, world.now + of["least"], of["slow"], of["seen"]))
        self.steps += lead + timed
        parts = [world.elapse(luck * sum(islice(self._each, count))) for count in (lead, timed)]
        seconds, others = (sum(each) for each in zip(*parts, strict=True))
        world.others = others / max(seconds, 1e-9)
        return parts[1][0] / timed
