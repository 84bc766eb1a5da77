"""What .dockerignore lets through to a build."""

from docker.utils.build import exclude_paths

from tests.docker.dockerfile import ROOT


def build_context() -> set[str]:
    """The files of the build context, by their paths."""
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    listed = exclude_paths(str(ROOT), patterns)  # with .dockerignore itself, which the engine reads
    return {path for path in listed if (ROOT / path).is_file()} - {".dockerignore"}
