// Heat maps of attention weights on canvases, and elements that are coloured like their cells.
import { css, heat, readableOn, weightShare } from "./colours.js";
import { element } from "./dom.js";
import { fixed } from "./numbers.js";
import { fitted } from "./tokens.js";

export const FONT = "12px ui-monospace, Menlo, Consolas, monospace";
// With more tokens than this, a map has no names beside its rows.
const MAX_NAMES = 48;
const NAME_WIDTH = 76;
export const WEIGHTS_OF_SCALE = [0, 0.01, 0.1, 0.25, 0.5, 1];
const DECIMALS = 4;
// Between two colours there are at most 255 steps, so more shades would look the same.
const SHADES = 255;
const LIGHT_SHADES = shadesOf(false);
const DARK_SHADES = shadesOf(true);

/** Colour an element like a cell with a share of the colour, with text that stays readable. */
export function colouredBy(target, share, dark) {
    const colour = heat(share, dark);
    target.style.backgroundColor = css(colour);
    target.style.color = css(readableOn(colour));
}

/** Return the legend of heat maps: values on their colours. `shareOf` returns the share of the colour for a value. */
export function scale(values, shareOf, dark) {
    return values.map((value) => {
        const cell = element("span", {}, String(value));
        colouredBy(cell, shareOf(value), dark);
        return cell;
    });
}

/** Draw the weights of a head, [tokens, tokens], with one pixel for each cell. */
export function drawHead(canvas, weights, tokens, dark) {
    canvas.width = canvas.height = tokens;
    canvas.getContext("2d").putImageData(pixels(weights, tokens, dark), 0, 0);
}

/**
 * Draw the weights of a head with the names of the tokens and a frame around the row of the chosen token. Sets
 * `canvas.cellAt`, which returns the position `query` of the row at a place in the canvas, and the cell in `words`.
 * `coloured` has the weights of the colours.
 */
export function labelledMap(canvas, tokens, weights, coloured, query, dark) {
    const width = canvas.parentElement.clientWidth - 2 * parseFloat(getComputedStyle(canvas.parentElement).paddingLeft);
    const named = tokens.length <= MAX_NAMES && width / tokens.length > 8;
    const margin = named ? NAME_WIDTH : 0;
    const cell = Math.min(34, (width - margin) / tokens.length);
    const side = cell * tokens.length;
    const scale = globalThis.devicePixelRatio || 1;
    canvas.width = Math.round((margin + side) * scale);
    canvas.height = Math.round((margin + side) * scale);
    canvas.style.width = `${margin + side}px`;
    canvas.style.height = `${margin + side}px`;
    canvas.setAttribute(
        "aria-label",
        `Heat map of ${tokens.length} by ${tokens.length} weights; the numbers of the chosen row are in the table below`,
    );
    canvas.cellAt = (x, y) => {
        const [key, query] = [x, y].map((place) => Math.floor((place - margin) / cell));
        if (!tokens[query]) return null;
        const weight = weights[query * tokens.length + key];
        return { query, words: tokens[key] ? `${tokens[query]} → ${tokens[key]}: ${fixed(weight, DECIMALS)}` : "" };
    };

    const pen = canvas.getContext("2d");
    const style = getComputedStyle(canvas);
    pen.scale(scale, scale);
    pen.fillStyle = style.backgroundColor;
    pen.fillRect(0, 0, margin + side, margin + side);
    const small = document.createElement("canvas");
    drawHead(small, coloured, tokens.length, dark);
    pen.imageSmoothingEnabled = false;
    pen.drawImage(small, margin, margin, side, side);
    pen.strokeStyle = style.outlineColor;
    pen.lineWidth = 2;
    pen.strokeRect(margin + 1, margin + query * cell, side - 2, cell);
    if (named) drawNames(pen, tokens, margin, cell, query, style);
}

function drawNames(pen, tokens, margin, cell, query, style) {
    pen.font = FONT;
    pen.fillStyle = style.color;
    pen.textBaseline = "middle";
    tokens.forEach((token, position) => {
        const name = fitted(token, margin - 8, FONT);
        const middle = margin + (position + 0.5) * cell;
        pen.font = position === query ? `bold ${FONT}` : FONT;
        pen.textAlign = "right";
        pen.fillText(name, margin - 6, middle, margin - 8);
        pen.save();
        pen.translate(middle, margin - 6);
        pen.rotate(-Math.PI / 2);
        pen.textAlign = "left";
        pen.fillText(name, 0, 0, margin - 8);
        pen.restore();
    });
}

function pixels(weights, tokens, dark) {
    const image = new ImageData(tokens, tokens);
    const shades = dark ? DARK_SHADES : LIGHT_SHADES;
    const cells = new Uint32Array(image.data.buffer);
    for (let index = 0; index < weights.length; index += 1)
        cells[index] = shades[Math.round(SHADES * Math.min(1, weightShare(weights[index])))];
    return image;
}

/** Return the pixels, red, green, blue and opacity in a Uint32, of the shares from 0 to 1 in even steps. */
function shadesOf(dark) {
    const colours = Array.from({ length: SHADES + 1 }, (_, shade) => [...heat(shade / SHADES, dark), 255]);
    return new Uint32Array(Uint8Array.from(colours.flat()).buffer);
}
