"""Updates that come at once are recorded in one transaction, by whoever of them is first.

The others wait for their turn, and find that it has been done for them: the cost of a commit, and of all
that is the same for the updates of a round, is shared.
"""

from collections import defaultdict, deque
from dataclasses import dataclass
from threading import Lock

from services.protocol.upload import Received, accept_updates
from services.storage.database import Database


@dataclass
class _Waiting:
    round_id: str
    received: Received
    outcome: bool | Exception | None = None


class UpdateWriter:
    """Records updates; any number of threads may come at once."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._turn = Lock()
        self._waiting: deque[_Waiting] = deque()

    def accept(self, round_id: str, received: Received) -> bool:
        """Record an update that was received and checked; false if it had been recorded before."""
        mine = _Waiting(round_id, received)
        self._waiting.append(mine)
        with self._turn:
            if mine.outcome is None:
                self._accept_all()
        assert mine.outcome is not None, "it was among those who waited"
        if isinstance(mine.outcome, Exception):
            raise mine.outcome
        return mine.outcome

    def _accept_all(self) -> None:
        """Record what waits now; what comes meanwhile waits for the next turn."""
        of_round: defaultdict[str, list[_Waiting]] = defaultdict(list)
        for _ in range(len(self._waiting)):
            one = self._waiting.popleft()
            of_round[one.round_id].append(one)
        for round_id, batch in of_round.items():
            for one, outcome in zip(batch, self._commit(round_id, batch), strict=True):
                one.outcome = outcome

    def _commit(self, round_id: str, batch: list[_Waiting]) -> list[bool | Exception]:
        try:
            with self._database.unit_of_work() as uow:
                outcomes = accept_updates(uow, round_id, [one.received for one in batch])
                uow.commit()
        except Exception as error:
            return [error] * len(batch)
        return [*outcomes]
