"""Rendezvous of ranks that torchrun or srun started: they meet in a store and agree on one job.

A process that has just started does not know which of the keys in a store are from processes that
were restarted. So each rank says hello under a name that nobody had before, and rank 0 answers it
with the name of the meeting, a fresh one too, with which all other keys begin:

    RUN/served              rank 0 or torchrun's agent serves this store
    RUN/hellos, RUN/hello/N how many hellos were said, and the name under which the N-th was
    RUN/answer/NAME         the meeting
    RUN/folder              the run folder, for ranks that are restarted
    MEETING/member/RANK     a RankFacts
    MEETING/members         all of them, once rank 0 has found that they agree
    MEETING/data            what each host is to compare with rank 0's, before anything is written
    MEETING/checked/RANK    what it found
    MEETING/order           the job, or an exit code
    MEETING/cache/RANK      the cache of a host, which its first rank makes

How they end is in ninefold.launch.failure_agreement.
"""

from __future__ import annotations

import json
import math
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.rendezvous import register_rendezvous_handler

from ninefold import ranks as environment
from ninefold.errors import Failure, PeerError
from ninefold.launch.failure_agreement import FailureAgreement, listed
from ninefold.launch.rank_facts import RankFacts, difference, hosts_of
from ninefold.launch.store_client import Lost, StoreClient, connected
from ninefold.process import until
from ninefold.ranks import Met, Ranks

MEETING_SECONDS = 60.0  # seconds that rank 0 waits for the others, and they for it
BEAT_SECONDS = 5.0  # seconds between looks for signs of life of ranks that are waited for
SCHEME = "ninefold"  # of the URL through which torch forms the process group


