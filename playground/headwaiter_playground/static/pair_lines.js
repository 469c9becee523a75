// The drawing of the attention across a pair: the tokens of both texts in two columns, and lines between them.
import { svg } from "./dom.js";
import { fitted } from "./tokens.js";

const FONT = "13px ui-monospace, Menlo, Consolas, monospace";
const ROW_HEIGHT = 24;
const MOST_ROWS = 32;
const LEAST_SHARE = 0.02; // Of the largest weight.

/**
 * Return the drawing. `weights` has those of a head, [tokens, tokens]; the second text begins at `begin`; `choose` is
 * called with the position of a token that is clicked. Of a long text, the tokens with the largest weights are drawn.
 */
export function pairLines({ tokens, weights, begin, token, width, choose }) {
    const count = tokens.length;
    const isFirst = token < begin;
    // The weight of the line between a token of the first text and one of the second: from the chosen token's text.
    const weight = (first, second) => weights[isFirst ? first * count + second : second * count + first];
    const positions = Array.from(tokens.keys());
    const sides = [positions.slice(0, begin), positions.slice(begin)];
    const most = (position) => {
        const [isLeft, others] = position < begin ? [true, sides[1]] : [false, sides[0]];
        return Math.max(...others.map((other) => (isLeft ? weight(position, other) : weight(other, position))));
    };
    const [left, right] = sides.map((side) => {
        const order = [...side].sort((one, other) => (other === token) - (one === token) || most(other) - most(one));
        return order.slice(0, MOST_ROWS).sort((one, other) => one - other);
    });
    const nameWidth = Math.min(150, width * 0.32);
    const [from, to] = [nameWidth + 8, width - nameWidth - 8];
    const bend = (from + to) / 2;
    const y = (row) => ROW_HEIGHT * (row + 0.5);
    const largest = Math.max(...left.flatMap((first) => right.map((second) => weight(first, second)))) || 1;
    const lines = left.flatMap((first, row) =>
        right.flatMap((second, otherRow) => {
            const share = weight(first, second) / largest;
            const isChosen = first === token || second === token;
            if (share < LEAST_SHARE && !isChosen) return [];
            const [start, end] = [y(row), y(otherRow)];
            return [
                svg("path", {
                    class: "line",
                    d: `M${from} ${start}C${bend} ${start} ${bend} ${end} ${to} ${end}`,
                    "stroke-width": isChosen ? Math.max(0.5, 9 * share) : 1,
                    "stroke-opacity": isChosen ? 0.25 + 0.75 * share : 0.6 * share,
                }),
            ];
        }),
    );
    const name = (position, row) => {
        const isLeft = position < begin;
        const look = `token ${isLeft ? "end" : ""} ${position === token ? "own" : ""}`;
        const shown = svg(
            "text",
            { class: look, x: isLeft ? from - 8 : to + 8, y: y(row) },
            fitted(tokens[position], nameWidth - 4, FONT),
            svg("title", {}, tokens[position]),
        );
        shown.addEventListener("click", () => choose(position));
        return shown;
    };
    const height = ROW_HEIGHT * Math.max(left.length, right.length);
    const label = `Lines between the tokens of both texts; the table below has the numbers of ${tokens[token]}`;
    const attributes = { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label };
    return svg("svg", attributes, ...lines, ...left.map(name), ...right.map(name));
}
