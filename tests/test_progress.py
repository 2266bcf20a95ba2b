"""What a run says, where it says it, and that no name can break it."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time

import pytest

from croma_bundle import progress
from croma_bundle.progress import Reporter

TRACK = """
from croma_bundle.progress import Reporter
print(sum(Reporter().track(range(1, 41), 50, "camelyon · Phaet", done=10)))
"""


def test_results_go_to_stdout_and_everything_said_on_the_way_to_stderr(capsys):
    reporter = Reporter()
    reporter.say("rendering")
    reporter.warn("7 tiles are oriented")
    reporter.fault("x: it is bad", 3)
    reporter.result("tileset x: 5 tiles", "tileset", tiles=5)
    out, err = capsys.readouterr()
    assert out == "tileset x: 5 tiles\n"
    assert err == "rendering\nwarning: 7 tiles are oriented\nerror: x: it is bad\n"


def test_with_json_every_event_is_one_object_on_stdout_and_nothing_else_is_printed(capsys):
    reporter = Reporter(as_json=True)
    reporter.say("rendering", "render", tileset="x")
    reporter.warn("oriented", count=7)
    reporter.fault("x: bad\n  wanted   é", 3)
    reporter.result("shown to people only", "tileset", tiles=5)
    out, err = capsys.readouterr()
    assert err == ""
    assert [json.loads(line) for line in out.splitlines()] == [
        {"event": "render", "text": "rendering", "tileset": "x"},
        {"event": "warning", "text": "warning: oriented", "count": 7},
        {"event": "error", "text": "x: bad\n  wanted   é", "exit_code": 3},
        {"event": "tileset", "tiles": 5},
    ]


def test_tracking_passes_every_item_in_order_and_is_silent_when_it_is_quick(capsys):
    assert list(Reporter().track("abc", 3, "label")) == ["a", "b", "c"]
    assert capsys.readouterr() == ("", "")


def test_away_from_a_terminal_a_line_comes_only_when_the_interval_is_over(capsys, monkeypatch):
    monkeypatch.setattr(progress, "EVERY", 0.2)

    def slow():
        for item in range(4):
            time.sleep(0.15)
            yield item

    list(Reporter().track(slow(), 2000, "camelyon · Phaet", done=1000))
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(", about")[0] for line in lines] == [
        "camelyon · Phaet: 1,002 of 2,000",
        "camelyon · Phaet: 1,004 of 2,000",
    ]
    # 4 items took 0.6 s or somewhat more, so the 996 left take 149.4 s or more; 1,004 in 0.6 s would give 0.6 s.
    assert 140 < float(lines[1].split("about ")[1].split(" s")[0].replace(",", "")) < 600


def test_bytes_away_from_a_terminal_are_told_when_the_interval_is_over_and_not_at_the_end(capsys, monkeypatch):
    monkeypatch.setattr(progress, "EVERY", 0.0)
    with Reporter().meter("Toy, model.safetensors", 3_000_000) as arrived:
        arrived(1_000_000)
        arrived(3_000_000)
    assert capsys.readouterr().err == "Toy, model.safetensors, bytes: 1,000,000 of 3,000,000\n"


def test_the_interval_is_ten_seconds():
    assert progress.EVERY == 10


def test_with_json_the_last_event_says_that_all_is_done(capsys):
    list(Reporter(as_json=True).track(range(3), 5, "x", done=2))
    (event,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (event["event"], event["label"], event["done"], event["total"]) == ("progress", "x", 5, 5)


def test_tracking_asks_for_the_next_item_only_when_the_last_one_was_taken():
    asked = []

    def items():
        for item in range(5):
            asked.append(item)
            yield item

    tracked = Reporter().track(items(), 5, "x")
    assert next(tracked) == 0
    assert asked == [0]


def test_on_a_terminal_a_bar_counts_from_where_a_resume_starts():
    main, other = pty.openpty()
    run = subprocess.Popen([sys.executable, "-c", TRACK], stdout=subprocess.PIPE, stderr=other, text=True)
    out = run.communicate(timeout=30)[0]
    os.close(other)
    shown = b""
    while True:
        try:
            part = os.read(main, 65536)
        except OSError:
            break
        if not part:
            break
        shown += part
    os.close(main)
    assert out == "820\n", "the items themselves are untouched"
    assert "camelyon · Phaet" in shown.decode()
    assert "50/50" in shown.decode()


BROKEN_NAMES = """
import os, sys
from croma_bundle.progress import Reporter
name = os.fsdecode(b"tile-\\xff \\xe2\\x9c\\x93\\xf0\\x9f\\x94\\xac.png")
reporter = Reporter(as_json=sys.argv[1] == "json")
reporter.say(name); reporter.fault(name, 3); reporter.result(name, "result", name=name)
"""


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_a_file_name_that_is_no_text_or_not_of_the_terminal_is_printed_with_escapes(encoding):
    run = subprocess.run(
        [sys.executable, "-c", BROKEN_NAMES, "text"],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": encoding},
    )
    assert run.returncode == 0, run.stderr
    tick = "✓🔬" if encoding == "utf-8" else "\\u2713\\U0001f52c"
    name = f"tile-\\udcff {tick}.png"
    assert run.stdout.decode(encoding) == name + "\n"
    assert run.stderr.decode(encoding) == f"{name}\nerror: {name}\n"


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_json_events_stay_json_whatever_the_name_and_the_encoding(encoding):
    run = subprocess.run(
        [sys.executable, "-c", BROKEN_NAMES, "json"],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": encoding},
    )
    assert run.returncode == 0, run.stderr
    events = [json.loads(line) for line in run.stdout.decode(encoding).splitlines()]
    assert [event.get("name", event.get("text")) for event in events] == ["tile-\udcff ✓🔬.png"] * 3
