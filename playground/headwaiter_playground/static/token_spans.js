// Which part of a text each token stands for. Attend tells the tokens of a text, and Encode tells their places.

const UNKNOWN = /^[[<]unk[\]>]$/i;

/** Return a text without what is beyond the most tokens that a model takes. `call` makes a call of the model. */
export async function truncated(call, model, text) {
    const { end } = await spans(call, model, text, "TRUNCATION_RIGHT");
    return Array.from(text).slice(0, Math.max(...end)).join("");
}

/** Return tokens, with the part of the text in place of each that is not in the model's vocabulary. */
export async function withoutUnknown(call, model, text, tokens) {
    if (!tokens.some((token) => UNKNOWN.test(token))) return tokens;
    const { begin, end } = await spans(call, model, text, "TRUNCATION_ERROR");
    const characters = Array.from(text);
    return tokens.map((token, at) =>
        UNKNOWN.test(token) ? characters.slice(begin[at], end[at]).join("") || token : token,
    );
}

/** Return the position of the token at `position` after a change of the text, or the nearest one if it has none. */
export function followed(before, after, position) {
    const most = Math.min(before.length, after.length);
    let same = 0;
    while (same < most && before[same] === after[same]) same += 1;
    if (position < same) return position;
    let sameAtEnd = 0;
    while (sameAtEnd < most - same && before.at(-1 - sameAtEnd) === after.at(-1 - sameAtEnd)) sameAtEnd += 1;
    const moved = position >= before.length - sameAtEnd ? position + after.length - before.length : position;
    return Math.min(moved, after.length - 1);
}

async function spans(call, model, text, truncation) {
    const rows = model.withoutRows ? { scores: true } : { hidden: true, hiddenDtype: "DATA_TYPE_INT8" };
    const output = { ...(model.pooling === "POOLING_NONE" ? rows : { pooled: true }), offsets: true };
    return (await call("Encode", { texts: { values: [text] }, truncation, output })).offsets[0];
}
