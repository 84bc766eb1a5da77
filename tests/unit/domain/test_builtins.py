"""The names of networks and data sets."""

from services.domain.builtins import DATASETS, NETWORKS, is_import_path


def test_an_import_path_has_a_colon_and_no_builtin_name_is_one() -> None:
    assert is_import_path("package.module:Name")
    assert not is_import_path("package.module")
    assert not any(map(is_import_path, (*NETWORKS, *DATASETS)))
    assert all(summary.endswith(".") for summary in (*NETWORKS.values(), *DATASETS.values()))
