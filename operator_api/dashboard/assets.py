"""The pages' style sheet and scripts, and BokehJS from the installed package: nothing from elsewhere."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

BOKEH_FILES = ("bokeh.min.js", "bokeh-api.min.js")
"""What a plot needs: the library, and ``Bokeh.Plotting``."""

_OWN = Path(__file__).parent / "static"
_MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript"}


@dataclass(frozen=True)
class StaticFile:
    """A file as it is sent."""

    content: bytes
    media_type: str
    version: str
    """Another one whenever the content is another."""


@cache
def own_files() -> Mapping[str, StaticFile]:
    """Our own files by their names."""
    return _read(path for path in _OWN.iterdir() if path.suffix in _MEDIA_TYPES)


@cache
def bokeh_files() -> Mapping[str, StaticFile]:
    """Those of BokehJS. The package is found but never imported: in Python it would take half a second."""
    found = find_spec("bokeh")
    assert found is not None, "it is a dependency"
    assert found.origin is not None, "and a package"
    scripts = Path(found.origin).parent / "server" / "static" / "js"
    return _read(scripts / name for name in BOKEH_FILES)


def _read(paths: Iterable[Path]) -> Mapping[str, StaticFile]:
    files = {}
    for path in paths:
        content = path.read_bytes()
        version = hashlib.sha256(content).hexdigest()[:16]
        files[path.name] = StaticFile(content, _MEDIA_TYPES[path.suffix], version)
    return MappingProxyType(files)
