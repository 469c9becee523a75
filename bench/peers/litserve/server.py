"""LitServe with batching: https://lightning.ai/docs/litserve/features/batching."""

import os

import litserve

from bench.peers.model import MAX_BATCH, PORT, PortableModel


class EncoderApi(litserve.LitAPI):
    def setup(self, device):
        self.model = PortableModel()

    def decode_request(self, request):
        return request["ids"]

    def predict(self, ids):
        # Without batching, LitServe passes one request instead of a list.
        if self.max_batch_size == 1:
            return self.model.encode([ids])[0]
        return list(self.model.encode(ids))

    def encode_response(self, vector):
        return vector.tolist()


if __name__ == "__main__":
    # With the default of 0 s, a worker without requests polls all the time, on the core that the HTTP server needs too.
    api = EncoderApi(max_batch_size=int(os.environ[MAX_BATCH]), batch_timeout=0.01)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1)
    server.run(host="127.0.0.1", port=int(os.environ[PORT]), generate_client_file=False)
