// Charts: stacked bars, stacked areas, and small lines.
import { svg } from "./dom.js";
import { milliseconds, ticks } from "./numbers.js";

const BAR_ROW = 30;

/**
 * Return stacked bars. Each row has a `name`, its `values` in seconds, and a `total` in words. `marks` has the colours.
 */
export function stackedBars(rows, marks, width, label) {
    const [left, right] = [86, 74];
    const longest = rows.reduce((most, { values }) => Math.max(most, sum(values)), 0) || 1;
    const scale = (width - left - right) / longest;
    const parts = rows.flatMap(({ name, values, total }, index) => {
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
            svg("text", { class: "name", x: 0, y }, name),
            svg("text", { class: "name", x: x + 8, y }, total),
        ];
        return [...bars, ...texts];
    });
    return frame(width, rows.length * BAR_ROW, label, parts);
}

/**
 * Return stacked areas over lengths. `points` has { x, values }, the values in seconds from the bottom to the top.
 */
export function stackedAreas(points, marks, width, label) {
    const [left, right, top, bottom, height] = [56, 12, 12, 40, 300];
    const xs = ticks(points.at(-1).x, width < 500 ? 4 : 8).filter((tick) => tick <= points.at(-1).x);
    const ys = ticks(1000 * points.reduce((most, { values }) => Math.max(most, sum(values)), 0), 5);
    const toX = (x) => left + ((width - left - right) * x) / points.at(-1).x;
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
        svg("text", { class: "name middle", x: (left + width) / 2, y: height - 8 }, "tokens of each sequence"),
        svg("text", { class: "name", x: 0, y: top - 4 }, "ms"),
    ];
    return frame(width, height, label, [...grid, ...areas, ...names, ...axes]);
}

/** Return a small line through values, of which those that are not numbers are left out. */
export function sparkline(values, label) {
    const known = values.filter(Number.isFinite);
    const largest = known.reduce((most, value) => Math.max(most, value), 0) || 1;
    const points = known.map(
        (value, index) => `${(100 * index) / Math.max(1, known.length - 1)},${34 - (32 * value) / largest}`,
    );
    const attributes = { viewBox: "0 0 100 36", preserveAspectRatio: "none", role: "img", "aria-label": label };
    return svg("svg", attributes, svg("polyline", { points: points.join(" ") }));
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
