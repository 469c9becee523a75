// Numbers as texts.

/** Return a weight or a cosine with a fixed number of decimals. */
export function fixed(value, decimals) {
    return Number.isFinite(value) ? value.toFixed(decimals) : "–";
}

/** Return seconds in milliseconds with three or more digits. */
export function milliseconds(seconds) {
    const value = 1000 * seconds;
    return value.toFixed(value >= 100 ? 0 : value >= 10 ? 1 : 2);
}

/** Return a whole number with thin spaces between its thousands. */
export function grouped(value) {
    return String(Math.round(value)).replace(/\B(?=(\d{3})+$)/g, "\u202f");
}

/** Return a number with its noun, such as 1 text or 2 texts. */
export function counted(count, noun, nouns = `${noun}s`) {
    return `${grouped(count)} ${count === 1 ? noun : nouns}`;
}

/** Return a share from 0 to 1 in percent. */
export function percent(share) {
    return Number.isFinite(share) ? `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %` : "–";
}

/** Return a difference such as 1.2e-7; 0 stays 0. */
export function scientific(value) {
    return value === 0 ? "0" : Number(value).toExponential(1);
}

/** Return the name of an enum value in plain words: PRECISION_FP32 becomes fp32. */
export function enumWords(name, prefix) {
    return String(name).replace(prefix, "").toLowerCase().replaceAll("_", " ");
}

/** Return round numbers from 0 to at least `largest`, about `count` of them. */
export function ticks(largest, count = 4) {
    if (!(largest > 0)) return [0, 1];
    const rough = largest / count;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((each) => each >= rough);
    const steps = Math.ceil(largest / step - 1e-9);
    return Array.from({ length: steps + 1 }, (_, index) => index * step);
}
