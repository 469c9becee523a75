// The weights of a head as a file.
import { csv } from "./csv.js";

/** Return the weights of a head, [tokens, tokens], as CSV: one row for each pair of tokens. */
export function attentionCsv(layer, head, tokens, weights, shownWeights) {
    const names = [
        "layer",
        "head",
        "query_position",
        "query_token",
        "key_position",
        "key_token",
        "weight",
        "shown_weight",
    ];
    const pairs = Array.from(weights, (weight, index) => {
        const [query, key] = [Math.floor(index / tokens.length), index % tokens.length];
        return [layer, head, query, tokens[query], key, tokens[key], weight, shownWeights[index]];
    });
    return csv([names, ...pairs]);
}
