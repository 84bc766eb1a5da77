"""The service as ``fedcs serve`` runs it, on the port given."""

import sys

from operator_api.server import run_api
from services.settings import Settings, load_settings

if __name__ == "__main__":
    run_api(load_settings(Settings, port=int(sys.argv[1])), announce=lambda _: None)
