"""Why a model cannot be served; each is one sentence for the operator."""


class ModelRefused(Exception):
    """The model must not be served."""


class BundleRefused(ModelRefused):
    """The bundle is missing, damaged, or of an unknown form."""


class GraphMissing(BundleRefused):
    """The bundle has no graph for the provider and precision that were asked for."""


class ProviderUnavailable(ModelRefused):
    """The execution provider that was asked for does not run on this machine."""


class ToleranceExceeded(ModelRefused):
    """The graph's answers are further from PyTorch than the numeric contract allows."""


class DeviceLost(ModelRefused):
    """A device died."""
