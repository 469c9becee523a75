"""Two nodes of Ray on this machine, for a test; they end when standard input does.

Run it with the Python of .venv-ray. It prints the address of the first node.
"""

import sys

from ray.cluster_utils import Cluster

node = {"num_cpus": 1, "object_store_memory": 100 << 20, "include_dashboard": False}
cluster = Cluster(initialize_head=True, head_node_args=node)
cluster.add_node(**node)
cluster.wait_for_nodes()
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
