// Converts between the bytes of the server's JSON, which are in base64, and arrays of numbers.

// In a text of rounded weights, the character with the code 35 + n is the weight (n / 127)².
const STEPS = 127;
const CODE_OF_ZERO = 35;

/** Return the numbers of a FLOAT32 Tensor, in the order of its axes. */
export function float32Values(tensor) {
    if (tensor.dtype !== "DATA_TYPE_FLOAT32")
        throw new TypeError(`a tensor of type ${tensor.dtype}: FLOAT32 is wanted`);
    const text = atob(tensor.data);
    const view = new DataView(new ArrayBuffer(text.length));
    for (let index = 0; index < text.length; index += 1) view.setUint8(index, text.charCodeAt(index));
    const values = new Float32Array(text.length / 4);
    // A Float32Array of the bytes would read them in the machine's own order; the server sends little-endian numbers.
    for (let index = 0; index < values.length; index += 1) values[index] = view.getFloat32(4 * index, true);
    return values;
}

/** Return the weights of a reply: those of Attend, or the rounded ones of AttendRounded, in rows that again sum to one. */
export function weightValues(weights) {
    const { rounded, shape } = weights;
    if (rounded === undefined) return float32Values(weights);
    const values = new Float32Array(rounded.length);
    const width = shape.at(-1);
    for (let begin = 0; begin < values.length; begin += width) {
        let sum = 0;
        for (let at = begin; at < begin + width; at += 1) {
            values[at] = ((rounded.charCodeAt(at) - CODE_OF_ZERO) / STEPS) ** 2;
            sum += values[at];
        }
        if (sum > 0) for (let at = begin; at < begin + width; at += 1) values[at] /= sum;
    }
    return values;
}

/** Return how much a rounded weight differs from the weight at most, apart from rows in which many roundings add up. */
export function roundingOf(weight) {
    return Math.sqrt(weight) / STEPS + 1 / (4 * STEPS ** 2);
}

/** Return the rows of a FLOAT32 Tensor of two axes. */
export function float32Rows(tensor) {
    const values = float32Values(tensor);
    const [rows, width] = tensor.shape;
    return Array.from({ length: rows }, (_, row) => values.subarray(row * width, (row + 1) * width));
}

/** Return lists of token ids as TokenSequences. */
export function tokenSequences(sequences) {
    const ids = sequences.flat();
    const view = new DataView(new ArrayBuffer(4 * ids.length));
    ids.forEach((id, index) => view.setInt32(4 * index, id, true));
    const lengths = sequences.map((each) => each.length);
    return { dtype: "DATA_TYPE_INT32", data: base64(new Uint8Array(view.buffer)), lengths };
}

/** Return bytes in base64. */
export function base64(bytes) {
    return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
}
