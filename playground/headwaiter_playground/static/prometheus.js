// Reads the text of a Prometheus metrics page, and what two readings say about the time between them.

const SAMPLE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)/;
const MODEL = /(?:^|,)model="((?:[^"\\]|\\.)*)"/;

/** Return the sum of each metric of a model over all its other labels, as a Map from the metric's name. */
export function readTotals(text, model) {
    const own = model.replaceAll("\\", "\\\\").replaceAll('"', '\\"').replaceAll("\n", "\\n");
    const totals = new Map();
    for (const line of text.split("\n")) {
        const [, name, labels, value] = line.match(SAMPLE) ?? [];
        if (name && labels?.match(MODEL)?.[1] === own) totals.set(name, (totals.get(name) ?? 0) + Number(value));
    }
    return totals;
}

/** Return how much a counter grew between two readings per second; 0 if the server has restarted. */
export function ratePerS(before, after, name, seconds) {
    return Math.max(0, grown(before, after, name)) / seconds;
}

/** Return the mean of the values that a histogram took between two readings; NaN if it took none. */
export function meanBetween(before, after, name) {
    const count = grown(before, after, `${name}_count`);
    return count > 0 ? grown(before, after, `${name}_sum`) / count : NaN;
}

function grown(before, after, name) {
    return (after.get(name) ?? 0) - (before.get(name) ?? 0);
}
