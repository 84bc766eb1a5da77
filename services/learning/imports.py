"""Networks and data sets of one's own, named by import path: only from modules that the settings allow."""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from services.errors import ImportRefusedError


def is_import_path(name: str) -> bool:
    """Whether a name is a path such as ``package.module:Name``, not one of ours."""
    return ":" in name


def import_callable(path: str, allowed: Sequence[str]) -> Callable[..., Any]:
    """What a path such as ``package.module:Name`` leads to, if its module or a package over it is allowed."""
    module_name, _, attribute = path.partition(":")
    if not _is_within(module_name, allowed):
        raise ImportRefusedError(
            f"{path!r} may not be imported; the workers' FEDCS_ALLOWED_IMPORTS has to name the module "
            f"{module_name!r} or a package above it"
        )
    try:
        found = getattr(import_module(module_name), attribute)
    except Exception as error:  # a module may raise anything
        raise ImportRefusedError(
            f"{path!r} cannot be imported by the workers ({type(error).__name__}: {error}); "
            "mend its name, or install it where they run"
        ) from error
    if not callable(found):
        raise ImportRefusedError(f"{path!r} is no class or function; name one")
    home = getattr(found, "__module__", module_name)
    if not _is_within(home, allowed):  # what an allowed module has imported itself is not allowed with it
        raise ImportRefusedError(f"{path!r} comes from {home!r}, which FEDCS_ALLOWED_IMPORTS does not name")
    made: Callable[..., Any] = found
    return made


def _is_within(module_name: str, allowed: Sequence[str]) -> bool:
    return any(module_name == prefix or module_name.startswith(f"{prefix}.") for prefix in allowed)
