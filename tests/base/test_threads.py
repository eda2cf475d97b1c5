"""One thread for calibration: whatever the caller's settings, and with the same bytes."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from fedcal.base.threads import one_thread

SCRIPT = """
import hashlib, sys
import fedcal
sys.path.insert(0, "tests")
from grid_cases import Case

clients = Case((400, 400, 400), 12).clients()
for name, method in fedcal.METHODS.items():
    if method.takes == "features":
        continue
    short = {"rounds": 2} if name.startswith("fedcal") and name != "fedcal-plus" else {}
    fitted = fedcal.calibrate(clients, name, **short)
    whole = hashlib.blake2b()
    for params in (fitted.params, *fitted.personal.values()):
        for key, value in sorted(params.items()):
            whole.update(value.tobytes())
    logits = clients["client-0"][0]
    whole.update(bytes(fitted.predict_proba(logits, "client-0" if fitted.personal else None).data))
    print(name, whole.hexdigest())
"""


def blas_threads() -> set[int]:
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_one_thread_and_then_as_it_was(three_threads):
    before = blas_threads()
    with one_thread():
        assert torch.get_num_threads() == 1 and blas_threads() == {1}
        with one_thread():
            pass
        assert torch.get_num_threads() == 1 and blas_threads() == {1}
    assert torch.get_num_threads() == 3 and blas_threads() == before


def test_callers_that_overlap_give_blas_its_threads_back():
    """The first to come in is not the last to leave."""
    with threadpool_limits(2, user_api="blas"):
        before = blas_threads()
        first, second = one_thread(), one_thread()
        with ThreadPoolExecutor(1) as pool:
            first.__enter__()
            pool.submit(second.__enter__).result()
            first.__exit__(None, None, None)
            assert blas_threads() == {1}  # the second one is still inside
            pool.submit(second.__exit__, None, None, None).result()
        assert blas_threads() == before


def test_an_error_inside_changes_nothing(three_threads):
    @one_thread()
    def fail() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert torch.get_num_threads() == 3


def test_callers_in_several_threads_do_not_leave_one_behind(three_threads):
    """One that comes in while another is inside must not take the other's single thread for the caller's own setting."""

    @one_thread()
    def work(n: int) -> int:
        return int((torch.ones(50, 50) @ torch.ones(50, 50)).sum()) and torch.get_num_threads()

    before = blas_threads()
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(work, range(200))) == {1}
    assert torch.get_num_threads() == 3 and blas_threads() == before
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(torch.get_num_threads).result() == 3


def test_any_number_of_threads_gives_the_same_scalers():
    """Also for sums that torch or BLAS would have shared between threads."""
    found = []
    for threads in ("1", "4"):
        env = os.environ | dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), threads)
        child = subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, check=True)
        found.append(child.stdout.splitlines())
    assert found[0] == found[1] and len(found[0]) > 15
    assert np.unique([line.split()[1] for line in found[0]]).size > 10  # they are not all empty


def test_a_blas_that_is_loaded_later_is_limited_too():
    """SciPy brings a BLAS of its own, and may be imported after the first fit."""
    code = """
from threadpoolctl import threadpool_info
from fedcal.base.threads import one_thread
with one_thread():
    pass
import scipy.linalg
with one_thread():
    assert {one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"} == {1}
"""
    alone = os.environ | {"OPENBLAS_NUM_THREADS": "2"}
    subprocess.run([sys.executable, "-c", code], check=True, env=alone)
