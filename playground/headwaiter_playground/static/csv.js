// Writes CSV that spreadsheets read as data. Spreadsheets run a field that begins with one of = + - @ as a formula.

const FORMULA = /^[=+\-@\t\r]/;

/** Return rows of texts and numbers as CSV (RFC 4180). A text that looks like a formula gets an apostrophe in front. */
export function csv(rows) {
    return rows.map((row) => `${row.map(field).join(",")}\r\n`).join("");
}

function field(value) {
    if (typeof value === "number") return String(value);
    const safe = FORMULA.test(value) ? `'${value}` : value;
    return `"${safe.replaceAll('"', '""')}"`;
}
