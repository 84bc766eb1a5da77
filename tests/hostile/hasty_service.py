"""Stands in for ``python -m operator_api``: an API whose patience with slow senders lasts a second."""

from operator_api import body_limit, connections
from operator_api.__main__ import main

connections.HEADERS_S = 1.0
body_limit.PATIENCE_S = 1.0

if __name__ == "__main__":
    main()
