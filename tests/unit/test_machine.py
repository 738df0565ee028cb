"""What a process may use: quota files as the kernel writes them, GPU names as people set them, and this machine."""

import math
import os
import subprocess
import sys

import pytest

from matexrun.launch import machine


def write(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def quota(tmp_path, membership):
    (tmp_path / "membership").write_text(membership)
    return machine.cpu_quota(tmp_path / "membership", tmp_path / "root")


def test_quota_of_version_2_is_the_least_of_all_ancestors(tmp_path):
    write(tmp_path / "root" / "user", cpu__max="300000 100000\n")
    write(tmp_path / "root" / "user" / "job", cpu__max="max 100000\n")
    assert quota(tmp_path, "0::/user/job\n") == 3.0


def test_quota_of_a_container_whose_paths_are_the_hosts(tmp_path):
    write(tmp_path / "root", cpu__max="150000 100000\n")
    assert quota(tmp_path, "0::/kubepods/pod42/abc\n") == 1.5


def test_quota_of_version_1(tmp_path):
    write(tmp_path / "root" / "cpu" / "docker", cpu__cfs_quota_us="400000\n", cpu__cfs_period_us="100000\n")
    assert quota(tmp_path, "4:memory:/docker\n3:cpu,cpuacct:/docker\n") == 4.0


@pytest.mark.parametrize("text", ["-1\n", ""])
def test_no_quota_of_version_1(tmp_path, text):
    write(tmp_path / "root" / "cpu", cpu__cfs_quota_us=text, cpu__cfs_period_us="100000\n")
    assert quota(tmp_path, "3:cpu,cpuacct:/\n") == math.inf


def test_no_cgroups_is_no_quota(tmp_path):
    assert machine.cpu_quota(tmp_path / "missing", tmp_path) == math.inf


@pytest.mark.parametrize(
    "visible, gpus",
    [
        ("", ()),
        ("-1", ()),
        ("NoDevFiles", ()),
        ("0", ("0",)),
        ("2, 3", ("2", "3")),
        ("1,-1,0", ("1",)),  # CUDA stops at the first name that it cannot take
        ("GPU-8f1c,MIG-22/1/0", ("GPU-8f1c", "MIG-22/1/0")),
    ],
)
def test_gpus_that_the_environment_names(visible, gpus):
    assert machine.visible_gpus({"CUDA_VISIBLE_DEVICES": visible}) == gpus


def test_gpus_that_nvidia_smi_lists(tmp_path):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA H200 (UUID: GPU-1)'\necho 'GPU 1: NVIDIA H200 (UUID: GPU-2)'\n")
    program.chmod(0o755)
    assert machine.visible_gpus({"PATH": str(tmp_path)}) == ("0", "1")
    program.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed: GPU 0: no driver'\nexit 9\n")
    assert machine.visible_gpus({"PATH": str(tmp_path)}) == ()
    assert machine.visible_gpus({"PATH": str(tmp_path / "nowhere")}) == ()


def test_this_node_stays_within_the_affinity_mask():
    core = min(os.sched_getaffinity(0))
    code = (
        f"import os; os.sched_setaffinity(0, [{core}]); from matexrun.launch.machine import this_node;"
        "print(this_node({'CUDA_VISIBLE_DEVICES': ''}))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert answer.stdout.strip() == f"Node(name={os.uname().nodename!r}, cores=({core},), domains=1, gpus=())"


def test_cores_stand_beside_their_hardware_neighbours(tmp_path):
    """Two NUMA nodes of two cores with two threads each, numbered as Linux does: threads 4-7 come after all cores."""
    for cpu in range(8):
        folder = tmp_path / f"cpu{cpu}"
        write(folder / "topology", physical_package_id="0\n", core_id=f"{cpu % 4}\n")
        (folder / f"node{cpu % 4 // 2}").mkdir()
    positions = {cpu: machine._position(cpu, tmp_path) for cpu in range(8)}
    assert sorted(positions, key=positions.get) == [0, 4, 1, 5, 2, 6, 3, 7]
    assert {cpu: position[0] for cpu, position in positions.items()} == {cpu: cpu % 4 // 2 for cpu in range(8)}


def test_sockets_stand_in_for_numa_nodes_that_the_kernel_does_not_know(tmp_path):
    write(tmp_path / "cpu0" / "topology", physical_package_id="1\n", core_id="0\n")
    assert machine._position(0, tmp_path) == (1, 1, 0)
