import lzma
import os
import random
import re
from fractions import Fraction
from pathlib import Path

import pytest

from client_sim.traces import NS_PER_S, Trace, TraceError, load_phone_speeds, load_traces

RECORDED = Path(os.environ.get("TRACES", "traces"))
MS = NS_PER_S // 1000


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def only(path: Path) -> Trace:
    (trace,) = load_traces((path,), 0)
    return trace


def random_trace(rng: random.Random) -> Trace:
    lengths = [rng.randint(1, 20) for _ in range(rng.randint(1, 6))]
    rates = [rng.choice([0, rng.randint(1, 9)]) for _ in lengths]
    rates[rng.randrange(len(rates))] = rng.randint(1, 9)
    return Trace([sum(lengths[:number]) for number in range(len(lengths))], rates, sum(lengths))


def test_sums_are_those_of_single_nanoseconds() -> None:
    rng = random.Random(0)
    for _ in range(200):
        trace = random_trace(rng)
        ends = [*trace.times_ns[1:], trace.period_ns]
        once = [
            rate
            for begin, end, rate in zip(trace.times_ns, ends, trace.rates_bps, strict=True)
            for _ in range(begin, end)
        ]
        assert trace.total == sum(once)
        for time_ns in range(3 * trace.period_ns):
            assert trace.sum_until(time_ns) == sum((3 * once)[:time_ns])
        assert trace.sum_until(-1) == -once[-1]


def test_a_sum_is_reached_at_the_first_moment() -> None:
    rng = random.Random(1)
    for _ in range(500):
        trace = random_trace(rng)
        amount = Fraction(rng.randint(1, 5 * trace.total), rng.choice([1, 3, 7]))
        time = trace.time_of(amount)
        whole = time.numerator // time.denominator
        below = trace.sum_until(whole)
        if whole == time:
            assert below == amount
            assert trace.sum_until(whole - 1) < amount
        else:
            assert below < amount < trace.sum_until(whole + 1)
            assert below + (time - whole) * (trace.sum_until(whole + 1) - below) == amount


def test_a_mahimahi_file(tmp_path: Path) -> None:
    trace = only(written(tmp_path, "a.up", "1\n1\n4\n5\n"))
    assert trace == Trace([0, MS, 2 * MS, 4 * MS, 5 * MS], [0, 24_000_000, 0, 12_000_000, 12_000_000], 6 * MS)
    assert trace.total == 4 * 1500 * 8 * NS_PER_S
    assert only(written(tmp_path, "zero.up", "0\n")) == Trace([0], [12_000_000], MS)
    assert only(written(tmp_path, "windows", "1\r\n4\r\n")).period_ns == 5 * MS


