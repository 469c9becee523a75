// The stages of a request, in their order, and what they add up to.

/** The name of each stage, and the class of its colour. */
export const STAGES = ["tokenize", "queue", "assemble", "compute", "respond", "network", "browser"].map((name) => ({
    name,
    mark: name,
}));

/**
 * Return the seconds of each stage of a recorded request. The network has what the server does not account for of the
 * time from the request's first byte to the reply's last; the browser has the rest.
 */
export function stageSeconds({ browserS, wireS, timings }) {
    const { tokenizeS, queueS, assembleS, computeS, respondS, totalS } = timings;
    const outside = Math.max(0, browserS - totalS);
    const network = Number.isFinite(wireS) ? Math.min(outside, Math.max(0, wireS - totalS)) : outside;
    return [tokenizeS, queueS, assembleS, computeS, respondS, network, outside - network];
}
