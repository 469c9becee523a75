// Scores as bars, and as tables with a bar in each row.
import { element, table } from "./dom.js";
import { fixed } from "./numbers.js";
import { barLengths } from "./score_maths.js";

export const SCORE_DECIMALS = 4;

/**
 * Return a table of names with their scores, as numbers and as bars. `names` are texts or nodes; `head` names the two
 * columns.
 */
export function scoreTable(caption, head, names, scores) {
    const lengths = barLengths(scores);
    const rows = names.map((name, index) => [name, fixed(scores[index], SCORE_DECIMALS), bar(lengths[index])]);
    const shown = table(caption, [...head, ""], rows);
    shown.className = "scores";
    shown.tHead.rows[0].lastChild.replaceWith(element("td"));
    return shown;
}

function bar(length) {
    const filled = element("i");
    filled.style.width = `${100 * length}%`;
    return element("span", { class: "score-bar", "aria-hidden": "true" }, filled);
}
