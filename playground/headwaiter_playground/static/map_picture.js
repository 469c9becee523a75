// A heat map as a picture with its title and scale.
import { css, heat, readableOn, weightShare } from "./colours.js";
import { element } from "./dom.js";
import { FONT, WEIGHTS_OF_SCALE } from "./heat_maps.js";
import { fitted } from "./tokens.js";

const LEAST_PICTURE_WIDTH = 420;
const PICTURE_MARGIN = 36; // For the title, and for the scale.

/** Return a picture of a map with its title above and the scale below it. */
export function picture(map, title, dark) {
    const factor = globalThis.devicePixelRatio || 1;
    const [width, height] = [Math.max(LEAST_PICTURE_WIDTH, map.width / factor), map.height / factor];
    const canvas = element("canvas", { width: width * factor, height: (height + 2 * PICTURE_MARGIN) * factor });
    const pen = canvas.getContext("2d");
    const style = getComputedStyle(map);
    pen.scale(factor, factor);
    pen.font = FONT;
    pen.textBaseline = "middle";
    pen.fillStyle = style.backgroundColor;
    pen.fillRect(0, 0, width, height + 2 * PICTURE_MARGIN);
    pen.fillStyle = style.color;
    pen.fillText(fitted(title, width - 16, FONT), 8, PICTURE_MARGIN / 2);
    pen.drawImage(map, 0, PICTURE_MARGIN, map.width / factor, height);
    const cell = (width - 16) / WEIGHTS_OF_SCALE.length;
    WEIGHTS_OF_SCALE.forEach((weight, index) => {
        const colour = heat(weightShare(weight), dark);
        const place = { x: 8 + index * cell, y: height + PICTURE_MARGIN + 8 };
        pen.fillStyle = css(colour);
        pen.fillRect(place.x, place.y, cell, PICTURE_MARGIN - 16);
        pen.fillStyle = css(readableOn(colour));
        pen.fillText(String(weight), place.x + 6, height + 1.5 * PICTURE_MARGIN);
    });
    return canvas;
}
