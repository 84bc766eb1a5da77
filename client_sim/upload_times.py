"""How well uploads on the wall clock kept to the modelled throughput."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from io import StringIO
from pathlib import Path
from statistics import median

from rich.table import Table

from client_sim.device import MeasuredUpload
from client_sim.results import write_file


def write_uploads(path: Path, uploads: Mapping[str, Sequence[MeasuredUpload]]) -> None:
    """Write every upload, by policy, as CSV."""
    text = StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["policy", *(column.name for column in fields(MeasuredUpload))])
    for policy, sent in uploads.items():
        rows.writerows([policy, *asdict(upload).values()] for upload in sent)
    write_file(path, text.getvalue().encode())


def upload_accuracy(uploads: Mapping[str, Sequence[MeasuredUpload]]) -> Table:
    """How long uploads took, beside what their size takes at the modelled throughput."""
    table = Table(title="Uploads: measured time beside size / throughput", title_justify="left")
    table.add_column("")
    for heading in ("uploads", "stand-ins", "least", "median", "most"):
        table.add_column(heading, justify="right")
    for policy, sent in uploads.items():
        ratios = [one.measured_s / one.expected_s for one in sent if one.measured_s is not None]
        shown = [f"{value(ratios):.3f}" for value in (min, median, max)] if ratios else ["–"] * 3
        table.add_row(policy, str(len(sent)), str(sum(one.is_stand_in for one in sent)), *shown)
    return table
