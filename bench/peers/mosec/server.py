"""mosec with dynamic batching: https://mosecorg.github.io/mosec/."""

import os

from mosec import Server, Worker

from bench.peers.model import MAX_BATCH, PORT, PortableModel

max_batch = int(os.environ[MAX_BATCH])


class Encoder(Worker):
    def __init__(self):
        self.model = PortableModel()

    def forward(self, data):
        # Without batching, mosec passes one request instead of a list.
        if max_batch == 1:
            return self.model.encode([data["ids"]])[0].tolist()
        return self.model.encode([request["ids"] for request in data]).tolist()


if __name__ == "__main__":
    # A full batch of long sequences may take longer than the default timeout of 3 s.
    os.environ |= {"MOSEC_ADDRESS": "127.0.0.1", "MOSEC_PORT": os.environ[PORT], "MOSEC_TIMEOUT": "60000"}
    server = Server()
    # 10 ms is the wait in mosec's own example of batching.
    server.append_worker(Encoder, max_batch_size=max_batch, max_wait_time=10)
    server.run()
