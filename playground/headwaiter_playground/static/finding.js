// The finding: one sentence that says what the drawing shows.
import { byId, element } from "./dom.js";
import { fixed } from "./numbers.js";

const DECIMALS = 2;

/**
 * Say where the token at `query` looks with the weights `row` of a layer and a head; `isFaint` returns whether a key is
 * left out of the sentence.
 */
export function sayFinding(tokens, row, query, layer, head, isFaint) {
    const named = (position) => element("em", {}, tokens[position]);
    let key = -1;
    row.forEach((weight, at) => {
        if (weight > 0 && !isFaint(at) && !(weight <= row[key])) key = at;
    });
    byId("finding").replaceChildren(
        ...(key < 0
            ? [named(query), " has nothing to look at"]
            : [named(query), row[key] > 0.5 ? " looks at " : " looks most at ", key === query ? "itself" : named(key)]),
    );
    byId("finding-layer").textContent = layer;
    byId("finding-head").textContent = head;
    byId("finding-weight").textContent = fixed(row[key] ?? 0, DECIMALS);
}
