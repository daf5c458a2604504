"""A Ray cluster of two nodes on this machine writes the same bytes as one thread."""

import logging
import multiprocessing
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from powerphase.dataset import generate
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


def _generate(address: str, out: Path) -> set[str]:
    """Generate the data set on the cluster; return the nodes of its workers."""
    import ray

    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    try:
        generate("ieee14", out, signals=exact_signals(), engine="ray")
        job = ray.get_runtime_context().get_job_id()
        actors = ray._private.state.actors().values()
        return {actor["Address"]["NodeID"] for actor in actors if actor["JobID"] == job}
    finally:
        ray.shutdown()


def test_two_nodes_write_the_same_bytes_even_if_the_driver_is_killed(
    tmp_path: Path, undisturbed: Path, cluster: str
) -> None:
    out = tmp_path / "s"
    driver = multiprocessing.get_context("spawn").Process(target=_generate, args=(cluster, out))
    driver.start()
    while not (out / "state" / "c").exists():  # kill it when its first block reaches the disk
        driver.join(0.005)
        assert driver.exitcode is None
    driver.kill()
    driver.join()
    assert driver.exitcode == -signal.SIGKILL
    nodes = _generate(cluster, out)
    assert len(nodes) == 2
    assert files_of(out) == files_of(undisturbed)
