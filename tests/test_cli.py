"""The command line as a person or a script meets it: help, usage errors, exit codes, JSON, interruptions."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
import pytest

from bench import add, bring, drawn
from builders import cohort_rows, folder_cohort
from croma_bundle import __version__
from croma_bundle.cli import cli as top
from croma_bundle.cli import main

SRC = Path(__file__).resolve().parents[1] / "src"


def command(*arguments):
    return [sys.executable, "-m", "croma_bundle", *map(str, arguments)]


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def bare(capsys, monkeypatch, tmp_path):
    """Run the command line in this process, in an empty folder, on a volume that is not there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CROMA_VOLUME", raising=False)

    def run(*arguments):
        with pytest.raises(SystemExit) as left:
            main(list(arguments))
        return Done(left.value.code, *capsys.readouterr())

    return run


def walk(group, path=()):
    """Every command of the tree with its path."""
    yield path, group
    if isinstance(group, click.Group):
        for name, sub in group.commands.items():
            yield from walk(sub, (*path, name))


COMMANDS = {" ".join(path): entry for path, entry in walk(top)}
LEAVES = [name for name, entry in COMMANDS.items() if not isinstance(entry, click.Group)]


@pytest.fixture
def cohort(volume):
    """36 rows with two imported encoders, not yet scored."""
    rows = cohort_rows(slides=3, tiles=3)
    add(volume, "mine", rows)
    bring(volume, "mine", {name: drawn(rows, 1, 1, seed=seed) for seed, name in enumerate("AB")})
    return volume


# --- help ---


def test_the_commands_are_these():
    assert set(LEAVES) == {
        *("list", "status", "embed", "import", "score", "probe", "construct"),
        *("tiles fetch", "tiles add", "tiles phantom", "tiles export", "tiles export-view"),
        *("weights", "lock-weights", "lock-tilesets"),
        *("verify artifacts", "verify images", "verify published", "verify run", "verify tables"),
        *("smoke", "parity"),
        *("doctor", "launch embed", "launch smoke", "launch tiles", "launch run"),
        *("images push", "images pull", "images save", "images load"),
    }


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_has_help_that_is_printed(bare, name):
    assert COMMANDS[name].help
    done = bare(*name.split(), "--help")
    assert (done.returncode, done.stderr) == (0, "")
    first_words = " ".join(COMMANDS[name].help.split()[:4])
    assert first_words in " ".join(done.stdout.split())


# Names that say it all (`--seed`) are no help: an option says what it does.
@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_option_has_help(name):
    options = [p for p in COMMANDS[name].params if isinstance(p, click.Option)]
    assert [option.name for option in options if not option.help] == []


def test_the_top_help_lists_the_exit_codes(bare):
    said = bare("--help").stdout
    for code in ("0 ok", "1 a verdict", "2 usage", "3 missing", "4 environment", "5 an existing", "130 interrupted"):
        assert code in said


def test_the_version_is_the_packages(bare):
    assert bare("--version").stdout.strip().endswith(__version__)


@pytest.mark.parametrize("group", [[], ["tiles"], ["verify"]])
def test_without_arguments_the_help_is_shown_and_it_is_a_usage_error(bare, group):
    done = bare(*group)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Usage: croma-bundle")
    assert "Commands:" in done.stderr


