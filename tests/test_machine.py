"""Limits of containers, and how the command line's threads wait."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from embedkit import machine
from tests.processes import ROOT

GB = 1 << 30


def system(root: Path, files: dict[str, str]) -> Path:
    """A folder with files of the kernel's in it."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, "utf-8")
    return root


MEMINFO = {"proc/meminfo": f"MemTotal: {8 << 20} kB\nMemFree: 1 kB\nMemAvailable: {4 << 20} kB\n"}


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "max 100000"}, None),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "150000 100000"}, 1.5),
        # the smallest of the groups around this one counts
        ({"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/b/cpu.max": "400000 100000",
          "sys/fs/cgroup/a/cpu.max": "200000 100000"}, 2.0),
        # the path is that of the host, which the container does not see
        ({"proc/self/cgroup": "0::/docker/1", "sys/fs/cgroup/cpu.max": "50000 100000"}, 0.5),
        ({"proc/self/cgroup": "0::/../../x", "sys/fs/cgroup/cpu.max": "50000 100000"}, 0.5),
        ({"proc/self/cgroup": "4:memory:/\n3:cpu,cpuacct:/x",
          "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "300000",
          "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, 3.0),
        ({"proc/self/cgroup": "3:cpu:/", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
          "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, None),
    ],
)  # fmt: skip
def test_quota_of_a_container(tmp_path, files, quota):
    assert machine.cpu_quota(system(tmp_path, files)) == quota


def test_memory_without_a_container(tmp_path):
    found = machine.memory(system(tmp_path, MEMINFO))
    assert found == machine.Memory(total=8 * GB, available=4 * GB, limit=None)


def test_memory_limit_with_cache_that_can_be_given_back(tmp_path):
    files = {
        "proc/self/cgroup": "0::/job", "sys/fs/cgroup/job/memory.max": str(2 * GB),
        "sys/fs/cgroup/job/memory.current": str(GB),
        "sys/fs/cgroup/job/memory.stat": f"anon {GB // 2}\ninactive_file {GB // 2}\n",
    }  # fmt: skip
    found = machine.memory(system(tmp_path, MEMINFO | files))
    assert found == machine.Memory(8 * GB, available=2 * GB - GB // 2, limit=2 * GB)


def test_memory_limit_of_version_1(tmp_path):
    folder = "sys/fs/cgroup/memory/"
    files = {
        "proc/self/cgroup": "5:memory:/user\n1:name=systemd:/x",
        folder + "user/memory.limit_in_bytes": str(3 * GB),
        folder + "user/memory.usage_in_bytes": str(2 * GB),
        folder + "memory.limit_in_bytes": "9223372036854771712",
    }
    found = machine.memory(system(tmp_path, MEMINFO | files))
    assert found == machine.Memory(8 * GB, available=GB, limit=3 * GB)


def test_nothing_is_known_of_an_unknown_system(tmp_path):
    found = machine.memory(tmp_path)
    assert (found.available, found.limit) == (None, None)
    assert machine.usable_cores() >= 1


# the wait policy


@pytest.mark.parametrize("name", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"])
def test_what_the_user_set_stays(name):
    environment = {name: "7"}
    machine.set_wait_policy(environment)
    assert environment == {name: "7"}


def test_the_policy_is_set_once():
    environment = {"OMP_NUM_THREADS": "1"}
    machine.set_wait_policy(environment)
    machine.set_wait_policy(environment)
    assert environment == {"OMP_NUM_THREADS": "1", **machine.WAIT_POLICY}


@pytest.fixture
def spied(tmp_path: Path) -> dict[str, str]:
    """An environment in which every Python process leaves its environment in a file as it ends."""
    spy = (
        "import atexit, json, os, pathlib\n"
        "atexit.register(lambda: pathlib.Path(os.environ['SPY'], str(os.getpid())).write_text(\n"
        "    json.dumps([os.environ.get(n) for n in os.environ['NAMES'].split()])))\n"
    )
    (tmp_path / "sitecustomize.py").write_text(spy, "utf-8")
    (tmp_path / "seen").mkdir()
    names = [*machine.WAIT_POLICY, "OMP_WAIT_POLICY"]
    environment = {k: v for k, v in os.environ.items() if k not in machine.POLICY_VARIABLES}
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    environment |= {"PYTHONPATH": path, "SPY": str(tmp_path / "seen"), "NAMES": " ".join(names)}
    subprocess.run([sys.executable, "-c", ""], env=environment, check=True)
    if seen(environment) != [NOTHING]:
        pytest.skip("a file of this environment sets a policy whenever Python starts")
    for file in (tmp_path / "seen").iterdir():
        file.unlink()
    return environment


def seen(environment: dict[str, str]) -> list[str]:
    return sorted(file.read_text("utf-8") for file in Path(environment["SPY"]).iterdir())


NOTHING = "[" + "null, " * len(machine.WAIT_POLICY) + "null]"
POLICY = "[" + ", ".join(f'"{value}"' for value in machine.WAIT_POLICY.values()) + ", null]"
ENTRY = "import sys; from embedkit.cli.main import main; sys.exit(main())"  # what pip's script does


@pytest.mark.parametrize("start", [["-m", "embedkit", "--version"], ["-c", ENTRY, "--version"]])
def test_the_command_line_sets_the_policy(spied, start):
    subprocess.run([sys.executable, *start], env=spied, check=True, capture_output=True)
    assert seen(spied) == [POLICY]


def test_the_command_line_leaves_the_users_policy(spied):
    spied["OMP_WAIT_POLICY"] = "active"
    command = [sys.executable, "-m", "embedkit", "--version"]
    subprocess.run(command, env=spied, check=True, capture_output=True)
    assert seen(spied) == [NOTHING.removesuffix("null]") + '"active"]']


def test_the_stages_of_a_recipe_inherit_the_policy(spied, tmp_path):
    (tmp_path / "corpus.tsv").write_text(
        "id\ttext\tlabel\n" + "".join(f"{i}\ttext {i}\t{i % 2}\n" for i in range(8)), "utf-8"
    )
    (tmp_path / "recipe.toml").write_text(
        '[split]\nsource = "corpus.tsv"\nfolds = 2\nout = "split.parquet"\n', "utf-8"
    )
    done = subprocess.run(
        [sys.executable, "-m", "embedkit", "run", "recipe.toml"],
        cwd=tmp_path, env=spied, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = seen(spied)  # of the command, and of each Python that it starts for stages
    assert len(found) >= 2
    assert set(found) == {POLICY}


def test_importing_the_library_leaves_the_environment_alone(spied):
    code = "import embedkit, embedkit.cli.main, embedkit.encoding.encoder, embedkit.machine"
    subprocess.run([sys.executable, "-c", code], env=spied, check=True, capture_output=True)
    assert seen(spied) == [NOTHING]
