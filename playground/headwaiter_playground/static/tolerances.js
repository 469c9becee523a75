// The numeric contract: how far a served graph may differ from PyTorch in float32. A test compares these numbers with
// those that the server enforces. `pooled` and `hidden` limit the absolute or the relative difference, whichever is
// smaller; null stands for no limit of its own.

/** By the name of the precision. */
export const TOLERANCES = {
    PRECISION_FP32: { pooled: 1e-5, hidden: 1e-4, minCosine: 0.99999, maxRelative: 1e-3 },
    PRECISION_FP16: { pooled: null, hidden: null, minCosine: 0.9999, maxRelative: 0.5 },
    PRECISION_BF16: { pooled: null, hidden: null, minCosine: 0.9995, maxRelative: 0.5 },
    PRECISION_INT8: { pooled: null, hidden: null, minCosine: 0.99, maxRelative: 0.5 },
};