# --- usage errors ---


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["scor"], "No such command 'scor'"),
        (["score", "--bencmark", "x"], "No such option '--bencmark'"),
        (["score", "--k", "0"], "Invalid value for '--k'"),
        (["score", "--k", "three"], "Invalid value for '--k'"),
        (["score", "--k-max", "1"], "Invalid value for '--k-max'"),
        (["score", "--m", "21"], "Invalid value for '--m'"),
        (["score", "--m", "0"], "Invalid value for '--m'"),
        (["score", "--protocol", "mean-k"], "Invalid value for '--protocol'"),
        (["score", "--k-grid", "thin"], "Invalid value for '--k-grid'"),
        (["score", "--threads", "0"], "Invalid value for '--threads'"),
        (["score", "--encoders", "A,,B"], "has an empty name in it"),
        (["score", "--encoders", ""], "has an empty name in it"),
        (["score", "surplus"], "unexpected extra argument"),
        (["list"], "Missing argument"),
        (["list", "encoder"], "Invalid value for"),
        (["import", "x", "y", "z.npy"], "Missing option '--provenance'"),
        (["embed"], "Missing option '--tileset'"),
        (["embed", "--tileset", "phantom"], "which encoders?"),
        (["verify", "tables", "a"], "Missing argument 'REFERENCE'"),
        (["--volume"], "requires an argument"),
    ],
)
def test_a_usage_error_exits_2_in_one_paragraph_with_the_command_that_helps(bare, arguments, told):
    done = bare(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("error:") == 1
    assert told in done.stderr
    assert "croma-bundle" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_a_misspelt_command_gets_a_suggestion(bare):
    assert "score" in bare("scor").stderr.split("No such command 'scor'")[1]


# --- JSON ---


def events(done):
    """The events on stdout; every line must be one JSON object, and nothing may stand on stderr."""
    assert done.stderr == ""
    parsed = [json.loads(line) for line in done.stdout.splitlines()]
    assert parsed
    assert all(isinstance(event, dict) and isinstance(event["event"], str) for event in parsed)
    return parsed


def test_every_command_speaks_json_alone_when_asked(tmp_path):
    folder_cohort(tmp_path / "tiles")
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((24, 5)))
    metrics = "volume/metrics/median-k/mine"
    steps = {
        "list": "list tilesets",
        "tiles phantom": "tiles phantom ghost --tile-size 32 --slides-per-cell 1 --tiles-per-slide 1",
        "tiles fetch": "tiles fetch ghost --workers 0",
        "tiles add": "tiles add mine --manifest tiles/cohort.csv --workers 0",
        "embed": "embed --family classical --encoders Thumbnail --tileset mine --workers 0",
        "import": "import mine Other x.npy --provenance test",
        "status": "status",
        "score": "score --benchmark mine --encoders Thumbnail,Other --cross mine",
        "tiles export": "tiles export mine --output png",
        "tiles export-view": "tiles export-view mine --output view.csv",
        "verify artifacts": "verify artifacts",
        "verify published": "verify published --if-scored",
        "verify run": f"verify run {metrics}",
        "verify tables": f"verify tables {metrics} {metrics}",
        "smoke": "smoke --encoders Thumbnail",
        "parity": "parity volume/parity/Thumbnail.json",
    }
    elsewhere = {  # need an engine, a network or torch; their own tests run them
        *(name for name in LEAVES if name.startswith(("launch ", "images "))),
        *("verify images", "doctor", "weights", "lock-weights", "lock-tilesets", "construct", "probe"),
    }
    assert set(steps) == set(LEAVES) - elsewhere
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    for step in steps.values():
        done = subprocess.run(
            command("--json", *step.split()), capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=60
        )
        assert done.returncode == 0, (step, done.stdout)
        assert "error" not in {event["event"] for event in events(done)}


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["score"], 3),
        (["score", "--benchmark", "phantm"], 3),
        (["scor"], 2),
        (["score", "--k", "0"], 2),
        ([], 2),
        (["tiles"], 2),
        (["embed", "--tileset", "phantom"], 2),
        (["tiles", "add", "x", "--manifest", "none.csv"], 3),
        (["import", "phantom", "x", "none.npy", "--provenance", "p"], 3),
        (["verify", "artifacts"], 3),
        (["verify", "tables", "a", "b"], 3),
        (["smoke"], 2),
        (["parity", "none.json"], 3),
    ],
)
def test_errors_and_usage_errors_are_json_too(bare, arguments, code):
    done = bare("--json", *arguments)
    assert done.returncode == code
    errors = [event for event in events(done) if event["event"] == "error"]
    assert max(event["exit_code"] for event in errors) == code
    assert all(event["text"] for event in errors)


