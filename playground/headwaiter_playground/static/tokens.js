// Tokens as texts for the screen: visible control characters, and lengths that fit.

const MOST_CHARACTERS = 60;
const measure = globalThis.document?.createElement("canvas").getContext("2d");

/** Return a token with pictures in place of control characters, so that each token can be seen. */
export function shownToken(token) {
    const shown = token.replace(/[\u0000-\u001f\u007f]/g, (character) =>
        String.fromCharCode(character === "\u007f" ? 0x2421 : 0x2400 + character.charCodeAt(0)),
    );
    return shown.trim() ? shown : "␠".repeat(Math.max(1, shown.length));
}

/** Return a text without what is beyond its first characters. */
export function shortened(text) {
    const characters = Array.from(text);
    return characters.length > MOST_CHARACTERS ? `${characters.slice(0, MOST_CHARACTERS).join("")}…` : text;
}

/** Return the width of a text in pixels. */
export function widthOf(text, font) {
    measure.font = font;
    return measure.measureText(text).width;
}

/** Return a text, shortened with … until it is at most `width` pixels wide in a font. */
export function fitted(text, width, font) {
    if (widthOf(text, font) <= width) return text;
    const characters = Array.from(text);
    while (characters.length && widthOf(`${characters.join("")}…`, font) > width) characters.pop();
    return `${characters.join("")}…`;
}
