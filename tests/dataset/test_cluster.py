"""A real Ray cluster of two nodes on this machine makes the same bytes as one thread does."""

import multiprocessing
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from powerphase.dataset import generate
from powerphase.synthesis import Signals
from tests.dataset.exact import exact_signals, files_of
from tests.ray_folders import ray_folder

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a running cluster with two nodes of one processor each."""
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    node = {"num_cpus": 1, "object_store_memory": 200 * 2**20}
    with ray_folder():
        head = {**node, "include_dashboard": False}
        cluster = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
        cluster.add_node(**node)
        yield cluster.address
        cluster.shutdown()


def _generate(address: str, out: Path) -> None:
    import ray

    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    generate("ieee14", out, signals=exact_signals(), engine="ray")


def test_two_nodes_write_the_same_bytes_even_if_the_driver_is_killed(
    tmp_path: Path, undisturbed: Path, cluster: str
) -> None:
    spawned = multiprocessing.get_context("spawn")
    out = tmp_path / "s"
    driver = spawned.Process(target=_generate, args=(cluster, out))
    driver.start()
    while not (out / "state" / "c").exists():  # kill it as its first block reaches the disk
        driver.join(0.005)
        assert driver.exitcode is None
    driver.kill()
    driver.join()
    assert driver.exitcode == -signal.SIGKILL
    again = spawned.Process(target=_generate, args=(cluster, out))
    again.start()
    again.join()
    assert again.exitcode == 0
    assert files_of(out) == files_of(undisturbed)


def test_blocks_are_solved_on_both_nodes(
    tmp_path: Path, undisturbed: Path, cluster: str, signals: Signals
) -> None:
    import ray

    ray.init(address=cluster, log_to_driver=False, logging_level="ERROR")
    try:
        generate("ieee14", tmp_path / "s", signals=signals, engine="ray")
        workers = ray._private.state.actors().values()
    finally:
        ray.shutdown()
    assert files_of(tmp_path / "s") == files_of(undisturbed)
    assert len({worker["Address"]["NodeID"] for worker in workers}) == 2