def test_several_errors_are_an_object_each_and_the_exit_code_is_the_highest(cohort):
    cohort.sidecar("mine", "A").unlink()
    done = subprocess.run(
        command("--volume", cohort.root, "--json", "score", "--encoders", "A,B,C"), capture_output=True, text=True
    )
    assert done.returncode == 5
    assert [event["exit_code"] for event in events(done) if event["event"] == "error"] == [5, 3]


def test_json_rows_of_a_score_are_those_of_metrics_json(cohort):
    done = subprocess.run(command("--volume", cohort.root, "--json", "score"), capture_output=True, text=True)
    (scored,) = [event for event in events(done) if event["event"] == "scored"]
    assert scored["rows"] == json.loads((cohort.root / scored["folder"] / "metrics.json").read_text())["rows"]


# --- the volume ---


def test_the_volume_comes_from_the_environment_or_the_option(cohort, tmp_path):
    environment = {**os.environ, "CROMA_VOLUME": str(cohort.root)}
    done = subprocess.run(command("status"), capture_output=True, text=True, env=environment, check=True)
    assert "mine: 36 rows" in done.stdout
    done = subprocess.run(
        command("--volume", tmp_path / "other", "status"), capture_output=True, text=True, env=environment, check=True
    )
    assert "mine" not in done.stdout


