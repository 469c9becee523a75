// A picture that the user has chosen: its bytes for the server, and its pixels for the screen.

// The server of the page takes bodies of 256 KiB, and base64 has 4 characters for 3 bytes.
const MOST_BYTES = 180_000;
const LEAST_QUALITY = 0.3;
// The server takes pictures of at most so many pixels.
const MOST_PIXELS = 2 ** 25;

/**
 * Return `{ bytes, bitmap, isCopy }` for a file: as it is if it is a small JPEG or PNG file, otherwise a smaller JPEG copy, whose
 * sides are still `side` pixels or more. Throws a RangeError if the browser cannot read the file as a picture.
 */
export async function readPicture(file, side) {
    let bitmap;
    try {
        bitmap = await createImageBitmap(file);
    } catch {
        throw new RangeError(`“${file.name}” is not a picture that this browser reads: choose a JPEG or PNG file.`);
    }
    const isSmall = file.size <= MOST_BYTES && bitmap.width * bitmap.height <= MOST_PIXELS;
    if (isSmall && ["image/jpeg", "image/png"].includes(file.type))
        return { bytes: new Uint8Array(await file.arrayBuffer()), bitmap, isCopy: false };
    const factor = Math.min(1, (2 * side) / Math.min(bitmap.width, bitmap.height));
    const canvas = document.createElement("canvas");
    canvas.width = Math.max(1, Math.round(bitmap.width * factor));
    canvas.height = Math.max(1, Math.round(bitmap.height * factor));
    const pen = canvas.getContext("2d");
    // What is transparent becomes white, as in the server.
    pen.fillStyle = "white";
    pen.fillRect(0, 0, canvas.width, canvas.height);
    pen.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    for (let quality = 0.95; quality > LEAST_QUALITY; quality -= 0.15) {
        const copy = await new Promise((done) => canvas.toBlob(done, "image/jpeg", quality));
        // A canvas with a side beyond the browser's limit has no copy.
        if (copy?.size <= MOST_BYTES) return { bytes: new Uint8Array(await copy.arrayBuffer()), bitmap, isCopy: true };
    }
    throw new RangeError(`“${file.name}” is too long and narrow for this page: choose a part of it.`);
}
