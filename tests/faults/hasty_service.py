"""Stands in for ``python -m operator_api``: an API that tells of jobs again, if need be, after a second."""

from datetime import timedelta

from operator_api.__main__ import main
from trainer_worker import publisher

publisher._PUBLISH_AGAIN = timedelta(seconds=1)

if __name__ == "__main__":
    main()
