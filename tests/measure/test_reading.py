"""The report of a reading counts each item once, keeps three examples, and survives as plain values."""

from dataclasses import asdict

from src.measure.reading import Reading


def molecules() -> Reading:
    reading = Reading("my.smi", "molecules", read=10)
    reading.change(["charge removed", "stereo removed"], "line 1: 'C[O-]' -> 'CO'")
    for line in range(2, 6):
        reading.drop("empty", f"line {line}")
    reading.change(["stereo removed"], "line 7")
    reading.change([], "line 8")
    reading.splits, reading.split, reading.shared = {"train": 5, "val": 1}, "random, seed 0", 1
    reading.classes = {"train": {f"class {i}": i for i in range(12)}}
    return reading.finish()


def test_each_item_is_kept_as_written_changed_or_dropped() -> None:
    reading = molecules()
    assert (reading.as_written, reading.changed_items, reading.dropped_items) == (4, 2, 4)
    assert [(remark.what, remark.count) for remark in reading.changed] == [("stereo removed", 2), ("charge removed", 1)]
    assert reading.dropped[0].examples == ["line 2", "line 3", "line 4"]


def test_the_report_says_all_of_it() -> None:
    assert molecules().lines()[:5] == [
        "my.smi: 10 molecules read, 4 kept as written, 2 kept changed, 4 dropped",
        "  changed 2: stereo removed, as line 1: 'C[O-]' -> 'CO'",
        "  changed 1: charge removed, as line 1: 'C[O-]' -> 'CO'",
        "  dropped 4: empty, as line 2",
        "  split: 5 train, 1 val (random, seed 0); 1 outside of train are in train too",
    ]
    assert molecules().lines()[5].endswith("class 9 9 and 2 more")


def test_plain_values_make_the_same_report() -> None:
    assert Reading.of_dict(asdict(molecules())) == molecules()
