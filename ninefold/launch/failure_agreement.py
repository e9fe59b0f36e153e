"""Ends all ranks of a run with its first failure, which one of them tells through the store.

Keys in the store, after the name of the meeting:

    news            there is a cause, or a rank asks who is still there
    cause           why the run ends: the first failure
    here/RANK       this rank is still there
    beat/RANK       another number every some seconds, as a sign of life
    done/RANK       this rank needs the store no more: it ends, or knows why all do
"""

from __future__ import annotations

import itertools
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Sequence

from ninefold.errors import Failure, FailureReport, Interrupted, NumericsError, PeerError, Preempted
from ninefold.launch.rank_facts import RankFacts
from ninefold.launch.store_client import Lost, StoreClient
from ninefold.process import until
from ninefold.ranks import Ranks

ROLL_CALL = 1.0  # seconds in which a rank that is still there answers
POLL_SECONDS = 0.4  # seconds between looks for news
BEAT = 5  # looks between signs of life
OWN_END = 2.0  # seconds that a rank has to find by itself that the run has ended
SAVING = "checkpoint"  # name of the thread that writes one, for which the end waits
# All ranks that train come to these by themselves, after the same step.
AGREED = (NumericsError, Preempted, Interrupted)


class FailureAgreement:
    """The failure that all ranks of a run end with, seen from one of them.

    A thread looks for the cause that another rank has told, and ends this process if it does not
    end by itself.

    members: by rank; this one alone until all have met.
    on_remote_failure: called with the failure of another rank before this process is ended for it.
    silence: seconds without an answer after which the store counts as lost.
    grace: seconds in which a checkpoint that is being written is finished.
    without_rank_0: whether rank 0 is gone: another rank records how the run ended.
    """

    def __init__(self, ranks: Ranks, client: StoreClient, name: str, silence: float) -> None:
        self.ranks = ranks
        self.members = [RankFacts(ranks.rank, ranks.node, ranks.host)]
        self.on_remote_failure: Callable[[Failure], None] = lambda failure: None
        self.silence, self.grace = silence, 30.0
        self.without_rank_0 = False
        self._client, self._name = client, name
        self._cause: FailureReport | None = None
        self._printed: bool | None = None  # by this rank, once it has told a failure
        self._left = False
        self._lost: Lost | None = None  # the store: it is asked for nothing more
        self._gone: set[int] = set()  # ranks that did not answer
        self._beats: dict[int, tuple[str | None, float]] = {}  # the last of each rank, and when
        self._telling = threading.Lock()
        threading.Thread(target=self._watch, daemon=True, name="failure agreement").start()

    @property
    def cause(self) -> Failure | None:
        """Why the run ends, once this rank has told it or heard of it."""
        return None if self._cause is None else self._cause.failure

    def tell(self, failure: Failure) -> bool:
        """Tell all ranks why this one ends, unless one has told a cause before.

        Returns whether this rank is to print it, and the same when it is called again. A rank that
        only misses another first waits for a better cause; if there is none, it tells who is gone.
        """
        with self._telling:
            if self._printed is None:
                self._printed = self._told(failure)
            return self._printed

    def release_store(self, code: int, patience: float) -> None:
        """Before this process exits with `code`: keep the store that others still need.

        If rank 0 serves it, it ends with rank 0, else with torchrun's agent on its host, which
        exits once one of its processes has failed.
        """
        self._left = True
        if self._lost is not None:
            return
        me = self.ranks
        try:
            self._put(f"done/{me.rank}", "yes")
            serves = me.serves and me.rank == 0
            if not serves and (code == 0 or me.node != 0):
                return
            others = {m.rank for m in self.members if serves or m.node != 0} - self._gone
            until(
                lambda: all(self._has(f"done/{rank}") for rank in others),
                patience if code == 0 else OWN_END + 1,
            )
        except Lost:
            return  # nobody is left to ask it for anything

    def rank_0_gone(self, error: Lost) -> PeerError:
        """The failure of a rank that has lost the store."""
        first = self.members[0]
        what = "is gone and with it the store" if error.gone else "does not answer"
        return PeerError(
            "host",
            first.host if first.rank == 0 else self.ranks.address,
            f"rank 0 {what} ({error}); {self.ranks.world_size} processes ran, this is rank "
            f"{self.ranks.rank}; see what that host says, then resume",
        )

    @property
    def reports_for_host(self) -> bool:
        """Whether this rank prints what it cannot tell the others: one of each host does."""
        here = [m.rank for m in self.members if m.host == self.ranks.host and m.rank != 0]
        return self.ranks.rank in (0, min(here, default=self.ranks.rank))

    def _told(self, failure: Failure) -> bool:
        mine = self._as_cause(failure)
        try:
            if self._lost is not None:
                raise self._lost
            if isinstance(failure, PeerError) and not self._gone:
                mine = self._as_cause(self._missing(failure))
            if self._cause is None:
                said = self._client.compare_and_set(f"{self._name}/cause", mine.text)
                self._put("news", "cause")
                self._cause = FailureReport.read(said)
        except Lost as error:
            self._lost, self.without_rank_0 = error, True
            if self._cause is None:
                lost = isinstance(failure, PeerError)
                self._cause = self._as_cause(self.rank_0_gone(error)) if lost else mine
                return self.reports_for_host
        assert self._cause is not None
        # What all ranks end with does not explain another failure.
        agreed = isinstance(self._cause.failure, AGREED)
        if agreed and not isinstance(failure, (*AGREED, PeerError)):
            self._cause = mine
        return self._cause == mine

    def _watch(self) -> None:
        """In a thread: look for news, and end this process if another rank has told a cause."""
        answered, called = time.monotonic(), False
        for beat in itertools.count():
            if until(
                lambda: self._left or self._cause is not None, POLL_SECONDS, look=POLL_SECONDS
            ):
                break
            try:
                if beat % BEAT == 0:
                    self._put(f"beat/{self.ranks.rank}", str(beat))
                if self._has("news"):
                    if not called:
                        self._put(f"here/{self.ranks.rank}", "yes")
                        called = True
                    if (said := self._get("cause")) is not None:
                        self._cause = self._cause or FailureReport.read(said)
                        self._put(f"done/{self.ranks.rank}", "yes")
                answered = time.monotonic()
            except Lost as error:
                if error.gone or time.monotonic() - answered > self.silence:
                    self._lost = error
                    self._end(self.rank_0_gone(error))
                    return
        if self._cause is not None:
            import torch.distributed as dist  # the ranks have imported it

            agreed = isinstance(self._cause.failure, AGREED) and dist.is_initialized()
            self._end(None, agreed)

    def _end(self, gone: PeerError | None, agreed: bool = False) -> None:
        """End this process unless it does so by itself in OWN_END seconds, or `grace` if `agreed`.

        gone: that the store is lost; None: another rank has told a cause.
        agreed: whether all ranks come to this end, which may take the time of a checkpoint.
        """

        def own() -> bool:
            return self._left or self._telling.locked() or self._printed is not None

        if until(own, self.grace if agreed else OWN_END):
            return  # it has found an end of its own
        until(lambda: own() or not saving(), self.silence if agreed else self.grace - OWN_END)
        if own():
            return
        printed = gone is not None and self.tell(gone)
        failure = self.cause or gone
        assert failure is not None
        if printed:
            print(failure, file=sys.stderr, flush=True)
        self.on_remote_failure(failure)
        self.release_store(failure.code, 0)
        os._exit(failure.code)

    def _missing(self, failure: PeerError) -> Failure:
        """Who does not answer in the next second; `failure` if all do, or one tells a cause."""
        self._put(f"here/{self.ranks.rank}", "yes")
        self._put("news", "roll call")

        def told() -> bool:
            if self._cause is None and (said := self._get("cause")) is not None:
                self._cause = FailureReport.read(said)
            return self._cause is not None

        if until(told, ROLL_CALL, look=0.1):
            return failure
        missing = [m for m in self.members if not self._has(f"here/{m.rank}")]
        if not missing:
            return failure
        return self._of_missing(missing, failure.wrong)

    def require_beats(self) -> None:
        """Raise PeerError if a rank has shown no sign of life for `silence` seconds.

        For waiting without a process group, which would find out.
        """
        now = time.monotonic()
        for member in self.members:
            beat = self._get(f"beat/{member.rank}")
            if self._beats.setdefault(member.rank, (beat, now))[0] != beat:
                self._beats[member.rank] = beat, now
        missing = [m for m in self.members if now - self._beats[m.rank][1] > self.silence]
        if missing:
            raise self._of_missing(missing, f"it was silent for {self.silence:.0f} s")

    def _of_missing(self, missing: Sequence[RankFacts], found: str) -> PeerError:
        """The failure of a rank that has `found` that others are gone."""
        self._gone = {member.rank for member in missing}
        self.without_rank_0 = 0 in self._gone
        hosts = ", ".join(dict.fromkeys(member.host for member in missing))
        file = "run.log" if missing[0].rank == 0 else f"run.rank{missing[0].rank}.log"
        return PeerError(
            "rank",
            listed([member.rank for member in missing]) + f" on {hosts}" * self._several_hosts,
            f"it is gone or hangs; rank {self.ranks.rank} found that {found}; see its {file}, "
            "then resume",
        )

    def _as_cause(self, failure: Failure) -> FailureReport:
        return FailureReport.of(self._with_host(failure), self.ranks.rank)

    def _with_host(self, failure: Failure) -> Failure:
        """`failure` with the name of this host, if there are several and it does not say one."""
        hosts = "|".join(re.escape(member.host) for member in self.members)
        named = re.search(rf"\b({hosts})\b", " ".join(failure.parts))
        if named or isinstance(failure, AGREED) or not self._several_hosts:
            return failure
        field, value, wrong, allowed, do = failure.parts
        return type(failure)(field, value, f"{wrong} (on {self.ranks.host})", allowed, do)

    @property
    def _several_hosts(self) -> bool:
        return self.ranks.world_size > self.ranks.local_world_size

    def _put(self, key: str, value: str) -> None:
        self._client.set(f"{self._name}/{key}", value)

    def _get(self, key: str) -> str | None:
        return self._client.get(f"{self._name}/{key}")

    def _has(self, key: str) -> bool:
        return self._client.has(f"{self._name}/{key}")


def saving() -> bool:
    """Whether this process is writing a checkpoint."""
    return any(thread.name == SAVING for thread in threading.enumerate())


def listed(ranks: Sequence[int]) -> str:
    """Ranks for a message."""
    return ", ".join(map(str, ranks))
