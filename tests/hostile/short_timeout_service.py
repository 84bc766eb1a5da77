"""Stands in for ``python -m operator_api``: an API whose patience with slow senders lasts a second."""

from operator_api import request_limits
from operator_api.__main__ import main

request_limits.HEADERS_S = 1.0
request_limits.MAX_PAUSE_S = 1.0

if __name__ == "__main__":
    main()
