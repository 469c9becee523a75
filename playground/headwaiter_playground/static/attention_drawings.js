// Drawings of one token's attention: lines to the tokens that it looks at, and its context vector.
import { strongest } from "./attention_maths.js";
import { svg } from "./dom.js";
import { fixed } from "./numbers.js";
import { fitted, widthOf } from "./tokens.js";

const FONT = "13px ui-monospace, Menlo, Consolas, monospace";
const OWN_FONT = `bold ${FONT}`;
const MOST_LINES = 32;
// On a phone, the lines and the heads are on the screen together.
const NARROW = 480;
const MOST_NARROW_LINES = 5;
const ROW_HEIGHT = 20;
const NUMBER_WIDTH = 56;

/**
 * Return a drawing: the token on the left, and a line to each token that it looks at, as thick as its weight. `cross` is
 * called with the position of a token that is clicked; `crossedOut` has the positions that are crossed out; `isFaint`
 * returns whether a position has a faint line.
 */
export function linesDrawing(tokens, weights, query, width, decimals, crossedOut, isFaint, cross) {
    const { kept, rest } = strongest(weights, width < NARROW ? MOST_NARROW_LINES : MOST_LINES);
    const height = ROW_HEIGHT * (kept.length + (rest > 0 ? 1 : 0));
    const nameWidth = Math.min(130, (width - NUMBER_WIDTH) * 0.32);
    const name = fitted(tokens[query], nameWidth - 4, OWN_FONT);
    const own = Math.max(24, widthOf(name, OWN_FONT));
    const [left, right] = [own + 8, width - NUMBER_WIDTH - nameWidth - 8];
    const middle = (ROW_HEIGHT * kept.length) / 2;
    const largest = weights.reduce((most, weight, key) => (isFaint(key) ? most : Math.max(most, weight)), 0) || 1;
    const parts = kept.flatMap((key, index) => {
        const share = isFaint(key) ? 0 : weights[key] / largest;
        const y = ROW_HEIGHT * (index + 0.5);
        const bend = (left + right) / 2;
        const look = [key === query && "own", crossedOut.has(key) && "crossed-out"].filter(Boolean).join(" ");
        const lookedAt = svg(
            "text",
            { class: `token ${look}`, x: right + 8, y },
            fitted(tokens[key], nameWidth - 4, FONT),
            svg("title", {}, `${tokens[key]}: click to ${crossedOut.has(key) ? "show again" : "cross out"}`),
        );
        lookedAt.addEventListener("click", () => cross(key));
        return [
            svg("path", {
                class: "line",
                d: `M${left} ${middle}C${bend} ${middle} ${bend} ${y} ${right} ${y}`,
                "stroke-width": Math.max(0.5, 9 * share),
                "stroke-opacity": weights[key] > 0 ? 0.25 + 0.75 * share : 0,
            }),
            lookedAt,
            svg("text", { class: "weight", x: width, y }, fixed(weights[key], decimals)),
        ];
    });
    if (rest > 0) {
        const text = `${tokens.length - kept.length} other tokens: ${fixed(rest, decimals)}`;
        parts.push(svg("text", { class: "weight", x: width, y: height - ROW_HEIGHT / 2 }, text));
    }
    const label = `The weights of the token ${tokens[query]}; the table below has the numbers`;
    return picture(width, height, label, [...parts, svg("text", { class: "token own end", x: own, y: middle }, name)]);
}

/** Return a drawing of a vector: one bar for each value, upwards if the value is positive. */
export function contextDrawing(values, width) {
    const [height, margin] = [150, 48];
    const largest = values.reduce((most, value) => Math.max(most, Math.abs(value)), 0) || 1;
    const step = (width - margin) / values.length;
    const zero = height / 2;
    const bars = Array.from(values, (value, index) => {
        const size = (Math.abs(value) / largest) * (zero - 8);
        const place = {
            x: margin + index * step,
            y: value < 0 ? zero : zero - size,
            width: Math.max(0.6, step - 1),
            height: size,
        };
        return svg(
            "rect",
            { class: value < 0 ? "bar negative" : "bar", ...place },
            svg("title", {}, `${index}: ${value}`),
        );
    });
    const label = (y, text) => svg("text", { class: "weight", x: margin - 6, y }, text);
    const labels = [label(10, fixed(largest, 2)), label(zero, "0"), label(height - 10, fixed(-largest, 2))];
    const axis = svg("line", { class: "axis", x1: margin, x2: width, y1: zero, y2: zero });
    return picture(width, height, `${values.length} values from ${fixed(-largest, 2)} to ${fixed(largest, 2)}`, [
        ...bars,
        axis,
        ...labels,
    ]);
}

function picture(width, height, label, parts) {
    return svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, ...parts);
}
