// Charts: stacked bars, stacked areas, and small lines.
import { svg } from "./dom.js";
import { milliseconds, ticks } from "./numbers.js";
import { fitted } from "./tokens.js";

const BAR_ROW = 36;
const NOTE_FONT = "11px system-ui, sans-serif";

/**
 * Return stacked bars. Each row has a `name` and a `note` below it, its `values` in seconds, and a `total` in words.
 * `marks` has the colours.
 */
export function stackedBars(rows, marks, width, label) {
    const [left, right] = [86, 74];
    const longest = rows.reduce((most, { values }) => Math.max(most, sum(values)), 0) || 1;
    const scale = (width - left - right) / longest;
    const parts = rows.flatMap(({ name, note, values, total }, index) => {
        const y = index * BAR_ROW + BAR_ROW / 2;
        let x = left;
        const bars = values.map((value, stage) => {
            const place = { x, y: y - 9, width: value * scale, height: 18 };
            x += place.width;
            return svg(
                "rect",
                { class: marks[stage].mark, ...place },
                svg("title", {}, `${marks[stage].name}: ${milliseconds(value)} ms`),
            );
        });
        const texts = [
            svg("text", { class: "name", x: 0, y: y - 6 }, name),
            svg(
                "text",
                { class: "name small", x: 0, y: y + 8 },
                fitted(note, left - 6, NOTE_FONT),
                svg("title", {}, note),
            ),
            svg("text", { class: "name", x: x + 8, y }, total),
        ];
        return [...bars, ...texts];
    });
    return frame(width, rows.length * BAR_ROW, label, parts);
}

/**
 * Return stacked areas. `points` has { x, values }, the values in seconds from the bottom to the top. `axis` has the
 * `name` of x, the `end` of its axis, and perhaps a `mark`, a line at an x with its name.
 */
export function stackedAreas(points, marks, axis, width, label) {
    const [left, right, top, bottom, height] = [56, 12, 36, 40, 320];
    const xs = ticks(axis.end, width < 500 ? 4 : 8).filter((tick) => tick <= axis.end);
    const ys = ticks(1000 * points.reduce((most, { values }) => Math.max(most, sum(values)), 0), 5);
    const toX = (x) => left + ((width - left - right) * x) / axis.end;
    const toY = (seconds) => height - bottom - ((height - top - bottom) * 1000 * seconds) / ys.at(-1);
    const below = points.map(() => 0);
    const areas = marks.map(({ mark, name }, part) => {
        const floor = points.map(({ x }, index) => `${toX(x)} ${toY(below[index])}`);
        points.forEach(({ values }, index) => (below[index] += values[part]));
        const roof = points.map(({ x }, index) => `${toX(x)} ${toY(below[index])}`);
        return svg(
            "path",
            { class: mark, d: `M${roof.join("L")}L${floor.reverse().join("L")}Z` },
            svg("title", {}, name),
        );
    });
    const grid = ys.flatMap((tick) => [
        svg("line", { class: "rule", x1: left, x2: width - right, y1: toY(tick / 1000), y2: toY(tick / 1000) }),
        svg("text", { class: "weight", x: left - 8, y: toY(tick / 1000) }, tickText(tick)),
    ]);
    const names = xs.map((tick) =>
        svg("text", { class: "name middle", x: toX(tick), y: height - bottom + 14 }, tickText(tick)),
    );
    const axes = [
        svg("line", { class: "axis", x1: left, x2: width - right, y1: toY(0), y2: toY(0) }),
        svg("text", { class: "name middle", x: (left + width) / 2, y: height - 8 }, axis.name),
        svg("text", { class: "weight", x: left - 8, y: top - 22 }, "ms"),
    ];
    return frame(width, height, label, [...grid, ...areas, ...names, ...axes, ...marked(axis.mark)]);

    function marked(mark) {
        if (!mark) return [];
        const x = toX(mark.x);
        const isLeft = x > width / 2;
        const name = { class: isLeft ? "name end" : "name", x: isLeft ? x - 6 : x + 6, y: top - 8 };
        return [
            svg("line", { class: "mark", x1: x, x2: x, y1: top - 16, y2: toY(0) }),
            svg("text", name, `${mark.name}: ${tickText(mark.x)}`),
        ];
    }
}

/** Return a small line through the last values, of at most `most`, with gaps for those that are not numbers. */
export function sparkline(values, most, label) {
    const largest = values.reduce((top, value) => Math.max(top, Number.isFinite(value) ? value : 0), 0) || 1;
    const steps = values.map((value, index) => {
        if (!Number.isFinite(value)) return "";
        const place = `${100 - (100 * (values.length - 1 - index)) / (most - 1)} ${34 - (32 * value) / largest}`;
        // A line of no length makes a value between two gaps a dot.
        return Number.isFinite(values[index - 1]) ? `L${place}` : `M${place}h0`;
    });
    const attributes = { viewBox: "0 0 100 36", preserveAspectRatio: "none", role: "img", "aria-label": label };
    return svg("svg", attributes, svg("path", { d: steps.join("") }));
}

function tickText(value) {
    return String(Number(value.toPrecision(4)));
}

function sum(values) {
    return values.reduce((total, value) => total + value, 0);
}

function frame(width, height, label, parts) {
    return svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, ...parts);
}
