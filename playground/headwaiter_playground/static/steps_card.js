// The card that draws the steps of a head for one token, as a table with one row for each key.
import { strongest } from "./attention_maths.js";
import { weightShare } from "./colours.js";
import { byId, element, svg, table } from "./dom.js";
import { headSteps } from "./head_steps.js";
import { colouredBy } from "./heat_maps.js";
import { fixed } from "./numbers.js";
import { isDark } from "./theme.js";

const DECIMALS = 4;
const SHORT = 2;
const MOST_ROWS = 32;

/** Draw the steps of a context vector as `contextCard` has it, under the settings; nothing if its keys are not known. */
export function drawSteps(vector, settings) {
    byId("steps-card").hidden = !vector?.keys;
    if (!vector?.keys) return;
    const { query, layer, head, tokens } = vector;
    const steps = headSteps(vector, settings);
    const { kept, rest } = strongest(steps.weights, MOST_ROWS);
    const divisor = `√${vector.queryVector.length}${settings.temperature === 1 ? "" : ` · ${settings.temperature}`}`;
    const largest = [...steps.parts, steps.context]
        .flatMap((values) => [...values])
        .reduce((most, value) => Math.max(most, Math.abs(value)), 0);
    const bars = [steps.products, steps.scaled, steps.scores].map(barOf);

    const rows = kept.map((key) => {
        const [product, scaled, score, weight] = ["products", "scaled", "scores", "weights"].map((step) => steps[step][key]);
        const pair = `“${tokens[query]}” and “${tokens[key]}”`;
        const share = element("span", { title: `softmax of ${exact(score)}: ${exact(weight)}` }, fixed(weight, DECIMALS));
        colouredBy(share, weightShare(weight), isDark());
        return [
            tokens[key],
            bars[0](product, `q · k of ${pair}: ${exact(product)}`),
            bars[1](scaled, `${exact(product)} / (${divisor}) = ${exact(scaled)}`),
            bars[2](score, score === -Infinity ? "masked: −∞" : exact(score)),
            share,
            strip(steps.parts[key], largest, `${exact(weight)} · value of “${tokens[key]}”`),
        ];
    });
    if (rest > 0) {
        const others = [...steps.parts.keys()].filter((key) => !kept.includes(key));
        const sums = Array.from(steps.context, (_, index) => others.reduce((sum, key) => sum + steps.parts[key][index], 0));
        rows.push([`${others.length} others`, "", "", "", fixed(rest, DECIMALS), strip(sums, largest, "sum of the others")]);
    }
    const sum = steps.weights.reduce((total, weight) => total + weight, 0);
    const total = strip(steps.context, largest, "context vector");
    rows.push(["sum", "", "", "", fixed(sum, DECIMALS), total]);

    byId("steps-title").textContent = `Steps of layer ${layer}, head ${head} for token ${query} “${tokens[query]}”`;
    const mask = steps.adds ? "mask, and what the model adds" : "mask";
    const names = ["key", "q · k", `→ / ${divisor}`, `→ ${mask}`, "→ softmax", "→ weight · value"];
    const caption = "Point at a number or a colour to see it in full.";
    byId("steps").replaceChildren(table(caption, names, rows));
}

const exact = (value) => (value === -Infinity ? "−∞" : fixed(value, DECIMALS));

/** Return a function that shows a number of a column, over a bar from the column's smallest number to its largest one. */
function barOf(column) {
    const finite = column.filter(Number.isFinite);
    const least = Math.min(...finite);
    const span = Math.max(...finite) - least || 1;
    return (value, title) => {
        const text = value === -Infinity ? "−∞" : fixed(value, SHORT);
        const cell = element("span", { class: "step", title }, text, element("i"));
        cell.style.setProperty("--share", Number.isFinite(value) ? (value - least) / span : 0);
        return cell;
    };
}

/** Return the values of a vector as coloured cells; `name` says what the vector is. */
function strip(values, largest, name) {
    const cells = Array.from(values, (value, index) =>
        svg(
            "rect",
            { class: value < 0 ? "bar negative" : "bar", x: index, y: 0, width: 1, height: 1, "fill-opacity": Math.abs(value) / (largest || 1) },
            svg("title", {}, `${name}, number ${index}: ${exact(value)}`),
        ),
    );
    const box = { viewBox: `0 0 ${values.length} 1`, preserveAspectRatio: "none", class: "strip" };
    return svg("svg", { ...box, role: "img", "aria-label": name }, ...cells);
}
