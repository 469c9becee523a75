// The steps by which a head computes its context vector for one token, from the vectors of the head.
import { contextOf, isMasked } from "./attention_maths.js";

// Weights that q · k explains differ by less from those of the model.
const TOLERANCE = 1e-3;

/**
 * Return the steps of a query position under the settings of the what-if: for each key `products`, q · k; `scaled`, the
 * products divided by `divisor`; `scores`, the scaled products after masks, and after what the model adds to them, if
 * `adds` is true; `weights`, the softmax of the scores; and `parts`, the weights times the values, whose sum is `context`.
 *
 * What the model adds for distances and masks is known up to a constant, which the softmax ignores: the strongest key
 * gets 0. `weights` has what the model computed.
 */
export function headSteps({ query, queryVector, keys, values, weights }, settings) {
    const [count, size] = [weights.length, queryVector.length];
    const root = Math.sqrt(size);
    const products = Array.from({ length: count }, (_, key) =>
        queryVector.reduce((sum, value, index) => sum + value * keys[key * size + index], 0),
    );
    const plain = products.map((product) => product / root);
    const adds = softmax(plain).some((weight, key) => Math.abs(weight - weights[key]) > TOLERANCE);
    const strongest = weights.indexOf(Math.max(...weights));
    const beyond = (key) => Math.log(weights[key]) - plain[key];
    const added = plain.map((_, key) => (adds ? beyond(key) - beyond(strongest) : 0));
    const divisor = root * settings.temperature;
    const scores = plain.map((product, key) =>
        isMasked(query, key, settings) ? -Infinity : (product + added[key]) / settings.temperature,
    );
    const shown = softmax(scores);
    const width = values.length / count;
    const parts = shown.map((weight, key) =>
        Array.from(values.subarray(key * width, (key + 1) * width), (value) => weight * value),
    );
    const scaled = products.map((product) => product / divisor);
    return { products, divisor, scaled, adds, scores, weights: shown, parts, context: contextOf(shown, values) };
}

/** Return e^score of each score, divided by their sum; zeros if all scores are -∞. */
function softmax(scores) {
    const largest = Math.max(...scores);
    if (largest === -Infinity) return scores.map(() => 0);
    const powers = scores.map((score) => Math.exp(score - largest));
    const sum = powers.reduce((total, power) => total + power, 0);
    return powers.map((power) => power / sum);
}
