"""MLServer with adaptive batching and a custom runtime: https://docs.seldon.ai/mlserver/user-guide/adaptive-batching.

MLServer gives a batch the shape of its first request, so only texts of different lengths can share a batch.
"""

import asyncio
import os
from pathlib import Path

from mlserver import MLModel, MLServer, ModelSettings, Settings
from mlserver.codecs import NumpyCodec, StringCodec
from mlserver.types import InferenceResponse
from mlserver.utils import install_uvloop_event_loop
from tokenizers import Tokenizer

from bench.peers.model import BUNDLE, MAX_BATCH, PORT, PortableModel


class Encoder(MLModel):
    async def load(self):
        self.model = PortableModel()
        self.tokenizer = Tokenizer.from_file(str(Path(os.environ[BUNDLE]) / "tokenizer.json"))
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        return True

    async def predict(self, payload):
        texts = StringCodec.decode_input(payload.inputs[0])
        vectors = self.model.encode([encoding.ids for encoding in self.tokenizer.encode_batch(texts)])
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("vector", vectors)])


async def serve():
    port = int(os.environ[PORT])
    settings = Settings(host="127.0.0.1", grpc_port=port, http_port=port + 1, metrics_port=port + 2, debug=False)
    # The documentation gives no values, and asks to find them by experiment; 10 ms is less than a batch takes.
    model_settings = ModelSettings(
        name="texts",
        implementation="bench.peers.mlserver.server.Encoder",
        max_batch_size=int(os.environ[MAX_BATCH]),
        max_batch_time=0.01,
    )
    await MLServer(settings).start([model_settings])


if __name__ == "__main__":
    install_uvloop_event_loop()
    asyncio.run(serve())
