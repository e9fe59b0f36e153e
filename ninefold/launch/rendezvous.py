"""How ranks that torchrun or srun started agree: through the store that torch's env:// names.

Keys, below the number of the attempt, as torchrun keeps one store for the ranks that it restarts:

    facts/RANK   what a rank says of itself
    job          the job that rank 0 has the others run, or the exit code that they end with
    cache/NODE   the cache of a host, which its first rank makes
    ready/RANK   the rank can begin; what is to be the same on all hosts
    go           rank 0 has compared these
    cause        why the run ends: the first failure that a rank told
    ended        how many ranks need the store no more

A store and not collectives: Ctrl-C ends a rank that waits, and rank 0 may fetch data for hours.
"""

from __future__ import annotations

import json
import math
import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Unanswered
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist

from ninefold.errors import (
    ConfigError,
    DataError,
    Failure,
    FailureReport,
    Interrupted,
    PeerError,
    Preempted,
)
from ninefold.process import poll_until
from ninefold.ranks import Ranks, found

START_SECONDS = 60.0  # that ranks have to start in, one later than another
ANSWER_SECONDS = 5.0  # that a request to the store takes at most
CAUSE_SECONDS = 1.0  # that a peer has to say why it ended, before it is called lost
END_SECONDS = 3.0  # that the others have to read the cause, before the store ends

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class RankFacts:
    """A rank, as it says.

    node: the number of its host.
    facts: what must be the same on all ranks, such as versions, by name.
    machine: cpu, cores and gpus of its host.
    cpus: those of its host that it may use, which Slurm may have bound it to.
    """

    rank: int
    node: int
    host: str
    facts: dict[str, str] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    cpus: list[int] = field(default_factory=list)


def hosts_of(members: Sequence[RankFacts]) -> list[dict[str, Any]]:
    """name, cpu, cores, gpus and ranks of each host."""
    nodes: dict[int, list[RankFacts]] = {}
    for member in members:
        nodes.setdefault(member.node, []).append(member)
    return [
        {
            "name": here[0].host,
            **here[0].machine,
            **({"cores": len(cpus)} if (cpus := set[int]().union(*(m.cpus for m in here))) else {}),
            "ranks": [member.rank for member in here],
        }
        for here in nodes.values()
    ]


def require_equal(members: Sequence[RankFacts], facts: Sequence[Mapping[str, str]]) -> None:
    """Raise the failure of the first rank some of whose `facts` are not those of rank 0."""
    for member, own in zip(members, facts, strict=True):
        for name, value in own.items():
            if value != (expected := facts[0][name]):
                shown = [text[:8] if len(text) == 64 else text for text in (value, expected)]
                kind = DataError if name == "data" else ConfigError
                raise kind(
                    "hosts",
                    member.host,
                    f"its {name} differ from {members[0].host}'s ({', '.join(shown)})",
                    "all hosts run one command with the same code on the same data",
                    "make them equal",
                )


