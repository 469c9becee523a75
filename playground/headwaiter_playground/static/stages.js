// The stages of a request, in their order, and what they add up to.

/** The name of each stage, and the class of its colour. */
export const STAGES = ["tokenize", "queue", "assemble", "compute", "respond", "network"].map((name) => ({
    name,
    mark: name,
}));

/** Return the seconds of each stage of a recorded request. The network has what the server does not account for. */
export function stageSeconds({ browserS, timings }) {
    const { tokenizeS, queueS, assembleS, computeS, respondS, totalS } = timings;
    return [tokenizeS, queueS, assembleS, computeS, respondS, Math.max(0, browserS - totalS)];
}
