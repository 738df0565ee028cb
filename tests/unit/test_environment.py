"""The environment in which a rank's Python starts, on literal variables."""

import os

import pytest

from matexrun.launch.environment import BOOTSTRAP, rank_environment
from matexrun.ranks import Rank
from matexrun.settings import Settings

LAYOUT = '[{"node":"a","cores":[0],"gpu":null},{"node":"a","cores":[4,5,6],"gpu":"3"}]'
SETTINGS = Settings(job="j", size=2, seed=41, layout=LAYOUT)


def environment(env, rank=1, cores=(4, 5, 6)):
    return rank_environment(env, SETTINGS, Rank(rank, 2, rank, 2), cores, 9)


def test_what_a_rank_is_given():
    assert environment({"HOME": "/h"}) == {
        "HOME": "/h",
        "CUDA_VISIBLE_DEVICES": "3",
        "OMP_NUM_THREADS": "3",
        "TF_NUM_INTRAOP_THREADS": "3",
        "TF_NUM_INTEROP_THREADS": "3",
        "PYTHONUNBUFFERED": "1",
        "PYTHONHASHSEED": "41",
        "PYTHONPATH": BOOTSTRAP,
        "MATEXRUN_PYTHONPATH_ENTRY": BOOTSTRAP,
        "MATEXRUN_RANK": "1",
        "MATEXRUN_LOCAL_RANK": "1",
        "MATEXRUN_LOCAL_SIZE": "2",
        "MATEXRUN_REPORT_FD": "9",
    }
    assert os.path.exists(os.path.join(BOOTSTRAP, "sitecustomize.py"))


@pytest.mark.parametrize(
    "name",
    ["OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "PYTHONUNBUFFERED", "PYTHONHASHSEED"],
)
def test_what_the_user_has_set_stays(name):
    assert environment({name: "17"})[name] == "17"


def test_one_core_still_has_two_inter_op_threads():
    env = environment({}, cores=(4,))
    assert (env["TF_NUM_INTRAOP_THREADS"], env["TF_NUM_INTEROP_THREADS"]) == ("1", "2")


def test_ranks_that_share_cores_share_the_threads():
    same = '[{"node":"a","cores":[0,1],"gpu":null},{"node":"a","cores":[0,1],"gpu":null}]'
    other = same.replace('"a"', '"b"', 1)
    for layout, threads in ((same, "1"), (other, "2")):
        settings = Settings(job="j", size=2, seed=41, layout=layout)
        assert rank_environment({}, settings, Rank(1, 2, 1, 2), (0, 1), 9)["OMP_NUM_THREADS"] == threads


def test_without_cores_thread_counts_are_left_alone():
    assert not {"OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"} & set(environment({}, cores=()))


def test_without_a_chosen_gpu_the_mask_stays():
    assert environment({"CUDA_VISIBLE_DEVICES": "0,1"}, rank=0)["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert "CUDA_VISIBLE_DEVICES" not in environment({}, rank=0)


def test_pythonpath_keeps_what_it_had():
    assert environment({"PYTHONPATH": "/a:/b"})["PYTHONPATH"] == f"{BOOTSTRAP}:/a:/b"


def test_a_random_hash_seed_is_made_common():
    assert environment({"PYTHONHASHSEED": "random"})["PYTHONHASHSEED"] == "41"
