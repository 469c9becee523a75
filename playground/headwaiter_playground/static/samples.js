// Sequences for trying the speed of a model: words or token ids of different lengths.

const WORDS =
    "bread river stone light window garden letter music winter harbour engine paper mountain silver voice".split(" ");

/** Return `count` lines of words, or of token ids if the model takes no texts, of 1 to `longest` words. */
export function sampleSequences(model, count, longest, random = Math.random) {
    const pick = (limit) => Math.floor(random() * limit);
    const word = model.takesTexts ? () => WORDS[pick(WORDS.length)] : () => String(pick(model.vocabularySize));
    const [least, most] = model.takesTexts
        ? [1, longest]
        : [model.minTokens, Math.max(model.minTokens, Math.min(longest, model.maxTokens))];
    return Array.from({ length: count }, () => Array.from({ length: least + pick(most - least + 1) }, word).join(" "));
}
