from collections.abc import Iterator

import httpx
import pytest

from tests.running_service import running_service


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with running_service(tmp_path_factory.mktemp("data")) as client:
        yield client
