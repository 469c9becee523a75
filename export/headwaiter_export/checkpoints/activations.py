"""The names of activations in checkpoints."""

from headwaiter_export.config.after_pooling import DenseActivation
from headwaiter_export.config.choices import Activation
from headwaiter_export.config.head import HeadActivation

# Of feed-forward layers, in `transformers`.
ACTIVATIONS: dict[str, Activation] = {
    **dict.fromkeys(("gelu", "gelu_python"), Activation.GELU),
    **dict.fromkeys(
        ("gelu_new", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_fast", "gelu_accurate"), Activation.GELU_TANH
    ),
    "quick_gelu": Activation.QUICK_GELU,
    "relu": Activation.RELU,
    "silu": Activation.SILU,
    "swish": Activation.SILU,
}
# Of heads, in `transformers`.
HEAD_ACTIVATIONS = {"tanh": HeadActivation.TANH} | {
    name: HeadActivation(activation) for name, activation in ACTIVATIONS.items() if activation in [*HeadActivation]
}
# Of Dense modules, in `sentence-transformers`.
DENSE_ACTIVATIONS = {
    "torch.nn.modules.linear.Identity": DenseActivation.IDENTITY,
    "torch.nn.modules.activation.Tanh": DenseActivation.TANH,
    "torch.nn.modules.activation.Sigmoid": DenseActivation.SIGMOID,
    "torch.nn.modules.activation.ReLU": DenseActivation.RELU,
    "torch.nn.modules.activation.LeakyReLU": DenseActivation.LEAKY_RELU,
    "torch.nn.modules.activation.ELU": DenseActivation.ELU,
    "torch.nn.modules.activation.GELU": DenseActivation.GELU,
    "torch.nn.modules.activation.SiLU": DenseActivation.SILU,
}