@pytest.fixture
def public():
    """A folder that every user may enter (pytest's own are private)."""
    folder = Path(tempfile.mkdtemp(prefix="croma-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def as_stranger(*arguments):
    """Run as a user that owns nothing here; skips where that cannot be."""
    if os.getuid() or not shutil.which("setpriv"):
        pytest.skip("needs root and setpriv to become another user")
    identity = ["setpriv", "--reuid", "12345", "--regid", "12345", "--clear-groups"]
    environment = {**os.environ, "PYTHONPATH": str(SRC), "PYTHONDONTWRITEBYTECODE": "1"}
    probe = subprocess.run([*identity, *command("--version")], capture_output=True, env=environment)
    if probe.returncode:
        pytest.skip("another user cannot run this Python")
    return subprocess.run(
        [*identity, *command(*arguments)], capture_output=True, text=True, env=environment, timeout=60
    )


@pytest.mark.parametrize("mode", [0o755, 0o555])
def test_an_unwritable_volume_exits_4_with_the_line_to_type(cohort, public, mode):
    shutil.copytree(cohort.root, public / "volume")
    os.chown(public / "volume", 4321, 1234)
    (public / "volume").chmod(mode)
    done = as_stranger("--volume", public / "volume", "score")
    assert done.returncode == 4, done.stderr
    assert f"error: volume {public / 'volume'}: it cannot be written to" in done.stderr
    assert "uid 12345" in done.stderr
    assert "CROMA_UID=4321 CROMA_GID=1234 docker compose run" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unwritable_folder_inside_a_writable_volume_exits_4_with_the_line_to_type(cohort, public):
    shutil.copytree(cohort.root, public / "volume")
    (public / "volume").chmod(0o777)
    (public / "volume" / "metrics").mkdir()
    os.chown(public / "volume" / "metrics", 4321, 1234)
    done = as_stranger("--volume", public / "volume", "score")
    assert done.returncode == 4, done.stderr
    assert "metrics/median-k: Permission denied" in done.stderr
    assert "CROMA_UID=4321 CROMA_GID=1234 docker compose run" in done.stderr
    assert done.stderr.count("error:") == 1
    assert "Traceback" not in done.stderr


def test_an_unreadable_matrix_exits_4_and_names_it(cohort, public):
    shutil.copytree(cohort.root, public / "volume")
    (public / "volume").chmod(0o777)
    (public / "volume/embeddings/mine/A.npy").chmod(0o600)
    done = as_stranger("--volume", public / "volume", "score")
    assert done.returncode == 4, done.stderr
    assert "embeddings/mine/A.npy: Permission denied" in done.stderr
    assert "Traceback" not in done.stderr


def test_reading_commands_need_no_writable_volume(cohort, public):
    shutil.copytree(cohort.root, public / "volume")
    for arguments in (["status"], ["list", "tilesets"], ["verify", "artifacts"]):
        done = as_stranger("--volume", public / "volume", *arguments)
        assert done.returncode == 0, done.stderr


def test_a_volume_that_is_mounted_read_only_exits_4(cohort, tmp_path):
    mount = tmp_path / "mounted"
    mount.mkdir()
    script = f'mount --bind {cohort.root} {mount} && mount -o remount,ro,bind {mount} && exec "$@"'
    inside = ["unshare", "-m", "sh", "-c", script, "sh"]
    if not shutil.which("unshare") or subprocess.run([*inside, "true"], capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    done = subprocess.run([*inside, *command("--volume", mount, "score")], capture_output=True, text=True)
    assert done.returncode == 4, done.stderr
    assert f"error: volume {mount}: it cannot be written to" in done.stderr
    assert "Traceback" not in done.stderr
    done = subprocess.run([*inside, *command("--volume", mount, "status")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_full_disk_exits_4_and_leaves_no_run_json(cohort, tmp_path):
    mount = tmp_path / "small"
    mount.mkdir()
    pages = sum(-(-path.stat().st_size // 4096) for path in cohort.root.rglob("*") if path.is_file())
    script = f"mount -t tmpfs -o size={4096 * (pages + 3)} tmpfs {mount} && cp -r {cohort.root}/. {mount} && "
    script += f'"$@"; code=$?; find {mount} -name run.json; exit $code'
    inside = ["unshare", "-m", "sh", "-c", script, "sh"]
    if not shutil.which("unshare") or subprocess.run([*inside, "true"], capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    done = subprocess.run([*inside, *command("--volume", mount, "score")], capture_output=True, text=True)
    assert done.returncode == 4, done.stdout + done.stderr
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    assert "run.json" not in done.stdout


# --- interruptions and pipes ---


@pytest.fixture
def slow(volume):
    """A cohort whose scoring takes seconds."""
    rows = cohort_rows(slides=30, tiles=25)
    add(volume, "slow", rows)
    bring(volume, "slow", {f"E{i}": drawn(rows, 1, 1, width=64) for i in range(4)})
    return volume


@pytest.mark.parametrize(("how", "as_json"), [(signal.SIGINT, False), (signal.SIGINT, True), (signal.SIGTERM, False)])
def test_an_interruption_exits_130_without_a_traceback_and_leaves_nothing_half_done(slow, how, as_json):
    arguments = ["--volume", slow.root, *(["--json"] if as_json else []), "score"]
    run = subprocess.Popen(command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 30
    while not slow.score_lock("median-k").exists() or not slow.score_lock("median-k").read_text():
        assert time.monotonic() < deadline
        assert run.poll() is None
        time.sleep(0.01)
    time.sleep(0.3)
    run.send_signal(how)
    stdout, stderr = run.communicate(timeout=30)
    assert run.returncode == 130
    if as_json:
        assert json.loads(stdout.splitlines()[-1]) == {"event": "error", "text": "interrupted", "exit_code": 130}
        assert stderr.strip() == ""
    else:
        estimate, *rest = stderr.split("\n", 1)
        assert estimate.startswith("benchmark slow: about ")
        assert (stdout, "".join(rest).split()) == ("", ["interrupted"])
    assert "Traceback" not in stderr
    assert not list((slow.root / "metrics").rglob("*.json"))


@pytest.mark.parametrize("arguments", [["list", "encoders"], ["--json", "list", "encoders"], ["status"], ["--help"]])
def test_a_reader_that_goes_away_gets_no_traceback(arguments):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command(*arguments), stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writer)
    assert done.stderr == ""
    assert done.returncode == 141  # as a shell reports a program that SIGPIPE ended; 1 would be a failed verdict


def test_piping_into_head_shows_the_head():
    line = f"{' '.join(command('list', 'encoders'))} | head -n 1"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60)
    assert done.stdout.split()[0] == "name"
    assert done.stderr == ""
