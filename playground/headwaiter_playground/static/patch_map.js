// A picture with the attention over its patches: what gets little attention is dark.

const MOST_SIDE = 480;
const DARKEST = 0.8;

/**
 * Draw the part of a picture that a model sees. `weights` has one for each patch, row by row; `chosen` is the patch that
 * looks, negative if it is none. Sets `canvas.patchAt`, which returns the patch at a place in the canvas.
 */
export function drawPatches(canvas, { bitmap, part, grid, weights, chosen }) {
    const { rows, columns } = grid;
    const room = Math.min(MOST_SIDE, canvas.parentElement.clientWidth);
    const patch = Math.min(room / columns, MOST_SIDE / rows);
    const [width, height] = [patch * columns, patch * rows];
    const scale = globalThis.devicePixelRatio || 1;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    canvas.setAttribute("aria-label", `The picture in ${rows} by ${columns} patches; the table below has the weights`);
    canvas.patchAt = (x, y) => {
        const [column, row] = [x, y].map((place) => Math.floor(place / patch));
        return column < columns && row < rows ? row * columns + column : undefined;
    };
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    pen.drawImage(bitmap, part.x, part.y, part.width, part.height, 0, 0, width, height);
    const largest = weights.reduce((most, weight) => Math.max(most, weight), 0) || 1;
    const place = (index) => [(index % columns) * patch, Math.floor(index / columns) * patch, patch, patch];
    weights.forEach((weight, index) => {
        pen.fillStyle = `rgb(0 0 0 / ${DARKEST * (1 - Math.sqrt(weight / largest))})`;
        pen.fillRect(...place(index));
    });
    pen.strokeStyle = "rgb(255 255 255 / 0.35)";
    pen.lineWidth = 1;
    weights.forEach((_, index) => pen.strokeRect(...place(index)));
    if (chosen < 0) return;
    pen.strokeStyle = getComputedStyle(canvas).outlineColor;
    pen.lineWidth = 3;
    const [x, y] = place(chosen);
    pen.strokeRect(x + 1.5, y + 1.5, patch - 3, patch - 3);
}
