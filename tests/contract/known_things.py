"""What schemathesis has seen so far: ids that exist, and the keys of clients."""

from itertools import count
from typing import Any, TypedDict, TypeVar

_T = TypeVar("_T")


class Prepared(TypedDict):
    """What was there before it began."""

    client_keys: dict[str, str]
    tasks: list[str]
    rounds: dict[str, list[str]]
    """The clients selected for each round."""


class KnownThings:
    """Grows with every answer."""

    def __init__(self, prepared: Prepared) -> None:
        self.client_keys = prepared["client_keys"]
        self.tasks = prepared["tasks"]
        self.rounds = prepared["rounds"]
        self.trainings: list[str] = []
        self._turns = count()

    def learn(self, answer: Any) -> None:
        """Remember what an answer tells of."""
        for one in answer if isinstance(answer, list) else [answer]:
            if "api_key" in one and "labels" in one:
                self.client_keys[one["client_id"]] = one["api_key"]
            if "round_deadline_s" in one and "task_id" in one and one["task_id"] not in self.tasks:
                self.tasks.append(one["task_id"])
            if one.get("schedule") and one["schedule"]["slots"]:
                self.rounds[one["round_id"]] = [slot["client_id"] for slot in one["schedule"]["slots"]]
            if "training_id" in one and one["training_id"] not in self.trainings:
                self.trainings.append(one["training_id"])

    def forget_client(self, client_id: str) -> None:
        """It is removed."""
        self.client_keys.pop(client_id, None)

    def forget_key(self, key_id: str) -> None:
        """It is revoked."""
        for client_id in [name for name, key in self.client_keys.items() if f"_{key_id}_" in key]:
            del self.client_keys[client_id]

    def key_of(self, client_id: object) -> str:
        """The key of a client, or of another; nobody's if there is none."""
        newest = next(reversed(self.client_keys.values()), "nobody")
        return self.client_keys.get(client_id, newest) if isinstance(client_id, str) else newest

    def put_real_ids(self, names: dict[str, Any]) -> None:
        """In place of ids that were made up, put some that exist; one time out of three leave them."""
        turn = next(self._turns)
        if turn % 3 == 0:
            return
        if "task_id" in names and names["task_id"] not in self.tasks and self.tasks:
            names["task_id"] = _turned(self.tasks, turn)
        if "training_id" in names and names["training_id"] not in self.trainings and self.trainings:
            names["training_id"] = _turned(self.trainings, turn)
        if "round_id" in names and names["round_id"] not in self.rounds and self.rounds:
            names["round_id"] = _turned(list(self.rounds), turn)
        if "client_id" in names and names.get("round_id") in self.rounds:
            names["client_id"] = _turned(self.rounds[names["round_id"]], turn)


def _turned(choices: list[_T], turn: int) -> _T:
    """The newest more often than the others: more can still happen to them."""
    newest = choices[-8:]
    return newest[turn % len(newest)]