def test_a_csv_file(tmp_path: Path) -> None:
    text = "time_s, bps\n1700000000, 1e6\n1700000000.5, 0\n1700000002, 250000.4\n"
    trace = only(written(tmp_path, "a.csv", text))
    assert trace == Trace([0, NS_PER_S // 2, 2 * NS_PER_S], [1_000_000, 0, 250_000], 3_500_000_000)


def test_compressed_files_and_directories(tmp_path: Path) -> None:
    (tmp_path / "b.up.xz").write_bytes(lzma.compress(b"3\n"))
    written(tmp_path, "a.csv", "time_s,bps\n0,8\n1,9\n")
    written(tmp_path, "README.md", "No trace.")
    other = written(tmp_path, "c.trace", "7\n")
    periods_ns = [trace.period_ns for trace in load_traces((tmp_path, other), 0)]
    assert periods_ns == [2 * NS_PER_S, 4 * MS, 8 * MS]
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(TraceError, match=r"empty: the directory has no traces \(\*\.up, "):
        load_traces((empty,), 0)


def test_users_of_whom_mean_and_deviation_are_known(tmp_path: Path) -> None:
    text = '{"a": {"up_u": 5000, "up_sigma": 1000}, "b": {"up_u": 10, "up_sigma": 0}}'
    path = written(tmp_path, "users.json", text)
    varied, steady = load_traces((path,), 0)
    assert varied.period_ns == steady.period_ns == 3600 * NS_PER_S
    assert varied.total / varied.period_ns == pytest.approx(5_000_000, abs=4 * 1_000_000 / 360**0.5)
    assert set(steady.rates_bps) == {10_000}
    assert load_traces((path,), 0)[0] == varied != load_traces((path,), 1)[0]


def test_phones(tmp_path: Path) -> None:
    text = '[{"Model": "a", "CPU_F_AI_Score": "200"}, {"Model": "b", "CPU_F_AI_Score": 50}]'
    assert load_phone_speeds(written(tmp_path, "phones.json", text)) == [1, 0.25]


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("a.up", "", ": the file is empty"),
        ("a.up", "1\n\n2\n", ", line 2: '' is not a number of milliseconds"),
        ("a.up", "1\n2.5\n", ", line 2: '2.5' is not a number of milliseconds"),
        ("a.up", "-1\n", ", line 1: '-1' is not a number"),
        ("a.up", "٣\n", ", line 1: '٣' is not a number"),
        ("a.up", "time_s,bps\n", ", line 1: 'time_s,bps' is not a number"),
        ("a.up", "5\n6\n4\n", ", line 3: 4 is before 6 in the line above"),
        ("a.up", "9" * 5000, ", line 1: the trace may last 2.592e+06 s at most"),
        ("a.csv", "", ", line 1: the columns must be time_s, bps"),
        ("a.csv", "bps,time_s\n", ", line 1: the columns must be time_s, bps"),
        ("a.csv", "time_s,bps\n0,1\n1\n", ", line 3: two values are expected, not 1"),
        ("a.csv", "time_s,bps\n0,1\nx,1\n", ", line 3, time_s: 'x' is not a number from 0 to 1e+10"),
        ("a.csv", "time_s,bps\n0,nan\n1,1\n", ", line 2, bps: 'nan' is not a number from 0 to 1e+12"),
        ("a.csv", "time_s,bps\n0,-1\n1,1\n", ", line 2, bps: '-1' is not a number"),
        (
            "a.csv",
            "time_s,bps\n0,1\n1,1\n1,2\n",
            ", line 4: the time 1 is not after the one in the row above",
        ),
        ("a.csv", "time_s,bps\n0,1\n3e6,1\n", ", line 3: the trace may last"),
        ("a.csv", "time_s,bps\n0,1\n", ": two rows are needed"),
        ("a.csv", "time_s,bps\n0,0\n1,0\n", ": the throughput is 0 throughout"),
        ("a.csv", "time_s,bps\n0," + "1" * 200_000 + "\n", ", line 2: field larger than field limit"),
        ("a.json", "{\n  1\n}", ", line 2: not JSON: Expecting property name"),
        ("a.json", "[" * 100_000, ": not JSON: "),
        ("a.json", "[]", ": an object of users is expected"),
        ("a.json", '{"u": 1}', ", u, up_u: None is not a number"),
        ("a.json", '{"u": {"up_u": 0, "up_sigma": 1}}', ", u, up_u: it must be above 0"),
        ("a.json", '{"u": {"up_u": 1, "up_sigma": -1}}', ", u, up_sigma: -1 is not a number from 0"),
        ("a.up.xz", "1\n", ": not an xz file"),
    ],
)
def test_a_bad_trace_is_refused_with_its_line(name: str, text: str, complaint: str, tmp_path: Path) -> None:
    path = written(tmp_path, name, text)
    with pytest.raises(TraceError, match=re.escape(f"{path}{complaint}")) as refusal:
        load_traces((path,), 0)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{}", ": a list of phones is expected, with the field CPU_F_AI_Score"),
        ('[{"CPU_F_AI_Score": 1}, {}]', ", phone 2, CPU_F_AI_Score: None is not a number"),
        ('[{"CPU_F_AI_Score": "fast"}]', ", phone 1, CPU_F_AI_Score: 'fast' is not a number"),
        ('[{"CPU_F_AI_Score": 0}]', ", phone 1, CPU_F_AI_Score: it must be above 0"),
    ],
)
def test_a_bad_list_of_phones_is_refused(text: str, complaint: str, tmp_path: Path) -> None:
    path = written(tmp_path, "phones.json", text)
    with pytest.raises(TraceError, match=re.escape(f"{path}{complaint}")):
        load_phone_speeds(path)


def test_what_is_no_text_file(tmp_path: Path) -> None:
    (tmp_path / "a.up").write_bytes(b"\xff\xfe")
    with pytest.raises(TraceError, match=r"a\.up: not a text file"):
        load_traces((tmp_path / "a.up",), 0)
    with pytest.raises(TraceError, match=r"b\.up: No such file"):
        load_traces((tmp_path / "b.up",), 0)


@pytest.mark.skipif(not RECORDED.is_dir(), reason="no recorded traces: set TRACES to their directory")
def test_recorded_traces_have_their_published_means() -> None:
    means = sorted(trace.total / trace.period_ns / 1e6 for trace in load_traces((RECORDED,), 0))
    assert means == pytest.approx([0.83, 1.91, 5.95, 13.32], abs=0.01)
    assert len(load_traces((RECORDED / "flash-speed.json",), 0)) == 19
    speeds = load_phone_speeds(RECORDED / "flash-ai-benchmark.json.xz")
    assert (len(speeds), max(speeds)) == (333, 1)
