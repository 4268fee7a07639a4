"""The sandbox's own behaviour: outcomes, limits, what crosses its border, what happens when it breaks."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.environments.sandbox import backends, codec, landlock, seccomp, syscalls, worker
from components.environments.sandbox.backends import Backend
from components.environments.sandbox.outcome import Answer, SandboxUnavailable
from components.environments.sandbox.pool import Sandbox, sandbox_check
from components.environments.sandbox.usage import active_seconds

HERE = [name for name in ("bwrap", "landlock") if Backend(name).missing() is None]
pytestmark = pytest.mark.skipif(not HERE, reason="neither bubblewrap nor Landlock on this machine")


@pytest.fixture(scope="module", params=HERE)
def sandbox(request):
    with Sandbox(backend=request.param, cpu_seconds=1, idle_seconds=0.5, memory_mib=256) as made:
        yield made


def call(name, *args, **kwargs):
    return (name, args, kwargs)


# --- what runs, and what comes back -----------------------------------------------------------------------------------


def test_calls_are_answered_in_order_with_types_kept(sandbox):
    program = (
        "import dataclasses\ndef f(x, *, n=1): return [x] * n\ndef g(): return {(1, 2): {3.5}, None: (True, b'x')}"
    )
    result = sandbox.calls(program, [call("f", "ä\ud800", n=2), call("g"), call("h")])
    assert result.outcome == "pass"
    assert result.answers == (
        Answer(["ä\ud800", "ä\ud800"]),
        Answer({(1, 2): {3.5}, None: (True, b"x")}),
        Answer(error="NameError: the program defines no 'h'"),
    )


def test_an_exception_fails_its_own_call_only(sandbox):
    result = sandbox.calls("def f(x): return 1 // x", [call("f", 0), call("f", 1)])
    assert [answer.error or answer.value for answer in result.answers] == [
        "ZeroDivisionError: integer division or modulo by zero",
        1,
    ]


def test_a_script_reads_and_prints(sandbox):
    result = sandbox.script(
        "import sys\nprint(sum(map(int, sys.stdin)))\nprint('x', file=sys.stderr)\nsys.exit(3)", "1\n2\n"
    )
    assert (result.outcome, result.stdout, result.stderr, result.exit_code) == ("pass", "3\n", "x\n", 3)


def test_a_megabyte_goes_in_and_out(sandbox):
    text = "0123456789abcdef" * 60_000
    assert sandbox.script("print(input()[::-1])", text).stdout == text[::-1] + "\n"
    assert sandbox.calls("def f(x): return x", [call("f", text)]).answers == (Answer(text),)


def test_threads_and_rarely_used_modules_work(sandbox):
    program = (
        "import threading, sys, resource\nthreading.stack_size(1 << 26)\nsys.setrecursionlimit(10 ** 6)\n"
        "resource.setrlimit(resource.RLIMIT_STACK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))\n"
        "def main():\n    import sqlite3, decimal, colorsys\n    print(threading.active_count())\n"
        "threading.Thread(target=main).start()"
    )
    assert sandbox.script(program).stdout == "2\n"


def test_nothing_is_left_for_the_next_program(sandbox):
    sandbox.calls("import math, builtins\nmath.pi = 3\nbuiltins.x = 1\ndef f(): return 1", [call("f")])
    assert sandbox.calls(
        "import math, builtins\ndef f(): return math.pi > 3, hasattr(builtins, 'x')", [call("f")]
    ).answers == (Answer((True, False)),)


def test_the_same_program_computes_the_same_in_every_worker(sandbox):
    program = "import random\ndef f(): return list({'a', 'b', 'c', 'd', 'e'}), random.random(), hash('x')"
    first = {str(sandbox.calls(program, [call("f")]).answers) for _ in range(3)}
    with Sandbox(backend=sandbox.wanted, workers=1) as other:
        assert first == {str(other.calls(program, [call("f")]).answers)}


def test_tests_in_a_second_sandbox_call_the_program(sandbox):
    tests = "def check(c):\n    total = sum(c(i, k=[i]) for i in range(3))\n    assert total == 6, total\n"
    assert sandbox.check("def f(i, k): return i + k[0]", tests, "f").outcome == "pass"
    wrong = sandbox.check("def f(i, k): return 1", tests, "f")
    assert (wrong.outcome, wrong.detail) == ("fail", "AssertionError: 3")


def test_tests_in_a_second_sandbox_see_the_programs_exceptions(sandbox):
    tests = (
        "def check(c):\n    try:\n        c(0)\n    except ZeroDivisionError:\n        return\n"
        "    assert False, 'no exception'\n"
    )
    assert sandbox.check("def f(x): return 1 // x", tests, "f").outcome == "pass"
    assert sandbox.check("def f(x): return x", tests, "f").detail == "AssertionError: no exception"


# --- outcomes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "outcome", "detail"),
    [
        ("def f():\n    while True: pass", "cpu_limit", "1 s of CPU time"),
        ("import time\ndef f(): time.sleep(60)", "cpu_limit", "waited for 0.5 s"),
        ("def f(): return len(bytearray(1 << 30))", "memory", "MemoryError"),
        ("import os\ndef f(): os._exit(0)", "fail", "exit code 0 before it had answered"),
        ("import os\ndef f(): os.abort()", "fail", "SIGABRT"),
        ("import os\ndef f(): os.write(4, b'{\"value\": 1}\\n'); return 1", "protocol", "more answers than calls"),
        ("import os\ndef f(): os.write(4, b'no JSON\\n')", "protocol", "not JSON"),
        ("import os\ndef f(): os.write(4, b'{\"value\": NaN}\\n')", "protocol", "finite"),
        ('import os\ndef f(): os.write(4, b\'{"value": 1, "value": 2}\\n\')', "protocol", "not JSON"),
        ('import os\ndef f(): os.write(4, b\'{"value": {"set": [[]]}}\\n\')', "protocol", "no value"),
        ("import os\ndef f(): os.write(4, b'[' * 100000 + b'\\n')", "protocol", "not JSON"),
        ("import os\ndef f(): os.write(1, bytes(2 << 20))", "fail", "more than 1048576 bytes on stdout"),
    ],
)
def test_the_outcome_says_what_stopped_a_program(sandbox, program, outcome, detail):
    result = sandbox.calls(program, [call("f")])
    assert result.outcome == outcome and detail in result.detail


@pytest.mark.parametrize("value", ["float('nan')", "float('inf')", "lambda: 1", "object()", "(i for i in ())"])
def test_what_is_no_data_is_an_error_of_that_call(sandbox, value):
    (answer,) = sandbox.calls(f"def f(): return {value}", [call("f")]).answers
    assert answer.error is not None and answer.error.startswith("NotData")


def test_answers_before_a_limit_are_kept(sandbox):
    result = sandbox.calls("def f(x):\n    while x: pass\n    return x", [call("f", 0), call("f", 1), call("f", 0)])
    assert (result.outcome, result.answers) == ("cpu_limit", (Answer(0),))


# --- whose fault ------------------------------------------------------------------------------------------------------


def test_a_server_that_dies_is_replaced_and_the_program_run_again():
    with Sandbox(backend=HERE[0], workers=1) as sandbox:  # type: ignore[arg-type]
        sandbox.calls("def f(): return 1", [call("f")])
        place = sandbox._idle.get()
        sandbox._idle.put(place)
        victim = place[0].process.pid
        timer = threading.Timer(0.2, lambda: [os.kill(pid, signal.SIGKILL) for pid in _family(victim)])
        timer.start()
        program = "import time\ndef f():\n    time.sleep(0.4)\n    return 2"
        assert sandbox.calls(program, [call("f")]).answers == (Answer(2),)
        assert place[0].process.pid != victim


def test_a_program_that_gets_no_cpu_is_not_idle_and_its_failure_is_the_machines():
    """At the lowest priority beside three that never pause, it hardly runs: that must not count as sleeping."""
    with Sandbox(backend=HERE[0], workers=1, cpu_seconds=5, idle_seconds=0.4, wall_seconds=1.5, retries=0) as sandbox:  # type: ignore[arg-type]
        sandbox.calls("def f(): return 1", [call("f")])
        place = sandbox._idle.get()
        sandbox._idle.put(place)
        cpu = min(os.sched_getaffinity(0))
        for thread in _family(place[0].process.pid):
            os.setpriority(os.PRIO_PROCESS, thread, 19)
            os.sched_setaffinity(thread, {cpu})
        spin = f"import os\nos.sched_setaffinity(0, {{{cpu}}})\nwhile True: pass"
        busy = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(3)]
        try:
            time.sleep(0.3)
            result = sandbox.calls("def f():\n    while True: pass", [call("f")])
        finally:
            for process in busy:
                process.kill()
                process.wait()
        assert result.outcome == "infra" and "overloaded" in result.detail


def _family(pid):
    children = [int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [pid, *(member for child in children for member in _family(child))]


def test_seconds_of_a_sleeping_process_are_not_active_ones():
    sleeper = subprocess.Popen(
        [sys.executable, "-c", "import time\nprint(flush=True)\ntime.sleep(60)"], stdout=subprocess.PIPE
    )
    assert sleeper.stdout is not None
    sleeper.stdout.readline()
    time.sleep(0.05)
    before, start = active_seconds(sleeper.pid), time.monotonic()
    time.sleep(0.3)
    after, took = active_seconds(sleeper.pid), time.monotonic() - start
    sleeper.kill()
    sleeper.communicate()
    assert before is not None and after is not None and after - before < 0.5 * took


# --- refusing ---------------------------------------------------------------------------------------------------------


def test_without_any_backend_it_refuses_and_says_what_to_do(monkeypatch):
    monkeypatch.setattr(backends.shutil, "which", lambda name: None)
    monkeypatch.setattr(backends.landlock, "version", lambda: 0)
    with pytest.raises(SandboxUnavailable) as refusal:
        Sandbox().script("print(1)")
    text = str(refusal.value)
    assert "bwrap: bwrap is not on the PATH" in text and "no Landlock" in text and "sandbox.backend=unsafe" in text
    assert sandbox_check({"backend": "auto"})[0].startswith("backend: none works on this machine")
    assert sandbox_check({"backend": "unsafe"}) == []


@pytest.mark.parametrize("backend", ["bwrap", "landlock"])
def test_a_backend_asked_for_is_never_replaced_by_another(backend, monkeypatch):
    monkeypatch.setattr(backends.shutil, "which", lambda name: None)
    monkeypatch.setattr(backends.landlock, "version", lambda: 0)
    with pytest.raises(SandboxUnavailable, match=f"backend={backend}"):
        Sandbox(backend=backend).script("print(1)")


def test_a_sandbox_with_a_hole_is_refused_by_name_of_the_hole(monkeypatch):
    """The filter as it would be if somebody allowed sockets: the probe has to notice."""
    number = {"x86_64": 41, "aarch64": 198}[os.uname().machine]
    source = Path(syscalls.__file__).read_text().replace("read 0 63,", f"read 0 63, socket {number} {number},")
    modules = [(name, source if name.endswith(".syscalls") else text) for name, text in worker._modules()]
    monkeypatch.setattr(worker, "_modules", lambda: modules)
    with pytest.raises(SandboxUnavailable, match="did not stop a program from: open a socket"):
        Sandbox(backend=HERE[-1]).script("print(1)")


@pytest.mark.parametrize("refused", [[444], [446], [157]], ids=["ruleset", "restrict_self", "prctl"])
def test_on_a_kernel_that_refuses_a_part_nothing_runs(refused):
    """A real kernel's refusal: these system calls fail in this process and all that it starts."""
    if os.uname().machine != "x86_64" or "landlock" not in HERE:
        pytest.skip("numbers of x86-64")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from test_sandbox import deny\nfrom components.environments.sandbox.pool import Sandbox\n"
        "sandbox = Sandbox(backend='landlock')\n"
        f"deny({refused})\n"
        "try:\n    print('RAN', sandbox.script('print(1)'))\n"
        "except Exception as error:\n    print(type(error).__name__, error)"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code, str(Path(__file__).parent)], capture_output=True, text=True, cwd=root
    )
    assert done.stdout.startswith("SandboxUnavailable sandbox.backend=landlock"), done.stdout + done.stderr


