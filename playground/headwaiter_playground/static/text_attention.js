// What the tab Attention asks for: the rounded weights of all heads of a text, and the weights of some heads.
import { PATTERNS, likelyHeads } from "./head_patterns.js";
import { mostTokens, textWeights } from "./layer_weights.js";
import { TOKENS, requestInput } from "./sequence_input.js";
import { float32Values } from "./tensors.js";
import { withoutUnknown } from "./token_spans.js";
import { shownToken } from "./tokens.js";

/**
 * Return the attention of the typed text: `weights` are the rounded ones of the heads of all `layers`, and `exact` has those
 * of single heads, by layer and head. If a pattern is wanted, these are the heads that may follow the pattern best, and
 * `weights` have their weights, too. `call` makes a call of the model.
 */
export async function textAttention(call, model, { kind, text }, wantedLayer, pattern) {
    const sequence = requestInput(kind, [text]);
    const ids = kind === TOKENS ? text.trim().split(/[\s,;]+/) : null;
    const ask = (layers, heads) => call("AttendRounded", { ...sequence, layers, heads });
    const result = await textWeights(ask, model, wantedLayer, ids?.length ?? mostTokens(text));
    const { layers, weights, count } = result;
    const tokens = (ids ?? (await withoutUnknown(call, model, text, result.tokens))).map(shownToken);
    const exact = new Map();
    const likely = [pattern, pattern && PATTERNS.any]
        .map((each) => (each ? likelyHeads(weights, tokens, each) : []))
        .find(({ length }) => length);
    // One head is asked for with its vectors later on.
    if (likely?.length > 1) await Promise.all(likely.map(add));
    const layer = layers.includes(wantedLayer) ? wantedLayer : layers[0];
    return { ...result, layer, model, heads: model.heads, sequence, text, tokens, exact, vectors: new Map() };

    async function add(index) {
        const [layer, head] = [layers[Math.floor(index / model.heads)], index % model.heads];
        const values = float32Values((await call("Attend", { ...sequence, layers: [layer], heads: [head] })).weights);
        exact.set(`${layer}/${head}`, values);
        weights.set(values, index * count * count);
    }
}
