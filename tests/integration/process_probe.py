"""``python -m``: tells what it was started with, exits as told, or waits to be killed."""

import atexit
import os
import sys
import time
from pathlib import Path


def main(what: str, *arguments: str) -> None:
    if what == "exit":
        atexit.register(print, "left")
        sys.exit(int(arguments[0]) if arguments[0].isdecimal() else arguments[0])
    elif what == "tell":
        descriptors = sorted(int(path.name) for path in Path("/proc/self/fd").iterdir() if path.exists())
        print(f"directory={Path.cwd()}")
        print(f"environment={','.join(sorted(os.environ))}")
        print(f"open={','.join(map(str, descriptors))}")
        print(f"parent={os.getppid()}")
    else:
        print("waiting", flush=True)
        time.sleep(3600)


if __name__ == "__main__":
    main(*sys.argv[1:])
