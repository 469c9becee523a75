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

/** Return lengths for a table: 1, the powers of two, and the longest. */
export function tableLengths(longest) {
    const lengths = [];
    for (let length = 1; length < longest; length *= 2) lengths.push(length);
    return [...lengths, longest];
}