class Rendezvous:
    """The ranks of one run, seen from one of them. No request takes longer than ANSWER_SECONDS.

    members: what each rank says of itself, after `agree`.
    cause: why the run ends, once this rank has told it or heard of it.
    """

    def __init__(self, ranks: Ranks) -> None:
        """Connect to the store, or serve it on rank 0. Raises PeerError if there is none."""
        self.ranks = ranks
        self.members: list[RankFacts] = []
        self.cause: Failure | None = None
        self._printed: bool | None = None  # by this rank, once it has told a failure
        self._broadcast = False
        of_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # it is there already
        self._serves = ranks.rank == 0 and not of_agent
        seconds = ANSWER_SECONDS if of_agent else START_SECONDS

        def connect() -> dist.Store:
            if not self._serves:
                await_listener(seconds)
            store, *_ = next(dist.rendezvous("env://", timeout=timedelta(seconds=seconds)))
            return dist.PrefixStore(f"ninefold/{ranks.attempt}", store)

        self._store = self._answer(connect, seconds + ANSWER_SECONDS)

    def agree(self, mine: RankFacts) -> None:
        """Meet all ranks. Raises the ConfigError of the first that differs from rank 0, PeerError.

        Every rank compares all, so that all end alike.
        """
        keys = [f"facts/{rank}" for rank in range(self.ranks.world_size)]
        self.put(keys[mine.rank], asdict(mine))
        if not poll_until(lambda: self._have(*keys), START_SECONDS):
            missing = [rank for rank, key in enumerate(keys) if not self._have(key)]
            raise PeerError(
                "rank",
                ", ".join(map(str, missing)),
                f"it did not come to rank 0; it has {START_SECONDS:.0f} s to start in; see what "
                "it says on its own host",
            )
        said = self._ask(lambda store: store.multi_get(keys))
        self.members = [RankFacts(**json.loads(text)) for text in said]
        require_equal(self.members, [member.facts for member in self.members])

    @property
    def hosts(self) -> list[dict[str, Any]]:
        """name, cpu, cores, gpus and ranks of each host."""
        return hosts_of(self.members)

    @property
    def host(self) -> dict[str, Any]:
        """The one that this rank is on."""
        return next(host for host in self.hosts if self.ranks.rank in host["ranks"])

    def put(self, key: str, value: Any) -> None:
        """Give `key` a JSON value. Raises PeerError."""
        self._ask(lambda store: store.set(key, json.dumps(value)))

    def get(self, key: str, seconds: float = math.inf) -> Any:
        """The value of `key`, once a rank has put it. Raises PeerError, or what all end with."""

        def put() -> bool:
            if self._have("cause"):
                raise FailureReport.read(self._text("cause")).failure
            return self._have(key)

        if poll_until(put, seconds, interval=0.1):
            return json.loads(self._text(key))
        rank = key.rpartition("/")[2] if "/" in key else 0
        raise PeerError(
            "rank",
            rank,
            f"it did not get ready in {seconds:.0f} s; launch.timeout is the limit; see what it "
            "says on its own host",
        )

    def broadcast_job(self, job: Any) -> None:
        """On rank 0: have the others run `job`."""
        self._broadcast = True
        self.put("job", job)

    def release_waiting_ranks(self, code: int) -> None:
        """On rank 0, at its end: make ranks that still wait for a job exit with `code`."""
        if self.ranks.rank == 0 and self.members and not self._broadcast:
            self.broadcast_job(code)

    def all_ready(self, what: Any, seconds: float) -> list[Any]:
        """Wait for all ranks to be ready; on rank 0 what each gave. The others wait for `go`."""
        self.put(f"ready/{self.ranks.rank}", what)
        if self.ranks.rank != 0:
            self.get("go", seconds)
            return []
        return [self.get(f"ready/{rank}", seconds) for rank in range(self.ranks.world_size)]

    def tell(self, failure: Failure) -> bool:
        """Make `failure` the cause unless there is one. Returns whether this rank is to print it.

        A rank that only misses another first waits for what that one has to say.
        """
        if self._printed is not None:
            return self._printed
        self._printed = False  # while a thread of this process tells it
        mine = FailureReport.of(self._with_host(failure), self.ranks.rank)
        try:
            if isinstance(failure, PeerError):
                poll_until(lambda: self._have("cause"), CAUSE_SECONDS)
            said = self._ask(lambda store: store.compare_set("cause", "", mine.text)).decode()
            self.cause, self._printed = FailureReport.read(said).failure, said == mine.text
        except PeerError as lost:  # each host says so: rank 0's by another rank, as that is gone
            me = self.ranks
            self.cause = lost if isinstance(failure, PeerError) else failure
            self._printed = me.rank == 0 or me.local_rank == (me.node == 0)
        return self._printed

    def leave(self, code: int) -> None:
        """Before this process exits with `code`: keep the store until the others have its end.

        It ends with rank 0, or with torchrun's agent on the first host once a rank there failed.
        """
        try:
            self._ask(lambda store: store.add("ended", 1))
            if self._serves or (code and self.ranks.node == 0):
                size = self.ranks.world_size
                poll_until(
                    lambda: self._ask(lambda store: store.add("ended", 0)) >= size, END_SECONDS
                )
        except PeerError:
            return  # nobody is left to ask it for anything

    def _with_host(self, failure: Failure) -> Failure:
        """`failure` with the name of this host, if there are several and it does not say one."""
        named = any(member.host in " ".join(failure.parts) for member in self.members)
        one = self.ranks.world_size == self.ranks.local_world_size
        if named or one or isinstance(failure, Preempted | Interrupted):
            return failure
        field, value, wrong, allowed, do = failure.parts
        return type(failure)(field, value, f"{wrong} (on {self.ranks.host})", allowed, do)

    def _have(self, *keys: str) -> bool:
        return self._ask(lambda store: store.check(list(keys)))

    def _text(self, key: str) -> str:
        return self._ask(lambda store: store.get(key)).decode()

    def _ask(self, request: Callable[[dist.Store], Answer]) -> Answer:
        return self._answer(lambda: request(self._store), ANSWER_SECONDS)

    def _answer(self, request: Callable[[], Answer], seconds: float) -> Answer:
        """What `request` returns; raises PeerError if it fails, or has nothing after `seconds`.

        It is made in a thread that is left behind then: to a host that is cut off it takes as long
        as TCP does.
        """
        answer: Future[Answer] = Future()

        def ask() -> None:
            try:
                answer.set_result(request())
            except Exception as error:
                answer.set_exception(error)

        threading.Thread(target=ask, daemon=True).start()
        try:
            return answer.result(timeout=seconds)
        except Unanswered:
            said = f"nothing in {seconds:.0f} s"
        except (dist.DistError, RuntimeError, ValueError, OverflowError, OSError) as error:
            said = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise PeerError(
            "MASTER_ADDR",
            os.environ.get("MASTER_ADDR", "unset"),
            f"rank 0's store does not answer on port {os.environ.get('MASTER_PORT', 'unset')} "
            f"({said}); this is rank {self.ranks.rank} of {self.ranks.world_size}; see what that "
            "host says, and that this one may connect to it",
        )


def await_listener(seconds: float) -> None:
    """Wait until something listens on MASTER_PORT. Raises OSError.

    A client of torch's would print a page for each time that it finds nobody.
    """
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    said: OSError = TimeoutError(f"nothing in {seconds:.0f} s")

    def listens() -> bool:
        nonlocal said
        try:
            socket.create_connection(address, timeout=1).close()
            return True
        except OSError as error:
            said = error
            return False

    if not poll_until(listens, seconds, interval=0.2):
        raise said


_here: Rendezvous | Failure | None = None


def here() -> Rendezvous:
    """The rendezvous of this process. Raises the same PeerError each time if there is no store."""
    global _here
    if _here is None:
        try:
            _here = Rendezvous(found(os.environ))
        except Failure as failure:
            _here = failure
    if isinstance(_here, Failure):
        raise _here
    return _here


def tell(failure: Failure) -> tuple[Failure, bool]:
    """Tell the other ranks of `failure`.

    Returns the one that all end with, and whether this rank is to print it.
    """
    try:
        met = here()
        prints = met.tell(failure)
        return met.cause or failure, prints
    except Failure:  # there is no store to agree through
        return failure, True
