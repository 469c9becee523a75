// The table of the weights of one token.
import { byId, showTable, table } from "./dom.js";
import { fixed } from "./numbers.js";

const DECIMALS = 4;

/** Show the weights of a token, named by `title`: those of the model, `exact`, and those under masks and temperature, `now`. */
export function drawWeights(title, tokens, exact, now) {
    const sum = now.reduce((total, weight) => total + weight, 0);
    const note = sum > 0 ? "" : " The masks leave this token nothing to look at.";
    const rows = Array.from(now, (weight, key) => [
        `${key}`,
        tokens[key],
        fixed(exact[key], DECIMALS),
        fixed(weight, DECIMALS),
    ]);
    const caption = `Weights of ${title}. The shown weights add up to ${fixed(sum, DECIMALS)}.${note}`;
    const names = ["position", "token", "model’s weight", "shown weight"];
    showTable(byId("weights-table"), table(caption, names, rows, 2));
}
