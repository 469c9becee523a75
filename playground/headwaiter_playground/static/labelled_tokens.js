// A text whose tokens have labels: each token with its best label and score.
import { element, table } from "./dom.js";
import { fixed } from "./numbers.js";
import { SCORE_DECIMALS } from "./score_bars.js";
import { fallingOrder } from "./score_maths.js";

// The label of a token that is nothing in particular, in the usual schemes.
const NOTHING = "O";

/**
 * Return a card with a text. Each token that has a place in the text stands with its best label below it, unless the
 * label says that the token is nothing in particular; a table has the scores of all tokens. `rows` has the scores of the
 * labels of each token; without `offsets`, as for token ids, `text` has an id for each token.
 */
export function labelledTokens(text, labels, rows, offsets) {
    const characters = Array.from(text);
    const ids = text.trim().split(/[\s,;]+/);
    const tokens = rows.map((scores, position) => {
        const best = fallingOrder(scores)[0];
        const [begin, end] = offsets ? [offsets.begin[position], offsets.end[position]] : [position, position + 1];
        const word = offsets ? characters.slice(begin, end).join("") : ids[position];
        return { position, begin, end, word, label: labels[best] || `label ${best}`, score: scores[best] };
    });
    const placed = tokens.filter(({ begin, end }) => end > begin);
    const words = placed.flatMap((token, index) => {
        const before = index ? placed[index - 1].end : 0;
        const between = offsets ? characters.slice(before, token.begin).join("") : " ";
        return [between, mark(token)];
    });
    const rest = offsets ? characters.slice(placed.at(-1)?.end ?? 0).join("") : "";
    const numbers = placed.map(({ position, word, label, score }) => [
        `${position}`,
        word,
        label,
        fixed(score, SCORE_DECIMALS),
    ]);
    const shown = table("The best label of each token", ["position", "token", "label", "score"], numbers, 3);
    const region = { class: "scroll tall", tabindex: "0", role: "region", "aria-label": `Labels of ${text}` };
    const details = element("details", {}, element("summary", {}, "Numbers"), element("div", region, shown));
    return element("article", { class: "card" }, element("p", { class: "labelled" }, ...words, rest), details);
}

function mark({ word, label, score }) {
    if (label === NOTHING) return word;
    const title = `${label}: ${fixed(score, SCORE_DECIMALS)}`;
    return element("mark", { title }, word, element("small", {}, label));
}
