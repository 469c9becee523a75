// What the user typed, as the input of a request: texts, or token ids for models that take no texts.
import { tokenSequences } from "./tensors.js";

export const TEXTS = "texts";
export const TOKENS = "tokens";

/** Return the kinds of input that a model takes from this page; none for models of images and other features. */
export function kindsOf(model) {
    return [...(model.takesTexts ? [TEXTS] : []), ...(model.takesTokens ? [TOKENS] : [])];
}

/** Return why the page has no input for a model, or an empty text. */
export function whyNoInput(model) {
    if (kindsOf(model).length) return "";
    const taken = model.takesImages ? "pictures" : `feature vectors of ${model.featureWidth} numbers`;
    return `${model.model.name} takes ${taken}. This page needs a model that takes texts or token ids.`;
}

/**
 * Return the input of a request, { texts } or { tokens }, for lines that the user typed.
 * Throws a RangeError for a line that holds no token ids.
 */
export function requestInput(kind, lines) {
    return kind === TEXTS ? { texts: { values: lines } } : { tokens: tokenSequences(lines.map(tokenIds)) };
}

/** Return the lines of a text that hold more than white space. */
export function filledLines(text) {
    return text.split(/\r?\n/).filter((line) => line.trim());
}

function tokenIds(line) {
    return line
        .trim()
        .split(/[\s,;]+/)
        .map((word) => {
            if (!/^\d{1,9}$/.test(word))
                throw new RangeError(`“${word}” is not a token id: type whole numbers with spaces between them.`);
            return Number(word);
        });
}
