"""infinity with its ONNX Runtime engine: https://michaelfeil.eu/infinity/.

The model is an export by optimum, `optimum-cli export onnx`, in the working folder. infinity's own optimization of the
graph fails with this release of optimum, so only ONNX Runtime optimizes the graph.
"""

import os

import onnxruntime

from bench.peers.model import MAX_BATCH, PORT


class OneThreadSession(onnxruntime.InferenceSession):
    """infinity has no setting for ONNX Runtime's threads; two threads on one core would hinder each other."""

    def __init__(self, path, sess_options=None, **settings):
        sess_options = sess_options or onnxruntime.SessionOptions()
        sess_options.intra_op_num_threads = 1
        super().__init__(path, sess_options, **settings)


if __name__ == "__main__":
    onnxruntime.InferenceSession = OneThreadSession
    from infinity_emb.cli import tp

    model = ["--model-id", ".", "--served-model-name", "texts", "--engine", "optimum", "--device", "cpu"]
    # By default this engine takes the first token's row; the model averages all rows.
    model += ["--pooling-method", "mean"]
    batching = ["--batch-size", os.environ[MAX_BATCH], "--no-model-warmup", "--no-bettertransformer"]
    tp(["v2", *model, *batching, "--host", "127.0.0.1", "--port", os.environ[PORT]])
