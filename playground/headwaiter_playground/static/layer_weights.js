// The attention weights of a text, in as many calls as the limit of a reply asks for.
import { weightValues } from "./tensors.js";

// A reply to a page has at most 8 MiB, of which the tokens and the timings take a part.
const MOST_WEIGHT_BYTES = 6 * 2 ** 20;
const CALLS_AT_A_TIME = 2;

/** Return how many heads of a layer one call asks for. A head that is too large alone is left to the server to refuse. */
export function headsPerCall(tokens) {
    return Math.max(1, Math.floor(MOST_WEIGHT_BYTES / (4 * tokens * tokens)));
}

/** Return a number of tokens that a text does not exceed: a token covers a byte or more; some tokens are special. */
export function mostTokens(text) {
    return new TextEncoder().encode(text).length + 8;
}

/**
 * Return the weights of all heads of a layer: `count` tokens, their texts if the model has texts, and `weights`, a
 * Float32Array of [heads, count, count].
 *
 * `ask` makes the call for a list of heads, and returns its reply. If all heads might be too large for one reply, the
 * first call asks for one head, and tells how many tokens there are.
 */
export async function layerWeights(ask, heads, likelyTokens) {
    return wholeLayer(ask, heads, await firstHeads(ask, heads, likelyTokens));
}

function firstHeads(ask, heads, likelyTokens) {
    return ask(heads <= headsPerCall(likelyTokens) ? upTo(heads) : [0]);
}

async function wholeLayer(ask, heads, first) {
    const replies = [first];
    const count = first.weights.shape[2];
    const groups = inGroups(upTo(heads).slice(first.weights.shape[1]), headsPerCall(count));
    for (const pair of inGroups(groups, CALLS_AT_A_TIME)) replies.push(...(await Promise.all(pair.map(ask))));
    const weights = new Float32Array(heads * count * count);
    let end = 0;
    for (const reply of replies) {
        const part = weightValues(reply.weights);
        weights.set(part, end);
        end += part.length;
    }
    return { count, tokens: first.tokens, weights };
}

/**
 * Return the weights of all heads of all layers as `layerWeights` does, [layers · heads, count, count], and `layers`, their
 * indices. If they are too large for one reply, or for the server, the weights are those of the wanted layer alone.
 *
 * `ask` makes the call for a list of layers and a list of heads, and returns its reply.
 */
export async function textWeights(ask, { layers, heads, limits }, wanted, likelyTokens) {
    const mostBytes = limits?.maxAttendBytes || Infinity;
    const fits = (tokens) =>
        layers * heads <= headsPerCall(tokens) && 4 * layers * heads * tokens * tokens <= mostBytes;
    if (!fits(likelyTokens)) {
        const askWanted = (indices) => ask([wanted], indices);
        const first = await firstHeads(askWanted, heads, likelyTokens);
        if (!fits(first.weights.shape[2])) return { ...(await wholeLayer(askWanted, heads, first)), layers: [wanted] };
    }
    const { weights, tokens } = await ask(upTo(layers), upTo(heads));
    return { count: weights.shape[2], tokens, weights: weightValues(weights), layers: upTo(layers) };
}

const upTo = (count) => Array.from({ length: count }, (_, index) => index);

function inGroups(values, size) {
    return Array.from({ length: Math.ceil(values.length / size) }, (_, index) =>
        values.slice(index * size, (index + 1) * size),
    );
}
