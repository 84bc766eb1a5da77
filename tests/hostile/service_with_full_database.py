"""Stands in for ``python -m operator_api``: an API whose SQLite file may not grow beyond what it is."""

from operator_api.__main__ import main
from services.storage import database

# SQLite takes a limit below the present size for that size; this is what it says of a full disk, too.
database._SQLITE_PRAGMAS = (*database._SQLITE_PRAGMAS, "max_page_count=1")  # type: ignore[assignment]

if __name__ == "__main__":
    main()
