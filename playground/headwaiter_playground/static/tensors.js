// Converts between the bytes of the server's JSON, which are in base64, and arrays of numbers.

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