class Meeting:
    """The ranks of one run, seen from one of them.

    Every request to the store is answered in some seconds or fails.

    agreement: how this rank tells the others of a failure, and hears of theirs; None until rank 0
        has answered.
    """

    def __init__(self, ranks: Ranks, patience: float = MEETING_SECONDS) -> None:
        """Connect to the store, or serve it. Raises PeerError if there is none.

        patience: seconds to wait for ranks that start later than this one.
        """
        self.ranks = ranks
        self.agreement: FailureAgreement | None = None
        self._patience = patience
        self._run = f"ninefold/{ranks.run}"
        self._name = ""
        self._ordered = False
        try:
            store, self._port = connected(ranks, patience)
        except (Lost, OSError) as error:
            raise environment.no_answer(ranks, str(error)) from error
        self._client = StoreClient(store)

    # Agreeing

    def agree(self, mine: RankFacts) -> None:
        """Meet all ranks and compare what they say of themselves with what rank 0 says.

        Raises ConfigError for the first rank that differs: rank 0 must pass it to `tell`, and the
        others then raise it too. Raises PeerError if one does not come.
        """
        with self._lost_is_a_failure():
            self._name = self._answer() if mine.rank else f"ninefold/{uuid.uuid4().hex}"
            self._put(f"member/{mine.rank}", asdict(mine))
            agreement = self.agreement = FailureAgreement(
                self.ranks, self._client, self._name, self._patience
            )
            if mine.rank == 0:
                self._gather(agreement)
                for member in agreement.members[1:]:
                    if wrong := difference(mine, member):
                        raise wrong
                self._put("members", list(map(asdict, agreement.members)))
            else:
                # Rank 0 has answered, and waits for the others so long at most.
                said = self.expect("members", within=self._patience + BEAT_SECONDS)["members"]
                agreement.members = [RankFacts(**member) for member in said]
        Met.init_method = f"{SCHEME}://{self._name.partition('/')[2]}"
        Met.cores = self.host.get("cores")

    def _gather(self, agreement: FailureAgreement) -> None:
        """On rank 0: answer the hellos until every rank is in agreement.members. Raises PeerError.

        Those that came are in it then too, so that rank 0 waits until they know why it ends.
        """
        members: dict[int, RankFacts] = {}
        answered = set[int]()

        def missing() -> list[int]:
            return [rank for rank in range(self.ranks.world_size) if rank not in members]

        def come() -> bool:
            hellos = self._client.count(f"{self._run}/hellos", 0)
            for number in set(range(1, hellos + 1)) - answered:
                name = self._client.get(f"{self._run}/hello/{number}")
                if name is None:
                    continue  # it is being said, or who was to say it has been killed
                self._client.set(f"{self._run}/answer/{name}", self._name)
                answered.add(number)
            for rank in missing():
                if (said := self._get(f"member/{rank}")) is not None:
                    members[rank] = RankFacts(**said)
            agreement.members = [members[rank] for rank in sorted(members)]
            return not missing()

        if not until(come, self._patience, look=0.02):
            raise PeerError(
                "rank",
                listed(missing()),
                f"it did not come to rank 0 on {self.ranks.host}; it has {self._patience:.0f} s "
                "to start in; see what it says on its own host",
            )

    def _answer(self) -> str:
        """On another rank: say hello; returns the name of the meeting. Raises PeerError."""
        name = uuid.uuid4().hex
        number = self._client.count(f"{self._run}/hellos")
        self._client.set(f"{self._run}/hello/{number}", name)
        answer = f"{self._run}/answer/{name}"
        if meeting := until(lambda: self._client.get(answer), self._patience, look=0.02):
            return meeting
        raise PeerError(
            "rank",
            self.ranks.rank,
            f"rank 0 does not answer; it has {self._patience:.0f} s to start in; see what rank 0 "
            "says on its own host",
        )

    @property
    def members(self) -> list[RankFacts]:
        """All ranks after `agree`, those met so far during it, and [] before."""
        return [] if self.agreement is None else self.agreement.members

    @property
    def hosts(self) -> list[dict[str, Any]]:
        """name, cpu, cores, gpus and ranks of each host."""
        return hosts_of(self.members)

    @property
    def host(self) -> dict[str, Any]:
        """The one that this rank is on."""
        return next(host for host in self.hosts if self.ranks.rank in host["ranks"])

    @property
    def first_ranks(self) -> list[int]:
        """The rank of the first process of each host."""
        return [host["ranks"][0] for host in self.hosts]

    # Messages

    def post(self, key: str, value: Any) -> None:
        """Give `key` a JSON value. Raises PeerError."""
        with self._lost_is_a_failure():
            self._put(key, value)

    def expect(self, *keys: str, within: float = math.inf) -> dict[str, Any]:
        """Wait until one of `keys` has a value, whoever posts it; returns {key: value}.

        Raises the Failure that another rank ends with meanwhile, PeerError if one is gone. There is
        no other limit than `within` seconds, as a host may have a dataset to fetch.
        """
        looked = time.monotonic()

        def said() -> dict[str, Any] | None:
            nonlocal looked
            for key in keys:
                if (value := self._get(key)) is not None:
                    return {key: value}
            if self.agreement is not None and (cause := self.agreement.cause) is not None:
                raise cause
            if self.agreement is not None and time.monotonic() - looked > BEAT_SECONDS:
                self.agreement.require_beats()
                looked = time.monotonic()
            return None

        with self._lost_is_a_failure():
            soon = min(within, 5.0)  # then a rank waits for a host that fetches a dataset
            found = until(said, soon, look=0.02) or until(said, within - soon, look=0.2)
        if found is None:
            raise PeerError(
                "rank",
                0,
                f"it does not say its {' or '.join(keys)}; it has {within:.0f} s; see what rank 0 "
                "says on its own host",
            )
        return found

    def hand_out(self, order: Any) -> None:
        """On rank 0: send the job, or an exit code, to the other ranks. Raises PeerError."""
        self._ordered = True
        self.post("order", order)

    def dismiss(self, code: int) -> None:
        """On rank 0: let ranks that still wait for a job exit with `code`. Raises PeerError."""
        if self.ranks.rank == 0 and self.agreement is not None and not self._ordered:
            self.hand_out(code)

    @property
    def earlier_folder(self) -> str | None:
        """The run folder of the processes whose places these have taken, if they were restarted."""
        with self._lost_is_a_failure():
            return self._client.get(f"{self._run}/folder")

    def remember(self, folder: str) -> None:
        """Keep the run folder for processes that are started in place of these."""
        with self._lost_is_a_failure():
            self._client.set(f"{self._run}/folder", folder)

    # How it ends

    def tell(self, failure: Failure) -> bool:
        """Make `failure` the cause unless there is one; returns whether to print it here."""
        if self.agreement is None:
            return self.ranks.local_rank == 0
        return self.agreement.tell(failure)

    @property
    def cause(self) -> Failure | None:
        """Why the run ends, once this rank has told it or heard of it."""
        return None if self.agreement is None else self.agreement.cause

    def release_store(self, code: int) -> None:
        """Keep the store that this process serves until others are done with it.

        To be called before the process exits with `code`.
        """
        if self.agreement is not None:
            self.agreement.release_store(code, self._patience)

    # The store

    def group_store(self, timeout: timedelta) -> dist.Store:
        """A TCPStore client for the process group alone, as its requests may block."""
        store = dist.TCPStore(self.ranks.address, self._port, is_master=False, timeout=timeout)
        return dist.PrefixStore(self._name, store)

    def _put(self, key: str, value: Any) -> None:
        self._client.set(f"{self._name}/{key}", json.dumps(value))

    def _get(self, key: str) -> Any:
        said = self._client.get(f"{self._name}/{key}")
        return None if said is None else json.loads(said)

    @contextmanager
    def _lost_is_a_failure(self) -> Iterator[None]:
        try:
            yield
        except Lost as error:
            if self.agreement is None:
                raise environment.no_answer(self.ranks, str(error)) from error
            raise self.agreement.rank_0_gone(error) from error


_here: Meeting | Failure | None = None


def here() -> Meeting:
    """The meeting of this process. Raises the same PeerError each time if there is no store."""
    global _here
    if _here is None:
        try:
            _here = Meeting(environment.found(os.environ))
        except Failure as failure:
            _here = failure
    if isinstance(_here, Failure):
        raise _here
    return _here


def _group_store(url: str, timeout: timedelta, **_: Any) -> Iterator[tuple[dist.Store, int, int]]:
    """Rendezvous handler for ninefold:// URLs, see torch.distributed.init_process_group."""
    met = here()
    yield met.group_store(timeout), met.ranks.rank, met.ranks.world_size


register_rendezvous_handler(SCHEME, _group_store)
