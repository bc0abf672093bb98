"""A cluster of three nodes on this machine, one of them without cores for the driver."""

import os
import socket

import pytest

#: The smallest object store that Ray takes is 75 MB.
STORE = 80 * 10**6


class Nodes:
    """A cluster of ``ray.cluster_utils`` to which nodes are added.

    Ray is imported here alone: tests that need no cluster are collected without it.
    """

    def __init__(self):
        import ray.data
        from ray.cluster_utils import Cluster

        self.ray, self.cluster = ray, Cluster()
        self.add(num_cpus=0)
        ray.init(address=self.cluster.address, log_to_driver=False)

    def add(self, **options):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        return self.cluster.add_node(
            object_store_memory=STORE, include_dashboard=False, runtime_env_agent_port=port, **options
        )

    def remove(self, node_id: str) -> None:
        (node,) = (node for node in self.cluster.list_all_nodes() if node.node_id == node_id)
        self.cluster.remove_node(node, allow_graceful=False)


@pytest.fixture(scope="session")
def nodes():
    pytest.importorskip("ray", reason="needs the extra ray")
    from ray import _raylet
    from ray._private import worker
    from ray._private.node import Node

    patch = pytest.MonkeyPatch()
    start = Node.start_raylet

    def start_raylet(node, *words, **options):
        # A raylet waits 15 seconds for its helper processes to say their ports, too little on a busy machine
        # (ray-project/ray issue 65983). These are the ports that they say in an installation without a dashboard.
        for name in ("METRICS_AGENT_PORT_NAME", "METRICS_EXPORT_PORT_NAME", "DASHBOARD_AGENT_LISTEN_PORT_NAME"):
            _raylet.persist_port(node._session_dir, node._node_id, getattr(_raylet, name), -1)
        port = node._ray_params.runtime_env_agent_port
        _raylet.persist_port(node._session_dir, node._node_id, _raylet.RUNTIME_ENV_AGENT_PORT_NAME, port)
        return start(node, *words, **options)

    patch.setattr(Node, "start_raylet", start_raylet)
    # Tests kill nodes. A thread of Ray's tells so on the standard output, up to a minute later and in the middle of another
    # test, whose command's output it would be taken for.
    patch.setattr(worker, "listen_error_messages", lambda driver, stopped: None)
    for name in ("RAY_raylet_start_wait_time_s", "RAY_worker_register_timeout_seconds"):
        patch.setenv(name, "300")
    patch.setenv("RAY_agent_register_timeout_ms", "300000")
    # For how many seconds a killed node is asked for a worker before another one is (60 by default).
    for name in ("RAY_raylet_rpc_server_reconnect_timeout_base_s", "RAY_raylet_rpc_server_reconnect_timeout_max_s"):
        patch.setenv(name, "1")
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    patch.setenv("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))
    # Workers import the tests' own classes.
    patch.setenv("PYTHONPATH", os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")]))
    own = Nodes()
    own.add(num_cpus=1)
    own.add(num_cpus=1)
    yield own
    own.ray.shutdown()
    own.cluster.shutdown()
    patch.undo()
