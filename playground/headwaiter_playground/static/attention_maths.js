// What-if attention: masks and a temperature, computed from the weights and the values of one layer alone.

/** The settings with which the weights stay as the model computed them. `crossedOut` has the positions of hidden keys. */
export const AS_COMPUTED = Object.freeze({ causal: false, noSelf: false, temperature: 1, crossedOut: new Set() });

/** Return whether the settings leave the weights as they are. */
export function isAsComputed({ causal, noSelf, temperature, crossedOut }) {
    return !causal && !noSelf && temperature === 1 && crossedOut.size === 0;
}

/** Return whether a key is hidden from a query position. */
export function isMasked(query, key, { causal, noSelf, crossedOut }) {
    return (causal && key > query) || (noSelf && key === query) || crossedOut.has(key);
}

/**
 * Return the weights of one query position under the settings: weight^(1 / temperature), renormalised over the keys
 * that are not masked. The weights sum to one, or are all zero if no key with a weight is left.
 */
export function whatIfRow(weights, query, settings) {
    if (isAsComputed(settings)) return Float64Array.from(weights);
    // Loops, because a slider calls this for each row of each head.
    const row = new Float64Array(weights.length);
    let largest = 0;
    for (let key = 0; key < row.length; key += 1) {
        row[key] = isMasked(query, key, settings) ? 0 : weights[key];
        if (row[key] > largest) largest = row[key];
    }
    if (largest === 0) return row;
    let total = 0;
    for (let key = 0; key < row.length; key += 1) {
        const ratio = row[key] / largest;
        row[key] = settings.temperature === 1 ? ratio : ratio ** (1 / settings.temperature);
        total += row[key];
    }
    for (let key = 0; key < row.length; key += 1) row[key] /= total;
    return row;
}

/** Return the weights of one head, [tokens, tokens] row by row, under the settings. */
export function whatIfHead(weights, tokens, settings) {
    const changed = new Float64Array(tokens * tokens);
    for (let query = 0; query < tokens; query += 1) {
        changed.set(whatIfRow(weights.subarray(query * tokens, (query + 1) * tokens), query, settings), query * tokens);
    }
    return changed;
}

/** Return the context vector of a query position: the sum of the values, [tokens, width] row by row, by its weights. */
export function contextOf(row, values) {
    const context = new Float64Array(values.length / row.length);
    row.forEach((weight, key) => {
        for (let index = 0; index < context.length; index += 1) {
            context[index] += weight * values[key * context.length + index];
        }
    });
    return context;
}

/** Return the largest `most` positions of a row in ascending order of position, and the sum of all other weights. */
export function strongest(row, most) {
    const order = Array.from(row.keys()).sort((a, b) => row[b] - row[a] || a - b);
    const kept = order.slice(0, most).sort((a, b) => a - b);
    const rest = order.slice(most).reduce((sum, key) => sum + row[key], 0);
    return { kept, rest };
}