def deny(numbers):
    """Let these system calls fail with EPERM from now on, here and in every child."""
    steps = [(0x20, 0, 0, 0)]
    for number in numbers:
        steps += [(0x15, 0, 1, number), (0x06, 0, 0, 0x00050001)]
    code = b"".join(struct.pack("=HBBI", *step) for step in [*steps, (0x06, 0, 0, 0x7FFF0000)])
    program = seccomp._Program(len(code) // 8, code)
    seccomp.no_new_privileges()
    assert seccomp._prctl(22, 2, ctypes.cast(ctypes.pointer(program), ctypes.c_void_p), 0, 0) == 0


@pytest.mark.parametrize("settings", [{"backend": "docker"}, {"workers": 0}, {"cpu_seconds": 0}])
def test_settings_that_cannot_be_are_refused_before_anything_starts(settings):
    assert sandbox_check(settings)
    with pytest.raises(ValueError, match=next(iter(settings))):
        Sandbox(**settings)


@pytest.mark.skipif("bwrap" not in HERE, reason="needs bubblewrap")
def test_a_scratch_directory_is_private_fresh_and_bounded():
    program = (
        "import os\nprint(os.listdir('/tmp'))\nopen('/tmp/a', 'w').write('x')\n"
        "try:\n    for i in range(64): open(f'/tmp/{i}', 'wb').write(bytes(1 << 20))\n"
        "except OSError as error: print(error.errno, i < 5)"
    )
    with Sandbox(backend="bwrap", scratch_mib=4, workers=1) as sandbox:
        for _ in range(2):
            assert sandbox.script(program).stdout == "[]\n28 True\n"  # ENOSPC
    with pytest.raises(SandboxUnavailable, match="no scratch directory"):
        Sandbox(backend="landlock", scratch_mib=4).script("")


def test_closing_leaves_no_process():
    with Sandbox(backend=HERE[0], workers=1) as sandbox:  # type: ignore[arg-type]
        sandbox.check("def f(): return 1", "def check(c): assert c() == 1", "f")
        place = sandbox._idle.get()
        sandbox._idle.put(place)
        family = [pid for server in place for pid in _family(server.process.pid)]
        assert len(family) >= 2
    deadline = time.monotonic() + 10
    while any(map(_alive, family)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(map(_alive, family))


def _alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_copy_of_the_process_starts_servers_of_its_own():
    with Sandbox(backend=HERE[0], workers=1) as sandbox:  # type: ignore[arg-type]
        sandbox.script("print(1)")
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(write, sandbox.script("print(2)").stdout.encode())
            sandbox.close()
            os._exit(0)
        os.waitpid(pid, 0)
        assert os.read(read, 10) == b"2\n"
        assert sandbox.script("print(3)").stdout == "3\n"


# --- pieces -----------------------------------------------------------------------------------------------------------

atoms = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.binary()
)
keys = st.integers() | st.text() | st.tuples(st.integers(), st.text())
values = st.recursive(
    atoms,
    lambda inner: (
        st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(keys, inner) | st.sets(keys) | st.frozensets(keys)
    ),
    max_leaves=20,
)


@given(values)
def test_data_survives_the_border_with_its_types(value):
    line = codec.dumps(value)
    assert "\n" not in line and codec.loads(line) == value and types(codec.loads(line)) == types(value)


def types(value):
    """The types of everything in a value."""
    if isinstance(value, dict):
        return dict, {repr(types(key)) + repr(key): types(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value), [types(item) for item in value]
    return type(value), {(type(item), item) for item in value} if isinstance(value, set | frozenset) else None


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_anything_else_is_refused_and_never_crashes(value):
    with contextlib.suppress(codec.NotData):
        codec.loads(json.dumps(value))


@pytest.mark.parametrize(
    "text", ["NaN", "1e999", "[NaN]", '{"a": 1, "b": 2}', '{"tuple": 1}', '{"int": "5"}', "{}", "[" * 200 + "]" * 200]
)
def test_text_that_is_no_value_is_refused(text):
    with pytest.raises(codec.NotData):
        codec.loads(text)


def test_a_number_of_a_million_digits_crosses_quickly():
    began = time.process_time()
    assert codec.loads(codec.dumps(1 << 3_000_000)) == 1 << 3_000_000
    assert time.process_time() - began < 5  # int(text) would take a minute


@pytest.mark.parametrize(
    ("machine", "header"),
    [("x86_64", "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), ("aarch64", "/usr/include/asm-generic/unistd.h")],
)
def test_system_call_numbers_are_the_kernels(machine, header):
    if not Path(header).exists():
        pytest.skip("the kernel's headers are not installed")
    words = [line.split() for line in Path(header).read_text().splitlines()]
    defined = [
        (w[1].removeprefix("__NR_").removeprefix("__NR3264_"), w[2]) for w in words if len(w) == 3 and w[0] == "#define"
    ]
    numbers = {
        ("newfstatat" if name == "fstatat" else name): int(number) for name, number in defined if number.isdigit()
    }
    table = syscalls.plain(machine, scratch=True) | syscalls.checked(machine)
    assert {name: number for name, number in table.items() if numbers.get(name) != number} == {}


def test_an_unknown_architecture_is_refused():
    with pytest.raises(OSError, match="riscv64"):
        seccomp.template("riscv64")


def test_landlock_without_a_kernel_that_has_it_is_refused(monkeypatch):
    monkeypatch.setattr(landlock, "version", lambda: 0)
    with pytest.raises(OSError, match="no Landlock"):
        landlock.ruleset([], [], [])
