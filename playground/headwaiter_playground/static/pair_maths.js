// Which tokens of a pair belong to which text, and how much of the attention goes from the first text to the second.

/**
 * Return the position of the first token of a pair's second text, given the tokens of two pairs with the same first text:
 * one with a second text of one letter, and one with an empty second text. The second text of the pair itself may begin
 * with what the tokenizer takes for a separator. Models that read both texts as one text report no offsets.
 */
export function secondBegin(tokens, tokensWithoutSecond) {
    const differs = tokens.findIndex((token, position) => token !== tokensWithoutSecond[position]);
    return differs < 0 ? tokens.length - 1 : differs;
}

/** Return, for each head, the share of the attention of the first text's tokens that goes to the second text. */
export function acrossShares({ weights, heads, count, begin }) {
    return Array.from({ length: heads }, (_, head) => {
        let sum = 0;
        for (let query = 0; query < begin; query += 1)
            for (let key = begin; key < count; key += 1) sum += weights[(head * count + query) * count + key];
        return sum / begin;
    });
}
