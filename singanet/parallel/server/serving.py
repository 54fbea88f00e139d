"""The loop of a server: who asks first is answered first."""

from __future__ import annotations

from singanet.errors import SingaNetError
from singanet.parallel.server.messages import (
    ANSWER,
    ASK,
    Message,
    MessageKind,
    Post,
    ServerRanks,
    parsed,
    pickled,
    unpickled,
)
from singanet.parallel.server.service import Opening, Service, failed
from singanet.parallel.server.snapshots import Snapshots

_WHAT, _ANSWER = "a question of a worker", "an answer"


def serve(ranks: ServerRanks) -> None:
    """Answer the workers until all of them have ended; what each server rank does."""
    Server(ranks).run()


class Server:
    """One of the ``ranks`` that serve, and its services."""

    def __init__(self, ranks: ServerRanks) -> None:
        self._ranks, self._world = ranks, ranks.world
        self._post = Post(ranks.world, ANSWER)
        self._workers = {rank: worker for worker, rank in enumerate(ranks.workers)}
        self.services: dict[int, Service] = {}

    def run(self) -> None:
        """As `serve`."""
        # Workers may compute, or evaluate, for as long as they like.
        self._world.deadline = float("inf")
        sources = self._ranks.workers
        while (came := self._world.next_message(sources, ASK, what=_WHAT)) is not None:
            for message in parsed(came[1]):
                self._take(self._workers[came[0]], message)
            self._post.send(_ANSWER)
        self._post.flush()

    def _take(self, worker: int, message: Message) -> None:
        try:
            if message.kind is MessageKind.OPEN:
                self._send(worker, self._opened(message))
                return
            answers = self.services[message.service].take(worker, message)
        except SingaNetError as error:
            self._send(worker, failed(message, error))
            return
        for to, answer in answers:
            self._send(to, answer)

    def _send(self, worker: int, answer: Message) -> None:
        self._post.give(answer, self._ranks.workers[worker], _ANSWER)

    def _opened(self, message: Message) -> Message:
        """Open the service, or say which snapshots of it there are."""
        try:
            opening: Opening = unpickled(message.arrays[0])
        except Exception as error:  # noqa: BLE001 - told to the worker
            return failed(message, error)
        own, servers = self._ranks.ranks.index(self._world.rank), len(self._ranks.ranks)
        snapshots = None
        if opening.snapshots is not None:
            where = opening.snapshots, message.service, own, servers, opening.every
            snapshots = Snapshots(*where)
        if opening.held is None:
            steps = [] if snapshots is None else snapshots.steps()
            return message._replace(kind=MessageKind.DONE, arrays=[pickled(steps)])
        if message.service in self.services:
            self.services[message.service].hold(opening)
        else:
            self.services[message.service] = Service(opening, len(self._workers), snapshots)
        return message._replace(kind=MessageKind.DONE, arrays=[])
