// The cost model of a batch: see the message BatchCost of the API.

/** Return the predicted seconds of a batch of sequences that all have `tokens` tokens, by what takes them. */
export function batchSeconds(cost, tokens, sequences) {
    const rows = sequences * tokens;
    return {
        launch: cost.launchS,
        tokens: (cost.tokenS + cost.paddedRowS) * rows,
        attention: cost.cellS * rows * tokens,
    };
}

/** Return the predicted seconds of a batch of sequences of these lengths. */
export function predictedSeconds(cost, lengths) {
    const [longest, tokens] = [Math.max(...lengths), lengths.reduce((sum, length) => sum + length, 0)];
    const padded = lengths.length * longest;
    const cells = cost.variableLength ? lengths.reduce((sum, length) => sum + length * length, 0) : padded * longest;
    return cost.launchS + cost.tokenS * tokens + cost.paddedRowS * padded + cost.cellS * cells;
}

/** Return a cost of `factor` times the seconds. */
export function scaledCost(cost, factor) {
    const terms = ["launchS", "tokenS", "paddedRowS", "cellS"].map((term) => [term, factor * cost[term]]);
    return { ...cost, ...Object.fromEntries(terms) };
}

/** Return the median of measured / predicted seconds of batches, or 1 if there is none. */
export function measuredRatio(cost, batches) {
    const ratios = batches.map(({ lengths, measuredS }) => measuredS / predictedSeconds(cost, lengths));
    const sorted = ratios.filter(Number.isFinite).sort((a, b) => a - b);
    return sorted.length ? (sorted.at((sorted.length - 1) / 2) + sorted.at(sorted.length / 2)) / 2 : 1;
}

/** Return the most sequences of a model's least length that one batch holds. */
export function mostSequences({ minTokens, execution }) {
    const { tokens, cells } = budgetOf(execution);
    return Math.max(1, Math.floor(Math.min(tokens / minTokens, cells / minTokens ** 2)));
}

/** Return the most tokens that each of `sequences` sequences may have, so that all of them run in one batch. */
export function longestInBatch({ maxTokens, execution }, sequences) {
    if (sequences === 1) return maxTokens; // A sequence alone runs whatever its length.
    const { tokens, cells } = budgetOf(execution);
    return Math.floor(Math.min(maxTokens, tokens / sequences, Math.sqrt(cells / sequences)));
}

/** Return the limits of a batch; a server that tells none of a limit sends 0. */
function budgetOf({ tokenBudget, cellBudget }) {
    return { tokens: Number(tokenBudget) || Infinity, cells: Number(cellBudget) || Infinity };
}

/** Return the sum of the parts. */
export function total({ launch, tokens, attention }) {
    return launch + tokens + attention;
}

/** Return the length from which attention's quadratic part takes half of the time or more, or Infinity. */
export function quadraticHalf(cost, sequences) {
    // cell·B·n² = launch + linear·B·n, solved for n.
    const square = cost.cellS * sequences;
    const linear = (cost.tokenS + cost.paddedRowS) * sequences;
    if (square <= 0) return Infinity;
    return (linear + Math.sqrt(linear * linear + 4 * square * cost.launchS)) / (2 * square);
}

/** Return numbers for a table: the least, then the powers of two, and the most. */
export function tableSteps(least, most) {
    const steps = least < most ? [least] : [];
    for (let step = 1; step < most; step *= 2) if (step > least) steps.push(step);
    return [...steps, most];
}
