"""What schemathesis has seen so far: ids that exist, and the keys of clients."""

from itertools import count
from typing import Any, TypedDict, TypeVar

_T = TypeVar("_T")


class SeedData(TypedDict):
    """What was there before it began."""

    client_keys: dict[str, str]
    tasks: list[str]
    rounds: dict[str, list[str]]
    """The clients selected for each round."""


class KnownResources:
    """Grows with every answer."""

    def __init__(self, prepared: SeedData) -> None:
        self.client_keys = prepared["client_keys"]
        self.tasks = prepared["tasks"]
        self.rounds = prepared["rounds"]
        self.trainings: list[str] = []
        self._turns = count()

    def learn(self, answer: Any) -> None:
        """Remember what an answer tells of."""
        for item in answer if isinstance(answer, list) else [answer]:
            if "api_key" in item and "labels" in item:
                self.client_keys[item["client_id"]] = item["api_key"]
            if "round_deadline_s" in item and "task_id" in item and item["task_id"] not in self.tasks:
                self.tasks.append(item["task_id"])
            if item.get("schedule") and item["schedule"]["slots"]:
                self.rounds[item["round_id"]] = [slot["client_id"] for slot in item["schedule"]["slots"]]
            if "training_id" in item and item["training_id"] not in self.trainings:
                self.trainings.append(item["training_id"])

    def forget_client(self, client_id: str) -> None:
        """It is removed, or has no key any more."""
        self.client_keys.pop(client_id, None)

    def forget_task(self, task_id: str) -> None:
        """It is deleted."""
        self.tasks = [known for known in self.tasks if known != task_id]

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
