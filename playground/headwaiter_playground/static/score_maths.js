// The order of scores, and how long their bars are.

/** Return the lengths of bars, from 0 to 1: scores from 0 to 1 as they are, others between the smallest and the largest. */
export function barLengths(scores) {
    const [least, most] = [Math.min(...scores), Math.max(...scores)];
    if (least >= 0 && most <= 1) return scores;
    return scores.map((score) => (most > least ? (score - least) / (most - least) : 1));
}

/** Return the indices of scores in falling order; equal scores keep their order. */
export function fallingOrder(scores) {
    return Array.from(scores.keys()).sort((one, other) => scores[other] - scores[one] || one - other);
}
