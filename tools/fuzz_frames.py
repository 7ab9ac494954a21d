"""Fuzz the AMQP frame reader: with atheris if it is installed, else with hypothesis.

tests/kit/frame_checks.py has the checks. Seeds are in csrc/tests/fuzz/seeds/frames, found inputs in
csrc/tests/fuzz/found/frames; tests/broker/test_broker_fuzz.py replays both. The last line is one JSON object.

    python tools/fuzz_frames.py [--seconds S] [--seed N] [--make-seeds]
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import random
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SEEDS, FOUND = ROOT / "csrc/tests/fuzz/seeds/frames", ROOT / "csrc/tests/fuzz/found/frames"
CORPUS = ROOT / "build/fuzz/corpus/frames"
INPUT_BYTES_MAX = 4096


def fuzz_here(arguments: list[str]) -> None:
    """Run atheris in this process; it never returns."""
    import atheris

    instrumented = ["logstore.broker.frames", "logstore.broker.runs", "logstore.broker.fields", "pamqp"]
    with atheris.instrument_imports(include=instrumented):
        import logstore.broker.fields
        import logstore.broker.frames
        import logstore.broker.runs  # noqa: F401 - imported here to be instrumented
    from kit import frame_checks

    atheris.Setup([sys.argv[0], *arguments], frame_checks.check_told)
    atheris.Fuzz()


def with_atheris(seconds: int, seed: int) -> tuple[int, int]:
    """Executions and failures of one atheris run, in a process of its own."""
    for directory in (CORPUS, FOUND):
        directory.mkdir(parents=True, exist_ok=True)
    before = set(FOUND.iterdir())
    options = [
        f"-max_total_time={seconds}",
        f"-max_len={INPUT_BYTES_MAX}",
        f"-seed={seed}",
        "-rss_limit_mb=1024",
        "-print_final_stats=1",
        f"-artifact_prefix={FOUND}/",
        *(str(directory) for directory in (CORPUS, SEEDS, FOUND)),
    ]
    command = [sys.executable, __file__, "--fuzz-here", *options]
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False)
    said = done.stdout + done.stderr
    units = re.search(r"stat::number_of_executed_units:\s*(\d+)", said)
    new = sorted(set(FOUND.iterdir()) - before)
    if new or done.returncode != 0 or units is None:
        print(said[-4000:])
    return int(units.group(1)) if units else 0, len(new) or int(done.returncode != 0 or units is None)


def with_hypothesis(seconds: int, seed: int) -> tuple[int, int]:
    """The same check with inputs from hypothesis, guided towards more frames; stops at the first failure."""
    import hypothesis
    from hypothesis import strategies as st

    from kit import frame_checks

    executions, last = 0, b""

    @hypothesis.settings(max_examples=1000, deadline=None, database=None, phases=[hypothesis.Phase.generate])
    @hypothesis.given(st.binary(max_size=600))
    def one(data: bytes) -> None:
        nonlocal executions, last
        executions, last = executions + 1, data
        frame_checks.check_told(data)
        hypothesis.target(float(len(frame_checks.frames_of(data[2:]))))

    end = time.monotonic() + seconds
    rounds = random.Random(seed)
    while time.monotonic() < end:
        try:
            hypothesis.seed(rounds.getrandbits(32))(one)()
        except Exception:  # noqa: BLE001 - whatever it was, it is the find
            FOUND.mkdir(parents=True, exist_ok=True)
            path = FOUND / f"crash-{hashlib.sha1(last).hexdigest()}"
            path.write_bytes(last)
            print(f"kept: {path.relative_to(ROOT)}")
            return executions, 1
    return executions, 0


def make_seeds() -> None:
    """A frame of every method in the target's input form, and whole streams."""
    from pamqp import commands
    from pamqp import frame as pamqp_frame

    from kit import frame_checks

    SEEDS.mkdir(parents=True, exist_ok=True)
    stream = b""
    for number, index in enumerate(frame_checks.METHOD_INDEXES):
        method = commands.INDEX_MAPPING[index]
        try:
            encoded = pamqp_frame.marshal(method(), 1)
        except (TypeError, ValueError, AttributeError):
            continue
        stream += encoded
        arguments = encoded[11:-1]
        (SEEDS / f"{index:08x}").write_bytes(bytes((1, 7, 0, number, len(arguments))) + arguments)
    properties = commands.Basic.Properties(
        content_type="text/plain", headers={"a": 1, "b": [True, None, "x"], "c": {"d": 2.5}}, expiration="100"
    ).marshal()
    (SEEDS / "properties").write_bytes(bytes((1, 3, 1, 9, len(properties))) + properties)
    (SEEDS / "stream").write_bytes(b"\x00\x11" + stream[: INPUT_BYTES_MAX - 2])


def main() -> int:
    """Fuzz for the given time, and print the result."""
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    if sys.argv[1:2] == ["--fuzz-here"]:
        fuzz_here(sys.argv[2:])
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--make-seeds", action="store_true", help="only write the seeds again")
    options = parser.parse_args()
    if options.make_seeds:
        make_seeds()
        return 0
    has_atheris = importlib.util.find_spec("atheris") is not None
    if not has_atheris:
        print("logstore: atheris is not installed: the frame reader is fuzzed with hypothesis instead", file=sys.stderr)
    executions, crashes = (with_atheris if has_atheris else with_hypothesis)(options.seconds, options.seed)
    how = "atheris" if has_atheris else "hypothesis"
    print(json.dumps({"tool": "fuzz_frames", "executions": executions, "crashes": crashes, "with": how}))
    return int(crashes > 0)


if __name__ == "__main__":
    sys.exit(main())
