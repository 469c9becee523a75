// What heads do: patterns that heads follow, the head that follows a pattern best, and numbers to sort heads by.
import { roundingOf } from "./tensors.js";

const SEPARATOR = /^(\[(cls|sep|pad)\]|<\/?s>|<(bos|eos|pad|cls|sep)>|<\|.*\|>)$/i;
// The marks of tokenizers for a token that begins a word, or that goes on with one.
const MARKS = /^(##|[Ġ▁ ])+/;
const FAR = 4;
// Heads may be nearly equal in a pattern: the page does not ask for all of them.
const MOST_LIKELY = 3;
const DIMMED = 0.05;

/** Return whether a token only marks where a text begins or ends. */
export function isSeparator(token) {
    return SEPARATOR.test(token);
}

/** Return the word that a token has, in lower case, or an empty text: separators and punctuation are no words. */
function wordOf(token) {
    const word = token.replace(MARKS, "").toLowerCase();
    return /\p{L}/u.test(word) && !isSeparator(token) ? word : "";
}

/**
 * The patterns. `fits` returns whether the weight from the position `query` to the position `key` counts, by the `words`
 * of all tokens and by which of them are `separators`; a head is as good as its `mean` over the tokens that have such
 * weights, otherwise as its largest such weight. `rule` says the same in words.
 */
export const PATTERNS = Object.freeze({
    reference: {
        fits: (query, key, { words }) =>
            query - key >= FAR && words[query] && words[key] && words[query] !== words[key],
        rule: `has the largest weight from a word to another word ${FAR} or more tokens earlier`,
    },
    previous: {
        fits: (query, key, { separators }) => query === key + 1 && !separators[query] && !separators[key],
        mean: true,
        rule: "gives the token before a token the largest weight, on average",
    },
    same: {
        fits: (query, key, { words }) => query !== key && words[key] && words[query] === words[key],
        mean: true,
        rule: "gives other occurrences of the same word the largest weight, on average",
    },
    separator: {
        fits: (query, key, { separators }) => separators[key] && !separators[query],
        mean: true,
        rule: "gives separators the largest weight, on average",
    },
    any: {
        fits: (query, key, { words }) => query !== key || words.length === 1,
        rule: "has the largest weight from a token to another one",
    },
});

/**
 * Return the head that follows a pattern best, by its `index` in `weights`, [heads, tokens, tokens], and the `query` and
 * `key` of its largest weight that counts; or null if no weight counts.
 */
export function bestHead(weights, tokens, pattern) {
    const count = tokens.length;
    const [best] = rankedHeads(weights, tokens, pattern);
    return best ? { index: best.index, query: Math.floor(best.cell / count), key: best.cell % count } : null;
}

/** Return the indices of the heads of which rounded weights do not tell which one follows a pattern best. */
export function likelyHeads(weights, tokens, pattern) {
    const ranked = rankedHeads(weights, tokens, pattern);
    const isLikely = ({ score }) => score + roundingOf(score) >= ranked[0].score - roundingOf(ranked[0].score);
    return ranked.filter(isLikely).slice(0, MOST_LIKELY).map(({ index }) => index);
}

/** Return all heads, the one that follows a pattern best first; none if no weight counts. */
function rankedHeads(weights, tokens, { fits, mean = false }) {
    const count = tokens.length;
    const kinds = { words: tokens.map(wordOf), separators: tokens.map(isSeparator) };
    const cells = [];
    for (let query = 0; query < count; query += 1)
        for (let key = 0; key < count; key += 1) if (fits(query, key, kinds)) cells.push(query * count + key);
    const queries = new Set(cells.map((cell) => Math.floor(cell / count))).size;
    const ranked = [];
    for (let start = 0; start < weights.length && queries; start += count * count) {
        let [largest, sum] = [cells[0], 0];
        for (const cell of cells) {
            sum += weights[start + cell];
            if (weights[start + cell] > weights[start + largest]) largest = cell;
        }
        const score = mean ? sum / queries : weights[start + largest];
        ranked.push({ score, index: start / (count * count), cell: largest });
    }
    return ranked.sort((one, other) => other.score - one.score);
}

/**
 * The numbers to sort heads by. `of` returns the number of a head from its weights, [tokens, tokens], for which `first`
 * is 1 if the smallest comes first, and -1 if the largest does; `pair` has the positions of two tokens. Rounded weights
 * give numbers of so many `decimals`, of which the last may differ by one.
 */
export const ORDERS = Object.freeze({
    pair: { first: -1, decimals: 2, of: (weights, tokens, { query, key }) => weights[query * tokens.length + key] },
    entropy: {
        first: 1,
        decimals: 2,
        of: (weights, tokens) => meanOfRows(weights, tokens, (w) => (w > 0 ? -w * Math.log2(w) : 0)),
    },
    distance: {
        first: -1,
        decimals: 1,
        of: (weights, tokens) => meanOfRows(weights, tokens, (weight, query, key) => weight * Math.abs(query - key)),
    },
    separators: {
        first: -1,
        decimals: 2,
        of: (weights, tokens) => {
            const separators = tokens.map(isSeparator);
            return meanOfRows(weights, tokens, (weight, query, key) => (separators[key] ? weight : 0));
        },
    },
});

/** Return weights, [tokens, tokens], in which those of separators are small, for drawings. */
export function dimmed(weights, tokens) {
    const separators = tokens.map(isSeparator);
    return weights.map((weight, cell) => (separators[cell % tokens.length] ? DIMMED * weight : weight));
}

function meanOfRows(weights, tokens, part) {
    const count = tokens.length;
    let sum = 0;
    weights.forEach((weight, cell) => (sum += part(weight, Math.floor(cell / count), cell % count)));
    return sum / count;
}
