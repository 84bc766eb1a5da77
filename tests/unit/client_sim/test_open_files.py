import resource
from collections.abc import Iterator

import pytest

from client_sim.connect import OpenFilesError, allow_open_files


@pytest.fixture
def hard_limit() -> Iterator[int]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        pytest.skip("there is no limit here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard // 2, hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_limit_is_raised_as_far_as_needed(hard_limit: int) -> None:
    allow_open_files(hard_limit // 2 + 1)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard_limit // 2 + 1, hard_limit)


def test_a_limit_that_suffices_is_left_alone(hard_limit: int) -> None:
    allow_open_files(10)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard_limit // 2, hard_limit)


def test_more_than_the_system_allows_is_one_clear_error(hard_limit: int) -> None:
    with pytest.raises(OpenFilesError, match=f"need {hard_limit + 1} open files.+allows {hard_limit}: raise"):
        allow_open_files(hard_limit + 1)
