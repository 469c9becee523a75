// Colours of heat maps, with text that stays readable on them. A colour is [red, green, blue], 0 to 255.

const LIGHT = { empty: [255, 255, 255], full: [49, 62, 158] };
const DARK = { empty: [28, 30, 38], full: [164, 176, 255] };
const BLACK = [0, 0, 0];
const WHITE = [255, 255, 255];

/** Return the colour of a share from 0 to 1. */
export function heat(share, dark) {
    const { empty, full } = dark ? DARK : LIGHT;
    const clipped = Math.min(1, Math.max(0, share));
    return empty.map((from, channel) => Math.round(from + clipped * (full[channel] - from)));
}

/** Return black or white, whichever is more readable on a colour. */
export function readableOn(colour) {
    return contrast(colour, BLACK) >= contrast(colour, WHITE) ? BLACK : WHITE;
}

/** Return the contrast of two colours as WCAG 2 defines it, from 1 to 21. */
export function contrast(one, other) {
    const [darker, lighter] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (lighter + 0.05) / (darker + 0.05);
}

/** Return a colour in the notation of CSS. */
export function css([red, green, blue]) {
    return `rgb(${red}, ${green}, ${blue})`;
}

/**
 * Return the share of the colour for a weight, the same in all heat maps: small weights stay visible beside large ones.
 */
export function weightShare(weight) {
    return Math.sqrt(weight);
}

/** Return the share of the colour for a cosine. */
export function cosineShare(cosine) {
    return Math.max(0, cosine);
}

function luminance(colour) {
    const [red, green, blue] = colour.map((channel) => {
        const value = channel / 255;
        return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}
